/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_empty.c: rows that see no key, keys that no row sees, and tensors without elements, in every kernel. Such a row has
 * out = 0, lse = -inf or its sink's logit, dq = 0; such a key has dk = dv = 0: exactly, and written. */
#include <math.h>
#include <string.h>

#include "kernel_table.h"
#include "naive.h"
#include "test.h"

#define SIZE  .batch = 2, .seq_q = 70, .seq_k = 40, .heads_q = 2, .heads_kv = 1, .dim = 6, .dim_v = 5
#define HEADS .heads_q = 2, .dim = 6

static const struct shape cases[] = {
    {"causal, more rows than keys", SIZE, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = WITH_DLSE},
    {"causal, more rows than keys, sinks", SIZE, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = WITH_DLSE | SINKS},
    {"causal, more keys than rows", .batch = 1, .seq_q = 5, .seq_k = 200, HEADS, .mask = STROBE_MASK_CAUSAL_TOP_LEFT},
    {"window beyond the keys", SIZE, .mask = STROBE_MASK_WINDOW_TOP_LEFT, .left = 3, .right = 3, .features = WITH_DLSE},
    {"window beyond the keys, sinks", SIZE, .mask = STROBE_MASK_WINDOW_TOP_LEFT, .left = 3, .right = 3, .features = SINKS},
    {"boolean mask with an empty row", SIZE, .features = BOOL_MASK | PER_SCORE | WITH_DLSE},
    {"boolean mask for all heads, bf16", SIZE, .dtype = STROBE_BF16, .features = BOOL_MASK | PER_BATCH | PER_ROW | SINKS},
    {"bias of -inf for all rows", SIZE, .features = BIAS | HOLES | SOFTCAP},
    {"packed, an empty sequence", .batch = 3, .seq_q = 4, .seq_k = 8, HEADS, .features = PACKED | WITH_DLSE},
    {"no used keys", .batch = 3, .seq_q = 5, .seq_k = 1, HEADS, .features = USED_K | SINKS | DROPOUT},
    {"no keys", .batch = 2, .seq_q = 5, .seq_k = 0, HEADS, .features = WITH_DLSE},
    {"no keys, sinks, dlse", .batch = 2, .seq_q = 5, .seq_k = 0, HEADS, .features = SINKS | WITH_DLSE},
    {"no keys, all terms", .batch = 2, .seq_q = 5, .seq_k = 0, HEADS, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT,
     .features = BIAS | BOOL_MASK | BLOCK_MASK | PER_SCORE | ALIBI | SOFTCAP | DROPOUT},
    {"no rows", .batch = 2, .seq_q = 0, .seq_k = 7, HEADS},
    {"no rows, sinks and bias", .batch = 2, .seq_q = 0, .seq_k = 7, HEADS, .features = SINKS | BIAS | PER_HEAD},
    {"no rows, no keys", .batch = 2, .seq_q = 0, .seq_k = 0, HEADS, .features = SINKS | WITH_DLSE},
    {"no batch", .batch = 0, .seq_q = 5, .seq_k = 7, HEADS},
    {"no batch, sinks", .batch = 0, .seq_q = 5, .seq_k = 7, HEADS, .features = SINKS | WITH_DLSE},
    {"no batch, bias of each entry", .batch = 0, .seq_q = 5, .seq_k = 7, HEADS, .features = BIAS | PER_SCORE},
    {"no batch, bias of all entries", .batch = 0, .seq_q = 5, .seq_k = 7, HEADS, .features = BIAS | PER_HEAD | PER_ROW},
    {"no rows, bias of each row", .batch = 2, .seq_q = 0, .seq_k = 7, HEADS, .features = BIAS | PER_SCORE},
    {"no batch, packed", .batch = 0, .seq_q = 5, .seq_k = 7, HEADS, .features = PACKED},
};

static void expect(const struct fixture *f, enum tensor t, int64_t element, double expected, const char *kernel) {
    const double found = slot_get(&f->slot[t], element);
    if (found != expected)
        fail_msg("%s: %s[%lld] is %g, not %g", kernel, tensor_names[t], (long long)element, found, expected);
}

static void expect_row(const struct fixture *f, enum tensor t, int64_t entry, int64_t row, int64_t head,
                       const char *kernel) {
    const struct slot *s = &f->slot[t];
    for (int64_t x = 0; x < s->inner; ++x) expect(f, t, slot_element(s, entry, row, head, x), 0, kernel);
}

