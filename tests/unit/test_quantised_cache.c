/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_quantised_cache.c: int8 K and V with scales are what they stand for. Where scales are powers of two, products with
 * them are exact, so that every kernel, the oracle too, must give the same bits as for the same K and V in fp32: whatever
 * rows share a scale, whatever the scales' strides, packed or not. And what no sequence has is not read. Kernels for int8
 * alone sum in another order; they must agree with one of fp32 to the roundings of a score's sum, and, where a query or a
 * scale has no digits (amx/bytes.h), give the vector kernel's bits. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "strobe/strobe.h"
#include "test.h"

enum { BATCH = 2, SEQ_K = 150, ROWS = BATCH * SEQ_K, HEADS = 2, GROUP = 2, DIM = 37, DIM_V = 40, MOST_Q = 9 };

static float q[BATCH * MOST_Q * HEADS * GROUP * DIM];
static int8_t k8[ROWS * HEADS * DIM], v8[ROWS * HEADS * DIM_V];
static float k[ROWS * HEADS * DIM], v[ROWS * HEADS * DIM_V], k_scale[ROWS * HEADS], v_scale[ROWS * HEADS];
static float out[2][BATCH * MOST_Q * HEADS * GROUP * DIM_V], lse[2][BATCH * MOST_Q * HEADS * GROUP];
static const int32_t ends[BATCH + 1] = {0, 81, 170}, used[BATCH] = {81, 60};

/* How scales are laid out, and which of them are shared. */
static const struct layout {
    const char *name;
    int64_t stride[3], block; /* of scales */
    bool packed, used;
    int64_t left; /* of a window, 0: causal */
} layouts[] = {
    {"a scale a token and head", .stride = {SEQ_K * HEADS, HEADS, 1}, .block = 1},
    {"heads outside tokens", .stride = {SEQ_K * HEADS, 1, SEQ_K}, .block = 1},
    {"blocks of 32 tokens", .stride = {5 * HEADS, HEADS, 1}, .block = 32},
    {"the whole sequence", .stride = {HEADS, 0, 1}, .block = 0},
    {"one for everything", .stride = {0, 0, 0}, .block = 1},
    {"used lengths", .stride = {SEQ_K * HEADS, HEADS, 1}, .block = 1, .used = true},
    {"packed sequences", .stride = {0, HEADS, 1}, .block = 1, .packed = true},
    {"packed sequences in blocks of 7", .stride = {0, HEADS, 1}, .block = 7, .packed = true},
    {"a window from inside a block, a scale a token", .stride = {SEQ_K * HEADS, HEADS, 1}, .block = 1, .left = 37},
    {"a window over two blocks, heads outside", .stride = {SEQ_K * HEADS, 1, SEQ_K}, .block = 1, .left = 100},
    {"a window from inside blocks of 32", .stride = {5 * HEADS, HEADS, 1}, .block = 32, .left = 70},
    {"a window over packed sequences", .stride = {0, HEADS, 1}, .block = 1, .packed = true, .left = 20},
    {"a window of used lengths in blocks of 7", .stride = {22 * HEADS, HEADS, 1}, .block = 7, .used = true, .left = 20},
};

static int64_t scale_at(const struct layout *l, int64_t b, int64_t j, int64_t h) {
    const int64_t row = l->packed ? ends[b] + j : j;
    if (l->block == 0) return b * l->stride[0] + h * l->stride[2];
    return (l->packed ? 0 : b * l->stride[0]) + row / l->block * l->stride[1] + h * l->stride[2];
}

