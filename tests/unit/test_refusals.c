/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_refusals.c: bad descriptors, tensors and calls, each with the whole sentence that must name the argument, its value
 * and what is accepted. Optional structures: test_refusals_features.c; structure sizes: test_struct_size.c. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "refusal.h"
#include "test.h"

static const struct refusal descriptor[] = {
    {{INT(a.batch, -1)}, "batch is -1; 0 to 1099511627776 is accepted", 0},
    {{INT(a.batch, ((int64_t)1 << 40) + 1)}, "batch is 1099511627777; 0 to 1099511627776 is accepted", 0},
    {{INT(a.seq_q, -1)}, "seq_q is -1; 0 to 1099511627776 is accepted", 0},
    {{INT(a.seq_q, INT64_MAX)}, "seq_q is 9223372036854775807; 0 to 1099511627776 is accepted", 0},
    {{INT(a.seq_k, -5)}, "seq_k is -5; 0 to 1099511627776 is accepted", BACKWARD},
    {{INT(a.seq_k, INT64_MIN)}, "seq_k is -9223372036854775808; 0 to 1099511627776 is accepted", 0},
    {{INT(a.heads_q, 0), INT(a.heads_kv, 0)}, "heads_q is 0; 1 to 2147483647 is accepted", 0},
    {{INT(a.heads_q, -4)}, "heads_q is -4; 1 to 2147483647 is accepted", BACKWARD},
    {{INT(a.heads_q, 2147483648)}, "heads_q is 2147483648; 1 to 2147483647 is accepted", 0},
    {{INT(a.heads_kv, -2)}, "heads_kv is -2; 1 to 4 is accepted", 0},
    {{INT(a.heads_kv, 8)}, "heads_kv is 8; 1 to 4 is accepted", 0},
    {{INT(a.heads_kv, 3)}, "heads_kv is 3; a divisor of heads_q, 4, is accepted", BACKWARD},
    {{INT(a.dim, 0)}, "dim is 0; 1 to 576 is accepted", 0},
    {{INT(a.dim, 577)}, "dim is 577; 1 to 576 is accepted", 0},
    {{INT(a.dim, -8)}, "dim is -8; 1 to 576 is accepted", 0},
    {{INT(a.dim_v, -1)}, "dim_v is -1; 1 to 512 is accepted", BACKWARD},
    {{INT(a.dim_v, 1000)}, "dim_v is 1000; 1 to 512 is accepted", 0},
    {{INT(a.dtype, 7)}, "dtype is 7; a strobe_dtype, 1 to 6, is accepted", 0},
    {{INT(a.dtype, -1)}, "dtype is -1; a strobe_dtype, 1 to 6, is accepted", BACKWARD},
    {{INT(a.device, 2)}, "device is 2; 0 to 1 is accepted", 0},
    {{INT(a.device, -1)}, "device is -1; 0 to 1 is accepted", 0},
    {{INT(a.device_index, 1)}, "device_index is 1; 0 to 0 is accepted", 0},
    {{INT(a.device_index, -1), INT(a.device, STROBE_CUDA)}, "device_index is -1; 0 to 2147483647 is accepted", 0},
    {{INT(a.mask, 5)}, "mask is 5; 0 to 4 is accepted", 0},
    {{INT(a.mask, -1)}, "mask is -1; 0 to 4 is accepted", 0},
    {{INT(a.flags, 4)}, "flags is 0x4; STROBE_DETERMINISTIC, 0x1, and STROBE_TF32X3, 0x2, are accepted", 0},
    {{INT(a.flags, INT64_MIN + 1)},
     "flags is 0x8000000000000001; STROBE_DETERMINISTIC, 0x1, and STROBE_TF32X3, 0x2, are accepted",
     BACKWARD},
    {{REAL(a.scale, (double)INFINITY)}, "scale is inf; a number of a magnitude from 1e-30 to 1e30 is accepted", 0},
    {{REAL(a.scale, (double)NAN)}, "scale is nan; a number of a magnitude from 1e-30 to 1e30 is accepted", BACKWARD},
    {{REAL(a.scale, -1e-31)}, "scale is -1e-31; a number of a magnitude from 1e-30 to 1e30 is accepted", 0},
    {{REAL(a.scale, 1e39)}, "scale is 1e+39; a number of a magnitude from 1e-30 to 1e30 is accepted", BACKWARD},
    {{REAL(a.softcap, 1e39)}, "softcap is 1e+39; 0 (none) or a number from 1e-30 to 1e30 is accepted", 0},
    {{REAL(a.softcap, 1e-40)}, "softcap is 1e-40; 0 (none) or a number from 1e-30 to 1e30 is accepted", BACKWARD},
    {{REAL(a.softcap, 1e20), REAL(a.scale, -1e-20)},
     "softcap is 1e+20 beside a scale of -1e-20; a scale / softcap of a magnitude from 1e-36 to 1e36 is accepted",
     0},
    {{REAL(a.softcap, 1e-20), REAL(a.scale, 1e20)},
     "softcap is 1e-20 beside a scale of 1e+20; a scale / softcap of a magnitude from 1e-36 to 1e36 is accepted",
     0},
    {{REAL(a.softcap, -1.5)}, "softcap is -1.5; 0 (none) or a number from 1e-30 to 1e30 is accepted", 0},
    {{REAL(a.softcap, (double)NAN)}, "softcap is nan; 0 (none) or a number from 1e-30 to 1e30 is accepted", 0},
    {{REAL(a.softcap, (double)INFINITY)}, "softcap is inf; 0 (none) or a number from 1e-30 to 1e30 is accepted", BACKWARD},
    {{INT(a.mask, STROBE_MASK_WINDOW_TOP_LEFT), INT(a.window_left, -2)},
     "window_left is -2; -1 to 1099511627776 is accepted",
     0},
    {{INT(a.mask, STROBE_MASK_WINDOW_BOTTOM_RIGHT), INT(a.window_right, INT64_MAX)},
     "window_right is 9223372036854775807; -1 to 1099511627776 is accepted",
     0},
    {{INT(a.q_start, ((int64_t)1 << 59) + 1)},
     "q_start is 576460752303423489; -576460752303423488 to 576460752303423488 is accepted",
     0},
    {{INT(a.k_start, INT64_MIN)},
     "k_start is -9223372036854775808; -576460752303423488 to 576460752303423488 is accepted",
     0},
};

