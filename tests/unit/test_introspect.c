/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_introspect.c: what the library says about itself: its kernels, its choice and the reasons, versions, log, errors. */
#include <ctype.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "refusal.h"
#include "test.h"

/* ------------------------------------------------------------------------------------------------------- the listing -- */

static bool is_word(const char *name) {
    if (!islower((unsigned char)*name)) return false;
    for (; *name; ++name)
        if (!islower((unsigned char)*name) && !isdigit((unsigned char)*name) && *name != '_') return false;
    return true;
}

static void test_listing(void **state) {
    (void)state;
    strobe_kernel_info info = {.struct_size = sizeof info}, other = info;
    const int32_t count = strobe_kernel_count();
    int32_t k = 0;
    for (; strobe_kernel_at(k, &info) == STROBE_OK; ++k) {
        if (!is_word(info.name)) fail_msg("\"%s\" is not one word", info.name);
        if (info.summary[0] == 0 || strchr(info.summary, '\n')) fail_msg("%s has no summary of one line", info.name);
        if (info.unavailable && info.unavailable[0] == 0) fail_msg("%s is unavailable without a reason", info.name);
        assert_in_range(info.operation, STROBE_FORWARD, STROBE_BACKWARD);
        assert_in_range(info.device, STROBE_CPU, STROBE_CUDA);
        for (int32_t n = 0; n < k; ++n) {
            assert_int_equal(strobe_kernel_at(n, &other), STROBE_OK);
            assert_string_not_equal(info.name, other.name);
        }
    }
    assert_int_equal(k, count);
}

static const char *const levels[] = {"_amx", "_avx512bf16", "_avx512", "_avx2", "_neonbf16", "_neon", "_baseline"};

/* The level at the end of a name, the best first; COUNT(levels) when there is none. length: of what stands before it. */
static size_t level_of(const char *name, size_t *length) {
    const char *last = strrchr(name, '_');
    size_t level = 0;
    while (level < COUNT(levels) && (!last || strcmp(last, levels[level]) != 0)) ++level;
    *length = last ? (size_t)(last - name) : strlen(name);
    return level;
}

/* Best first: of one kernel for several levels, the richer level. */
static void test_levels_are_in_order(void **state) {
    (void)state;
    strobe_kernel_info info = {.struct_size = sizeof info}, before = info;
    int pairs = 0;
    for (int32_t k = 1; strobe_kernel_at(k, &info) == STROBE_OK; ++k) {
        size_t length, length_before;
        const size_t level = level_of(info.name, &length);
        for (int32_t n = 0; n < k && level < COUNT(levels); ++n) {
            assert_int_equal(strobe_kernel_at(n, &before), STROBE_OK);
            const size_t level_before = level_of(before.name, &length_before);
            if (level_before == COUNT(levels) || length != length_before || strncmp(info.name, before.name, length) != 0)
                continue;
            if (level <= level_before) fail_msg("%s comes after %s", info.name, before.name);
            ++pairs;
        }
    }
#if defined(__x86_64__) && !defined(STROBE_BASELINE_ONLY)
#if defined(STROBE_NO_AVX512)
    assert_true(pairs >= 3); /* two levels each of forward, decode and backward */
#else
    assert_true(pairs >= 9); /* three */
#endif
#else
    (void)pairs;
#endif
}

/* The reference is the last that is chosen by itself, and has no condition: something always takes a sound problem. */
static void test_reference_is_last(void **state) {
    (void)state;
    for (int32_t operation = STROBE_FORWARD; operation <= STROBE_BACKWARD; ++operation) {
        strobe_kernel_info info = {.struct_size = sizeof info}, last = info;
        for (int32_t k = 0; strobe_kernel_at(k, &info) == STROBE_OK; ++k)
            if (info.operation == operation && info.device == STROBE_CPU && !info.chosen_by_name) last = info;
        assert_string_equal(last.name, operation == STROBE_FORWARD ? "reference_forward" : "reference_backward");
        assert_null(last.unavailable);
    }
}

