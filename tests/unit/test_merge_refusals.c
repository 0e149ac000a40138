/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_merge_refusals.c: bad arguments of strobe_merge, each with the whole sentence, its outputs untouched. */
#include <stdio.h>
#include <string.h>

#include "strobe/strobe.h"
#include "test.h"

/* Two parts of [2, 3, 2, 4]. */
static float memory[6][256]; /* out and lse of two parts and of the result */
static strobe_partial part[2];
static strobe_partials m;
static strobe_parallel parallel;

static void reset(void) {
    memset(memory, 0xa5, sizeof memory);
    for (int n = 0; n < 2; ++n) part[n] = (strobe_partial){{.data = memory[2 * n]}, {.data = memory[2 * n + 1]}};
    m = (strobe_partials){
        .struct_size = sizeof m, .batch = 2, .seq_q = 3, .heads_q = 2, .dim_v = 4, .count = 2, .parts = part};
    m.out.data = memory[4], m.lse.data = memory[5];
    parallel = (strobe_parallel){.struct_size = sizeof parallel};
}

#define OF(object, field)         &(object).field, sizeof((object).field)
#define SET(field, value)         OF(m, field), value
#define SET_PART(n, f, value)     OF(part[n], f), value
#define SET_THREADS(field, value) OF(parallel, field), value

static const struct {
    void *field;
    size_t bytes;
    int64_t value;
    const char *sentence;
} rows[] = {
    {SET(batch, -1), "batch is -1; 0 to 1099511627776 is accepted"},
    {SET(seq_q, -3), "seq_q is -3; 0 to 1099511627776 is accepted"},
    {SET(heads_q, 0), "heads_q is 0; 1 to 2147483647 is accepted"},
    {SET(dim_v, 0), "dim_v is 0; 1 to 1099511627776 is accepted"},
    {SET(count, 0), "count is 0; 1 to 2147483647 is accepted"},
    {SET(count, 2147483648), "count is 2147483648; 1 to 2147483647 is accepted"},
    {SET(parts, 0), "parts is NULL; count partial results are accepted"},
    {SET(device, 3), "device is 3; 0 to 1 is accepted"},
    {SET(device_index, 1), "device_index is 1; 0 to 0 is accepted"},
    {SET(reserved, 9), "reserved is 9; 0 to 0 is accepted"},
    {SET(dtype, 12), "out.dtype is 12; a strobe_dtype, 1 to 6, is accepted"},
    {SET(dtype, STROBE_FP64), "out.dtype is fp64; accepted are fp32, fp16, bf16"},
    {SET(out.dtype, STROBE_INT8), "out.dtype is int8; accepted are fp32, fp16, bf16"},
    {SET(out.data, 0), "out is NULL; a pointer to its elements is accepted"},
    {SET(out.reserved, 1), "out.reserved is 1; 0 is accepted"},
    {SET(out.stride[1], 4), "out.stride is {0, 4, 0}; strides that keep the elements of an output apart are accepted"},
    {SET(out.stride[2], INT64_MAX), "out.stride is {0, 0, 9223372036854775807}; offsets within 2^61 bytes are accepted"},
    {SET(lse.dtype, STROBE_BF16), "lse.dtype is bf16; accepted are fp32"},
    {SET(lse.stride[0], 1), "lse.stride is {1, 0, 0}; strides that keep the elements of an output apart are accepted"},
    {SET_PART(0, out.data, 0), "parts[].out is NULL; a pointer to its elements is accepted"},
    {SET_PART(1, lse.data, 0), "parts[].lse is NULL; a pointer to its elements is accepted"},
    {SET_PART(1, out.dtype, STROBE_FP64), "parts[].out.dtype is fp64; accepted are fp32, fp16, bf16"},
    {SET_PART(0, lse.dtype, STROBE_FP64), "parts[].lse.dtype is fp64; accepted are fp32"},
    {SET_PART(1, lse.reserved, 5), "parts[].lse.reserved is 5; 0 is accepted"},
    {SET_PART(0, out.stride[0], INT64_MIN),
     "parts[].out.stride is {-9223372036854775808, 0, 0}; offsets within 2^61 bytes are accepted"},
    {SET(lse.data, (intptr_t)memory[4]), "lse is the memory of out; memory of its own is accepted"},
    {SET_PART(1, lse.data, (intptr_t)memory[4]), "out is the memory of parts[].lse; memory of its own is accepted"},
    {SET_PART(0, out.data, (intptr_t)memory[5]), "lse is the memory of parts[].out; memory of its own is accepted"},
    {SET_THREADS(threads, -1), "parallel.threads is -1; 0 to 65536 is accepted"},
    {SET_THREADS(reserved, 1), "parallel.reserved is 1; 0 is accepted"},
    {SET_THREADS(struct_size, 0), "parallel.struct_size is 0; sizeof the structure, 32, is accepted"},
};

