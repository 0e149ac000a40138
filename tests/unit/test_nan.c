/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_nan.c: a NaN goes where attention takes it and nowhere else, in every kernel. What a K or V holds that is hidden from
 * all rows, an infinity or a NaN, changes nothing. What some rows see reaches their results alone: wherever the reference is
 * finite, so is the kernel. */
#include <math.h>
#include <stdio.h>

#include "kernel_table.h"
#include "naive.h"
#include "test.h"

#define SIZE .batch = 2, .seq_q = 55, .seq_k = 90, .heads_q = 2, .heads_kv = 1, .dim = 9, .dim_v = 7

static const struct shape cases[] = {
    {"no mask", SIZE, .features = WITH_DLSE},
    {"causal", SIZE, .mask = STROBE_MASK_CAUSAL_TOP_LEFT},
    {"causal, one head a key head", .batch = 1, .seq_q = 100, .seq_k = 90, .heads_q = 2, .dim = 17,
     .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = WITH_DLSE},
    {"causal, bf16", SIZE, .dtype = STROBE_BF16, .mask = STROBE_MASK_CAUSAL_TOP_LEFT, .features = SINKS},
    {"causal, fp16, softcap", SIZE, .dtype = STROBE_FP16, .mask = STROBE_MASK_CAUSAL_TOP_LEFT, .features = SOFTCAP},
    {"window", SIZE, .mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT, .left = 20, .right = 3},
    {"window, sinks, negative scale", SIZE, .mask = STROBE_MASK_WINDOW_TOP_LEFT, .left = 90, .right = 0,
     .features = SINKS | NEGATIVE_SCALE},
    {"boolean mask", SIZE, .features = BOOL_MASK | PER_SCORE},
    {"boolean mask of keys, ALiBi", SIZE, .features = BOOL_MASK | PER_BATCH | ALIBI},
    {"block mask", SIZE, .features = BLOCK_MASK},
    {"bias with holes", SIZE, .features = BIAS | HOLES | PER_SCORE},
    {"bias with holes, bf16", SIZE, .dtype = STROBE_BF16, .features = BIAS | HOLES | PER_HEAD},
    {"packed", SIZE, .mask = STROBE_MASK_CAUSAL_TOP_LEFT, .features = PACKED},
    {"used", SIZE, .features = USED},
    {"a few rows, causal", .batch = 2, .seq_q = 4, .seq_k = 90, .heads_q = 2, .heads_kv = 1, .dim = 20,
     .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT},
    {"a few rows, window, bf16", .batch = 1, .seq_q = 3, .seq_k = 200, .heads_q = 4, .heads_kv = 2, .dim = 33,
     .dtype = STROBE_BF16, .mask = STROBE_MASK_WINDOW_TOP_LEFT, .left = 2, .right = 66},
    {"used of packed, causal", SIZE, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = PACKED | USED},
};

/* What is done to a problem's inputs. */
enum poison {
    HIDDEN_NAN, /* every K and V that no row sees */
    HIDDEN_INFINITY,
    KEY,   /* one element of one K */
    VALUE, /* one element of one V */
    QUERY, /* one element of one q */
    DOUT_ROW,
    POISONS
};
static const char *const poison_names[POISONS] = {
    "NaN in hidden K and V", "infinity in hidden K and V", "NaN in a K", "NaN in a V", "NaN in a q", "NaN in a dout"};

static void fill_row(struct slot *s, int64_t entry, int64_t row, int64_t head, double value) {
    for (int64_t x = 0; x < s->inner; ++x) slot_set(s, slot_element(s, entry, row, head, x), value);
}

static bool is_hidden(const struct fixture *f, const struct piece *s, int64_t kv, int64_t j) {
    const int64_t group = f->a.heads_q / f->a.heads_kv;
    for (int64_t h = kv * group; h < (kv + 1) * group; ++h)
        for (int64_t i = 0; i < s->rows; ++i)
            if (naive_sees(f, s, h, i, j)) return false;
    return true;
}

/* Rows past the used ones too; returns how many were hidden. */
static int64_t poison_hidden(struct fixture *f, double value) {
    int64_t hidden = 0;
    for (int64_t b = 0; b < f->a.batch; ++b) {
        struct piece s = piece_of(f, b);
        const int64_t used = s.keys, all = f->varlen.cu_seqlens_k ? used : f->a.seq_k;
        for (int64_t kv = 0; kv < f->a.heads_kv; ++kv)
            for (int64_t j = 0; j < all; ++j) {
                if (j < used && !is_hidden(f, &s, kv, j)) continue;
                ++hidden;
                fill_row(&f->slot[K], s.entry_k, s.first_k + j, kv, value);
                fill_row(&f->slot[V], s.entry_k, s.first_k + j, kv, value);
            }
    }
    return hidden;
}