static int bit_of(const char *feature) {
    int32_t bit = 0;
    for (const char *name; (name = strobe_feature_name(bit)) != NULL && strcmp(name, feature) != 0;) ++bit;
    assert_non_null(strobe_feature_name(bit));
    return bit;
}

/* A kernel that takes scales says by which blocks; one whose tile is a block also in words. */
static void test_scale_blocks(void **state) {
    (void)state;
    strobe_kernel_info info = {.struct_size = sizeof info};
    const int bit = bit_of("scales of quantised tensors");
    int any = 0;
    for (int32_t k = 0; strobe_kernel_at(k, &info) == STROBE_OK; ++k) {
        char words[64];
        if (info.scale_block < 0 || (info.scale_block > 0) != (int)(info.features >> bit & 1))
            fail_msg("%s has scale_block %d", info.name, info.scale_block);
        if (info.device == STROBE_CPU) assert_true(info.scale_block <= 1);
        any += info.scale_block == 1;
        if (!strcmp(info.name, "cuda_forward_fp8_sm90")) assert_int_equal(info.scale_block, 128);
        snprintf(words, sizeof words, "scales.block_k 0 or a multiple of %d,", info.scale_block);
        if (info.scale_block > 1 && !strstr(info.limits, words)) fail_msg("%s: %s", info.name, info.limits);
    }
    assert_true(any >= 2); /* the reference and a vector level */
}

/* -------------------------------------------------------------------------------------------------------- the choice -- */

/* Problems of different kernels. */
static const struct {
    int64_t seq_q, dim;
    int32_t dtype;
    bool backward;
    const char *kernel;
} problems[] = {
    {4, 8, STROBE_FP32, false, NULL},
    {1, 128, STROBE_BF16, false, NULL},
    {64, 64, STROBE_BF16, false, NULL},
    {4, 8, STROBE_FP64, false, NULL},
    {100, 64, STROBE_FP16, true, NULL},
    {4, 8, STROBE_FP64, true, NULL},
    {4, 8, STROBE_FP32, false, "cpu_forward_baseline"},
    {4, 8, STROBE_FP32, false, "standard_forward"},
    {4, 8, STROBE_FP32, true, "reference_backward"},
};

static const strobe_gradients *set_problem(size_t n) {
    reset_call();
    call.a.seq_q = problems[n].seq_q, call.a.dim = problems[n].dim, call.a.dtype = problems[n].dtype;
    call.tuning.kernel = problems[n].kernel, call.a.tuning = &call.tuning;
    return problems[n].backward ? &call.g : NULL;
}

/* Text has a line for each kernel of the operation and device, in the order of the listing; returns the chosen one. */
static void check_text(const char *text, bool backward, char chosen[64]) {
    strobe_kernel_info info = {.struct_size = sizeof info};
    chosen[0] = 0;
    for (int32_t k = 0; strobe_kernel_at(k, &info) == STROBE_OK; ++k) {
        if ((info.operation == STROBE_BACKWARD) != backward || info.device != STROBE_CPU) continue;
        const size_t length = strlen(info.name);
        if (strncmp(text, info.name, length) != 0 || strncmp(text + length, ": ", 2) != 0)
            fail_msg("no line for %s where it should be: %s", info.name, text);
        const char *reason = text + length + 2, *end = strchr(reason, '\n');
        assert_non_null(end);
        assert_true(end > reason);
        if (strncmp(reason, "chosen\n", 7) == 0) {
            assert_int_equal(chosen[0], 0);
            snprintf(chosen, 64, "%s", info.name);
        }
        text = end + 1;
    }
    assert_int_equal(*text, 0);
}

