/* SPDX-License-Identifier: BSD-3-Clause
 *
 * verify.c: one kernel on one problem against the oracle; see verify.h. */
#include "check/verify.h"

#include "check/roundings.h"
#include "check/trial.h"
#include "problem/element.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const manner manners[] = {
    {.name = "on 1 thread, a fresh one, in the workspace of the call before",
     .threads = 1,
     .fresh_thread = true,
     .workspace = WORKSPACE_USED},
    {.name = "on 2 threads with a workspace of the caller's, and lists of its masks",
     .threads = 2,
     .workspace = WORKSPACE_FRESH,
     .lists = true},
    {.name = "in the caller's own loop, last task first", .threads = 3, .own_loop = true},
};
static const manner gpu_manners[] = {
    {.name = "from a fresh thread, on a stream of its own, in the workspace of the call before, with lists of its masks",
     .fresh_thread = true,
     .own_stream = true,
     .lists = true,
     .workspace = WORKSPACE_USED},
    {.name = "as a graph launched twice, beside pages that are mapped to nothing",
     .graph = true,
     .own_stream = true,
     .fenced = true,
     .workspace = WORKSPACE_FRESH},
    {.name = "beside the same call on another stream, with lists of its masks",
     .twin = true,
     .own_stream = true,
     .lists = true,
     .workspace = WORKSPACE_FRESH},
};

