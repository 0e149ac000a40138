/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_merge.c: partial results over parts of the keys merge to the result over all keys, parts that saw nothing change
 * nothing whatever they hold, and bad arguments are refused with a sentence. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernel_table.h"
#include "test.h"

enum { BATCH = 2, ROWS = 9, KEYS = 23, HEADS = 3, DIM = 70, MOST_PARTS = 6 };

static const struct shape whole_shape = {
    .batch = BATCH, .seq_q = ROWS, .seq_k = KEYS, .heads_q = HEADS, .dim = DIM, .mask = STROBE_MASK_CAUSAL_TOP_LEFT};

/* Results of ROWS rows over some keys, and the merged one. */
struct parts {
    struct fixture whole;
    struct slot out[MOST_PARTS], lse[MOST_PARTS];
    struct slot merged_out, merged_lse;
    strobe_partial part[MOST_PARTS];
    strobe_partials m;
};

static const int64_t out_extent[3] = {BATCH, ROWS, HEADS}, out_stride[3] = {ROWS * HEADS * DIM, HEADS *DIM, DIM};
static const int64_t lse_stride[3] = {HEADS * ROWS, 1, ROWS};

/* Parts p = [ends[p - 1], ends[p]) of the keys, by the oracle, rounded to dtype. */
static void make_parts(struct parts *p, const int64_t *ends, int count, int32_t dtype) {
    *p = (struct parts){.m = {.struct_size = sizeof p->m, .batch = BATCH, .seq_q = ROWS, .heads_q = HEADS, .dim_v = DIM}};
    struct shape wide = whole_shape;
    wide.features = WIDE;
    fixture_make(&p->whole, &wide);
    if (fixture_forward(&p->whole, "reference_forward")) fail_msg("%s", strobe_last_error());
    for (int n = 0; n < count; ++n) {
        const int64_t first = n ? ends[n - 1] : 0;
        p->out[n] = slot_make(dtype, out_extent, out_stride, DIM, 0);
        p->lse[n] = slot_make(STROBE_FP32, out_extent, lse_stride, 1, 0);
        strobe_attention a = p->whole.a;
        a.seq_k = ends[n] - first;
        a.k_start = first;
        a.k.data = (float *)a.k.data + first * a.k.stride[1];
        a.v.data = (float *)a.v.data + first * a.v.stride[1];
        a.out = (strobe_tensor){.data = p->out[n].data, .dtype = dtype};
        a.lse = (strobe_tensor){.data = p->lse[n].data, .dtype = STROBE_FP32};
        if (strobe_forward(&a, NULL, 0, NULL)) fail_msg("%s", strobe_last_error());
        p->part[n] = (strobe_partial){{.data = p->out[n].data}, {.data = p->lse[n].data}};
    }
    p->merged_out = slot_make(dtype, out_extent, out_stride, DIM, 0);
    p->merged_lse = slot_make(STROBE_FP32, out_extent, lse_stride, 1, 0);
    p->m.count = count, p->m.parts = p->part, p->m.dtype = dtype;
    p->m.out.data = p->merged_out.data, p->m.lse.data = p->merged_lse.data;
}

static void free_parts(struct parts *p) {
    for (int n = 0; n < MOST_PARTS; ++n) slot_free(&p->out[n]), slot_free(&p->lse[n]);
    slot_free(&p->merged_out), slot_free(&p->merged_lse);
    fixture_free(&p->whole);
}

static void merge(const struct parts *p) {
    if (strobe_merge(&p->m, NULL)) fail_msg("%s", strobe_last_error());
    if (!slot_guards_hold(&p->merged_out) || !slot_guards_hold(&p->merged_lse)) fail_msg("written outside");
}

/* The merged result against attention over all keys. An lse that is off by some roundings of its magnitude moves a weight by
 * as much; each part was rounded once to its dtype, and so is the sum. */
static void expect_whole(const struct parts *p, const struct slot *out, const struct slot *lse, const char *what) {
    double largest = 0;
    for (int64_t r = 0; r < slot_count(lse); ++r)
        if (isfinite(slot_get(lse, r))) largest = fmax(largest, fabs(slot_get(lse, r)));
    const double lse_error = 4 * (double)p->m.count * 0x1p-24 * (1 + largest);
    const double out_error = 2 * (lse_error + 2 * dtype_rounding(out->dtype)); /* values are below 2 */
    for (int64_t r = 0; r < slot_count(lse); ++r) {
        const double found = slot_get(lse, r), truth = slot_get(&p->whole.slot[LSE], r);
        if (found != truth && !(fabs(found - truth) <= lse_error))
            fail_msg("%s: lse[%lld] is %.9g, not %.9g", what, (long long)r, found, truth);
    }
    for (int64_t e = 0; e < slot_count(out); ++e) {
        const double found = slot_get(out, e), truth = slot_get(&p->whole.slot[OUT], e);
        if (!(fabs(found - truth) <= out_error))
            fail_msg("%s: out[%lld] is %.9g, not %.9g", what, (long long)e, found, truth);
    }
}