static void test_select_and_explain_agree(void **state) {
    (void)state;
    for (size_t n = 0; n < COUNT(problems); ++n) {
        const strobe_gradients *g = set_problem(n);
        const char *kernel;
        char text[4096], chosen[64];
        assert_int_equal(strobe_select(&call.a, g, &kernel), STROBE_OK);
        assert_int_equal(strobe_explain(&call.a, g, text, sizeof text, NULL), STROBE_OK);
        check_text(text, problems[n].backward, chosen);
        assert_string_equal(chosen, kernel);
        if (problems[n].kernel) assert_string_equal(kernel, problems[n].kernel);
        strobe_kernel_info info = {.struct_size = sizeof info};
        for (int32_t k = 0; strobe_kernel_at(k, &info) == STROBE_OK; ++k)
            if (strcmp(info.name, kernel) == 0)
                assert_true(!info.unavailable && (!info.chosen_by_name || problems[n].kernel));
    }
}

/* Any capacity: a prefix, its closing zero, and not a byte more. */
static void test_explain_is_truncated(void **state) {
    (void)state;
    char whole[4096], text[4096];
    size_t needed = 0;
    set_problem(0);
    assert_int_equal(strobe_explain(&call.a, NULL, whole, sizeof whole, &needed), STROBE_OK);
    assert_int_equal(needed, strlen(whole) + 1);
    for (size_t capacity = 0; capacity <= needed + 1; ++capacity) {
        size_t again = 0;
        memset(text, 0x7f, sizeof text);
        assert_int_equal(strobe_explain(&call.a, NULL, text, capacity, &again), STROBE_OK);
        assert_int_equal(again, needed);
        const size_t length = capacity == 0 ? 0 : capacity < needed ? capacity - 1 : needed - 1;
        assert_memory_equal(text, whole, length);
        if (capacity > 0) assert_int_equal(text[length], 0);
        for (size_t n = capacity; n < needed + 2; ++n) assert_int_equal(text[n], 0x7f);
    }
    assert_int_equal(strobe_explain(&call.a, NULL, NULL, 0, &needed), STROBE_OK);
}

/* When none takes it, the reasons are written nevertheless. */
static void test_explain_without_a_kernel(void **state) {
    (void)state;
    char text[4096], chosen[64];
    reset_call();
    call.a.paged = &call.paged;
    assert_int_equal(strobe_explain(&call.a, &call.g, text, sizeof text, NULL), STROBE_UNSUPPORTED);
    check_text(text, true, chosen);
    assert_string_equal(chosen, "");
    assert_non_null(strstr(text, "reference_backward: paged K and V are given"));
    assert_non_null(strstr(text, "standard_backward: only chosen by name, a yardstick\n"));
}

/* --------------------------------------------------------------------------------------------------------------- log -- */

struct log {
    int lines;
    char last[300];
};

static void keep(void *user, const char *message) {
    struct log *log = user;
    ++log->lines;
    snprintf(log->last, sizeof log->last, "%s", message);
}

static void test_log(void **state) {
    (void)state;
    struct log log = {0};
    strobe_set_log(keep, &log);
    int ran = 0;
    strobe_kernel_info info = {.struct_size = sizeof info};
    for (int32_t k = 0; strobe_kernel_at(k, &info) == STROBE_OK; ++k) {
        const bool backward = info.operation == STROBE_BACKWARD;
        char line[200];
        reset_call();
        call.tuning.kernel = info.name, call.a.tuning = &call.tuning, call.a.dtype = STROBE_BF16;
        call.a.dim_v = 6;
        if (info.device != STROBE_CPU || info.unavailable) continue;
        const strobe_status status = backward ? strobe_backward(&call.a, &call.g, NULL, 0, NULL)
                                              : strobe_forward(&call.a, NULL, 0, NULL);
        if (status) continue; /* the kernel does not take this one */
        assert_int_equal(log.lines, ++ran);
        snprintf(line, sizeof line, "%s b=2 h=4/2 sq=4 sk=5 d=8 dv=6 bf16: %s", backward ? "backward" : "forward",
                 info.name);
        assert_string_equal(log.last, line);
    }
    assert_true(ran >= 4);
    reset_call();
    call.a.dim = 0;
    assert_int_equal(strobe_forward(&call.a, NULL, 0, NULL), STROBE_INVALID_ARGUMENT);
    assert_int_equal(log.lines, ran); /* refused: it did not run */
    strobe_set_log(NULL, NULL);
    reset_call();
    assert_int_equal(strobe_forward(&call.a, NULL, 0, NULL), STROBE_OK);
    assert_int_equal(log.lines, ran);
}

