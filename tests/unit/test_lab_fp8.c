/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_lab_fp8.c: FlashAttention-3 in FP8: the transform is orthogonal and leaves Q K^T, quantisation by blocks is one pass,
 * the rotation costs no traffic, the products are exact where nothing is rounded, and incoherent processing helps where the
 * paper says so. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "lab/fp8.h"
#include "lab/random.h"
#include "test.h"

enum { ROWS = 12, D = 32 };

static lab_tile tile_of(lab_memory *memory, const double *values, int64_t rows, int64_t cols) {
    const lab_tile tile = lab_tile_create(memory, "tile", rows, cols);
    assert_non_null(tile.at);
    for (int64_t x = 0; x < rows * cols; ++x) tile.at[x] = values[x];
    return tile;
}

static double dot(const double *a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t x = 0; x < n; ++x) sum += a[x] * b[x];
    return sum;
}

static void test_hadamard_leaves_products_as_they_were(void **state) {
    (void)state;
    for (int64_t d = 1; d <= 256; d *= 2) {
        lab_memory memory;
        lab_random random = {.state = 9};
        double values[2 * 256], signs[256];
        lab_memory_open(&memory, 1 << 20, LAB_FP32, LAB_COMPUTE);
        lab_outliers(&random, values, 2 * d);
        lab_signs(signs, d, 4);
        lab_tile x = tile_of(&memory, values, 2, d);
        lab_hadamard_rows(&memory, &x, signs);
        const double before = dot(values, values + d, d), after = dot(x.at, x.at + d, d);
        assert_true(fabs(before - after) < 1e-5 * (1 + fabs(before)));
        assert_int_equal(memory.counts.multiply_adds, 0);
        int64_t steps = 0;
        while (1 << steps < d) ++steps;
        assert_int_equal(memory.counts.others, 2 * d * (steps + 2)); /* d log2 d additions a row */
        lab_release(&memory);
    }
}

/* One large number among zeros is spread evenly: d numbers of 1 / sqrt(d) of its size. */
static void test_hadamard_spreads_an_outlier(void **state) {
    (void)state;
    lab_memory memory;
    double values[D] = {0}, signs[D];
    values[5] = 100;
    lab_memory_open(&memory, 1 << 20, LAB_FP32, LAB_COMPUTE);
    lab_signs(signs, D, 4);
    lab_tile x = tile_of(&memory, values, 1, D);
    lab_hadamard_rows(&memory, &x, signs);
    for (int c = 0; c < D; ++c) assert_true(fabs(fabs(x.at[c]) - 100 / sqrt(D)) < 1e-4);
    lab_release(&memory);
}

static void test_hadamard_refuses_other_sizes(void **state) {
    (void)state;
    lab_memory memory;
    double values[96] = {0}, signs[96];
    lab_memory_open(&memory, 1 << 20, LAB_FP32, LAB_COMPUTE);
    lab_signs(signs, 96, 4);
    lab_tile x = tile_of(&memory, values, 1, 96);
    lab_hadamard_rows(&memory, &x, signs);
    assert_string_equal(memory.refusal, "d = 96: the Hadamard transform takes a power of two");
    lab_release(&memory);
}

/* Rotary: the product of two rows depends on the distance of their positions alone. */
static void test_rotary_depends_on_distance(void **state) {
    (void)state;
    double values[D], products[2];
    lab_random random = {.state = 2};
    lab_normals(&random, values, D);
    for (int i = 0; i < 2; ++i) {
        lab_memory memory;
        lab_memory_open(&memory, 1 << 20, LAB_FP32, LAB_COMPUTE);
        lab_tile a = tile_of(&memory, values, 1, D), b = tile_of(&memory, values, 1, D);
        lab_rotary_rows(&memory, &a, 3 + 40 * i);
        lab_rotary_rows(&memory, &b, 10 + 40 * i);
        products[i] = dot(a.at, b.at, D);
        lab_release(&memory);
    }
    assert_true(fabs(products[0] - products[1]) < 1e-4);
}

static lab_counts quantise(const lab_transform *transform, double largest, double *restored, const double *values) {
    lab_memory memory;
    lab_memory_open(&memory, 1 << 20, LAB_E4M3, LAB_COMPUTE);
    lab_matrix *x = lab_matrix_create(&memory, "X", ROWS, D, LAB_FP16, LAB_OPERAND);
    lab_matrix *stored = lab_matrix_create(&memory, "X8", ROWS, D, LAB_E4M3, LAB_EXTRA);
    lab_matrix *scales = lab_matrix_create(&memory, "scales", 3, 1, LAB_FP32, LAB_EXTRA);
    double scale[3];
    lab_matrix_put(x, values);
    lab_quantise(&memory, x, stored, scales, ROWS, D, 5, transform, largest);
    assert_string_equal(memory.refusal, "");
    lab_matrix_get(stored, restored);
    lab_matrix_get(scales, scale);
    for (int e = 0; e < ROWS * D; ++e) restored[e] *= scale[e / D / 5];
    lab_matrix_destroy(&memory, x);
    lab_matrix_destroy(&memory, stored);
    lab_matrix_destroy(&memory, scales);
    return memory.counts;
}