static const struct {
    const char *name;
    int64_t ends[MOST_PARTS];
    int count;
} splits[] = {
    {"one part", {KEYS}, 1},
    {"two parts", {11, KEYS}, 2},
    {"a key beside the rest", {1, KEYS}, 2},
    {"parts without keys at each end", {0, 7, 7, KEYS, KEYS}, 5},
    {"six parts", {2, 5, 6, 13, 20, KEYS}, 6},
};
static const int32_t dtypes[] = {STROBE_FP32, STROBE_FP16, STROBE_BF16};

/* Under the causal mask the later parts see nothing of the first rows: empty rows are everywhere. */
static void test_parts_make_the_whole(void **state) {
    (void)state;
    for (size_t n = 0; n < COUNT(splits); ++n)
        for (size_t d = 0; d < COUNT(dtypes); ++d) {
            struct parts p;
            make_parts(&p, splits[n].ends, splits[n].count, dtypes[d]);
            merge(&p);
            expect_whole(&p, &p.merged_out, &p.merged_lse, splits[n].name);
            if (splits[n].count == 1) /* and is not touched by arithmetic */
                assert_true(slot_equal(&p.merged_out, &p.out[0]) && slot_equal(&p.merged_lse, &p.lse[0]));
            free_parts(&p);
        }
}

/* The result over the first part, lse too; without lse; 16-bit parts into an fp32 result. */
static void test_where_the_result_goes(void **state) {
    (void)state;
    struct parts p;
    make_parts(&p, splits[4].ends, splits[4].count, STROBE_FP32);
    merge(&p);
    p.m.lse.data = NULL;
    slot_reset(&p.merged_lse);
    merge(&p);
    for (int64_t r = 0; r < slot_count(&p.merged_lse); ++r) assert_true(slot_is_untouched(&p.merged_lse, r));
    p.m.out.data = p.out[0].data, p.m.lse.data = p.lse[0].data;
    merge(&p);
    assert_true(slot_equal(&p.out[0], &p.merged_out));
    expect_whole(&p, &p.out[0], &p.lse[0], "in place");
    free_parts(&p);

    make_parts(&p, splits[1].ends, splits[1].count, STROBE_BF16);
    struct slot wide = slot_make(STROBE_FP32, out_extent, out_stride, DIM, 1);
    p.m.out = (strobe_tensor){.data = wide.data, .dtype = STROBE_FP32};
    merge(&p);
    p.m.out = (strobe_tensor){.data = p.merged_out.data};
    merge(&p);
    for (int64_t e = 0; e < slot_count(&wide); ++e) slot_set(&p.out[0], e, slot_get(&wide, e)); /* rounds */
    assert_true(slot_equal(&p.out[0], &p.merged_out));
    slot_free(&wide);
    free_parts(&p);
}

/* (0, -inf) is the identity, also with itself, and an empty part's out is not looked at. */
static void test_empty_parts(void **state) {
    (void)state;
    struct parts p;
    make_parts(&p, splits[1].ends, splits[1].count, STROBE_FP32);
    merge(&p);
    struct slot expected_out = p.merged_out, expected_lse = p.merged_lse;
    p.merged_out = slot_make(STROBE_FP32, out_extent, out_stride, DIM, 0);
    p.merged_lse = slot_make(STROBE_FP32, out_extent, lse_stride, 1, 0);
    p.m.out.data = p.merged_out.data, p.m.lse.data = p.merged_lse.data;
    struct slot nan = slot_make(STROBE_FP32, out_extent, out_stride, DIM, 0), /* all ones: NaN */
        empty = slot_make(STROBE_FP32, out_extent, lse_stride, 1, 0);
    for (int64_t r = 0; r < slot_count(&empty); ++r) slot_set(&empty, r, -(double)INFINITY);
    const strobe_partial nothing = {{.data = nan.data}, {.data = empty.data}}, parts[2] = {p.part[0], p.part[1]};
    for (int at = 0; at < 3; ++at) {
        for (int n = 0; n < 3; ++n) p.part[n] = n == at ? nothing : parts[n > at ? n - 1 : n];
        p.m.count = 3;
        merge(&p);
        assert_true(slot_equal(&p.merged_out, &expected_out) && slot_equal(&p.merged_lse, &expected_lse));
    }
    for (int n = 0; n < 3; ++n) p.part[n] = nothing;
    for (p.m.count = 1; p.m.count <= 3; ++p.m.count) {
        merge(&p);
        for (int64_t e = 0; e < slot_count(&p.merged_out); ++e) assert_true(slot_get(&p.merged_out, e) == 0);
        assert_true(slot_equal(&p.merged_lse, &empty));
    }
    slot_free(&nan), slot_free(&empty), slot_free(&expected_out), slot_free(&expected_lse);
    free_parts(&p);
}

