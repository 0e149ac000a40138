/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_cli_verify.c: what finds wrong kernels finds them: a kernel that is right but for one thing is failed for that thing.
 * The library's calls are wrapped by the linker: the real kernel runs, then what a wrong one would have done is done. */
#include "check/oracle.h"
#include "check/trial.h"
#include "check/verify.h"
#include "test.h"

#include <string.h>

enum fault {
    NONE,
    BEFORE_OUT,      /* a byte before the first element */
    FAR_AFTER_OUT,   /* a byte some vectors past the last */
    AFTER_OUT,       /* a byte past the last */
    BETWEEN_ROWS,    /* an element of a gap of the layout */
    AFTER_LSE,       /* past another output */
    AFTER_WORKSPACE, /* a byte past the workspace that was given */
    BEFORE_WORKSPACE,
    WRONG_VALUE, /* one element off by 1 */
    NAN_VALUE,
    BY_THREADS,  /* another bit where the caller has threads of its own */
    NOT_WRITTEN, /* a row of the result left as it was */
};

static enum fault fault;

strobe_status __real_strobe_forward(const strobe_attention *a, void *workspace, size_t bytes, void *stream);
strobe_status __wrap_strobe_forward(const strobe_attention *a, void *workspace, size_t bytes, void *stream);

/* A stride of 0 is the default: [batch, seq_q, heads_q, dim_v]. */
static float *element(const strobe_attention *a, int64_t b, int64_t i, int64_t h) {
    const int64_t *given = a->out.stride, row = a->heads_q * a->dim_v;
    const int64_t stride[3] = {given[0] ? given[0] : a->seq_q * row, given[1] ? given[1] : row,
                               given[2] ? given[2] : a->dim_v};
    return (float *)a->out.data + b * stride[0] + i * stride[1] + h * stride[2];
}

strobe_status __wrap_strobe_forward(const strobe_attention *a, void *workspace, size_t bytes, void *stream) {
    const strobe_status status = __real_strobe_forward(a, workspace, bytes, stream);
    const char *kernel = a->tuning ? a->tuning->kernel : NULL;
    if (status || !kernel || strcmp(kernel, "cpu_forward_baseline") != 0) return status; /* the yardsticks are right */
    float *last = element(a, a->batch - 1, a->seq_q - 1, a->heads_q - 1) + a->dim_v;
    unsigned char *const memory = workspace;
    switch (fault) {
    case BEFORE_OUT: ((unsigned char *)a->out.data)[-1] = 1; break;
    case FAR_AFTER_OUT: ((unsigned char *)last)[255] = 1; break;
    case AFTER_OUT: *(unsigned char *)last = 1; break;
    case BETWEEN_ROWS: element(a, 0, 0, 0)[a->dim_v] = 1; break;
    case AFTER_LSE: ((float *)a->lse.data)[a->batch * a->heads_q * a->seq_q] = 1; break;
    case AFTER_WORKSPACE:
        if (memory) memory[bytes] = 1;
        break;
    case BEFORE_WORKSPACE:
        if (memory) memory[-1] = 1;
        break;
    case WRONG_VALUE: last[-1] += 1; break;
    case NAN_VALUE: memset(&last[-1], 0xff, sizeof *last); break;
    case BY_THREADS:
        if (a->parallel && a->parallel->run) last[-1] *= 1 + 0x1p-23f;
        break;
    case NOT_WRITTEN: memset(element(a, 1, 3, 1), 0xff, (size_t)a->dim_v * sizeof *last); break;
    case NONE: break;
    }
    return status;
}

static const struct found {
    const char *name, *problem, *words; /* words: of the sentence that the verdict gives; NULL: it is right */
    enum fault fault;
} cases[] = {
    {"a right kernel", "fwd b=2 h=2 sq=5 sk=70 d=8 fp32", NULL, NONE},
    {"a right kernel, gaps", "fwd b=2 h=2 sq=5 sk=70 d=8 fp32 layout=gaps", NULL, NONE},
    {"before out", "fwd b=2 h=2 sq=5 sk=70 d=8 fp32", "out", BEFORE_OUT},
    {"past out", "fwd b=2 h=2 sq=5 sk=70 d=8 fp32", "out", AFTER_OUT},
    {"some vectors past out", "fwd b=2 h=2 sq=5 sk=70 d=8 fp32", "out", FAR_AFTER_OUT},
    {"past out, bhsd", "fwd b=2 h=2 sq=5 sk=70 d=8 fp32 layout=bhsd", "out", AFTER_OUT},
    {"between the rows of out", "fwd b=2 h=2 sq=5 sk=70 d=8 fp32 layout=gaps", "out", BETWEEN_ROWS},
    {"past lse", "fwd b=2 h=2 sq=5 sk=70 d=8 fp32", "lse", AFTER_LSE},
    {"past the workspace", "fwd b=2 h=2 sq=5 sk=70 d=8 fp32", "workspace", AFTER_WORKSPACE},
    {"before the workspace", "fwd b=2 h=2 sq=5 sk=70 d=8 fp32", "workspace", BEFORE_WORKSPACE},
    {"a wrong value", "fwd b=2 h=2 sq=5 sk=70 d=8 fp32", "out", WRONG_VALUE},
    {"a NaN", "fwd b=2 h=2 sq=5 sk=70 d=8 fp32", "out", NAN_VALUE},
    {"other bits in the caller's loop", "fwd b=2 h=2 sq=5 sk=70 d=8 fp32", "out", BY_THREADS},
    {"a row that was not written", "fwd b=2 h=2 sq=5 sk=70 d=8 fp32", "out", NOT_WRITTEN},
};

