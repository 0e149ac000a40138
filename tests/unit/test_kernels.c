/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_kernels.c: every kernel of the table against the oracle, feature by feature and shape by shape, in every dtype. The
 * allowance is that of the flash-attn tests: twice the error that standard attention makes in the same dtype (three times
 * with softcap), and twice the rounding of the output's dtype at the largest value, or near 0.3 if that is smaller. Outputs
 * are poisoned before, guard bands are looked at after, and what the oracle leaves alone has to be left alone. */
#include <math.h>
#include <stdio.h>

#include "kernel_table.h"
#include "test.h"

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
    {"dropout", SIZE, .features = DROPOUT},
    {"negative scale", SIZE, .features = NEGATIVE_SCALE},
    {"starts, causal, ALiBi", SIZE, .mask = STROBE_MASK_CAUSAL_TOP_LEFT, .features = STARTS | ALIBI},
    {"packed", SIZE, .features = PACKED | WITH_DLSE},
    {"packed keys alone, sinks", SIZE, .features = PACKED_K | SINKS},
    {"used of packed, causal", SIZE, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = PACKED | USED | INDEX64},
    {"used, dropout, bias", SIZE, .features = USED | DROPOUT | BIAS | PER_SCORE},
    {"without lse", SIZE, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = NO_LSE},
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

static const int32_t dtypes[] = {STROBE_FP32, STROBE_FP16, STROBE_BF16};
static const char *const dtype_names[] = {"fp32", "fp16", "bf16"};

/* The largest distance of two tensors; infinite where one of them is NaN, or infinite alone. */
static double largest_error(const struct slot *x, const struct slot *oracle) {
    double largest = 0;
    for (int64_t e = 0; e < slot_count(x); ++e) {
        if (slot_is_untouched(oracle, e)) continue;
        const double found = slot_get(x, e), truth = slot_get(oracle, e), error = found == truth ? 0 : fabs(found - truth);
        if (!(error <= largest)) largest = isnan(error) ? (double)INFINITY : error;
    }
    return largest;
}

static double largest_value(const struct slot *oracle) {
    double largest = 0;
    for (int64_t e = 0; e < slot_count(oracle); ++e)
        if (isfinite(slot_get(oracle, e)) && fabs(slot_get(oracle, e)) > largest) largest = fabs(slot_get(oracle, e));
    return largest;
}

static void check_untouched(const struct slot *x, const struct slot *oracle, const char *kernel, enum tensor t) {
    for (int64_t e = 0; e < slot_count(x); ++e)
        if (slot_is_untouched(x, e) != slot_is_untouched(oracle, e))
            fail_msg("%s: %s[%lld] was %swritten", kernel, tensor_names[t], (long long)e,
                     slot_is_untouched(x, e) ? "not " : "");
}

/* One problem and its truth; standard attention of the same problem; gradients by which errors of out and lse move it. */
struct measured {
    struct fixture x, oracle, standard, moved;
};

/* How far from the truth the lse is that standard attention finds in fp32: lse is fp32 whatever the dtype of q. */
static double fp32_lse_error(const struct measured *m) {
    static const enum tensor inputs[] = {Q, K, V, BIAS_TERM, SINK_LOGITS};
    struct shape shape = m->x.shape;
    struct fixture single;
    shape.dtype = STROBE_FP32, shape.features &= ~(unsigned)NO_LSE;
    fixture_make(&single, &shape);
    for (size_t n = 0; n < COUNT(inputs); ++n)
        for (int64_t e = 0; single.slot[inputs[n]].base && e < slot_count(&single.slot[inputs[n]]); ++e)
            slot_set(&single.slot[inputs[n]], e, slot_get(&m->x.slot[inputs[n]], e));
    if (fixture_forward(&single, "standard_forward")) fail_msg("%s", strobe_last_error());
    const double error = largest_error(&single.slot[LSE], &m->oracle.slot[LSE]);
    fixture_free(&single);
    return error;
}

/* A kernel reads out and lse as a forward left them, rounded; standard attention recomputes both, and its errors cancel
 * where a kernel's cannot. An error of lse scales a row's weights and so its gradients; one of out moves D = rowsum(dO * O),
 * which acts as a dlse. Gradients are linear in (dout, dlse): what these errors move is itself a gradient. */