static char *byte_of_input(int n) { return (char *)input + n; }
static struct refusal misaligned[3];

static const struct refusal tensors[] = {
    {{INT(a.q.data, 0)}, "q is NULL; a pointer to its elements is accepted", DATA},
    {{INT(a.k.data, 0)}, "k is NULL; a pointer to its elements is accepted", DATA},
    {{INT(a.v.data, 0)}, "v is NULL; a pointer to its elements is accepted", DATA | BACKWARD},
    {{INT(a.out.data, 0)}, "out is NULL; a pointer to its elements is accepted", DATA},
    {{INT(a.lse.data, 0)}, "lse is NULL; a pointer to its elements is accepted", DATA | BACKWARD},
    {{INT(g.dout.data, 0)}, "dout is NULL; a pointer to its elements is accepted", DATA | BACKWARD},
    {{INT(g.dq.data, 0)}, "dq is NULL; a pointer to its elements is accepted", DATA | BACKWARD},
    {{INT(g.dk.data, 0)}, "dk is NULL; a pointer to its elements is accepted", DATA | BACKWARD},
    {{INT(g.dv.data, 0)}, "dv is NULL; a pointer to its elements is accepted", DATA | BACKWARD},
    {{INT(a.q.dtype, 9)}, "q.dtype is 9; a strobe_dtype, 1 to 6, is accepted", 0},
    {{INT(a.k.dtype, -3)}, "k.dtype is -3; a strobe_dtype, 1 to 6, is accepted", 0},
    {{INT(a.out.dtype, STROBE_FP8_E4M3)}, "out.dtype is fp8_e4m3; accepted are fp32, fp16, bf16, fp64", 0},
    {{INT(a.lse.dtype, STROBE_BF16)}, "lse.dtype is bf16; accepted are fp32, fp64", 0},
    {{INT(g.dlse.dtype, STROBE_FP16)}, "dlse.dtype is fp16; accepted are fp32, fp64", BACKWARD},
    {{INT(g.dout.dtype, STROBE_INT8)}, "dout.dtype is int8; accepted are fp32, fp16, bf16, fp64", BACKWARD},
    {{INT(g.dk.dtype, STROBE_INT8)}, "dk.dtype is int8; accepted are fp32, fp16, bf16, fp64", BACKWARD},
    {{INT(a.q.reserved, 1)}, "q.reserved is 1; 0 is accepted", 0},
    {{INT(a.lse.reserved, -1)}, "lse.reserved is -1; 0 is accepted", 0},
    {{INT(g.dv.reserved, 2)}, "dv.reserved is 2; 0 is accepted", BACKWARD},
    /* offsets that overflow */
    {{INT(a.q.stride[1], (int64_t)1 << 60)},
     "q.stride is {0, 1152921504606846976, 0}; offsets within 2^61 bytes are accepted",
     0},
    {{INT(a.k.stride[0], INT64_MIN)}, "k.stride is {-9223372036854775808, 0, 0}; offsets within 2^61 bytes are accepted", 0},
    {{INT(a.v.stride[2], INT64_MAX)},
     "v.stride is {0, 0, 9223372036854775807}; offsets within 2^61 bytes are accepted",
     BACKWARD},
    {{INT(a.seq_k, (int64_t)1 << 40), INT(a.heads_q, 1 << 30), INT(a.heads_kv, 1 << 30)},
     "k.stride is {9223372036854775807, 8589934592, 8}; offsets within 2^61 bytes are accepted",
     0},
    {{INT(a.seq_q, (int64_t)1 << 40), INT(a.heads_q, 1 << 30), INT(a.heads_kv, 1)},
     "seq_q times heads_q is 1099511627776 times 1073741824; 0 to 281474976710656 is accepted",
     0},
    /* outputs whose elements would meet; inputs may repeat */
    {{INT(a.out.stride[0], 128), INT(a.out.stride[1], 32)},
     "out.stride is {128, 32, 0}; strides that keep the elements of an output apart are accepted",
     0},
    {{INT(a.out.stride[0], 128), INT(a.out.stride[1], 32), INT(a.out.stride[2], 7)},
     "out.stride is {128, 32, 7}; strides that keep the elements of an output apart are accepted",
     0},
    {{INT(a.lse.stride[0], 16), INT(a.lse.stride[1], 1), INT(a.lse.stride[2], -3)},
     "lse.stride is {16, 1, -3}; strides that keep the elements of an output apart are accepted",
     0},
    {{INT(g.dq.stride[0], 127), INT(g.dq.stride[1], 32), INT(g.dq.stride[2], 8)},
     "dq.stride is {127, 32, 8}; strides that keep the elements of an output apart are accepted",
     BACKWARD},
    {{INT(g.dk.stride[1], 16)},
     "dk.stride is {0, 16, 0}; strides that keep the elements of an output apart are accepted",
     BACKWARD},
    {{INT(g.dv.stride[0], 80), INT(g.dv.stride[1], -8), INT(g.dv.stride[2], 8)},
     "dv.stride is {80, -8, 8}; strides that keep the elements of an output apart are accepted",
     BACKWARD},
};

