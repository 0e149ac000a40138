/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_split_keys.c: tuning.split_keys, for the kernels that split keys: any size of split gives attention within the usual
 * allowance (test_kernels.c), and with the size given, a sequence's bits do not depend on what else is in the batch, on the
 * number of threads, or on the bound seq_k. And that bound costs no work. */
#include <math.h>
#include <string.h>

#include "kernel_table.h"
#include "test.h"

static const struct shape shapes[] = {
    {"one row", .batch = 3, .seq_q = 1, .seq_k = 201, .heads_q = 4, .heads_kv = 2, .dim = 24},
    {"bf16, grouped heads, causal", .batch = 3, .seq_q = 2, .seq_k = 150, .heads_q = 8, .heads_kv = 2, .dim = 40,
     .dim_v = 17, .dtype = STROBE_BF16, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = SINKS},
    {"fp16, window, used", .batch = 3, .seq_q = 3, .seq_k = 120, .heads_q = 2, .dim = 16, .dtype = STROBE_FP16,
     .mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT, .left = 50, .right = 0, .features = USED_K},
};

static const int64_t splits[] = {1, 5, 64, 100, 200, 1000000};

static double largest_error(const struct slot *x, const struct slot *oracle) {
    double largest = 0;
    for (int64_t e = 0; e < slot_count(x); ++e) {
        const double found = slot_get(x, e), truth = slot_get(oracle, e), error = found == truth ? 0 : fabs(found - truth);
        if (!slot_is_untouched(oracle, e) && !(error <= largest)) largest = isnan(error) ? (double)INFINITY : error;
    }
    return largest;
}

/* Runs with the size of split; skips the test where no kernel of this machine splits keys. */
static void run(struct fixture *f, int64_t split) {
    const char *kernel;
    f->tuning.split_keys = split, f->tuning.kernel = NULL;
    const strobe_status status = strobe_select(&f->a, NULL, &kernel);
    if (status == STROBE_UNSUPPORTED) skip();
    if (status || fixture_forward(f, NULL)) fail_msg("%s", strobe_last_error());
    if (!fixture_guards_hold(f)) fail_msg("%s wrote outside its outputs", kernel);
    f->tuning.split_keys = 0;
}

static void test_any_size(void **state) {
    const struct shape *shape = *state;
    struct shape wide = *shape;
    struct fixture f, oracle, standard;
    wide.features |= WIDE;
    fixture_make(&f, shape), fixture_make(&oracle, &wide), fixture_make(&standard, shape);
    if (fixture_forward(&oracle, "reference_forward")) fail_msg("%s", strobe_last_error());
    if (fixture_forward(&standard, "standard_forward")) fail_msg("%s", strobe_last_error());
    for (size_t n = 0; n < COUNT(splits); ++n) {
        run(&f, splits[n]);
        for (enum tensor t = OUT; t <= LSE; ++t) {
            double largest = 0.3;
            for (int64_t e = 0; e < slot_count(&oracle.slot[t]); ++e)
                if (isfinite(slot_get(&oracle.slot[t], e)))
                    largest = fmax(largest, 0.3 + fabs(slot_get(&oracle.slot[t], e)));
            const double error = largest_error(&f.slot[t], &oracle.slot[t]);
            const double allowed = 2 * largest_error(&standard.slot[t], &oracle.slot[t]) +
                                   2 * dtype_rounding(f.slot[t].dtype) * largest;
            if (!(error <= allowed))
                fail_msg("splits of %lld keys: %s is off by %.3g; allowed are %.3g", (long long)splits[n], tensor_names[t],
                         error, allowed);
        }
    }
    fixture_free(&f), fixture_free(&oracle), fixture_free(&standard);
}

