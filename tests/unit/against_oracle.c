/* SPDX-License-Identifier: BSD-3-Clause
 *
 * against_oracle.c: see against_oracle.h. */
#include "against_oracle.h"

#include <math.h>
#include <stdio.h>

#include "kernel_table.h"

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
    struct fixture x, again, oracle, standard, moved;
};

/* How far from the truth the lse is that standard attention finds in fp32: lse is fp32 whatever the dtype of q. */
static double fp32_lse_error(const struct measured *m) {
    static const enum tensor inputs[] = {Q, K, V, BIAS_TERM, SINK_LOGITS, TABLE};
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
 * which acts as a dlse; in fp32 an out is off by what the scores were off by, too. Gradients are linear in (dout, dlse):
 * what these errors move is itself a gradient. */
static void set_moved(struct measured *m) {
    const struct slot *out = &m->oracle.slot[OUT], *lse = &m->oracle.slot[LSE];
    struct slot *dout = &m->moved.slot[DOUT], *dlse = &m->moved.slot[DLSE];
    const bool has_dlse = m->oracle.slot[DLSE].base;
    const double found_error = fp32_lse_error(m);
    for (int64_t r = 0; r < slot_count(lse); ++r) {
        if (slot_is_untouched(lse, r)) continue;
        const double sign = r % 2 ? 1 : -1, size = fabs(slot_get(lse, r));
        const double lse_error = isfinite(size) ? sign * (found_error + 0x1p-24 * size) : 0;
        const double out_error = m->x.shape.dtype == STROBE_FP32 ? fabs(lse_error) : 0;
        double d = 0;
        for (int64_t x = 0; x < out->inner; ++x) {
            const int64_t e = r * out->inner + x;
            d += fabs(slot_get(out, e) * slot_get(dout, e)) * (dtype_rounding(m->x.shape.dtype) + out_error);
            slot_set(dout, e, lse_error * slot_get(dout, e));
        }
        slot_set(dlse, r, sign * d + (has_dlse ? lse_error * slot_get(dlse, r) : 0));
    }
}

/* What a merge of parts may be off by beyond what they are: it weighs them by exp(lse), so by what lse may be wrong by. */
static double merge_allowance(const struct measured *m) {
    const struct slot *lse = &m->oracle.slot[LSE];
    const double allowed = 2 * fp32_lse_error(m) + 2 * dtype_rounding(STROBE_FP32) * (0.3 + largest_value(lse));
    return allowed * largest_value(&m->oracle.slot[OUT]);
}

/* What stands in the outputs of x, which `name` has computed; merged: out is a merge of parts. */
static void check_result(const struct measured *m, strobe_operation operation, const char *name, bool merged) {
    const double factor = m->x.shape.features & SOFTCAP || m->x.shape.score ? 3 : 2;
    for (enum tensor t = 0; t < TENSORS; ++t) {
        if (!is_output(&m->x, t, operation) || (t == LSE && m->x.shape.features & NO_LSE)) continue;
        const struct slot *x = &m->x.slot[t], *oracle = &m->oracle.slot[t];
        check_untouched(x, oracle, name, t);
        const double standard = largest_error(&m->standard.slot[t], oracle), error = largest_error(x, oracle);
        const double moved = operation == STROBE_BACKWARD ? largest_value(&m->moved.slot[t]) : 0;
        const double rounding = dtype_rounding(x->dtype) * (0.3 + largest_value(oracle));
        const double merge = merged && t == OUT && operation == STROBE_FORWARD ? merge_allowance(m) : 0;
        const double allowed = factor * (standard + moved) + 2 * rounding + merge;
        if (!(error <= allowed))
            fail_msg("%s: %s is off by %.3g; allowed are %.3g: standard attention is off by %.3g, the largest value is %.3g",
                     name, tensor_names[t], error, allowed, standard, largest_value(oracle));
    }
    if (!fixture_guards_hold(&m->x)) fail_msg("%s wrote outside its outputs", name);
}

static void check_kernel(struct measured *m, strobe_operation operation, const char *kernel) {
    bool whole = true;
    if (fixture_run_fenced(&m->x, operation, kernel, 1, &whole)) fail_msg("%s: %s", kernel, strobe_last_error());
    if (!whole) fail_msg("%s wrote before its workspace", kernel);
    check_result(m, operation, kernel, false);
}

/* Three workers, of whose workspace the last one's part is used: the same bits. */
static void check_last_worker(struct measured *m, strobe_operation operation, const char *kernel) {
    bool whole = true;
    if (fixture_run_fenced(&m->again, operation, kernel, 3, &whole)) fail_msg("%s: %s", kernel, strobe_last_error());
    if (!whole) fail_msg("%s with 3 workers wrote before its workspace", kernel);
    for (enum tensor t = 0; t < TENSORS; ++t)
        if (is_output(&m->x, t, operation) && !slot_equal(&m->x.slot[t], &m->again.slot[t]))
            fail_msg("%s: %s has other bits with 3 workers", kernel, tensor_names[t]);
}

/* The truth, and what standard attention makes of it. */
static void run_yardsticks(struct measured *m, strobe_operation operation) {
    static const char *const oracles[] = {"reference_forward", "reference_backward"};
    static const char *const standards[] = {"standard_forward", "standard_backward"};
    if (fixture_run(&m->oracle, operation, oracles[operation])) fail_msg("%s", strobe_last_error());
    if (operation == STROBE_BACKWARD && fixture_run(&m->moved, operation, oracles[operation]))
        fail_msg("%s", strobe_last_error());
    if (fixture_run(&m->standard, operation, standards[operation])) fail_msg("%s", strobe_last_error());
}

static void check_kernels(struct measured *m, strobe_operation operation) {
    const char *names[MOST_KERNELS];
    const int kernels = kernels_for(&m->x, operation, names);
    int checked = 0;
    for (int k = 0; k < kernels; ++k) {
        if (is_yardstick(names[k])) continue;
        check_kernel(m, operation, names[k]);
        check_last_worker(m, operation, names[k]);
        ++checked;
    }
    if (checked == 0) fail_msg("no kernel but the yardsticks takes this problem");
}

static void check_ways(struct measured *m, strobe_operation operation, int ways, run_way *run) {
    for (int way = 0; way < ways; ++way) {
        char name[96];
        fixture_reset(&m->x, operation);
        if (run(&m->x, operation, way, name, sizeof name)) check_result(m, operation, name, true);
    }
}

static void check_operation(struct measured *m, strobe_operation operation, int ways, run_way *run) {
    run_yardsticks(m, operation);
    if (run)
        check_ways(m, operation, ways, run);
    else
        check_kernels(m, operation);
}

static void check_shape(const struct shape *shape, enum operations operations, int ways, run_way *run) {
    struct measured m;
    struct shape wide = *shape, tight = *shape;
    tight.features |= TIGHT;
    wide.features = (wide.features | WIDE) & ~(unsigned)NO_LSE;
    fixture_make(&m.x, &tight), fixture_make(&m.again, &tight), fixture_make(&m.standard, shape);
    fixture_make(&m.oracle, &wide);
    wide.features |= WITH_DLSE;
    fixture_make(&m.moved, &wide);
    check_operation(&m, STROBE_FORWARD, ways, run);
    if (operations == BOTH_OPERATIONS) {
        set_moved(&m);
        m.x.shape.features &= ~(unsigned)NO_LSE, m.again.shape.features &= ~(unsigned)NO_LSE; /* backward reads it */
        if (fixture_forward(&m.x, NULL) || fixture_forward(&m.again, NULL)) fail_msg("%s", strobe_last_error());
        check_operation(&m, STROBE_BACKWARD, ways, run);
    }
    fixture_free(&m.x), fixture_free(&m.again), fixture_free(&m.standard), fixture_free(&m.oracle), fixture_free(&m.moved);
}

void check_against_oracle(const struct shape *shape, enum operations operations) { check_shape(shape, operations, 0, NULL); }

void check_ways_against_oracle(const struct shape *shape, int ways, run_way *run) {
    check_shape(shape, BOTH_OPERATIONS, ways, run);
}

const int32_t oracle_dtypes[ORACLE_DTYPES] = {STROBE_FP32, STROBE_FP16, STROBE_BF16};

static void run_oracle_test(void **state) {
    const struct oracle_test *test = *state;
    check_against_oracle(&test->shape, test->operations);
}

struct CMUnitTest oracle_test(struct oracle_test *test, const struct shape *shape, enum operations operations,
                              size_t dtype) {
    static const char *const names[ORACLE_DTYPES] = {"fp32", "fp16", "bf16"};
    test->shape = *shape, test->shape.dtype = oracle_dtypes[dtype], test->operations = operations;
    snprintf(test->name, sizeof test->name, "%s, %s", shape->name, names[dtype]);
    return test_of_row(test->name, run_oracle_test, test);
}