/* Rows of one head that see nothing; returns how many. */
static int64_t check_rows(const struct fixture *f, const struct piece *s, int64_t h, strobe_operation operation,
                          const char *kernel) {
    int64_t empty = 0;
    for (int64_t i = 0; i < s->rows; ++i) {
        bool sees = false;
        for (int64_t j = 0; j < s->keys; ++j) sees = sees || naive_sees(f, s, h, i, j);
        if (sees) continue;
        ++empty;
        if (operation == STROBE_BACKWARD) {
            expect_row(f, DQ, s->entry_q, s->first_q + i, h, kernel);
            continue;
        }
        const double lse = f->a.sinks ? slot_get(&f->slot[SINK_LOGITS], h) : -(double)INFINITY;
        expect_row(f, OUT, s->entry_q, s->first_q + i, h, kernel);
        expect(f, LSE, slot_element(&f->slot[LSE], s->entry_q, s->first_q + i, h, 0), lse, kernel);
    }
    return empty;
}

/* Keys of one head that no row of the group sees; returns how many. */
static int64_t check_keys(const struct fixture *f, const struct piece *s, int64_t kv, const char *kernel) {
    const int64_t group = f->a.heads_q / f->a.heads_kv;
    int64_t unseen = 0;
    for (int64_t j = 0; j < s->keys; ++j) {
        bool seen = false;
        for (int64_t h = kv * group; h < (kv + 1) * group; ++h)
            for (int64_t i = 0; i < s->rows; ++i) seen = seen || naive_sees(f, s, h, i, j);
        if (seen) continue;
        ++unseen;
        expect_row(f, DK, s->entry_k, s->first_k + j, kv, kernel);
        expect_row(f, DV, s->entry_k, s->first_k + j, kv, kernel);
    }
    return unseen;
}

/* Gradients of what is shared are written, with zeros where nothing adds to them. Without keys a sink has all the weight. */
static void check_shared(const struct fixture *f, const char *kernel) {
    for (int64_t e = 0; f->slot[DBIAS].base && e < slot_count(&f->slot[DBIAS]); ++e)
        if (f->a.seq_q == 0 || f->a.batch == 0) expect(f, DBIAS, e, 0, kernel);
    if (!f->slot[DSINKS].base || (f->a.seq_q > 0 && f->a.seq_k > 0 && f->a.batch > 0)) return;
    for (int64_t h = 0; h < f->a.heads_q; ++h) {
        double sum = 0;
        for (int64_t b = 0; f->slot[DLSE].base && b < f->a.batch; ++b)
            for (int64_t i = 0; i < f->a.seq_q; ++i)
                sum += slot_get(&f->slot[DLSE], slot_element(&f->slot[DLSE], b, i, h, 0));
        if (fabs(slot_get(&f->slot[DSINKS], h) - sum) > 16 * 0x1p-24)
            fail_msg("%s: dsinks[%lld] is %g, not %g", kernel, (long long)h, slot_get(&f->slot[DSINKS], h), sum);
    }
}

/* data may be NULL where a tensor has no elements. */
static void drop_empty_tensors(struct fixture *f) {
    strobe_tensor *const tensors[] = {&f->a.q,    &f->a.k,    &f->a.v,  &f->a.out, &f->a.lse,
                                      &f->g.dout, &f->g.dlse, &f->g.dq, &f->g.dk,  &f->g.dv};
    for (size_t t = 0; t < COUNT(tensors); ++t)
        if (f->slot[t].base && slot_count(&f->slot[t]) == 0) tensors[t]->data = NULL;
    if (f->slot[DBIAS].base && slot_count(&f->slot[DBIAS]) == 0) f->bias.data = f->dbias.data = NULL;
}

static void test_case(void **state) {
    const struct shape *shape = *state;
    struct fixture f;
    fixture_make(&f, shape);
    int64_t found = f.a.seq_q == 0 || f.a.batch == 0;
    for (int operation = STROBE_FORWARD; operation <= STROBE_BACKWARD; ++operation) {
        const char *names[MOST_KERNELS];
        const int kernels = kernels_for(&f, (strobe_operation)operation, names);
        assert_true(kernels > 0);
        for (int k = 0; k < kernels; ++k) {
            fixture_bind(&f);
            drop_empty_tensors(&f);
            const strobe_status status = operation == STROBE_FORWARD ? fixture_forward(&f, names[k])
                                                                     : fixture_backward(&f, names[k]);
            if (status) fail_msg("%s: %s", names[k], strobe_last_error());
            for (int64_t b = 0; b < f.a.batch; ++b) {
                const struct piece s = piece_of(&f, b);
                for (int64_t h = 0; h < f.a.heads_q; ++h)
                    found += check_rows(&f, &s, h, (strobe_operation)operation, names[k]);
                for (int64_t kv = 0; operation == STROBE_BACKWARD && kv < f.a.heads_kv; ++kv)
                    found += check_keys(&f, &s, kv, names[k]);
            }
            if (operation == STROBE_BACKWARD) check_shared(&f, names[k]);
            if (!fixture_guards_hold(&f)) fail_msg("%s wrote outside its outputs", names[k]);
        }
    }
    if (found == 0) fail_msg("nothing is empty here");
    fixture_free(&f);
}