/* Parts and result in other layouts, merged by other numbers of threads: the same bits. */
static void test_layouts_and_threads(void **state) {
    (void)state;
    static const int64_t by_heads[3] = {HEADS * ROWS * DIM, DIM, ROWS * DIM}, gaps[3] = {5000, 233, 77};
    static const int64_t lse_gaps[3] = {-250, -7, 70};
    struct parts p, q;
    make_parts(&p, splits[4].ends, splits[4].count, STROBE_FP16);
    make_parts(&q, splits[4].ends, splits[4].count, STROBE_FP16);
    merge(&p);
    for (int n = 0; n < splits[4].count; ++n) {
        slot_move(&q.out[n], n % 2 ? by_heads : gaps, n);
        slot_move(&q.lse[n], n % 3 ? lse_gaps : lse_stride, n);
        q.part[n].out.data = q.out[n].data, q.part[n].lse.data = q.lse[n].data;
        memcpy(q.part[n].out.stride, q.out[n].stride, sizeof q.out[n].stride);
        memcpy(q.part[n].lse.stride, q.lse[n].stride, sizeof q.lse[n].stride);
    }
    slot_move(&q.merged_out, gaps, 1), slot_move(&q.merged_lse, lse_gaps, 0);
    q.m.out.data = q.merged_out.data, q.m.lse.data = q.merged_lse.data;
    memcpy(q.m.out.stride, gaps, sizeof gaps), memcpy(q.m.lse.stride, lse_gaps, sizeof lse_gaps);
    for (int32_t threads = 0; threads <= 5; ++threads) {
        const strobe_parallel parallel = {.struct_size = sizeof parallel, .threads = threads};
        q.m.parallel = threads ? &parallel : NULL;
        slot_reset(&q.merged_out), slot_reset(&q.merged_lse);
        merge(&q);
        assert_true(slot_equal(&p.merged_out, &q.merged_out) && slot_equal(&p.merged_lse, &q.merged_lse));
    }
    q.m.parallel = NULL;
    free_parts(&p), free_parts(&q);
}

/* Scores far apart, and so large that their exponentials overflow. */
static void test_large_lse(void **state) {
    (void)state;
    static const struct {
        float lse[2], expected;
        float weight; /* of the second part */
    } rows[] = {
        {{1000, 1000}, 1000.6931f, 0.5f}, {{-1000, -1000}, -999.30685f, 0.5f},  {{0, 500}, 500, 1},
        {{3e38f, -3e38f}, 3e38f, 0},      {{0, 1.0986123f}, 1.3862944f, 0.75f}, {{-INFINITY, 88}, 88, 1},
    };
    for (size_t n = 0; n < COUNT(rows); ++n) {
        float out[2] = {0, 1}, lse[2] = {rows[n].lse[0], rows[n].lse[1]}, merged = -1, merged_lse = -1;
        const strobe_partial part[2] = {{{.data = &out[0]}, {.data = &lse[0]}}, {{.data = &out[1]}, {.data = &lse[1]}}};
        const strobe_partials m = {.struct_size = sizeof m,
                                   .batch = 1,
                                   .seq_q = 1,
                                   .heads_q = 1,
                                   .dim_v = 1,
                                   .count = 2,
                                   .parts = part,
                                   .out.data = &merged,
                                   .lse.data = &merged_lse};
        assert_int_equal(strobe_merge(&m, NULL), STROBE_OK);
        assert_true(fabsf(merged_lse - rows[n].expected) <= 4 * 0x1p-24f * (1 + fabsf(rows[n].expected)));
        assert_true(fabsf(merged - rows[n].weight) <= 4 * 0x1p-24f * (1 + fabsf(rows[n].expected)));
    }
}

static void merge_two(const float lse[2], float *merged, float *merged_lse) {
    float out[2] = {1, 3}, of_parts[2] = {lse[0], lse[1]};
    const strobe_partial part[2] = {{{.data = &out[0]}, {.data = &of_parts[0]}},
                                    {{.data = &out[1]}, {.data = &of_parts[1]}}};
    strobe_partials m = {.struct_size = sizeof m, .batch = 1, .seq_q = 1, .heads_q = 1, .dim_v = 1, .count = 2};
    m.parts = part, m.out.data = merged, m.lse.data = merged_lse;
    assert_int_equal(strobe_merge(&m, NULL), STROBE_OK);
}

/* A part whose scores overflowed has lse = +inf: the whole's is +inf too, and its values are no number rather than one that
 * looks right. A NaN stays one, beside anything. */
static void test_overflowed_lse(void **state) {
    (void)state;
    static const float beside[] = {0, -1000, INFINITY, -INFINITY};
    for (size_t n = 0; n < COUNT(beside); ++n)
        for (int order = 0; order < 2; ++order) {
            float merged = 0, merged_lse = 0;
            merge_two((const float[]){order ? beside[n] : INFINITY, order ? INFINITY : beside[n]}, &merged, &merged_lse);
            assert_true(merged_lse == INFINITY && isnan(merged));
            merge_two((const float[]){order ? beside[n] : NAN, order ? NAN : beside[n]}, &merged, &merged_lse);
            assert_true(isnan(merged_lse) && isnan(merged));
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_make_the_whole),
        cmocka_unit_test(test_where_the_result_goes),
        cmocka_unit_test(test_empty_parts),
        cmocka_unit_test(test_layouts_and_threads),
        cmocka_unit_test(test_large_lse),
        cmocka_unit_test(test_overflowed_lse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
