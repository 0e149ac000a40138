/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_tile_permission.c: a process asks Linux for AMX tiles when the first problem wants them, not before, and where the
 * answer is no, the next level computes the same. The answer holds for the whole process, so each question is asked in a
 * child; a seccomp filter says no. Where the processor has no tiles there is nothing to ask. */
#define _DEFAULT_SOURCE /* fork, syscall */

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "strobe/strobe.h"
#include "test.h"

#if defined(__linux__) && defined(__x86_64__)
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GET_PERMISSION = 0x1022, ASK_PERMISSION = 0x1023, TILE_DATA = 18, ROWS = 64, DIM = 32, NUMBERS = ROWS * DIM };

struct answer {
    bool before, listed, after; /* whether tiles are permitted: at first, after looking round, after a bf16 problem */
    char kernel[64], reason[256];
    float out[NUMBERS];
};

static bool permitted(void) {
    unsigned long states = 0;
    return syscall(SYS_arch_prctl, GET_PERMISSION, &states) == 0 && (states >> TILE_DATA & 1);
}

/* From now on arch_prctl(ASK_PERMISSION) fails with EINVAL, as on a kernel that does not know it. */
static bool refuse_permission(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ASK_PERMISSION, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 22),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = COUNT(rules), .filter = rules};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* A problem in bf16, computed; then the tile kernel by name. */
static void compute(struct answer *answer) {
    static uint16_t data[3][NUMBERS], out[NUMBERS];
    struct random r = {1};
    for (int t = 0; t < 3; ++t)
        for (int n = 0; n < NUMBERS; ++n) data[t][n] = (uint16_t)(0x3f00 + random_below(&r, 0x100)); /* 0.5 to 2 */
    strobe_attention a = {.struct_size = sizeof a,
                          .batch = 1,
                          .seq_q = ROWS,
                          .seq_k = ROWS,
                          .heads_q = 1,
                          .dim = DIM,
                          .dtype = STROBE_BF16,
                          .q.data = data[0],
                          .k.data = data[1],
                          .v.data = data[2],
                          .out.data = out};
    const char *name = "none";
    if (strobe_select(&a, NULL, &name) || strobe_forward(&a, NULL, 0, NULL)) name = strobe_last_error();
    snprintf(answer->kernel, sizeof answer->kernel, "%s", name);
    for (int n = 0; n < NUMBERS; ++n) {
        const uint32_t bits = (uint32_t)out[n] << 16;
        memcpy(&answer->out[n], &bits, sizeof bits);
    }
    const strobe_tuning tuning = {.struct_size = sizeof tuning, .kernel = "cpu_forward_amx"};
    a.tuning = &tuning;
    if (strobe_forward(&a, NULL, 0, NULL)) snprintf(answer->reason, sizeof answer->reason, "%s", strobe_last_error());
}

static void ask(struct answer *answer) {
    strobe_kernel_info info = {.struct_size = sizeof info};
    strobe_device_info device = {.struct_size = sizeof device};
    const strobe_attention other = {.struct_size = sizeof other, .batch = 1, .seq_q = 1, .seq_k = 8, .heads_q = 1, .dim = 8};
    const char *name;
    answer->before = permitted();
    for (int32_t n = 0; strobe_kernel_at(n, &info) == STROBE_OK; ++n) continue;
    answer->listed = strobe_device_at(STROBE_CPU, 0, &device) || strobe_select(&other, NULL, &name) || permitted();
    compute(answer);
    answer->after = permitted();
}

static struct answer in_child(bool refused) {
    static struct answer answer;
    memset(&answer, 0, sizeof answer);
    int ends[2], status = -1;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        if (refused && !refuse_permission()) _exit(77);
        ask(&answer);
        _exit(write(ends[1], &answer, sizeof answer) == (ssize_t)sizeof answer ? 0 : 1);
    }
    assert_true(child > 0);
    close(ends[1]);
    size_t got = 0; /* more than a pipe holds may come in pieces */
    for (ssize_t n; got < sizeof answer && (n = read(ends[0], (char *)&answer + got, sizeof answer - got)) > 0;)
        got += (size_t)n;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) skip(); /* no seccomp here */
    assert_int_equal(status, 0);
    assert_int_equal(got, sizeof answer);
    return answer;
}

/* Emulated tiles (src/cpu/isa/amx_emulated.h) are no business of the operating system. */
static bool tiles_are_there(void) {
    strobe_device_info device = {.struct_size = sizeof device};
    if (strstr(strobe_build_info(), "amx (emulated)") || !strstr(strobe_build_info(), "amx")) return false;
    return strobe_device_at(STROBE_CPU, 0, &device) == STROBE_OK && strcmp(device.level, "amx") == 0;
}

static void test_asks_late(void **state) {
    (void)state;
    if (!tiles_are_there()) skip();
    const struct answer answer = in_child(false);
    if (!answer.after && strstr(answer.reason, "refused")) skip(); /* this system says no to everybody */
    assert_false(answer.before);
    assert_false(answer.listed);
    assert_string_equal(answer.kernel, "cpu_forward_amx");
    assert_string_equal(answer.reason, "");
    assert_true(answer.after);
}

static void test_lives_with_no(void **state) {
    (void)state;
    if (!tiles_are_there()) skip();
    const struct answer usual = in_child(false), refused = in_child(true);
    assert_false(refused.after);
    assert_string_equal(refused.kernel, "cpu_forward_avx512");
    assert_non_null(strstr(refused.reason, "refused this process the use of AMX tiles"));
    for (int n = 0; n < NUMBERS;
         ++n) /* averages of 0.5 to 2: a unit of bf16 is at most 2^-7, and both round once or twice */
        assert_true(fabsf(usual.out[n] - refused.out[n]) <= 0x1p-6f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_asks_late), cmocka_unit_test(test_lives_with_no)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void) { return 77; } /* no tiles: skipped */

#endif