/* ----------------------------------------------------------------------------------------------- versions and errors -- */

static void test_versions(void **state) {
    (void)state;
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", STROBE_VERSION_MAJOR, STROBE_VERSION_MINOR, STROBE_VERSION_PATCH);
    assert_string_equal(strobe_version(), version);
    assert_non_null(strstr(strobe_build_info(), version));
    assert_null(strchr(strobe_build_info(), '\n'));
}

static void test_status_names(void **state) {
    (void)state;
    static const char *const names[] = {
        "ok", "invalid argument", "unsupported", "out of memory", "workspace too small", "device error"};
    for (int n = 0; n < (int)COUNT(names); ++n) assert_string_equal(strobe_status_name((strobe_status)n), names[n]);
    assert_string_equal(strobe_status_name((strobe_status)COUNT(names)), "unknown status");
    assert_string_equal(strobe_status_name((strobe_status)12345), "unknown status");
}

static void *ask_for_device(void *info) { return strobe_device_at(STROBE_CPU, 0, info) == STROBE_OK ? info : NULL; }

static void test_device(void **state) {
    (void)state;
    strobe_device_info info = {.struct_size = sizeof info}, other = info;
    pthread_t thread;
    void *answered = NULL;
    assert_int_equal(strobe_device_at(STROBE_CPU, 0, &info), STROBE_OK);
    assert_int_equal(pthread_create(&thread, NULL, ask_for_device, &other), 0);
    assert_int_equal(pthread_join(thread, &answered), 0);
    assert_non_null(answered);
    assert_ptr_equal(other.name, info.name); /* not the thread's, which is gone */
    assert_true(info.name[0] != 0 && info.level[0] != 0);
    assert_true(info.threads >= 1);
    assert_true(info.memory_bytes > 0);
}

static void *other_thread(void *argument) {
    char *found = argument;
    snprintf(found, 200, "%s", strobe_last_error()); /* "" before the first */
    strobe_forward(NULL, NULL, 0, NULL);
    return NULL;
}

static void test_errors_belong_to_a_thread(void **state) {
    (void)state;
    static const char sentence[] = "dim is 777; 1 to 576 is accepted";
    char in_other[200] = "not called";
    pthread_t thread;
    reset_call();
    call.a.dim = 777;
    assert_int_equal(strobe_forward(&call.a, NULL, 0, NULL), STROBE_INVALID_ARGUMENT);
    assert_int_equal(pthread_create(&thread, NULL, other_thread, in_other), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(in_other, "");
    assert_string_equal(strobe_last_error(), sentence);
    call.a.dim = 8; /* a call that succeeds leaves it */
    assert_int_equal(strobe_forward(&call.a, NULL, 0, NULL), STROBE_OK);
    assert_string_equal(strobe_last_error(), sentence);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_listing),
        cmocka_unit_test(test_levels_are_in_order),
        cmocka_unit_test(test_reference_is_last),
        cmocka_unit_test(test_scale_blocks),
        cmocka_unit_test(test_select_and_explain_agree),
        cmocka_unit_test(test_explain_is_truncated),
        cmocka_unit_test(test_explain_without_a_kernel),
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_status_names),
        cmocka_unit_test(test_device),
        cmocka_unit_test(test_errors_belong_to_a_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
