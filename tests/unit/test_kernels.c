/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_kernels.c: every kernel of the table against the oracle, feature by feature and shape by shape, in every dtype:
 * small problems. test_lengths.c has those of several blocks, ranges and splits, test_magnitudes.c those whose scores are
 * not of the size of one. */
#include "against_oracle.h"

#define SIZE .batch = 2, .seq_q = 51, .seq_k = 67, .heads_q = 4, .heads_kv = 2, .dim = 9, .dim_v = 6
#define ONE  .batch = 1, .heads_q = 1

static const struct shape cases[] = {
    /* features */
    {"plain", SIZE, .features = WITH_DLSE},
    {"causal, top left", SIZE, .mask = STROBE_MASK_CAUSAL_TOP_LEFT},
    {"causal, bottom right", SIZE, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = WITH_DLSE},
    {"window, top left", SIZE, .mask = STROBE_MASK_WINDOW_TOP_LEFT, .left = 13, .right = 5},
    {"window, bottom right", SIZE, .mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT, .left = 30, .right = 0},
    {"window, open on the right", SIZE, .mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT, .left = 2, .right = -1},
    {"boolean mask", SIZE, .features = BOOL_MASK | PER_SCORE},
    {"boolean mask of keys", SIZE, .features = BOOL_MASK},
    {"block mask", SIZE, .features = BLOCK_MASK},
    {"bias", SIZE, .features = BIAS | PER_SCORE | HOLES},
    {"bias for all batch entries", SIZE, .features = BIAS | PER_HEAD | PER_ROW},
    {"bias for all heads", SIZE, .features = BIAS | PER_BATCH | PER_ROW},
    {"bias of keys", SIZE, .features = BIAS},
    {"ALiBi", SIZE, .features = ALIBI | WITH_DLSE},
    {"softcap", SIZE, .features = SOFTCAP},
    {"sinks", SIZE, .features = SINKS | WITH_DLSE},
    {"sinks of -inf, rows that see nothing", .batch = 2, .seq_q = 60, .seq_k = 41, .heads_q = 4, .heads_kv = 2, .dim = 9,
     .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = SINKS | NO_SINKS | WITH_DLSE},
    {"sinks of -inf, sequences without keys", SIZE, .features = SINKS | NO_SINKS | USED_K | PACKED_K},
    {"decoding, sinks of -inf, no key in sight", .batch = 2, .seq_q = 3, .seq_k = 1, .heads_q = 4, .heads_kv = 2, .dim = 16,
     .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = SINKS | NO_SINKS},
    {"dropout", SIZE, .features = DROPOUT},
    {"negative scale", SIZE, .features = NEGATIVE_SCALE},
    {"starts, causal, ALiBi", SIZE, .mask = STROBE_MASK_CAUSAL_TOP_LEFT, .features = STARTS | ALIBI},
    {"packed", SIZE, .features = PACKED | WITH_DLSE},
    {"packed keys alone, sinks", SIZE, .features = PACKED_K | SINKS},
    {"used of packed, causal", SIZE, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = PACKED | USED | INDEX64},
    {"used, dropout, bias", SIZE, .features = USED | DROPOUT | BIAS | PER_SCORE},
    {"without lse", SIZE, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = NO_LSE},
    {"a function of distance", SIZE, .score = "score - w * abs(i - j)"},
    {"a function of distance in a table", SIZE, .score = "score + table[h][i - j + at]", .features = WITH_DLSE | STARTS},
    {"a function by halves, hidden in part", SIZE, .score = "i % 2 == 0 ? score * w : (j > 50 ? -inf : c * tanh(score / c))",
     .visible = "kind[i] == kind[j] || j < 3", .features = WITH_DLSE},
    {"every function", SIZE,
     .score = "min(exp(score / 4), 3.0) + max(exp2(score / 5), w) + log(score * score + 1) + sqrt(abs(score) + 1) + "
              "pow(abs(score) + 0.5, w) + floor(score / 100) - score / (2 + score * score) + table[h][j] * table[0][i]"},
    {"every operator on integers", SIZE,
     .score =
         "score + 0.01 * ((i * 7 - j) / c + (j - i) % (c + 2) + min(i, j) - max(h, b) + abs(i - 2 * j) + int(score * w) + "
         "(i < j && !(j == 7) || i != 9) - -kind[hkv + 3]) / (i >= j ? 2 : 3)"},
    {"visible by documents, causal", SIZE, .visible = "kind[i] == kind[j]", .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT},
    {"visible by strides", SIZE, .visible = "(i - j) % c == 0 || i - j < 0 && j % 8 == 1",
     .features = BOOL_MASK | PER_SCORE},
    {"visible to nobody", SIZE, .visible = "h > 9", .features = SINKS},
    {"visible in blocks", SIZE, .visible = "i / 16 == j / 16 || j >= 64", .features = WITH_DLSE | STARTS},
    {"a function behind all terms", SIZE, .score = "score + table[h][i - j + at] * score",
     .features = SOFTCAP | BIAS | ALIBI | SINKS | DROPOUT | PER_HEAD | PER_ROW | HOLES},
    {"a function of packed sequences", SIZE, .score = "score + w * (j - seq_k) + table[0][i]", .visible = "(j + i) % 3 > 0",
     .features = PACKED | USED | NEGATIVE_SCALE},
    {"everything", SIZE, .mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT, .left = 40, .right = 10,
     .features = BOOL_MASK | BLOCK_MASK | BIAS | ALIBI | SOFTCAP | SINKS | DROPOUT | STARTS | WITH_DLSE | NEGATIVE_SCALE |
                 PER_HEAD | PER_ROW},
    /* shapes: tiles and blocks exactly full, one more, one less; head dims without a common factor with any vector */
    {"1 x 1 x 1", ONE, .seq_q = 1, .seq_k = 1, .dim = 1},
    {"1 x 1 x 512", ONE, .seq_q = 1, .seq_k = 1, .dim = 512},
    {"2 x 3 x 4, 300 heads", .batch = 1, .heads_q = 300, .seq_q = 2, .seq_k = 3, .dim = 4},
    {"48 x 64 x 16", ONE, .seq_q = 48, .seq_k = 64, .dim = 16},
    {"49 x 65 x 17", ONE, .seq_q = 49, .seq_k = 65, .dim = 17, .mask = STROBE_MASK_CAUSAL_TOP_LEFT},
    {"47 x 63 x 15", ONE, .seq_q = 47, .seq_k = 63, .dim = 15, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT},
    {"96 x 128 x 64", ONE, .seq_q = 96, .seq_k = 128, .dim = 64, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT},
    {"130 x 130 x 33", ONE, .seq_q = 130, .seq_k = 130, .dim = 33, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT},
    {"239 x 1 x 8", ONE, .seq_q = 239, .seq_k = 1, .dim = 8},
    {"3 x 400 x 5", ONE, .seq_q = 3, .seq_k = 400, .dim = 5},
    {"decoding, 16 heads on 2", .batch = 2, .seq_q = 1, .seq_k = 150, .heads_q = 16, .heads_kv = 2, .dim = 64},
    {"decoding, 7 heads on 1", .batch = 1, .seq_q = 1, .seq_k = 65, .heads_q = 7, .heads_kv = 1, .dim = 96, .dim_v = 40},
    {"decoding, packed, window, sinks", .batch = 3, .seq_q = 2, .seq_k = 130, .heads_q = 6, .heads_kv = 2, .dim = 48,
     .mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT, .left = 90, .right = 0, .features = PACKED | USED_K | SINKS},
    {"5 rows of 3 heads on 1, causal", .batch = 1, .seq_q = 5, .seq_k = 70, .heads_q = 3, .heads_kv = 1, .dim = 40,
     .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT},
    {"dim 128", ONE, .seq_q = 20, .seq_k = 70, .dim = 128},
    {"dim 250, dim_v 3", ONE, .seq_q = 17, .seq_k = 30, .dim = 250, .dim_v = 3},
    {"dim 2, dim_v 512", ONE, .seq_q = 17, .seq_k = 30, .dim = 2, .dim_v = 512},
    {"dim 511", ONE, .seq_q = 9, .seq_k = 11, .dim = 511},
};

int main(void) {
    static struct oracle_test all[COUNT(cases) * ORACLE_DTYPES];
    struct CMUnitTest tests[COUNT(all)];
    for (size_t n = 0; n < COUNT(all); ++n)
        tests[n] = oracle_test(&all[n], &cases[n / ORACLE_DTYPES], BOTH_OPERATIONS, n % ORACLE_DTYPES);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
