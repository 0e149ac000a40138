/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_cli_random.c: `strobe check --random`: what is drawn, what is counted, and what becomes of a check that fails,
 * crashes or does not end. */
#include "test.h"

#include "check/draw.h"
#include "check/shrink.h"
#include "problem/inputs.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { DRAWS = 6000, TRIED = 150 };

static char message[PROBLEM_MESSAGE];
static kernel_list kernels;
static coverage counted;

static strobe_status draw(uint64_t seed, uint64_t index, problem *p) {
    const draw_request request = {.seed = seed, .device = STROBE_CPU};
    if (!kernels.count) kernel_list_find(&kernels, STROBE_CPU);
    return draw_problem(&request, &kernels, index, p, &counted, message, sizeof message);
}

static void a_case_follows_from_seed_and_number(void **state) {
    (void)state;
    problem first, again, other;
    int differ = 0;
    for (uint64_t n = 0; n < 50; ++n) {
        draw(7, n, &first);
        draw(8, n, &other);
        draw(7, n, &again);
        assert_memory_equal(&first, &again, sizeof first);
        differ += memcmp(&first, &other, sizeof first) != 0;
    }
    assert_int_equal(differ, 50);
}

/* What is printed for a failure is the problem that failed, and one that the library accepts. */
static void every_problem_is_legal_and_reads_back(void **state) {
    (void)state;
    for (uint64_t n = 0; n < DRAWS; ++n) {
        problem p, read;
        char text[PROBLEM_TEXT], again[PROBLEM_TEXT];
        const strobe_status status = draw(1, n, &p);
        problem_print(&p, text);
        if (status && status != STROBE_UNSUPPORTED) fail_msg("%s: %s", text, message);
        if (!problem_parse(text, &read, message, sizeof message)) fail_msg("%s: %s", text, message);
        problem_print(&read, again);
        assert_string_equal(text, again);
        if (n >= TRIED) continue;
        inputs in;
        if (!inputs_create(&in, &p, message, sizeof message)) fail_msg("%s: %s", text, message);
        inputs_free(&in);
    }
}

static void every_feature_is_drawn(void **state) {
    (void)state;
    uint32_t times[MOST_FEATURES] = {0};
    for (uint64_t n = 0; n < DRAWS; ++n) {
        problem p;
        draw(2, n, &p);
        const feature_set s = features_of(&p);
        for (int f = 0; f < features_count(); ++f) times[f] += features_has(&s, f);
    }
    for (int f = 0; f < features_count(); ++f)
        if (!times[f]) fail_msg("%s was never drawn", feature_name(f));
}

static void counts_what_met(void **state) {
    (void)state;
    static coverage c;
    problem p;
    int causal = -1, alibi = -1, of = 0;
    for (int f = 0; f < features_count(); ++f) {
        if (!strcmp(feature_name(f), "causal")) causal = f;
        if (!strcmp(feature_name(f), "alibi")) alibi = f;
    }
    kernel_list_find(&kernels, STROBE_CPU);
    assert_true(problem_parse("fwd causal alibi", &p, message, sizeof message));
    coverage_count_case(&c, 0, &p);
    assert_true(problem_parse("fwd causal", &p, message, sizeof message));
    coverage_count_case(&c, 0, &p);
    coverage_count_refusal(&c, 1, &p);
    assert_int_equal(c.ran[0][causal], 2);
    assert_int_equal(c.ran[0][alibi], 1);
    assert_int_equal(c.pairs[causal][alibi], 1);
    assert_int_equal(c.refused[1][causal], 1);
    assert_true(coverage_features(&c, &kernels, 0, &of) >= 2 && of > 50);
}

/* -------------------------------------------------------------------------------------------------------- made to fail --
 */

static verification fails_with_softcap_and_eight_keys(const problem *p) {
    verification v = {.verdict = p->softcap > 0 && p->seq_k >= 8 && p->seq_q != 0 ? VERDICT_FAILED : VERDICT_PASSED};
    strcpy(v.sentence, "wrong");
    return v;
}

static verification crashes_with_dropout(const problem *p) {
    if (p->dropout > 0) raise(SIGKILL); /* which no sanitizer catches */
    return (verification){.verdict = VERDICT_PASSED};
}

static verification hangs_with_a_bias(const problem *p) {
    while (p->bias) pause();
    return (verification){.verdict = VERDICT_PASSED};
}

static const char crowded[] = "bwd b=3 h=8/2 sq=77 sk=130 d=96 dv=40 bf16 window=9,3 softcap=15 dropout=0.5 shard seed=77 "
                              "varlen=packed64 mask=bhqk bias=hk dbias alibi sinks dlse layout=gaps qstart=4";

static void a_failure_becomes_the_smallest(void **state) {
    (void)state;
    isolated runner = {.verify = fails_with_softcap_and_eight_keys};
    problem p;
    char text[PROBLEM_TEXT], sentence[PROBLEM_MESSAGE];
    assert_true(problem_parse(crowded, &p, message, sizeof message));
    const problem *one = &p;
    assert_int_equal(isolated_check(&runner, &one, 1, 10, sentence), OUTCOME_WRONG);
    assert_string_equal(sentence, "wrong");
    shrink_problem(&runner, &p, OUTCOME_WRONG, sentence);
    problem_print(&p, text);
    assert_string_equal(text, "bwd b=1 h=1 sq=1 sk=8 d=1 bf16 softcap=15");
    isolated_end(&runner);
}

static void a_crash_is_an_outcome(void **state) {
    (void)state;
    isolated runner = {.verify = crashes_with_dropout};
    problem p;
    char sentence[PROBLEM_MESSAGE];
    assert_true(problem_parse(crowded, &p, message, sizeof message));
    const problem *one = &p;
    assert_int_equal(isolated_check(&runner, &one, 1, 10, sentence), OUTCOME_CRASHED);
    assert_string_equal(sentence, "crashed: Killed");
    p.dropout = 0, p.shard = 0; /* and the next one has a process again */
    assert_int_equal(isolated_check(&runner, &one, 1, 10, sentence), OUTCOME_PASSED);
    isolated_end(&runner);
}

static void a_hang_is_an_outcome(void **state) {
    (void)state;
    isolated runner = {.verify = hangs_with_a_bias};
    problem p;
    char sentence[PROBLEM_MESSAGE];
    assert_true(problem_parse(crowded, &p, message, sizeof message));
    const problem *one = &p;
    assert_int_equal(isolated_check(&runner, &one, 1, 1, sentence), OUTCOME_HUNG);
    assert_string_equal(sentence, "has not ended after 1 seconds");
    isolated_end(&runner);
}

int main(void) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(a_case_follows_from_seed_and_number),
                                              cmocka_unit_test(every_problem_is_legal_and_reads_back),
                                              cmocka_unit_test(every_feature_is_drawn),
                                              cmocka_unit_test(counts_what_met),
                                              cmocka_unit_test(a_failure_becomes_the_smallest),
                                              cmocka_unit_test(a_crash_is_an_outcome),
                                              cmocka_unit_test(a_hang_is_an_outcome)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