static void expect(strobe_status found, const char *sentence) {
    if (found != STROBE_INVALID_ARGUMENT) fail_msg("%s, for: %s", strobe_status_name(found), sentence);
    assert_string_equal(strobe_last_error(), sentence);
    for (size_t n = 0; n < sizeof memory[4] + sizeof memory[5]; ++n)
        if (((const unsigned char *)memory[4])[n] != 0xa5) fail_msg("written, and then: %s", sentence);
}

static void test_fields(void **state) {
    (void)state;
    for (size_t n = 0; n < COUNT(rows); ++n) {
        const int32_t narrow = (int32_t)rows[n].value;
        reset();
        if (rows[n].field >= (void *)&parallel && rows[n].field < (void *)(&parallel + 1)) m.parallel = &parallel;
        memcpy(rows[n].field, rows[n].bytes == sizeof narrow ? (const void *)&narrow : &rows[n].value, rows[n].bytes);
        expect(strobe_merge(&m, NULL), rows[n].sentence);
    }
}

static void test_calls(void **state) {
    (void)state;
    char sentence[128];
    reset();
    expect(strobe_merge(NULL, NULL), "partials is NULL; a descriptor is accepted");
    snprintf(sentence, sizeof sentence, "stream is %p; NULL is accepted on the CPU", (void *)&m);
    expect(strobe_merge(&m, &m), sentence);
    snprintf(sentence, sizeof sentence, "parts[].lse is %p; a multiple of its element's 4 bytes is accepted",
             (void *)((char *)memory[1] + 2));
    part[0].lse.data = (char *)memory[1] + 2;
    expect(strobe_merge(&m, NULL), sentence);
    reset();
    static const char layout[] =
        "out is the memory of parts[].out with other strides or another dtype; the same, or memory of "
        "its own, is accepted";
    part[0].out = (strobe_tensor){.data = memory[4], .stride = {24, 4, 12}};
    expect(strobe_merge(&m, NULL), layout);
    part[0].out = (strobe_tensor){.data = memory[4], .dtype = STROBE_BF16};
    expect(strobe_merge(&m, NULL), layout);
    reset();
    m.struct_size = 7;
    snprintf(sentence, sizeof sentence, "partials.struct_size is 7; sizeof the structure, %zu, is accepted", sizeof m);
    expect(strobe_merge(&m, NULL), sentence);
}

/* An older structure ends before parallel; a newer one has zeros, or something unknown, behind. */
static void test_versions(void **state) {
    (void)state;
    static _Alignas(8) unsigned char newer[sizeof m + 24];
    char sentence[200];
    reset();
    for (int n = 0; n < 2; ++n) memset(memory[2 * n], 0, sizeof memory[0]), memset(memory[2 * n + 1], 0, sizeof memory[0]);
    m.struct_size = offsetof(strobe_partials, dtype);
    m.dtype = 77, m.reserved = 8, m.parallel = (const void *)memory;
    assert_int_equal(strobe_merge(&m, NULL), STROBE_OK);
    m.dtype = 0, m.reserved = 0, m.parallel = NULL, m.struct_size = sizeof newer;
    memcpy(newer, &m, sizeof m);
    assert_int_equal(strobe_merge((const void *)newer, NULL), STROBE_OK);
    memset(memory[4], 0xa5, 2 * sizeof memory[4]);
    newer[sizeof m + 3] = 1;
    snprintf(sentence, sizeof sentence,
             "partials has a nonzero byte at offset %zu, in a field that this library, version %s, does not know; zero is "
             "accepted there",
             sizeof m + 3, strobe_version());
    expect(strobe_merge((const void *)newer, NULL), sentence);
}

static void test_other_device(void **state) {
    (void)state;
    strobe_kernel_info info = {.struct_size = sizeof info};
    for (int32_t k = 0; strobe_kernel_at(k, &info) == STROBE_OK; ++k)
        if (info.device == STROBE_CUDA) skip(); /* this build may merge there */
    reset();
    m.device = STROBE_CUDA;
    assert_int_equal(strobe_merge(&m, NULL), STROBE_UNSUPPORTED);
    assert_string_equal(strobe_last_error(),
                        "device is 1 (CUDA), for which this build has no kernel; 0 (the CPU) is accepted");
}

/* Nothing to merge is legal. */
static void test_no_elements(void **state) {
    (void)state;
    reset();
    m.batch = 0, m.out.data = NULL, part[0].out.data = NULL;
    assert_int_equal(strobe_merge(&m, NULL), STROBE_OK);
    reset();
    m.seq_q = 0;
    assert_int_equal(strobe_merge(&m, NULL), STROBE_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields),       cmocka_unit_test(test_calls),       cmocka_unit_test(test_versions),
        cmocka_unit_test(test_other_device), cmocka_unit_test(test_no_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