/* Numbers for every key that exists; the others have NaN for a scale, and for the fp32 tensors' elements. */
static void fill(const struct layout *l, struct random *r) {
    for (size_t n = 0; n < COUNT(q); ++n) q[n] = (float)random_value(r);
    for (size_t n = 0; n < COUNT(k8); ++n) k8[n] = (int8_t)(random_below(r, 255) - 127), k[n] = NAN;
    for (size_t n = 0; n < COUNT(v8); ++n) v8[n] = (int8_t)(random_below(r, 255) - 127), v[n] = NAN;
    for (size_t n = 0; n < COUNT(k_scale); ++n) k_scale[n] = v_scale[n] = NAN;
    for (int64_t b = 0; b < BATCH; ++b)
        for (int64_t j = 0; j < (l->used ? used[b] : l->packed ? ends[b + 1] - ends[b] : SEQ_K); ++j)
            for (int64_t h = 0; h < HEADS; ++h) {
                float *of_k = &k_scale[scale_at(l, b, j, h)], *of_v = &v_scale[scale_at(l, b, j, h)];
                const int64_t row = ((l->packed ? ends[b] : b * SEQ_K) + j) * HEADS + h;
                if (isnan(*of_k)) *of_k = ldexpf(1, -8 + (int)random_below(r, 4));
                if (isnan(*of_v)) *of_v = ldexpf(1, -7 + (int)random_below(r, 3));
                for (int64_t x = 0; x < DIM; ++x) k[row * DIM + x] = *of_k * k8[row * DIM + x];
                for (int64_t x = 0; x < DIM_V; ++x) v[row * DIM_V + x] = *of_v * v8[row * DIM_V + x];
            }
}

static double wide_out[BATCH * MOST_Q * HEADS * GROUP * DIM_V];

/* dtype: of out; fp64 goes into wide_out. */
static strobe_status run_to(const struct layout *l, int64_t seq_q, const char *kernel, bool quantised, int32_t dtype) {
    strobe_tuning tuning = {.struct_size = sizeof tuning, .kernel = kernel};
    strobe_varlen varlen = {.struct_size = sizeof varlen};
    strobe_scales scales = {.struct_size = sizeof scales, .k = k_scale, .v = v_scale, .block_k = l->block};
    memcpy(scales.stride_k, l->stride, sizeof l->stride), memcpy(scales.stride_v, l->stride, sizeof l->stride);
    strobe_attention a = {.struct_size = sizeof a, .batch = BATCH, .seq_q = seq_q, .seq_k = SEQ_K, .heads_q = HEADS * GROUP};
    a.heads_kv = HEADS, a.dim = DIM, a.dim_v = DIM_V, a.tuning = &tuning, a.mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT;
    if (l->left) a.mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT, a.window_left = l->left;
    a.q.data = q, a.out.data = out[quantised], a.lse.data = lse[quantised];
    if (dtype == STROBE_FP64) a.out.data = wide_out, a.out.dtype = dtype;
    a.k.data = quantised ? (void *)k8 : k, a.v.data = quantised ? (void *)v8 : v;
    a.k.dtype = a.v.dtype = quantised ? STROBE_INT8 : STROBE_FP32;
    if (quantised) a.scales = &scales;
    if (l->packed) varlen.cu_seqlens_k = ends;
    if (l->used) varlen.used_k = used;
    if (l->packed || l->used) a.varlen = &varlen;
    memset(out[quantised], 0, sizeof out[0]), memset(lse[quantised], 0, sizeof lse[0]);
    return strobe_forward(&a, NULL, 0, NULL);
}

static strobe_status run(const struct layout *l, int64_t seq_q, const char *kernel, bool quantised) {
    return run_to(l, seq_q, kernel, quantised, STROBE_FP32);
}

static double highest(const float *x, size_t count) {
    double high = 0;
    for (size_t n = 0; n < count; ++n) high = isfinite(x[n]) && fabs((double)x[n]) > high ? fabs((double)x[n]) : high;
    return high;
}

/* Two kernels' DIM roundings of a score move a weight and the sum of weights, and the output by that much of V. */
static void assert_close(int64_t seq_q) {
    const double score = sqrt(DIM) * highest(q, COUNT(q)) * highest(k, COUNT(k)), roundings = 2 * DIM * 0x1p-24;
    const double weight = 2 * roundings * score, allowed = weight * highest(v, COUNT(v));
    for (int64_t e = 0; e < BATCH * seq_q * HEADS * GROUP * DIM_V; ++e)
        if (fabs((double)out[0][e] - (double)out[1][e]) > allowed)
            fail_msg("%g, not %g", (double)out[1][e], (double)out[0][e]);
    for (int64_t e = 0; e < BATCH * seq_q * HEADS * GROUP; ++e)
        assert_true(fabs((double)lse[0][e] - (double)lse[1][e]) <= weight);
}