/* An element in the middle of the first sequence. */
static void poison_one(struct fixture *f, enum tensor t) {
    struct slot *s = &f->slot[t];
    const struct piece piece = piece_of(f, 0);
    const bool keys = t == K || t == V;
    const int64_t row = keys ? piece.first_k + piece.keys / 3 : piece.first_q + piece.rows / 3;
    slot_set(s, slot_element(s, keys ? piece.entry_k : piece.entry_q, row, 0, s->inner / 2), (double)NAN);
}

/* Returns whether there was anything to poison. */
static bool apply(struct fixture *f, enum poison poison) {
    static const enum tensor tensors[] = {[KEY] = K, [VALUE] = V, [QUERY] = Q, [DOUT_ROW] = DOUT};
    if (poison == HIDDEN_NAN) return poison_hidden(f, (double)NAN) > 0;
    if (poison == HIDDEN_INFINITY) return poison_hidden(f, (double)INFINITY) > 0;
    poison_one(f, tensors[poison]);
    return true;
}

static void run(struct fixture *f, strobe_operation operation, const char *forward, const char *backward) {
    if (fixture_forward(f, forward)) fail_msg("%s", strobe_last_error());
    if (operation == STROBE_BACKWARD && fixture_backward(f, backward)) fail_msg("%s", strobe_last_error());
}

/* Clean, poisoned, and poisoned by the reference: where the reference is not NaN, the poison changed nothing there. */
static void compare(const struct fixture *clean, const struct fixture *dirty, const struct fixture *oracle, enum tensor t,
                    const char *kernel, enum poison poison) {
    for (int64_t e = 0; e < slot_count(&clean->slot[t]); ++e) {
        const double before = slot_get(&clean->slot[t], e), after = slot_get(&dirty->slot[t], e);
        const double truth = slot_get(&oracle->slot[t], e);
        if (slot_is_untouched(&oracle->slot[t], e) || (isnan(truth) && isnan(after))) continue;
        if (isnan(truth) || isnan(after))
            fail_msg("%s, %s: %s[%lld] is %g, the reference %g", kernel, poison_names[poison], tensor_names[t], (long long)e,
                     after, truth);
        if (poison <= HIDDEN_INFINITY && before != after)
            fail_msg("%s, %s: %s[%lld] was %.9g and is %.9g", kernel, poison_names[poison], tensor_names[t], (long long)e,
                     before, after);
    }
}

/* The header promises nothing about dK and dV where q or dout hold a NaN: they are sums over rows. */
static bool is_promised(enum poison poison, enum tensor t) {
    return (poison != QUERY && poison != DOUT_ROW) || (t != DK && t != DV);
}

/* One problem three times. */
struct trio {
    struct fixture clean, dirty, oracle;
};

static void check_operation(struct trio *t, strobe_operation operation, enum poison poison) {
    const char *names[MOST_KERNELS];
    const int kernels = kernels_for(&t->clean, operation, names);
    assert_true(kernels > 0);
    run(&t->oracle, operation, "reference_forward", "reference_backward");
    for (int k = 0; k < kernels; ++k) {
        const char *forward = operation == STROBE_FORWARD ? names[k] : NULL;
        run(&t->clean, operation, forward, names[k]);
        run(&t->dirty, operation, forward, names[k]);
        for (enum tensor n = 0; n < TENSORS; ++n)
            if (is_output(&t->clean, n, operation) && is_promised(poison, n))
                compare(&t->clean, &t->dirty, &t->oracle, n, names[k], poison);
    }
}

/* A case and a poison. */
struct test {
    const struct shape *shape;
    enum poison poison;
    char name[80];
};

static void test_one(void **state) {
    const struct test *test = *state;
    struct trio t;
    fixture_make(&t.clean, test->shape), fixture_make(&t.dirty, test->shape), fixture_make(&t.oracle, test->shape);
    if (apply(&t.dirty, test->poison)) {
        apply(&t.oracle, test->poison);
        if (test->poison != DOUT_ROW) check_operation(&t, STROBE_FORWARD, test->poison);
        check_operation(&t, STROBE_BACKWARD, test->poison);
    }
    fixture_free(&t.clean), fixture_free(&t.dirty), fixture_free(&t.oracle);
}

int main(void) {
    static struct test all[COUNT(cases) * POISONS];
    struct CMUnitTest tests[COUNT(all)];
    for (size_t n = 0; n < COUNT(all); ++n) {
        struct test *test = &all[n];
        test->shape = &cases[n % COUNT(cases)];
        test->poison = (enum poison)(n / COUNT(cases));
        snprintf(test->name, sizeof test->name, "%s: %s", poison_names[test->poison], test->shape->name);
        tests[n] = test_of_row(test->name, test_one, test);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
