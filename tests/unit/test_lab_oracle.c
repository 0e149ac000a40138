/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_lab_oracle.c: every algorithm of the lab against the library's float64 reference, forward and backward: exact in
 * fp64, and in fp32 and fp16 as far off as standard attention is, over shapes, masks, dropout and block masks. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/blocks.h"
#include "lab/experiment.h"
#include "test.h"

/* Runs every algorithm that takes the problem; the largest errors of forward, of backward and of L. */
typedef struct errors {
    double forward, backward, lse;
    int runs;
} errors;

static errors run_all(const lab_problem *p, lab_type type, uint64_t seed) {
    errors worst = {0};
    lab_data data;
    char message[LAB_REFUSAL];
    if (!lab_data_random(&data, p, type, seed, true, message)) fail_msg("%s", message);
    for (int a = 0; lab_algorithm_at(a); ++a) {
        const lab_algorithm *algorithm = lab_algorithm_at(a);
        if (p->dropout > 0 && !(algorithm->takes & LAB_TAKES_DROPOUT)) continue;
        if (p->block_mask && !(algorithm->takes & LAB_TAKES_BLOCK_MASK)) continue;
        lab_result result;
        const lab_algorithm *forward = algorithm->forward ? lab_algorithm_named(algorithm->forward) : algorithm;
        const int64_t need = lab_fast_need(algorithm, p), before = lab_fast_need(forward, p);
        const int64_t least = need > before ? need : before; /* now with room, now without: rows then pass in pieces */
        if (!lab_measure(algorithm, p, seed % 2 ? 1 << 20 : least, type, &data, &result, message)) fail_msg("%s", message);
        double *error = algorithm->forward ? &worst.backward : &worst.forward;
        *error = fmax(*error, result.error);
        worst.lse = fmax(worst.lse, result.lse_error);
        ++worst.runs;
    }
    lab_data_destroy(&data);
    return worst;
}

static lab_problem shape(int64_t m, int64_t n, int64_t d, int64_t dv, int64_t br, int64_t bc) {
    return (lab_problem){.m = m,
                         .n = n,
                         .d = d,
                         .dv = dv,
                         .scale = 1 / sqrt((double)d),
                         .br = br,
                         .bc = bc,
                         .workers = 3,
                         .splits = 4,
                         .stages = 2,
                         .seed = 11};
}

static const int64_t shapes[][6] = {{32, 32, 8, 8, 8, 8},   {33, 29, 7, 5, 8, 6},   {1, 77, 16, 16, 4, 16},
                                    {40, 1, 4, 4, 16, 4},   {64, 48, 12, 20, 1, 1}, {17, 65, 32, 3, 17, 65},
                                    {25, 30, 1, 1, 64, 64}, {50, 20, 6, 6, 7, 20}};
static const strobe_mask_kind masks[] = {STROBE_MASK_NONE, STROBE_MASK_CAUSAL_TOP_LEFT, STROBE_MASK_CAUSAL_BOTTOM_RIGHT};

/* In fp64 nothing but the order of additions differs: a few hundred roundings. */
static void test_all_are_exact_in_fp64(void **state) {
    (void)state;
    const double few_hundred = 400 * lab_type_roundoff(LAB_FP64);
    for (size_t s = 0; s < COUNT(shapes); ++s)
        for (size_t k = 0; k < COUNT(masks); ++k) {
            lab_problem p = shape(shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], shapes[s][4], shapes[s][5]);
            p.mask = masks[k];
            const errors e = run_all(&p, LAB_FP64, 100 + s);
            assert_int_equal(e.runs, 14);
            if (!(e.forward < few_hundred && e.backward < few_hundred && e.lse < few_hundred))
                fail_msg("shape %zu mask %zu: forward %.2e backward %.2e lse %.2e", s, k, e.forward, e.backward, e.lse);
        }
}

static void test_dropout_is_the_librarys(void **state) {
    (void)state;
    const double few_hundred = 400 * lab_type_roundoff(LAB_FP64);
    for (size_t s = 0; s < COUNT(shapes); ++s)
        for (double dropout = 0.1; dropout < 1; dropout += 0.4) {
            lab_problem p = shape(shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], shapes[s][4], shapes[s][5]);
            p.dropout = dropout;
            p.mask = masks[s % COUNT(masks)];
            const errors e = run_all(&p, LAB_FP64, 200 + s);
            assert_int_equal(e.runs, 8);
            if (!(e.forward < few_hundred && e.backward < few_hundred && e.lse < few_hundred))
                fail_msg("shape %zu p %g: forward %.2e backward %.2e lse %.2e", s, dropout, e.forward, e.backward, e.lse);
        }
}

static void test_block_masks(void **state) {
    (void)state;
    const double few_hundred = 400 * lab_type_roundoff(LAB_FP64);
    for (size_t s = 0; s < COUNT(shapes); ++s) {
        lab_problem p = shape(shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], shapes[s][4], shapes[s][5]);
        const int64_t blocks = lab_ceil_div(p.m, p.br) * lab_ceil_div(p.n, p.bc);
        uint8_t *mask = calloc((size_t)blocks, 1);
        assert_non_null(mask);
        struct random random = {s};
        for (int64_t b = 0; b < blocks; ++b) mask[b] = random_below(&random, 3) > 0; /* whole rows are masked at times */
        p.block_mask = mask;
        p.mask = masks[s % COUNT(masks)];
        const errors e = run_all(&p, LAB_FP64, 300 + s);
        assert_int_equal(e.runs, 13);
        if (!(e.forward < few_hundred && e.backward < few_hundred && e.lse < few_hundred))
            fail_msg("shape %zu: forward %.2e backward %.2e lse %.2e", s, e.forward, e.backward, e.lse);
        free(mask);
    }
}