static void test_descriptor(void **state) { (void)state, check_refusals(descriptor, COUNT(descriptor)); }
static void test_tensors(void **state) { (void)state, check_refusals(tensors, COUNT(tensors)); }

/* Data that is not aligned to its elements. */
static void test_misaligned(void **state) {
    (void)state;
    static const char *const ends[] = {"4 bytes is accepted", "2 bytes is accepted", "8 bytes is accepted"};
    static const int32_t dtypes[] = {STROBE_FP32, STROBE_BF16, STROBE_FP64};
    static const int off[] = {2, 1, 4};
    char sentence[COUNT(misaligned)][128];
    for (size_t n = 0; n < COUNT(misaligned); ++n) {
        snprintf(sentence[n], sizeof sentence[n], "k is %%p; a multiple of its element's %s", ends[n]);
        misaligned[n] = (struct refusal){
            {INT(a.dtype, dtypes[n]), POINT(a.k.data, byte_of_input(off[n]))}, sentence[n], DATA};
    }
    check_refusals(misaligned, COUNT(misaligned));
}

/* Outputs have memory of their own. */
static void test_outputs_are_apart(void **state) {
    (void)state;
    reset_call();
    void *const out = call.a.out.data, *const dk = call.g.dk.data;
    const struct refusal rows[] = {
        {{POINT(a.out.data, input)}, "out is the memory of q; memory of its own is accepted", DATA},
        {{POINT(a.lse.data, out)}, "out is the memory of lse; memory of its own is accepted", DATA},
        {{POINT(g.dq.data, input)}, "dq is the memory of q; memory of its own is accepted", DATA | BACKWARD},
        {{POINT(g.dq.data, out)}, "dq is the memory of out; memory of its own is accepted", DATA | BACKWARD},
        {{POINT(g.dv.data, dk)}, "dk is the memory of dv; memory of its own is accepted", DATA | BACKWARD},
    };
    check_refusals(rows, COUNT(rows));
}

