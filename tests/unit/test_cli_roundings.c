/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_cli_roundings.c: what roundings may cost over a whole tensor. Kernels that round as seldom as can be are within it,
 * and standard attention, which rounds scores, weights and their gradients, is not. */
#include "check/oracle.h"
#include "check/roundings.h"
#include "check/trial.h"
#include "test.h"

#include <math.h>
#include <string.h>

static const struct judged {
    const char *name, *problem, *kernel;
    tensor_id id;
    bool is_within;
} cases[] = {
    {"O in bf16", "fwd h=2 s=256 d=64 bf16", "cpu_forward_baseline", T_OUT, true},
    {"O in fp16", "fwd h=4/2 s=200 d=96 dv=88 fp16 causal", "cpu_forward_baseline", T_OUT, true},
    {"O with outliers", "fwd h=2 s=256 d=64 bf16 values=outliers", "cpu_forward_baseline", T_OUT, true},
    {"dQ", "bwd h=4/2 s=200 d=96 dv=88 bf16 causal", "cpu_backward_baseline", T_DQ, true},
    {"dK", "bwd h=4/2 s=200 d=96 dv=88 bf16 causal", "cpu_backward_baseline", T_DK, true},
    {"dV", "bwd h=4/2 s=200 d=96 dv=88 fp16", "cpu_backward_baseline", T_DV, true},
    {"O, scores rounded", "fwd h=2 s=256 d=64 bf16 values=outliers", "standard_forward", T_OUT, false},
    {"dQ, dS from rounded P", "bwd h=2 s=256 d=64 bf16", "standard_backward", T_DQ, false},
    {"dK, dS from rounded P", "bwd h=2 s=256 d=64 fp16 causal", "standard_backward", T_DK, false},
};

static void test_judged(void **state) {
    const struct judged *row = *state;
    char message[PROBLEM_MESSAGE];
    problem p;
    inputs in;
    outputs out;
    oracle o = {0};
    if (!problem_parse(row->problem, &p, message, sizeof message) || !inputs_create(&in, &p, message, sizeof message) ||
        !oracle_create(&o, &in, message, sizeof message) || !outputs_create(&out, &in, message, sizeof message) ||
        trial_run(&in, &out, row->kernel, &trial_plain, message, sizeof message))
        fail_msg("%s", message);
    const double error = compare(&in, row->id, &out.tensor[row->id], &o.reference.tensor[row->id]).whole;
    const double allowed = roundings_allow(&in, row->id, &o.reference.tensor[row->id]);
    if ((error <= allowed) != row->is_within) fail_msg("error %g, allowed %g", error, allowed);
    if (allowed > 0x1p-7) fail_msg("%g is allowed, which is more than 16 bits cost", allowed);
    outputs_free(&out);
    oracle_free(&o);
    inputs_free(&in);
}

/* The rule is for problems whose every rounding it knows. */
static void test_where(void **state) {
    (void)state;
    static const struct {
        const char *problem;
        bool applies;
    } where[] = {
        {"fwd h=2 s=256 d=64 bf16 device=cuda", true},
        {"bwd h=2 s=256 d=64 fp16 causal device=cuda deterministic", true},
        {"bwd h=2 s=256 d=64 bf16 causal=topleft device=cuda layout=gaps", true},
        {"fwd h=2 s=256 d=64 bf16", false},
        {"fwd h=2 s=256 d=64 fp32 device=cuda", false},
        {"fwd h=2 s=64 d=64 bf16 device=cuda", false},
        {"fwd h=2 sq=256 sk=300 d=64 bf16 causal device=cuda", false},
        {"fwd h=2 s=256 d=64 bf16 window=9,2 device=cuda", false},
        {"fwd h=2 s=256 d=64 bf16 softcap=15 device=cuda", false},
        {"bwd h=2 s=256 d=64 bf16 dlse device=cuda", false},
        {"fwd h=2 s=256 d=64 bf16 values=growing device=cuda", false},
        {"fwd h=2 s=256 d=64 bf16 visible=j<i+9 device=cuda", false},
    };
    for (size_t n = 0; n < COUNT(where); ++n) {
        char message[PROBLEM_MESSAGE];
        problem p;
        if (!problem_parse(where[n].problem, &p, message, sizeof message)) fail_msg("%s", message);
        if (roundings_apply(&p) != where[n].applies) fail_msg("%s", where[n].problem);
    }
}

int main(void) {
    struct CMUnitTest tests[COUNT(cases) + 1];
    for (size_t n = 0; n < COUNT(cases); ++n) tests[n] = test_of_row(cases[n].name, test_judged, &cases[n]);
    tests[COUNT(cases)] = (struct CMUnitTest)cmocka_unit_test(test_where);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
