/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_oracle_values.c: reference_forward against results worked out by hand, and against naive.c for every feature. */
#include <math.h>
#include <stdlib.h>

#include "naive.h"
#include "test.h"

/* ----------------------------------------------------------------------------------------------------------- by hand -- */

/* One row, dim 1, q = 1, scale 1: the scores are K itself. */
static const struct {
    const char *name;
    int64_t keys;
    double k[3], v[3];
    int32_t mask;
    double softcap, slope, sink, out, lse; /* sink 0: none */
} by_hand[] = {
    {"one key", 1, {2.5}, {7}, .out = 7, .lse = 2.5},
    {"equal scores", 3, {0, 0, 0}, {1, 2, 6}, .out = 3, .lse = 1.0986122886681098 /* ln 3 */},
    {"weights 1/4 and 3/4", 2, {0, 1.0986122886681098}, {4, 8}, .out = 7, .lse = 1.3862943611198906 /* ln 4 */},
    {"far apart", 2, {-1000, 1000}, {4, 8}, .out = 8, .lse = 1000},
    {"far below zero", 2, {-1000, -1000}, {4, 8}, .out = 6, .lse = -999.3068528194401 /* ln 2 - 1000 */},
    {"the first key only", 3, {1, 5, 5}, {3, 9, 9}, .mask = STROBE_MASK_CAUSAL_TOP_LEFT, .out = 3, .lse = 1},
    {"all keys before the last row",
     3,
     {0, 0, 0},
     {1, 2, 6},
     .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT,
     .out = 3,
     .lse = 1.0986122886681098},
    /* tanh(ln 3 / 2) = 1/2: a score of ln 3 capped at 2 is 1; a score of 0 stays */
    {"softcap", 1, {1.0986122886681098}, {5}, .softcap = 2, .out = 5, .lse = 1},
    /* the row stands at the last key; ln 2 a key is taken off: weights 1/7, 2/7, 4/7 */
    {"ALiBi", 3, {0, 0, 0}, {7, 14, 28}, .slope = 0.6931471805599453, .out = 21, .lse = 0.5596157879354227 /* ln 7/4 */},
    /* e^0 of the key beside e^(ln 3) of the sink: the key has a quarter of the weight */
    {"sink", 1, {0}, {8}, .sink = 1.0986122886681098, .out = 2, .lse = 1.3862943611198906},
};

static void test_by_hand(void **state) {
    (void)state;
    for (size_t n = 0; n < COUNT(by_hand); ++n) {
        double q = 1, k[3], v[3], out = -1, lse = -1;
        for (int j = 0; j < 3; ++j) k[j] = by_hand[n].k[j], v[j] = by_hand[n].v[j];
        float slope = (float)by_hand[n].slope;
        double sink = by_hand[n].sink;
        const strobe_alibi alibi = {.struct_size = sizeof alibi, .slopes = &slope};
        const strobe_sinks sinks = {.struct_size = sizeof sinks, .data = &sink, .dtype = STROBE_FP64};
        const strobe_attention a = {.struct_size = sizeof a,
                                    .batch = 1,
                                    .seq_q = 1,
                                    .seq_k = by_hand[n].keys,
                                    .heads_q = 1,
                                    .dim = 1,
                                    .q.data = &q,
                                    .k.data = k,
                                    .v.data = v,
                                    .out.data = &out,
                                    .lse = {.data = &lse, .dtype = STROBE_FP64},
                                    .dtype = STROBE_FP64,
                                    .mask = by_hand[n].mask,
                                    .softcap = by_hand[n].softcap,
                                    .alibi = slope != 0 ? &alibi : NULL,
                                    .sinks = sink != 0 ? &sinks : NULL};
        assert_int_equal(strobe_forward(&a, NULL, 0, NULL), STROBE_OK);
        const double exact = slope != 0 ? 2 * 0x1p-24 : 16 * 0x1p-52; /* slopes are fp32 */
        if (fabs(out - by_hand[n].out) > exact * fabs(by_hand[n].out)) fail_msg("%s: out is %.17g", by_hand[n].name, out);
        if (fabs(lse - by_hand[n].lse) > exact * (1 + fabs(by_hand[n].lse)))
            fail_msg("%s: lse is %.17g", by_hand[n].name, lse);
    }
}

/* ----------------------------------------------------------------------------------------------- against naive loops -- */

#define SIZE .batch = 3, .seq_q = 7, .seq_k = 9, .heads_q = 4, .heads_kv = 2, .dim = 5, .dim_v = 3
#define ALL_TERMS \
    BOOL_MASK | BLOCK_MASK | BIAS | ALIBI | SOFTCAP | SINKS | DROPOUT | STARTS | NEGATIVE_SCALE | PER_HEAD | PER_ROW