static void fail(verification *v, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void fail(verification *v, const char *format, ...) {
    if (v->verdict == VERDICT_FAILED) return; /* the first reason is the one to look at */
    v->verdict = VERDICT_FAILED;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(v->sentence, sizeof v->sentence, format, arguments);
    va_end(arguments);
}

double verify_output(verification *v, const inputs *in, oracle *o, tensor_id id, const buffer *result, difference *d) {
    *d = compare(in, id, result, &o->reference.tensor[id]);
    const double first = compare_ratio(d->error, o->allowance[id]), before = o->allowance[id];
    if (first > 1 && isfinite(first)) oracle_refine(o, in);
    const double ratio = compare_ratio(d->error, o->allowance[id]);
    if (o->allowance[id] > before) v->raised = fmax(v->raised, o->allowance[id] / before);
    if (o->standard_whole[id] > 0) v->whole[id] = fmax(v->whole[id], d->whole / o->standard_whole[id]);
    if (id != T_LSE && id != T_DSINKS && d->relative > v->relative) v->relative = d->relative;
    if (ratio >= v->ratio) {
        v->worst = id;
        v->error = d->error;
        v->allowance = o->allowance[id];
        v->ratio = ratio;
    }
    return ratio;
}

/* A kernel that rounds more often than it has to. */
static void judge_whole(verification *v, const inputs *in, const oracle *o, tensor_id id, const difference *d) {
    const double allowed = roundings_apply(&in->problem) ? roundings_allow(in, id, &o->reference.tensor[id]) : INFINITY;
    if (d->whole > allowed)
        fail(v, "%s has a relative error of %.4g over the whole tensor where its roundings explain %.4g", tensor_name(id),
             d->whole, allowed);
}

/* The allowance of a result with more digits than the inputs' is a rounding to theirs: it would hide that one. */
static void judge_digits(verification *v, const inputs *in, const oracle *o, tensor_id id, const buffer *result) {
    const problem *p = &in->problem;
    const int64_t dtype = problem_wide_dtype(p);
    const bool has_more = (dtype == STROBE_BF16 || dtype == STROBE_FP16) && result->dtype != dtype &&
                          result->dtype != STROBE_BF16;
    if (!has_more || p->added || !(id == T_OUT || (id >= T_DQ && id <= T_DV))) return;
    if (compare_finds_rounded(in, id, result, &o->reference.tensor[id], dtype))
        fail(v, "%s has no more digits than the inputs' dtype", tensor_name(id));
}

static void measure(verification *v, const inputs *in, oracle *o, const outputs *out) {
    for (int id = 0; id < TENSOR_COUNT; ++id) {
        difference d;
        if (!out->tensor[id].data) continue;
        if (verify_output(v, in, o, (tensor_id)id, &out->tensor[id], &d) > 1)
            fail(v, "%s[%lld, %lld, %lld, %lld] is wrong by %.3g where %.3g is allowed", tensor_name((tensor_id)id),
                 (long long)d.batch, (long long)d.row, (long long)d.head, (long long)d.column, d.error, o->allowance[id]);
        judge_whole(v, in, o, (tensor_id)id, &d);
        judge_digits(v, in, o, (tensor_id)id, &out->tensor[id]);
    }
}

/* Sums of dbias, of dq, of the gradients of arrays and, before Hopper, of dsinks on a GPU may be in any order, unless the
 * problem asks for one. */
static bool is_unordered(const problem *p, tensor_id id) {
    return (id == T_DBIAS || id == T_DQ || id == T_DSINKS || id == T_DTABLE) && p->device == STROBE_CUDA &&
           !p->deterministic;
}

/* The same bits, guard bands included; of sums in any order, the same allowance. */
static void compare_manner(verification *v, const inputs *in, oracle *o, const char *kernel, const manner *how,
                           const outputs *right, outputs *again) {
    char message[PROBLEM_MESSAGE];
    for (int id = 0; id < TENSOR_COUNT; ++id) buffer_wipe(&again->tensor[id]);
    if (trial_run(in, again, kernel, how, message, sizeof message))
        fail(v, "%s: %.400s", how->name, message);
    else
        for (int id = 0; id < TENSOR_COUNT; ++id) {
            const buffer *a = &right->tensor[id], *b = &again->tensor[id];
            difference d;
            if (a->bytes && is_unordered(&in->problem, (tensor_id)id)) {
                if (verify_output(v, in, o, (tensor_id)id, b, &d) > 1)
                    fail(v, "%s: %s is wrong by %.3g where %.3g is allowed", how->name, tensor_name((tensor_id)id), d.error,
                         o->allowance[id]);
                continue;
            }
            if (a->bytes && memcmp(a->bytes, b->bytes, a->size) != 0)
                fail(v, "%s: %s has other bits than with the default threads", how->name, tensor_name((tensor_id)id));
        }
}

/* Takes the elements away; what is left must be as it was before the call. */
static void check_surroundings(verification *v, const inputs *in, outputs *out) {
    for (int id = 0; id < TENSOR_COUNT; ++id) {
        const buffer *b = &out->tensor[id];
        if (!b->data) continue;
        for (rows r = rows_of(in, (tensor_id)id, b); rows_next(&r);)
            memset(rows_at(&r, b), 0xFF, (size_t)b->extent[3] * element_bytes(b->dtype));
    }
    for (int id = 0; id < TENSOR_COUNT; ++id)
        if (!buffer_is_wiped(&out->tensor[id]))
            fail(v, "memory beside the elements of %s was written", tensor_name((tensor_id)id));
}

/* A kernel that gives a call to another would else be judged by the other's answer. */
static void note_helper(verification *v, const inputs *in, const char *kernel) {
    snprintf(v->helper, sizeof v->helper, "%s", manner_helper());
    const problem *p = &in->problem;
    if (p->ranks) { /* of calls by many threads nothing is heard */
        v->helper[0] = 0;
        return;
    }
    const bool usual = !p->nan && p->values == VALUES_NORMAL && p->scale == 0;
    if (v->helper[0] && usual) fail(v, "%s handed its work over to %s", kernel, v->helper);
}

static void compare_manners(verification *v, const inputs *in, oracle *o, const char *kernel, const outputs *right,
                            outputs *again) {
    const bool gpu = in->problem.device == STROBE_CUDA && !trial_is_yardstick(kernel);
    const size_t count = gpu ? sizeof gpu_manners / sizeof *gpu_manners : sizeof manners / sizeof *manners;
    for (size_t i = 0; i < count; ++i) compare_manner(v, in, o, kernel, gpu ? &gpu_manners[i] : &manners[i], right, again);
}

verification verify_kernel(const inputs *in, oracle *o, const char *kernel) {
    verification v = {.verdict = VERDICT_PASSED};
    outputs out = {0}, again = {0};
    if (in->problem.ranks && trial_is_yardstick(kernel)) {
        v.verdict = VERDICT_REFUSED;
        snprintf(v.sentence, sizeof v.sentence, "%s is what others are compared with: it runs in one process", kernel);
        return v;
    }
    if (!outputs_create(&out, in, v.sentence, sizeof v.sentence) ||
        !outputs_create(&again, in, v.sentence, sizeof v.sentence))
        v.verdict = VERDICT_REFUSED;
    else {
        const strobe_status status = trial_run(in, &out, kernel, &trial_plain, v.sentence, sizeof v.sentence);
        if (status) v.verdict = status == STROBE_UNSUPPORTED ? VERDICT_REFUSED : VERDICT_FAILED;
    }
    if (v.verdict == VERDICT_PASSED) {
        note_helper(&v, in, kernel);
        measure(&v, in, o, &out);
        compare_manners(&v, in, o, kernel, &out, &again);
        check_surroundings(&v, in, &out);
    }
    outputs_free(&out);
    outputs_free(&again);
    return v;
}

verification verify_problem(const problem *p) {
    verification v = {.verdict = VERDICT_FAILED};
    inputs in;
    oracle o = {0};
    if (inputs_create(&in, p, v.sentence, sizeof v.sentence) && oracle_create(&o, &in, v.sentence, sizeof v.sentence)) {
        inputs_poison(&in);
        v = verify_kernel(&in, &o, p->kernel);
    }
    oracle_free(&o);
    inputs_free(&in);
    return v;
}