static void test_same_bits(void **state) {
    const struct layout *l = *state;
    struct random random = {.state = 5};
    strobe_kernel_info info = {.struct_size = sizeof info};
    int ran = 0;
    fill(l, &random);
    for (int64_t seq_q = 1; seq_q <= MOST_Q; seq_q += 4)
        for (int32_t n = 0; strobe_kernel_at(n, &info) == STROBE_OK; ++n) {
            if (info.operation != STROBE_FORWARD || info.device != STROBE_CPU || info.unavailable) continue;
            const strobe_status status = run(l, seq_q, info.name, true);
            if (status == STROBE_UNSUPPORTED) continue;
            if (status) fail_msg("%s: %s", info.name, strobe_last_error());
            ++ran;
            for (int64_t e = 0; e < BATCH * seq_q * HEADS * GROUP * DIM_V; ++e) assert_true(isfinite(out[1][e]));
            if (run(l, seq_q, info.name, false) == STROBE_UNSUPPORTED) { /* it takes int8 alone */
                assert_int_equal(run(l, seq_q, "cpu_forward_baseline", false), STROBE_OK);
                assert_close(seq_q);
                continue;
            }
            if (memcmp(out[0], out[1], sizeof out[0]) != 0 || memcmp(lse[0], lse[1], sizeof lse[0]) != 0)
                fail_msg("%s, %d rows: other bits than for the same K and V in fp32", info.name, (int)seq_q);
        }
    assert_true(ran >= 3 * 3); /* the oracle, and the baseline's forward and decode, which takes one and five rows */
}

/* Results in fp64 are those in fp32, with no fewer digits. */
static void test_out_in_fp64(void **state) {
    struct random random = {.state = 5};
    strobe_kernel_info info = {.struct_size = sizeof info};
    (void)state;
    fill(&layouts[0], &random);
    for (int64_t seq_q = 1; seq_q <= MOST_Q; seq_q += 4)
        for (int32_t n = 0; strobe_kernel_at(n, &info) == STROBE_OK; ++n) {
            if (info.operation != STROBE_FORWARD || info.device != STROBE_CPU || info.unavailable) continue;
            if (run_to(&layouts[0], seq_q, info.name, true, STROBE_FP64) != STROBE_OK) continue;
            if (run(&layouts[0], seq_q, info.name, true)) fail_msg("%s: %s", info.name, strobe_last_error());
            for (int64_t e = 0; e < BATCH * seq_q * HEADS * GROUP * DIM_V; ++e)
                if ((float)wide_out[e] != out[1][e])
                    fail_msg("%s, %d rows: %.9g in fp64, %.9g in fp32", info.name, (int)seq_q, wide_out[e],
                             (double)out[1][e]);
        }
}

/* A query row, and scales, that are not sums of digits. */
static void test_without_digits(void **state) {
    static float *const places[] = {q + DIM + 3, k_scale + 5, v_scale + 5, q};
    static const float values[] = {INFINITY, NAN, INFINITY, 0x1p-125f};
    struct random random = {.state = 5};
    (void)state;
#if defined(_WIN32) || defined(STROBE_NO_AVX512) /* which have no kernel on tiles */
    skip();
#endif
    for (size_t n = 0; n < COUNT(places); ++n) {
        fill(&layouts[0], &random);
        for (int64_t x = 0; x < DIM && values[n] == 0x1p-125f; ++x) q[x] = values[n]; /* all of row 0 */
        *places[n] = values[n];
        if (run(&layouts[0], 1, "cpu_decode_int8_amx", true) == STROBE_UNSUPPORTED) skip();
        memcpy(out[0], out[1], sizeof out[0]), memcpy(lse[0], lse[1], sizeof lse[0]);
        assert_int_equal(run(&layouts[0], 1, "cpu_decode_avx512", true), STROBE_OK);
        assert_memory_equal(out[0], out[1], sizeof out[0]);
        assert_memory_equal(lse[0], lse[1], sizeof lse[0]);
    }
}