static const struct shape cases[] = {
    {"plain", SIZE},
    {"fp16", SIZE, .dtype = STROBE_FP16},
    {"bf16", SIZE, .dtype = STROBE_BF16},
    {"fp64", SIZE, .dtype = STROBE_FP64},
    {"causal, top left", SIZE, .mask = STROBE_MASK_CAUSAL_TOP_LEFT},
    {"causal, bottom right", SIZE, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT},
    {"window, top left", SIZE, .mask = STROBE_MASK_WINDOW_TOP_LEFT, .left = 2, .right = 1},
    {"window, bottom right", SIZE, .mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT, .left = 0, .right = -1},
    {"starts, causal", SIZE, .mask = STROBE_MASK_CAUSAL_TOP_LEFT, .features = STARTS},
    {"boolean mask", SIZE, .features = BOOL_MASK | PER_SCORE},
    {"boolean mask, broadcast", SIZE, .features = BOOL_MASK | PER_HEAD},
    {"block mask", SIZE, .features = BLOCK_MASK},
    {"bias", SIZE, .features = BIAS | PER_SCORE | HOLES},
    {"bias, broadcast", SIZE, .dtype = STROBE_BF16, .features = BIAS | PER_ROW},
    {"ALiBi", SIZE, .features = ALIBI},
    {"ALiBi, starts", SIZE, .features = ALIBI | STARTS},
    {"softcap", SIZE, .features = SOFTCAP},
    {"sinks", SIZE, .features = SINKS},
    {"sinks of -inf", SIZE, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = SINKS | NO_SINKS | USED_K},
    {"dropout", SIZE, .features = DROPOUT},
    {"packed", SIZE, .features = PACKED},
    {"packed keys, 64-bit", SIZE, .features = PACKED_K | INDEX64},
    {"used", SIZE, .features = USED},
    {"used of packed, causal, ALiBi", SIZE, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = PACKED | USED | ALIBI},
    {"everything", SIZE, .mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT, .left = 4, .right = 2, .features = ALL_TERMS},
    {"everything, packed", SIZE, .dtype = STROBE_FP16, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT,
     .features = ALL_TERMS | PACKED | USED | PER_BATCH},
};

/* Both sum in float64, in other orders: what they may differ by is the rounding of dim products in a score, which the
 * exponential passes on, and of seq_k weights. */
static void check_row(const struct fixture *f, const struct piece *s, int64_t h, int64_t i, double *scratch) {
    const struct slot *out = &f->slot[OUT], *lse = &f->slot[LSE];
    double expected_lse, *expected = scratch + f->a.seq_k;
    const double largest = naive_row(f, s, h, i, expected, &expected_lse, scratch);
    const double epsilon = 0x1p-52 * (double)(f->a.dim + f->a.seq_k + 8) * (2 + largest);
    const double found_lse = slot_get(lse, slot_element(lse, s->entry_q, s->first_q + i, h, 0));
    if (!(found_lse == expected_lse || fabs(found_lse - expected_lse) <= epsilon))
        fail_msg("lse of batch %lld row %lld head %lld is %.17g, not %.17g", (long long)s->b, (long long)i, (long long)h,
                 found_lse, expected_lse);
    for (int64_t x = 0; x < f->a.dim_v; ++x) {
        const double found = slot_get(out, slot_element(out, s->entry_q, s->first_q + i, h, x));
        if (!(fabs(found - expected[x]) <= epsilon * 4)) /* values are below 2, dropout's factor too */
            fail_msg("out of batch %lld row %lld head %lld is %.17g, not %.17g", (long long)s->b, (long long)i, (long long)h,
                     found, expected[x]);
    }
}

static void test_against_naive(void **state) {
    struct shape shape = *(const struct shape *)*state;
    shape.features |= WIDE;
    struct fixture f;
    fixture_make(&f, &shape);
    if (fixture_forward(&f, "reference_forward")) fail_msg("%s", strobe_last_error());
    double *scratch = malloc((size_t)(f.a.seq_k + f.a.dim_v) * sizeof *scratch);
    assert_non_null(scratch);
    int64_t rows = 0, untouched = 0;
    for (int64_t b = 0; b < f.a.batch; ++b) {
        const struct piece s = piece_of(&f, b);
        for (int64_t i = 0; i < s.rows; ++i)
            for (int64_t h = 0; h < f.a.heads_q; ++h) check_row(&f, &s, h, i, scratch);
        rows += s.rows;
    }
    /* And what is no row of any sequence was not written. */
    for (int64_t e = 0; e < slot_count(&f.slot[LSE]); ++e) untouched += slot_is_untouched(&f.slot[LSE], e);
    assert_int_equal(untouched, slot_count(&f.slot[LSE]) - rows * f.a.heads_q);
    assert_true(fixture_guards_hold(&f));
    free(scratch);
    fixture_free(&f);
}

int main(void) {
    struct CMUnitTest tests[1 + COUNT(cases)] = {cmocka_unit_test(test_by_hand)};
    for (size_t n = 0; n < COUNT(cases); ++n) tests[1 + n] = test_of_row(cases[n].name, test_against_naive, &cases[n]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
