/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_philox.c: Philox4x32-10 against Random123's known answers, and dropout's mask, made visible by attention itself: with
 * equal scores and V the identity, out[i][j] is what dropout made of weight j. The mask must be the header's formula in
 * every kernel, and that of the whole problem in a slice of it. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "math/philox.h"
#include "strobe/strobe.h"
#include "test.h"

/* Random123 1.14, tests/kat_vectors: counter, key, words of philox4x32 with 10 rounds. */
static void test_known_answers(void **state) {
    (void)state;
    static const struct {
        uint64_t counter[2], key; /* the second word of a pair is the high half */
        uint32_t words[4];
    } rows[] = {
        {{0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{UINT64_MAX, UINT64_MAX}, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x85a308d3243f6a88, 0x0370734413198a2e}, 0x299f31d0a4093822, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t n = 0; n < COUNT(rows); ++n) {
        const struct philox_words words = philox4x32_10(rows[n].key, rows[n].counter[0], rows[n].counter[1]);
        assert_memory_equal(words.word, rows[n].words, sizeof rows[n].words);
    }
}

/* A problem whose out is its dropout mask, at most this large on each axis. */
enum { BATCH = 2, HEADS = 3, ROWS = 37, KEYS = 71, DIM = 2 };

struct view {
    int64_t batch, heads, rows, keys;
    strobe_dropout dropout;
};

static float mask[BATCH * ROWS * HEADS * KEYS], part[BATCH * ROWS * HEADS * KEYS];

/* False when the kernel does not take it. */
static bool dropout_mask(float *out, const struct view *view, const char *kernel) {
    static float zero[BATCH * ROWS * HEADS * DIM], identity[KEYS * KEYS];
    memset(identity, 0, sizeof identity);
    for (int64_t j = 0; j < view->keys; ++j) identity[j * view->keys + j] = 1;
    const strobe_tuning tuning = {.struct_size = sizeof tuning, .kernel = kernel};
    strobe_attention a = {.struct_size = sizeof a,
                          .batch = view->batch,
                          .seq_q = view->rows,
                          .seq_k = view->keys,
                          .heads_q = view->heads,
                          .heads_kv = 1,
                          .dim = DIM,
                          .dim_v = view->keys,
                          .q.data = zero,
                          .k = {.data = zero, .stride = {0, DIM, 0}},
                          .v = {.data = identity, .stride = {0, view->keys, 0}},
                          .out.data = out,
                          .dropout = &view->dropout,
                          .tuning = &tuning};
    const char *chosen;
    if (strobe_select(&a, NULL, &chosen)) return false;
    if (strobe_forward(&a, NULL, 0, NULL)) fail_msg("%s", strobe_last_error());
    return true;
}

static const struct view whole = {
    BATCH, HEADS, ROWS, KEYS, {.struct_size = sizeof(strobe_dropout), .p = 0.3, .seed = 0xfedcba9876543210, .offset = 1}};

/* The public header's formula. */
static bool is_kept(const strobe_dropout *d, int64_t b, int64_t h, int64_t i, int64_t j) {
    const uint64_t position = (uint64_t)(((d->batch_start + b) * d->heads + d->head_start + h) * d->rows + d->row_start +
                                         i) *
                                  (uint64_t)((d->keys + 3) / 4) +
                              (uint64_t)(d->key_start + j) / 4;
    const struct philox_words words = philox4x32_10(d->seed, d->offset, position);
    return words.word[(d->key_start + j) % 4] >= d->p * 4294967296.0;
}

static void expect_formula(const float *out, const struct view *v, const char *kernel) {
    strobe_dropout d = v->dropout;
    if (d.heads == 0) d.heads = v->heads;
    if (d.rows == 0) d.rows = v->rows;
    if (d.keys == 0) d.keys = v->keys;
    const double kept = 1 / (1 - d.p) / (double)v->keys;
    for (int64_t b = 0; b < v->batch; ++b)
        for (int64_t i = 0; i < v->rows; ++i)
            for (int64_t h = 0; h < v->heads; ++h)
                for (int64_t j = 0; j < v->keys; ++j) {
                    const double x = (double)*out++, expected = is_kept(&d, b, h, i, j) ? kept : 0;
                    if (fabs(x - expected) > 8 * 0x1p-24 * kept)
                        fail_msg("%s: weight of batch %lld head %lld row %lld key %lld is %g, not %g", kernel, (long long)b,
                                 (long long)h, (long long)i, (long long)j, x, expected);
                }
}

static void test_formula_in_every_kernel(void **state) {
    (void)state;
    struct view shard = whole;
    shard.dropout.heads = 40, shard.dropout.rows = 1000, shard.dropout.keys = 10001, shard.dropout.batch_start = 7;
    shard.dropout.head_start = 5, shard.dropout.row_start = 123, shard.dropout.key_start = 4567, shard.dropout.p = 0.9;
    strobe_kernel_info info = {.struct_size = sizeof info};
    int kernels = 0;
    for (int32_t k = 0; strobe_kernel_at(k, &info) == STROBE_OK; ++k) {
        if (info.operation != STROBE_FORWARD || info.unavailable) continue;
        if (!dropout_mask(mask, &whole, info.name)) continue;
        expect_formula(mask, &whole, info.name);
        if (!dropout_mask(mask, &shard, info.name)) fail_msg("%s", strobe_last_error());
        expect_formula(mask, &shard, info.name);
        ++kernels;
    }
    assert_true(kernels >= 3); /* one of the CPU's, the reference, standard attention */
}

/* A slice that gives the whole problem's sizes and its own start has the whole problem's mask. */
static void test_slices(void **state) {
    (void)state;
    static const struct {
        int64_t batch[2], head[2], row[2], key[2]; /* start, count */
    } slices[] = {
        {{1, 1}, {0, HEADS}, {0, ROWS}, {0, KEYS}},   {{0, BATCH}, {1, 2}, {0, ROWS}, {0, KEYS}},
        {{0, BATCH}, {0, HEADS}, {5, 30}, {0, KEYS}}, {{0, BATCH}, {0, HEADS}, {0, ROWS}, {6, 60}},
        {{1, 1}, {2, 1}, {36, 1}, {70, 1}},           {{1, 1}, {1, 1}, {3, 20}, {1, 2}},
    };
    assert_true(dropout_mask(mask, &whole, NULL));
    for (size_t n = 0; n < COUNT(slices); ++n) {
        struct view v = {slices[n].batch[1], slices[n].head[1], slices[n].row[1], slices[n].key[1], whole.dropout};
        v.dropout.heads = HEADS, v.dropout.rows = ROWS, v.dropout.keys = KEYS;
        v.dropout.batch_start = slices[n].batch[0], v.dropout.head_start = slices[n].head[0];
        v.dropout.row_start = slices[n].row[0], v.dropout.key_start = slices[n].key[0];
        assert_true(dropout_mask(part, &v, NULL));
        const float *x = part;
        for (int64_t b = 0; b < v.batch; ++b)
            for (int64_t i = 0; i < v.rows; ++i)
                for (int64_t h = 0; h < v.heads; ++h)
                    for (int64_t j = 0; j < v.keys; ++j, ++x) {
                        const int64_t row = (b + slices[n].batch[0]) * ROWS + i + slices[n].row[0];
                        const int64_t at = (row * HEADS + h + slices[n].head[0]) * KEYS + j + slices[n].key[0];
                        if ((*x == 0) != (mask[at] == 0)) fail_msg("slice %zu differs from the whole", n);
                    }
    }
}

/* As many weights are dropped as p says, within five standard deviations of a fair coin; other seeds, other masks. */
static void test_share_and_seed(void **state) {
    (void)state;
    static const double ps[] = {0, 1e-9, 0.1, 0.5, 0.999};
    for (size_t n = 0; n < COUNT(ps); ++n) {
        struct view v = whole;
        v.dropout.p = ps[n];
        assert_true(dropout_mask(mask, &v, NULL));
        double dropped = 0;
        for (size_t e = 0; e < COUNT(mask); ++e) dropped += mask[e] == 0;
        const double weights = (double)COUNT(mask), deviation = sqrt(weights * ps[n] * (1 - ps[n]));
        if (fabs(dropped - weights * ps[n]) > 5 * deviation) fail_msg("p = %g drops %g of %g", ps[n], dropped, weights);
    }
    struct view other = whole;
    assert_true(dropout_mask(mask, &whole, NULL));
    ++other.dropout.seed;
    assert_true(dropout_mask(part, &other, NULL));
    assert_memory_not_equal(mask, part, sizeof mask);
    other = whole;
    ++other.dropout.offset;
    assert_true(dropout_mask(part, &other, NULL));
    assert_memory_not_equal(mask, part, sizeof mask);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_formula_in_every_kernel),
        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_share_and_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