/* Its own strides say whether dbias has elements, not those of the bias, which may be a view that repeats. */
static void test_dbias_of_no_rows(void **state) {
    static const struct shape shape = {
        .batch = 2, .seq_q = 0, .seq_k = 7, HEADS, .dtype = STROBE_FP32, .features = BIAS | PER_HEAD};
    const char *names[MOST_KERNELS];
    struct fixture f;
    (void)state;
    fixture_make(&f, &shape);
    const int kernels = kernels_for(&f, STROBE_BACKWARD, names);
    f.dbias.data = NULL;
    for (int k = 0; k < kernels; ++k) {
        const int64_t none[3] = {14, 0, 7}, one[3] = {0, 7, 0};
        memcpy(f.dbias.stride, none, sizeof none);
        if (fixture_backward(&f, names[k])) fail_msg("%s: %s", names[k], strobe_last_error());
        memcpy(f.dbias.stride, one, sizeof one);
        assert_int_equal(fixture_backward(&f, names[k]), STROBE_INVALID_ARGUMENT);
        assert_string_equal(strobe_last_error(), "dbias is NULL; a pointer to its elements is accepted");
    }
    fixture_free(&f);
}

/* Packed tensors of no rows are NULL; the bounds on lengths, seq_q and seq_k, are above 0 all the same. */
static void test_packed_without_rows(void **state) {
    static const struct shape shape = {
        .batch = 3, .seq_q = 4, .seq_k = 8, HEADS, .dtype = STROBE_FP32, .features = PACKED | SINKS | BIAS | PER_SCORE};
    static const int32_t none[4] = {0};
    (void)state;
    for (int sides = 1; sides <= 3; ++sides) /* 1: no keys, 2: no rows, 3: neither */
        for (int operation = STROBE_FORWARD; operation <= STROBE_BACKWARD; ++operation) {
            struct fixture f;
            const char *names[MOST_KERNELS];
            fixture_make(&f, &shape);
            const int kernels = kernels_for(&f, (strobe_operation)operation, names);
            assert_true(kernels > 0);
            if (sides & 1) f.varlen.cu_seqlens_k = none, f.varlen.total_k = 0;
            if (sides & 2) f.varlen.cu_seqlens_q = none, f.varlen.total_q = 0;
            f.varlen.used_q = f.varlen.used_k = NULL, f.varlen.index_bits = 32;
            if (sides & 1) f.a.k.data = f.a.v.data = f.g.dk.data = f.g.dv.data = NULL;
            if (sides & 2) f.a.q.data = f.a.out.data = f.g.dout.data = f.g.dq.data = NULL;
            if (sides & 2) f.slot[LSE].data = NULL;
            for (int k = 0; k < kernels; ++k) {
                if (fixture_run(&f, (strobe_operation)operation, names[k]))
                    fail_msg("%s: %s", names[k], strobe_last_error());
                for (int64_t b = 0; b < f.a.batch; ++b) {
                    const struct piece s = piece_of(&f, b);
                    for (int64_t h = 0; h < f.a.heads_q; ++h)
                        assert_true(check_rows(&f, &s, h, (strobe_operation)operation, names[k]) == s.rows);
                    for (int64_t kv = 0; operation == STROBE_BACKWARD && kv < f.a.heads_kv; ++kv)
                        assert_true(check_keys(&f, &s, kv, names[k]) == s.keys);
                }
                for (int64_t e = 0; operation && e < slot_count(&f.slot[DBIAS]); ++e) expect(&f, DBIAS, e, 0, names[k]);
            }
            fixture_free(&f);
        }
}

int main(void) {
    struct CMUnitTest tests[COUNT(cases) + 2];
    for (size_t n = 0; n < COUNT(cases); ++n) tests[n] = test_of_row(cases[n].name, test_case, &cases[n]);
    tests[COUNT(cases)] = (struct CMUnitTest)cmocka_unit_test(test_dbias_of_no_rows);
    tests[COUNT(cases) + 1] = (struct CMUnitTest)cmocka_unit_test(test_packed_without_rows);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
