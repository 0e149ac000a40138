/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_magnitudes.c: every kernel of the table against the oracle where scores are not of the size of one: so large that a
 * row is its largest key, very negative throughout, with a maximum that grows from block to block or from split to split, so
 * that every sum has to be rescaled, or falls, all of it side by side in the lanes of a tile, or so far from zero that a
 * product of it and log2 e is rounded by more than any exponent. */
#include "against_oracle.h"
#include "cpu/decode/split_kv.h"

enum { SEVERAL_BLOCKS = 4 * BLOCK_KEYS + 5, SEVERAL_SPLITS = 2 * DEFAULT_SPLIT + 77 };

#define SIZE     .batch = 2, .seq_q = 61, .seq_k = SEVERAL_BLOCKS, .heads_q = 4, .heads_kv = 2, .dim = 16, .dim_v = 9
#define DECODING .batch = 2, .seq_q = 1, .seq_k = SEVERAL_SPLITS, .heads_q = 6, .heads_kv = 2, .dim = 64, .dim_v = 20

static const struct case_of {
    struct shape shape;
    enum operations operations;
} cases[] = {
    {{"large", SIZE, .values = LARGE}, BOTH_OPERATIONS},
    {{"tiny", SIZE, .values = TINY}, BOTH_OPERATIONS},
    {{"very negative", SIZE, .values = VERY_NEGATIVE, .features = WITH_DLSE}, BOTH_OPERATIONS},
    {{"very negative, with sinks", SIZE, .values = VERY_NEGATIVE, .features = SINKS}, BOTH_OPERATIONS},
    {{"growing", SIZE, .values = GROWING, .features = WITH_DLSE}, BOTH_OPERATIONS},
    {{"growing, causal, packed", SIZE, .values = GROWING, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = PACKED},
     BOTH_OPERATIONS},
    {{"growing, softcap, bias, dropout", SIZE, .values = GROWING, .features = SOFTCAP | BIAS | PER_ROW | DROPOUT},
     BOTH_OPERATIONS},
    {{"biases near the least number", SIZE, .features = BIAS | FAR_BIAS | PER_ROW | PER_HEAD}, BOTH_OPERATIONS},
    {{"biases near the least number, lse not wanted", SIZE, .features = BIAS | FAR_BIAS | PER_ROW | NO_LSE}, FORWARD_ALONE},
    {{"growing, against the scale", SIZE, .values = GROWING, .features = NEGATIVE_SCALE}, BOTH_OPERATIONS},
    {{"falling", SIZE, .values = FALLING}, BOTH_OPERATIONS},
    {{"steep", SIZE, .values = STEEP}, BOTH_OPERATIONS},
    {{"steep, window", SIZE, .values = STEEP, .mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT, .left = 100}, BOTH_OPERATIONS},
    {{"rows of each kind side by side", SIZE, .values = MIXED}, BOTH_OPERATIONS},
    {{"rows of each kind, causal", SIZE, .values = MIXED, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT}, BOTH_OPERATIONS},
    {{"head dim 256, growing", .batch = 1, .seq_q = 35, .seq_k = SEVERAL_BLOCKS, .heads_q = 1, .dim = 256,
      .values = GROWING},
     BOTH_OPERATIONS},
    {{"decoding, large", DECODING, .values = LARGE}, FORWARD_ALONE},
    {{"decoding, very negative", DECODING, .values = VERY_NEGATIVE}, FORWARD_ALONE},
    {{"decoding, growing", DECODING, .values = GROWING}, FORWARD_ALONE},
    {{"decoding, falling", DECODING, .values = FALLING, .features = USED_K}, FORWARD_ALONE},
    {{"decoding, steep, sinks", DECODING, .values = STEEP, .features = SINKS}, FORWARD_ALONE},
    {{"decoding, rows of each kind", .batch = 1, .seq_q = 3, .seq_k = SEVERAL_SPLITS, .heads_q = 5, .heads_kv = 1, .dim = 16,
      .values = MIXED, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT},
     FORWARD_ALONE},
};

int main(void) {
    static struct oracle_test all[COUNT(cases) * ORACLE_DTYPES];
    struct CMUnitTest tests[COUNT(all)];
    for (size_t n = 0; n < COUNT(all); ++n) {
        const struct case_of *x = &cases[n / ORACLE_DTYPES];
        tests[n] = oracle_test(&all[n], &x->shape, x->operations, n % ORACLE_DTYPES);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