/* Every algorithm on the data, in blocks of 32 x 40, as far off as lab_allowed_error says at most. */
static void check_against_standard(const lab_problem *p, lab_type type, const lab_data *data) {
    char message[LAB_REFUSAL];
    lab_result standard, result;
    for (int a = 0; lab_algorithm_at(a); ++a) {
        const lab_algorithm *algorithm = lab_algorithm_at(a);
        const char *yardstick = algorithm->forward ? "standard_backward" : "standard";
        assert_true(lab_measure(lab_algorithm_named(yardstick), p, 1 << 20, type, data, &standard, message));
        assert_true(lab_measure(algorithm, p, 1 << 20, type, data, &result, message));
        const double allowed = lab_allowed_error(algorithm, p, type, standard.error);
        if (!(result.error <= allowed && standard.error < 300 * lab_type_roundoff(type)))
            fail_msg("%s in %s: %.2e, allowed %.2e", algorithm->name, lab_type_name(type), result.error, allowed);
    }
}

static void test_low_precision_is_no_worse_than_standard_attention(void **state) {
    (void)state;
    static const lab_type types[] = {LAB_FP64, LAB_FP32, LAB_FP16, LAB_BF16};
    for (size_t t = 0; t < COUNT(types); ++t) {
        const lab_problem p = shape(96, 160, 32, 32, 32, 40);
        lab_data data;
        char message[LAB_REFUSAL];
        assert_true(lab_data_random(&data, &p, types[t], 5, true, message));
        check_against_standard(&p, types[t], &data);
        lab_data_destroy(&data);
    }
}

enum { SEQ = 445, HEADS = 12, DIM = 32 };

/* Tensor "LAYER.NAME" of the example file, [1, SEQ, HEADS, DIM] in fp32: where its header says. */
static float *read_tensor(FILE *file, const char *layer, const char *name) {
    char header[4096] = "", key[64];
    unsigned char length[8];
    unsigned long long begin = 0, end = 0;
    rewind(file);
    assert_int_equal(fread(length, 1, 8, file), 8);
    const size_t bytes = length[0] + 256u * length[1];
    assert_true(bytes < sizeof header && fread(header, 1, bytes, file) == bytes);
    snprintf(key, sizeof key, "\"%s.%s\"", layer, name);
    const char *at = strstr(header, key);
    assert_non_null(at);
    assert_int_equal(sscanf(strstr(at, "offsets\":["), "offsets\":[%llu,%llu", &begin, &end), 2);
    float *values = malloc(SEQ * HEADS * DIM * sizeof *values);
    assert_true(values && end - begin == SEQ * HEADS * DIM * sizeof *values);
    assert_int_equal(fseek(file, (long)(8 + bytes + begin), SEEK_SET), 0);
    assert_int_equal(fread(values, 1, end - begin, file), end - begin);
    return values;
}

static void head_of(const float *tensor, int64_t head, double *values) {
    for (int64_t i = 0; i < SEQ; ++i)
        for (int64_t c = 0; c < DIM; ++c) values[i * DIM + c] = (double)tensor[(i * HEADS + head) * DIM + c];
}

/* A transformer's own queries, keys and values, of its first and its last layer, forward and backward. */
static void test_real_data(void **state) {
    (void)state;
    char path[1024];
    snprintf(path, sizeof path, "%s", __FILE__);
    char *here = strstr(path, "tests/unit/");
    assert_non_null(here);
    snprintf(here, sizeof path - (size_t)(here - path), "examples/data/minilm_qkv.safetensors");
    FILE *file = fopen(path, "rb");
    if (!file) skip();
    static double q[SEQ * DIM], k[SEQ * DIM], v[SEQ * DIM], d_o[SEQ * DIM];
    struct random random = {1};
    for (int e = 0; e < SEQ * DIM; ++e) d_o[e] = random_value(&random);
    for (int layer = 0; layer <= 5; layer += 5) {
        char name[16];
        snprintf(name, sizeof name, "layer%d", layer);
        float *tensors[] = {read_tensor(file, name, "q"), read_tensor(file, name, "k"), read_tensor(file, name, "v")};
        for (int head = layer; head < HEADS; head += 7) { /* three of 24 heads: strobe lab traffic does all */
            const lab_problem p = shape(SEQ, SEQ, DIM, DIM, 64, 96);
            lab_data data;
            char message[LAB_REFUSAL];
            head_of(tensors[0], head, q);
            head_of(tensors[1], head, k);
            head_of(tensors[2], head, v);
            for (lab_type type = LAB_FP64; type <= LAB_FP32; ++type) {
                assert_true(lab_data_create(&data, &p, type, q, k, v, d_o, message));
                check_against_standard(&p, type, &data);
                lab_data_destroy(&data);
            }
        }
        for (int i = 0; i < 3; ++i) free(tensors[i]);
    }
    fclose(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_are_exact_in_fp64),
        cmocka_unit_test(test_dropout_is_the_librarys),
        cmocka_unit_test(test_block_masks),
        cmocka_unit_test(test_low_precision_is_no_worse_than_standard_attention),
        cmocka_unit_test(test_real_data),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