/* Where a cache has no slot there is nothing to scale: k, v and their scales may be NULL, as those of an empty tensor are in
 * other libraries. No row sees a key. block_k: 0 or 1. */
static const struct empty_cache {
    const char *name;
    bool packed, paged;
    int64_t seq_k;
} empty_caches[] = {
    {"no keys", .seq_k = 0},
    {"packed sequences without keys", .packed = true, .seq_k = 8},
    {"no pages", .paged = true, .seq_k = 8},
};

static void check_empty(const struct empty_cache *c, const char *kernel, int64_t seq_q, int32_t dtype, int64_t block) {
    static const int32_t none[BATCH + 1] = {0}, table[BATCH] = {0};
    const strobe_tuning tuning = {.struct_size = sizeof tuning, .kernel = kernel};
    const strobe_varlen varlen = {.struct_size = sizeof varlen, .cu_seqlens_k = c->packed ? none : NULL};
    const strobe_paged paged = {.struct_size = sizeof paged, .page_table = table, .page_size = 8};
    const strobe_scales scales = {.struct_size = sizeof scales, .block_k = block};
    strobe_attention a = {.struct_size = sizeof a, .batch = BATCH, .seq_q = seq_q, .seq_k = c->seq_k, .heads_q = HEADS};
    a.dim = DIM, a.dim_v = DIM_V, a.k.dtype = a.v.dtype = dtype, a.scales = &scales, a.tuning = &tuning;
    a.q.data = q, a.out.data = out[0], a.lse.data = lse[0];
    if (c->packed) a.varlen = &varlen;
    if (c->paged) a.paged = &paged;
    memset(out[0], 0xff, sizeof out[0]), memset(lse[0], 0xff, sizeof lse[0]);
    if (strobe_forward(&a, NULL, 0, NULL)) fail_msg("%s, %d rows: %s", kernel, (int)seq_q, strobe_last_error());
    for (int64_t e = 0; e < BATCH * seq_q * HEADS * DIM_V; ++e) assert_true(out[0][e] == 0);
    for (int64_t e = 0; e < BATCH * seq_q * HEADS; ++e) assert_true(lse[0][e] == -INFINITY);
}

static void test_nothing_to_scale(void **state) {
    strobe_kernel_info info = {.struct_size = sizeof info};
    int ran = 0;
    for (int32_t n = 0; strobe_kernel_at(n, &info) == STROBE_OK; ++n) {
        if (info.operation != STROBE_FORWARD || info.device != STROBE_CPU || info.unavailable) continue;
        for (int32_t dtype = STROBE_FP8_E4M3; dtype <= STROBE_INT8; ++dtype)
            for (int64_t block = 0; block <= 1; ++block)
                for (int64_t seq_q = 1; info.dtypes[1] >> dtype & 1 && info.dtypes[0] >> STROBE_FP32 & 1 && seq_q <= MOST_Q;
                     seq_q += 4, ++ran)
                    if (seq_q <= info.rows[1]) check_empty(*state, info.name, seq_q, dtype, block);
    }
    assert_true(ran >= 3 * 2 * 2 * 3);
}

int main(void) {
    struct CMUnitTest tests[COUNT(layouts) + COUNT(empty_caches) + 2];
    tests[COUNT(layouts) + COUNT(empty_caches)] = (struct CMUnitTest)cmocka_unit_test(test_without_digits);
    tests[COUNT(layouts) + COUNT(empty_caches) + 1] = (struct CMUnitTest)cmocka_unit_test(test_out_in_fp64);
    for (size_t n = 0; n < COUNT(empty_caches); ++n)
        tests[COUNT(layouts) + n] = test_of_row(empty_caches[n].name, test_nothing_to_scale, &empty_caches[n]);
    for (size_t n = 0; n < COUNT(layouts); ++n) tests[n] = test_of_row(layouts[n].name, test_same_bits, &layouts[n]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