static void set_moved(struct measured *m) {
    const struct slot *out = &m->oracle.slot[OUT], *lse = &m->oracle.slot[LSE];
    struct slot *dout = &m->moved.slot[DOUT], *dlse = &m->moved.slot[DLSE];
    const bool has_dlse = m->oracle.slot[DLSE].base;
    const double found_error = fp32_lse_error(m);
    for (int64_t r = 0; r < slot_count(lse); ++r) {
        if (slot_is_untouched(lse, r)) continue;
        const double sign = r % 2 ? 1 : -1, size = fabs(slot_get(lse, r));
        const double lse_error = isfinite(size) ? sign * (found_error + 0x1p-24 * size) : 0;
        double d = 0;
        for (int64_t x = 0; x < out->inner; ++x) {
            const int64_t e = r * out->inner + x;
            d += fabs(slot_get(out, e) * slot_get(dout, e)) * dtype_rounding(m->x.shape.dtype);
            slot_set(dout, e, lse_error * slot_get(dout, e));
        }
        slot_set(dlse, r, sign * d + (has_dlse ? lse_error * slot_get(dlse, r) : 0));
    }
}

static void check_kernel(struct measured *m, strobe_operation operation, const char *kernel) {
    const double factor = m->x.shape.features & SOFTCAP ? 3 : 2;
    if (fixture_run(&m->x, operation, kernel)) fail_msg("%s: %s", kernel, strobe_last_error());
    for (enum tensor t = 0; t < TENSORS; ++t) {
        if (!is_output(&m->x, t, operation) || (t == LSE && m->x.shape.features & NO_LSE)) continue;
        const struct slot *x = &m->x.slot[t], *oracle = &m->oracle.slot[t];
        check_untouched(x, oracle, kernel, t);
        const double standard = largest_error(&m->standard.slot[t], oracle), error = largest_error(x, oracle);
        const double moved = operation == STROBE_BACKWARD ? largest_value(&m->moved.slot[t]) : 0;
        const double rounding = dtype_rounding(x->dtype) * (0.3 + largest_value(oracle));
        const double allowed = factor * (standard + moved) + 2 * rounding;
        if (!(error <= allowed))
            fail_msg("%s: %s is off by %.3g; allowed are %.3g: standard attention is off by %.3g, the largest value is %.3g",
                     kernel, tensor_names[t], error, allowed, standard, largest_value(oracle));
    }
    if (!fixture_guards_hold(&m->x)) fail_msg("%s wrote outside its outputs", kernel);
}

static void check_operation(struct measured *m, strobe_operation operation) {
    static const char *const oracles[] = {"reference_forward", "reference_backward"};
    static const char *const standards[] = {"standard_forward", "standard_backward"};
    const char *names[MOST_KERNELS];
    if (fixture_run(&m->oracle, operation, oracles[operation])) fail_msg("%s", strobe_last_error());
    if (operation == STROBE_BACKWARD && fixture_run(&m->moved, operation, oracles[operation]))
        fail_msg("%s", strobe_last_error());
    if (fixture_run(&m->standard, operation, standards[operation])) fail_msg("%s", strobe_last_error());
    const int kernels = kernels_for(&m->x, operation, names);
    int checked = 0;
    for (int k = 0; k < kernels; ++k) {
        if (is_yardstick(names[k])) continue;
        check_kernel(m, operation, names[k]);
        ++checked;
    }
    if (checked == 0) fail_msg("no kernel but the yardsticks takes this problem");
}

/* A case and a dtype. */
struct test {
    struct shape shape;
    char name[80];
};

static void test_one(void **state) {
    const struct test *test = *state;
    struct measured m;
    struct shape wide = test->shape;
    wide.features = (wide.features | WIDE) & ~(unsigned)NO_LSE;
    fixture_make(&m.x, &test->shape), fixture_make(&m.standard, &test->shape), fixture_make(&m.oracle, &wide);
    wide.features |= WITH_DLSE;
    fixture_make(&m.moved, &wide);
    check_operation(&m, STROBE_FORWARD);
    set_moved(&m);
    m.x.shape.features &= ~(unsigned)NO_LSE; /* backward reads it */
    if (fixture_forward(&m.x, NULL)) fail_msg("%s", strobe_last_error());
    check_operation(&m, STROBE_BACKWARD);
    fixture_free(&m.x), fixture_free(&m.standard), fixture_free(&m.oracle), fixture_free(&m.moved);
}

int main(void) {
    static struct test all[COUNT(cases) * COUNT(dtypes)];
    struct CMUnitTest tests[COUNT(all)];
    for (size_t n = 0; n < COUNT(all); ++n) {
        struct test *test = &all[n];
        test->shape = cases[n / COUNT(dtypes)];
        test->shape.dtype = dtypes[n % COUNT(dtypes)];
        snprintf(test->name, sizeof test->name, "%s, %s", test->shape.name, dtype_names[n % COUNT(dtypes)]);
        tests[n] = test_of_row(test->name, test_one, test);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