/* Inputs may repeat along every axis, by the strides that outputs must not have. */
static void test_inputs_may_repeat(void **state) {
    (void)state;
    reset_call();
    call.a.k.stride[1] = 8, call.a.v.stride[2] = 3, call.a.q.stride[0] = 1;
    assert_int_equal(strobe_forward(&call.a, NULL, 0, NULL), STROBE_OK);
}

static void expect(strobe_status found, const char *sentence) {
    assert_int_equal(found, STROBE_INVALID_ARGUMENT);
    assert_string_equal(strobe_last_error(), sentence);
}

/* Arguments of the functions themselves. */
static void test_null_arguments(void **state) {
    (void)state;
    reset_call();
    const char *kernel;
    char text[64], sentence[128];
    size_t bytes;
    strobe_device_info device = {.struct_size = sizeof device};
    expect(strobe_forward(NULL, NULL, 0, NULL), "attention is NULL; a descriptor is accepted");
    expect(strobe_backward(NULL, &call.g, NULL, 0, NULL), "attention is NULL; a descriptor is accepted");
    expect(strobe_backward(&call.a, NULL, NULL, 0, NULL), "gradients is NULL; a descriptor is accepted");
    expect(strobe_workspace(NULL, NULL, &bytes), "attention is NULL; a descriptor is accepted");
    expect(strobe_workspace(&call.a, NULL, NULL), "bytes is NULL; a pointer to a size_t is accepted");
    expect(strobe_select(NULL, NULL, &kernel), "attention is NULL; a descriptor is accepted");
    expect(strobe_select(&call.a, NULL, NULL), "kernel is NULL; a pointer to a string is accepted");
    expect(strobe_explain(NULL, NULL, text, sizeof text, NULL), "attention is NULL; a descriptor is accepted");
    expect(strobe_explain(&call.a, NULL, NULL, 1, NULL), "text is NULL; a buffer is accepted");
    expect(strobe_kernel_at(0, NULL), "info is NULL; a strobe_kernel_info is accepted");
    expect(strobe_device_at(STROBE_CPU, 0, NULL), "info is NULL; a strobe_device_info is accepted");
    expect(strobe_device_at(STROBE_CPU, 1, &device), "index is 1; 0 to 0 is accepted");
    expect(strobe_device_at(STROBE_CPU, -1, &device), "index is -1; 0 to 0 is accepted");
    expect(strobe_device_at(7, 0, &device), "device is 7; 0 (the CPU) or 1 (CUDA) is accepted");
    if (strobe_device_at(STROBE_CUDA, 0, &device))
        expect(strobe_device_at(STROBE_CUDA, 0, &device),
               "device is 1 (CUDA), of which this build or machine has none; 0 (the CPU) is accepted");
    snprintf(sentence, sizeof sentence, "stream is %p; NULL is accepted on the CPU", (void *)input);
    expect(strobe_forward(&call.a, NULL, 0, input), sentence);
    expect(strobe_backward(&call.a, &call.g, NULL, 0, input), sentence);
}

static void test_kernel_index(void **state) {
    (void)state;
    strobe_kernel_info info = {.struct_size = sizeof info};
    char sentence[128];
    const int32_t count = strobe_kernel_count(), bad[] = {-1, count, INT32_MAX, INT32_MIN};
    for (size_t n = 0; n < COUNT(bad); ++n) {
        snprintf(sentence, sizeof sentence, "index is %d; 0 to %d is accepted", bad[n], count - 1);
        expect(strobe_kernel_at(bad[n], &info), sentence);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_descriptor),        cmocka_unit_test(test_tensors),        cmocka_unit_test(test_misaligned),
        cmocka_unit_test(test_inputs_may_repeat), cmocka_unit_test(test_null_arguments), cmocka_unit_test(test_kernel_index),
        cmocka_unit_test(test_outputs_are_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