static void test_found(void **state) {
    const struct found *row = *state;
    char message[PROBLEM_MESSAGE];
    problem p;
    inputs in;
    oracle o = {0};
    fault = NONE;
    if (!problem_parse(row->problem, &p, message, sizeof message) || !inputs_create(&in, &p, message, sizeof message) ||
        !oracle_create(&o, &in, message, sizeof message))
        fail_msg("%s", message);
    inputs_poison(&in);
    fault = row->fault;
    const verification v = verify_kernel(&in, &o, "cpu_forward_baseline");
    assert_int_equal(v.verdict, row->words ? VERDICT_FAILED : VERDICT_PASSED);
    if (row->words && !strstr(v.sentence, row->words)) fail_msg("failed for \"%s\"", v.sentence);
    fault = NONE;
    oracle_free(&o);
    inputs_free(&in);
}

/* Dropout keeps a large weight or two, whose roundings no other seed shows: a right kernel passes, by what the standard does
 * to the same weights with other last bits. What is allowed then is still a few roundings of what dq is the difference of.
 */
static void test_one_weight_alone(void **state) {
    (void)state;
    char message[PROBLEM_MESSAGE];
    problem p;
    inputs in;
    oracle o = {0};
    if (!problem_parse("bwd b=1 h=8 s=96 d=4 fp32 scale=10 values=spikes dropout=0.999 seed=87", &p, message,
                       sizeof message) ||
        !inputs_create(&in, &p, message, sizeof message) || !oracle_create(&o, &in, message, sizeof message))
        fail_msg("%s", message);
    const double before = o.allowance[T_DQ];
    inputs_poison(&in);
    const verification v = verify_kernel(&in, &o, "cpu_backward_baseline");
    if (v.verdict != VERDICT_PASSED) fail_msg("%s", v.sentence);
    oracle_refine(&o, &in);
    /* dq is 0 but for what is left of dP - D, of some thousands each, times scale and keys, 360: 2^-21 of that is 0.7 */
    if (!(o.allowance[T_DQ] > 2 * before && o.allowance[T_DQ] < 0.7))
        fail_msg("dq: %g is allowed, %g before", o.allowance[T_DQ], before);
    oracle_free(&o);
    inputs_free(&in);
}

/* No row sees a key, and dsinks are sums of dlse over all rows: three ranks round sums of some of them, whose terms may
 * cancel in the whole. Standard attention's own sums have no error with this seed, and with others one of some roundings. */
static void test_sums_of_rows_that_see_nothing(void **state) {
    (void)state;
    char message[PROBLEM_MESSAGE];
    problem p;
    const char *const text = "bwd b=2 h=2 s=2 d=8 bf16 window_topleft=23,3 seed=222 sinks=hidden dlse dsinks kstart=-29 "
                             "threads=1 kernel=cpu_backward_baseline ranks=3:ring";
    if (!problem_parse(text, &p, message, sizeof message)) fail_msg("%s", message);
    const verification v = verify_problem(&p);
    if (v.verdict != VERDICT_PASSED) fail_msg("%s", v.sentence);
    assert_true(v.raised > 1);
}

int main(void) {
    struct CMUnitTest tests[COUNT(cases) + 2];
    for (size_t n = 0; n < COUNT(cases); ++n) tests[n] = test_of_row(cases[n].name, test_found, &cases[n]);
    tests[COUNT(cases)] = (struct CMUnitTest)cmocka_unit_test(test_one_weight_alone);
    tests[COUNT(cases) + 1] = (struct CMUnitTest)cmocka_unit_test(test_sums_of_rows_that_see_nothing);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