/* One pass, whether rows are turned, transformed, both or neither: incoherent processing costs no traffic. */
static void test_quantisation_by_blocks_is_one_pass(void **state) {
    (void)state;
    double values[ROWS * D], restored[ROWS * D], signs[D];
    lab_random random = {.state = 6};
    lab_outliers(&random, values, ROWS * D);
    lab_signs(signs, D, 8);
    const lab_transform transforms[] = {{0}, {.rotary = true}, {.signs = signs}, {.rotary = true, .signs = signs}};
    for (size_t t = 0; t < COUNT(transforms); ++t) {
        const lab_counts counts = quantise(&transforms[t], 0, restored, values);
        assert_int_equal(counts.reads, ROWS * D);
        assert_int_equal(counts.read_bytes, 2 * ROWS * D);
        assert_int_equal(counts.writes, ROWS * D + 3);
        assert_int_equal(counts.write_bytes, ROWS * D + 3 * 4);
    }
    /* Nothing is off by more than half a step of e4m3 at its size: 2^-4 of it, or of the smallest normal number. */
    quantise(&transforms[0], 0, restored, values);
    for (int e = 0; e < ROWS * D; ++e) {
        double largest = 0; /* of the block of five rows */
        for (int b = e / D / 5 * 5 * D; b < ROWS * D && b < (e / D / 5 + 1) * 5 * D; ++b)
            largest = fmax(largest, fabs(lab_round(values[b], LAB_FP16)));
        const double step = fmax(fabs(values[e]), largest / LAB_E4M3_LARGEST * 0x1p-6) / 16;
        assert_true(fabs(restored[e] - values[e]) <= step * 1.01);
    }
}

/* With small whole numbers in Q, K and V nothing is rounded on the way in: FP8 attention is then as good as its P. */
static void test_attention_on_numbers_that_e4m3_has(void **state) {
    (void)state;
    enum { N = 40, HEADS = 2 };
    double q[HEADS * N * D], k[HEADS * N * D], v[HEADS * N * D], oracle[HEADS * N * D];
    struct random random = {3};
    for (int e = 0; e < HEADS * N * D; ++e) {
        q[e] = (double)random_below(&random, 3) - 1;
        k[e] = (double)random_below(&random, 3) - 1;
        v[e] = (double)random_below(&random, 3) - 1;
    }
    const lab_fp8_input in = {.heads = HEADS, .m = N, .n = N, .d = D, .block = 16, .q = q, .k = k, .v = v, .seed = 1};
    char message[LAB_REFUSAL];
    assert_true(lab_fp8_oracle(&in, oracle, message));
    for (int i = 0; lab_fp8_variant_at(i); ++i) {
        const lab_fp8_variant *variant = lab_fp8_variant_at(i);
        lab_fp8_result result;
        if (!lab_fp8_measure(variant, &in, oracle, &result, message)) fail_msg("%s", message);
        const double weights = !variant->fp8 || variant->weights == LAB_FP16 ? 2e-3 : 4e-2;
        assert_true(result.largest_error < (variant->hadamard ? 8e-2 : weights));
        assert_true(result.rmse <= result.largest_error && result.rmse > 0);
    }
}

/* The paper's outliers, at a size that takes a second: the order of the published figures. */
static void test_incoherent_processing_helps(void **state) {
    (void)state;
    enum { HEADS = 2, M = 64, N = 2048, WIDTH = 128 };
    double *q = calloc(HEADS * M * WIDTH, sizeof *q), *oracle = calloc(HEADS * M * WIDTH, sizeof *oracle);
    double *k = calloc((size_t)HEADS * N * WIDTH, sizeof *k), *v = calloc((size_t)HEADS * N * WIDTH, sizeof *v);
    assert_true(q && k && v && oracle);
    lab_random random = {.state = 1};
    lab_outliers(&random, q, HEADS * M * WIDTH);
    lab_outliers(&random, k, (int64_t)HEADS * N * WIDTH);
    lab_outliers(&random, v, (int64_t)HEADS * N * WIDTH);
    const lab_fp8_input in = {.heads = HEADS, .m = M, .n = N, .d = WIDTH, .block = 64, .q = q, .k = k, .v = v, .seed = 1};
    char message[LAB_REFUSAL];
    assert_true(lab_fp8_oracle(&in, oracle, message));
    double rmse[8];
    for (int i = 0; lab_fp8_variant_at(i); ++i) {
        lab_fp8_result result;
        if (!lab_fp8_measure(lab_fp8_variant_at(i), &in, oracle, &result, message)) fail_msg("%s", message);
        rmse[i] = result.rmse;
    }
    enum { STANDARD16, FLASH16, BASELINE, TENSOR, HEAD, BLOCK, HADAMARD, FLASH3 };
    assert_true(rmse[FLASH16] < rmse[STANDARD16] && rmse[STANDARD16] < 5e-4);
    assert_true(rmse[FLASH3] < 0.75 * rmse[BASELINE] && rmse[HADAMARD] < 0.75 * rmse[TENSOR]);
    assert_true(rmse[FLASH3] > 10 * rmse[FLASH16]);
    free(q);
    free(k);
    free(v);
    free(oracle);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hadamard_leaves_products_as_they_were),
        cmocka_unit_test(test_hadamard_spreads_an_outlier),
        cmocka_unit_test(test_hadamard_refuses_other_sizes),
        cmocka_unit_test(test_rotary_depends_on_distance),
        cmocka_unit_test(test_quantisation_by_blocks_is_one_pass),
        cmocka_unit_test(test_attention_on_numbers_that_e4m3_has),
        cmocka_unit_test(test_incoherent_processing_helps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
