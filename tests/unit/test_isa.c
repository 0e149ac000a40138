/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_isa.c: the environment variable STROBE_ISA lowers the level of vector instructions and never raises it. The variable
 * is read once a process, so each question is asked in a child of its own, and the parent never calls the library. */
#define _POSIX_C_SOURCE 200809L /* fork, setenv */

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "strobe/strobe.h"
#include "test.h"

/* What a child found. */
struct answer {
    char level[32], forward[64], backward[64];
    bool is_built;                   /* the build has kernels of the level */
    int unavailable, without_reason; /* kernels of higher levels; those that select does not refuse with their reason */
};

static void ask(struct answer *answer) {
    strobe_attention a = {.struct_size = sizeof a, .batch = 1, .seq_q = 64, .seq_k = 64, .heads_q = 1, .dim = 8};
    const strobe_gradients g = {.struct_size = sizeof g};
    strobe_device_info device = {.struct_size = sizeof device};
    const char *name;
    if (strobe_device_at(STROBE_CPU, 0, &device) == STROBE_OK)
        snprintf(answer->level, sizeof answer->level, "%s", device.level);
    if (strobe_select(&a, NULL, &name) == STROBE_OK) snprintf(answer->forward, sizeof answer->forward, "%s", name);
    if (strobe_select(&a, &g, &name) == STROBE_OK) snprintf(answer->backward, sizeof answer->backward, "%s", name);
    strobe_kernel_info info = {.struct_size = sizeof info};
    strobe_tuning tuning = {.struct_size = sizeof tuning};
    a.tuning = &tuning;
    for (int32_t k = 0; strobe_kernel_at(k, &info) == STROBE_OK; ++k) {
        answer->is_built |= strcmp(strrchr(info.name, '_') + 1, answer->level) == 0;
        if (!info.unavailable || info.device != STROBE_CPU) continue;
        tuning.kernel = info.name;
        const strobe_status status = strobe_select(&a, info.operation == STROBE_BACKWARD ? &g : NULL, &name);
        ++answer->unavailable;
        answer->without_reason += status != STROBE_UNSUPPORTED || !strstr(strobe_last_error(), info.unavailable);
    }
}

/* In a child with STROBE_ISA set to this, or not set. */
static struct answer with(const char *isa) {
    struct answer answer = {.level = "no answer"};
    int ends[2], status = -1;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        const bool set = isa ? setenv("STROBE_ISA", isa, 1) == 0 : unsetenv("STROBE_ISA") == 0;
        memset(&answer, 0, sizeof answer);
        if (set) ask(&answer);
        _exit(write(ends[1], &answer, sizeof answer) == (ssize_t)sizeof answer ? 0 : 1);
    }
    assert_true(child > 0);
    close(ends[1]);
    assert_int_equal(read(ends[0], &answer, sizeof answer), sizeof answer);
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    return answer;
}

static const char *const levels[] = {"baseline", "avx2", "avx512"}; /* from the lowest */

static size_t rank(const char *level) {
    size_t n = 0;
    while (n < COUNT(levels) && strcmp(level, levels[n]) != 0) ++n;
    return n; /* above all of these: a level of its own, such as matrix instructions */
}

/* The last word of a kernel's name. */
static const char *level_of(const char *kernel) {
    const char *last = strrchr(kernel, '_');
    return last ? last + 1 : kernel;
}

static void test_lowers(void **state) {
    (void)state;
    const struct answer best = with(NULL);
    assert_string_not_equal(best.level, "");
    for (size_t n = 0; n < COUNT(levels); ++n) {
        const struct answer found = with(levels[n]);
        const char *expected = rank(best.level) < n ? best.level : levels[n];
        assert_string_equal(found.level, expected);
        if (!found.is_built) continue; /* as AVX-512 in a sanitizer's build: kernels are of a lower level */
        assert_string_equal(level_of(found.forward), expected);
        assert_string_equal(level_of(found.backward), expected);
        assert_true(found.unavailable >= best.unavailable);
        assert_int_equal(found.without_reason, 0);
    }
    assert_true(rank(best.level) == 0 || with("baseline").unavailable > 0);
}

/* A word that is no level is as if there were none. */
static void test_other_words(void **state) {
    (void)state;
    static const char *const words[] = {"", "AVX2", "sse9", "baseline ", "avx"};
    const struct answer best = with(NULL);
    for (size_t n = 0; n < COUNT(words); ++n) {
        const struct answer found = with(words[n]);
        assert_string_equal(found.level, best.level);
        assert_string_equal(found.forward, best.forward);
        assert_int_equal(found.unavailable, best.unavailable);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lowers), cmocka_unit_test(test_other_words)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