/* Entry b of a batch, with other threads and another bound, against the same entry alone. */
static void test_bits_do_not_depend_on_the_rest(void **state) {
    struct fixture f;
    fixture_make(&f, *state);
    for (size_t n = 0; n < COUNT(splits); ++n) {
        struct slot alone[2];
        run(&f, splits[n]);
        for (int t = 0; t < 2; ++t) {
            const struct slot *whole = &f.slot[OUT + t];
            alone[t] = slot_make(whole->dtype, whole->extent, whole->stride, whole->inner, 0);
        }
        const strobe_attention batch = f.a;
        for (int64_t b = 0; b < batch.batch; ++b) {
            strobe_tensor *const tensors[] = {&f.a.q, &f.a.k, &f.a.v, &f.a.out, &f.a.lse};
            f.a = batch;
            f.a.out.data = alone[0].data, f.a.lse.data = alone[1].data, f.a.batch = 1;
            for (size_t t = 0; t < COUNT(tensors); ++t)
                tensors[t]->data = (char *)tensors[t]->data +
                                   b * tensors[t]->stride[0] * (int64_t)dtype_bytes(tensors[t]->dtype);
            if (f.varlen.used_k) f.varlen.used_k = (const int32_t *)f.varlen.used_k + b;
            f.parallel.threads = 1 + (int32_t)b;
            f.tuning.split_keys = splits[n];
            if (strobe_forward(&f.a, NULL, 0, NULL)) fail_msg("%s", strobe_last_error());
            if (f.varlen.used_k) f.varlen.used_k = (const int32_t *)f.varlen.used_k - b;
        }
        f.a = batch;
        for (int t = 0; t < 2; ++t) {
            if (!slot_equal(&alone[t], &f.slot[OUT + t]))
                fail_msg("splits of %lld keys: %s of an entry depends on the batch", (long long)splits[n],
                         tensor_names[OUT + t]);
            slot_free(&alone[t]);
        }
    }
    fixture_free(&f);
}

/* ------------------------------------------------------------------------------------------------------------- bounds -- */

/* The caller's loop, which counts what it is given. */
static void run_and_count(void *self, int64_t tasks, void (*task)(void *context, int64_t index, int32_t worker),
                          void *context) {
    *(int64_t *)self += tasks;
    for (int64_t n = 0; n < tasks; ++n) task(context, n, 0);
}

/* A bound far above the lengths: the same bits from the same number of tasks, and a workspace that there is memory for. */
static void test_bound_costs_nothing(void **state) {
    const char *names[MOST_KERNELS];
    struct fixture f, tight;
    fixture_make(&f, *state), fixture_make(&tight, *state);
    const int kernels = kernels_for(&f, STROBE_FORWARD, names);
    int tried = 0;
    for (int k = 0; k < kernels; ++k) {
        if (!strstr(names[k], "decode")) continue;
        int64_t tasks[2] = {0};
        size_t bytes = 0;
        f.parallel.run = tight.parallel.run = run_and_count;
        tight.parallel.self = &tasks[0], f.parallel.self = &tasks[1];
        f.a.seq_k = (int64_t)1 << 36, f.tuning.kernel = names[k];
        assert_int_equal(strobe_workspace(&f.a, NULL, &bytes), STROBE_OK);
        assert_in_range(bytes, 1, 8 << 20);
        if (fixture_forward(&tight, names[k])) fail_msg("%s: %s", names[k], strobe_last_error());
        if (fixture_forward(&f, names[k])) fail_msg("%s: %s", names[k], strobe_last_error());
        for (enum tensor t = OUT; t <= LSE; ++t)
            if (!slot_equal(&f.slot[t], &tight.slot[t])) fail_msg("%s: %s depends on the bound", names[k], tensor_names[t]);
        assert_int_equal(tasks[0], tasks[1]);
        ++tried;
    }
    fixture_free(&f), fixture_free(&tight);
    assert_true(tried > 0);
}

/* Splits of one key up to such a bound, in many heads: refused before anything is read. */
static void test_absurd_splits(void **state) {
    (void)state;
    float element = 0, result = 0;
    const char *kernel;
    const strobe_tuning tuning = {.struct_size = sizeof tuning, .split_keys = 1};
    strobe_attention a = {.struct_size = sizeof a, .batch = 1, .seq_q = 1, .seq_k = (int64_t)1 << 40, .dim = 1};
    a.heads_q = 1 << 20, a.tuning = &tuning;
    a.k.stride[1] = a.v.stride[1] = 1;
    a.q.data = a.k.data = a.v.data = &element, a.out.data = &result;
    assert_int_equal(strobe_select(&a, NULL, &kernel), STROBE_OK);
    assert_int_equal(strobe_forward(&a, NULL, 0, NULL), STROBE_OUT_OF_MEMORY);
}

int main(void) {
    struct CMUnitTest tests[2 * COUNT(shapes) + 2] = {
        [2 * COUNT(shapes)] = test_of_row("a bound above all lengths costs nothing", test_bound_costs_nothing, &shapes[2]),
        [2 * COUNT(shapes) + 1] = cmocka_unit_test(test_absurd_splits),
    };
    for (size_t n = 0; n < COUNT(shapes); ++n) {
        tests[2 * n] = test_of_row(shapes[n].name, test_any_size, &shapes[n]);
        tests[2 * n + 1] = test_of_row("the same, alone and in a batch", test_bits_do_not_depend_on_the_rest, &shapes[n]);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
