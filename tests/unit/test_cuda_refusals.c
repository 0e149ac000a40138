/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_cuda_refusals.c: what device = STROBE_CUDA says where it cannot run: without the backend, without a GPU, and, on a
 * machine with one, to memory of the host; and which kernel is chosen where several could run. Results on GPUs are
 * tools/gpu_check.sh's. */
#include <stdbool.h>
#include <string.h>

#include "strobe/strobe.h"
#include "test.h"

static float memory[4096];

static strobe_attention sound(void) {
    strobe_attention a = {.struct_size = sizeof a, .batch = 1, .seq_q = 4, .seq_k = 4, .heads_q = 2, .dim = 8};
    a.device = STROBE_CUDA;
    a.q.data = a.k.data = a.v.data = memory;
    a.out.data = memory + 2048;
    return a;
}

static int cuda_kernels(const char **unavailable) {
    int count = 0;
    strobe_kernel_info info = {.struct_size = sizeof info};
    for (int32_t i = 0; strobe_kernel_at(i, &info) == STROBE_OK; ++i)
        if (info.device == STROBE_CUDA) ++count, *unavailable = info.unavailable;
    return count;
}

static void a_call_that_cannot_run_says_why(void **state) {
    (void)state;
    const char *unavailable = NULL, *kernel;
    const int kernels = cuda_kernels(&unavailable);
    strobe_attention a = sound();
    if (kernels && !unavailable) skip(); /* there is a GPU */
    assert_int_equal(strobe_select(&a, NULL, &kernel), STROBE_UNSUPPORTED);
    assert_non_null(strstr(strobe_last_error(), kernels ? unavailable : "no kernel"));
    assert_int_equal(strobe_forward(&a, NULL, 0, NULL), STROBE_UNSUPPORTED);
    assert_true(memory[2048] == 0);
}

static void memory_of_the_host_is_refused(void **state) {
    (void)state;
    const char *unavailable = NULL;
    if (!cuda_kernels(&unavailable) || unavailable) skip();
    strobe_attention a = sound();
    assert_int_equal(strobe_forward(&a, NULL, 0, NULL), STROBE_INVALID_ARGUMENT);
    assert_non_null(strstr(strobe_last_error(), "memory of the host"));
}

static void offsets_on_the_device_need_a_total(void **state) {
    (void)state;
    const char *unavailable = NULL, *kernel;
    if (!cuda_kernels(&unavailable) || unavailable) skip();
    strobe_varlen varlen = {.struct_size = sizeof varlen, .cu_seqlens_q = memory, .cu_seqlens_k = memory};
    strobe_attention a = sound();
    a.varlen = &varlen;
    assert_int_equal(strobe_select(&a, NULL, &kernel), STROBE_UNSUPPORTED);
    assert_non_null(strstr(strobe_last_error(), "total_q"));
    varlen.total_q = 4;
    assert_int_equal(strobe_select(&a, NULL, &kernel), STROBE_OK);
}

/* Of packed tensors on a GPU only the caller knows whether they have rows: those that are all NULL have none. */
static void packed_tensors_of_no_rows_may_be_null(void **state) {
    (void)state;
    static const int32_t none[2] = {0};
    strobe_varlen varlen = {.struct_size = sizeof varlen, .cu_seqlens_q = none, .cu_seqlens_k = none};
    strobe_attention a = sound();
    a.varlen = &varlen, varlen.total_q = 4;
    a.k.data = NULL;
    assert_int_equal(strobe_forward(&a, NULL, 0, NULL), STROBE_INVALID_ARGUMENT);
    assert_string_equal(strobe_last_error(), "k is NULL; a pointer to its elements is accepted");
    a.v.data = NULL;
    assert_int_not_equal(strobe_forward(&a, NULL, 0, NULL), STROBE_OK);
    assert_null(strstr(strobe_last_error(), "NULL")); /* no GPU, or the offsets are the host's */
    varlen.total_q = 0, a.q.data = NULL;
    assert_int_equal(strobe_forward(&a, NULL, 0, NULL), STROBE_INVALID_ARGUMENT);
    assert_string_equal(strobe_last_error(), "q is NULL; a pointer to its elements is accepted");
    a.out.data = NULL;
    const strobe_status status = strobe_forward(&a, NULL, 0, NULL);
    assert_true(status == STROBE_OK || status == STROBE_UNSUPPORTED); /* nothing to do, or no GPU */
    assert_true(!status || !strstr(strobe_last_error(), "total_q"));
}

static void devices_beyond_the_last_are_refused(void **state) {
    (void)state;
    strobe_device_info info = {.struct_size = sizeof info};
    assert_int_equal(strobe_device_at(STROBE_CUDA, 1000, &info), STROBE_INVALID_ARGUMENT);
}

/* Few rows are the decoding kernel's; of more than 48, where that is slower on Hopper, the forward's, unless it is asked for
 * by name, lengths differ, or split_keys is given. Numbers of K/V heads are such that GPUs of 40 to 250 multiprocessors
 * agree. */
static void many_rows_leave_the_decoding_kernel(void **state) {
    static const struct {
        int64_t batch, rows, dim;
        bool used, splits, named, decodes;
    } cases[] = {
        {1024, 16, 128, .decodes = false},
        {1024, 12, 128, .decodes = true},
        {10, 16, 128, .decodes = true},
        {1024, 16, 128, .used = true, .decodes = true},
        {64, 16, 64, .decodes = false},
        {64, 12, 64, .decodes = true},
        {64, 16, 256, .decodes = false},
        {64, 16, 256, .splits = true, .decodes = true},
        {64, 16, 256, .named = true, .decodes = true},
    };
    (void)state;
    const char *unavailable = NULL, *kernel;
    strobe_device_info info = {.struct_size = sizeof info};
    if (!cuda_kernels(&unavailable) || unavailable || strobe_device_at(STROBE_CUDA, 0, &info) ||
        strcmp(info.level, "sm_90") != 0)
        skip();
    for (size_t n = 0; n < COUNT(cases); ++n) {
        strobe_attention a = {.struct_size = sizeof a, .batch = cases[n].batch, .seq_q = cases[n].rows, .seq_k = 4096};
        a.heads_q = 32, a.heads_kv = 8, a.dim = a.dim_v = cases[n].dim, a.dtype = STROBE_BF16, a.device = STROBE_CUDA;
        a.q.data = a.k.data = a.v.data = a.out.data = memory;
        strobe_varlen varlen = {.struct_size = sizeof varlen, .used_k = memory};
        if (cases[n].used) a.varlen = &varlen;
        strobe_tuning tuning = {.struct_size = sizeof tuning, .kernel = cases[n].named ? "cuda_decode_sm80" : NULL};
        tuning.split_keys = cases[n].splits ? 1024 : 0;
        a.tuning = &tuning;
        assert_int_equal(strobe_select(&a, NULL, &kernel), STROBE_OK);
        if ((strcmp(kernel, "cuda_decode_sm80") == 0) != cases[n].decodes) fail_msg("case %d: %s", (int)n, kernel);
        char text[8192];
        assert_int_equal(strobe_explain(&a, NULL, text, sizeof text, NULL), STROBE_OK);
        assert_true((strstr(text, "is above 48") != NULL) == !cases[n].decodes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_that_cannot_run_says_why),     cmocka_unit_test(memory_of_the_host_is_refused),
        cmocka_unit_test(offsets_on_the_device_need_a_total),  cmocka_unit_test(packed_tensors_of_no_rows_may_be_null),
        cmocka_unit_test(devices_beyond_the_last_are_refused), cmocka_unit_test(many_rows_leave_the_decoding_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
