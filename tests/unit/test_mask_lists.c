/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_mask_lists.c: lists of what masks hide, on the CPU, whose kernels need none: they are made like a GPU's, say what
 * they were made for, and change no bit; and with what sentence they are not made. Refusals of a call:
 * test_refusals_features.c. */
#include <stdio.h>
#include <string.h>

#include "refusal.h"
#include "test.h"

static strobe_mask_lists lists;

static void reset(void) {
    reset_call();
    call.a.bool_mask = &call.bool_mask, call.a.block_mask = &call.block_mask;
    call.block_mask.stride[2] = 3;
    lists = (strobe_mask_lists){.struct_size = sizeof lists};
}

static void test_made(void **state) {
    (void)state;
    size_t bytes = 12345;
    reset();
    assert_int_equal(strobe_mask_lists_bytes(&call.a, &lists, &bytes), STROBE_OK);
    assert_int_equal(bytes, 0);
    assert_int_equal(strobe_mask_lists_make(&call.a, &lists, NULL), STROBE_OK);
    assert_int_equal(lists.made, STROBE_LISTS_FORWARD | STROBE_LISTS_BACKWARD);
    assert_int_equal(lists.batch, 2), assert_int_equal(lists.heads_q, 4);
    assert_int_equal(lists.seq_q, 4), assert_int_equal(lists.seq_k, 5);
    assert_int_equal(lists.block_q, 2), assert_int_equal(lists.block_k, 2);
    assert_int_equal(lists.axes, 1 | 2 | 4 | 8 | 16 | 128);
    assert_int_equal(lists.device, STROBE_CPU);

    lists = (strobe_mask_lists){.struct_size = sizeof lists, .uses = STROBE_LISTS_BACKWARD};
    assert_int_equal(strobe_mask_lists_make(&call.a, &lists, NULL), STROBE_OK);
    assert_int_equal(lists.made, STROBE_LISTS_BACKWARD);
}

/* A call with lists writes what it writes without them, forward and backward. */
static void test_same_bits(void **state) {
    (void)state;
    enum { COUNT_OUT = 2 * 4 * 4 * 8 };
    float out[COUNT_OUT], dq[COUNT_OUT];
    reset();
    assert_int_equal(strobe_mask_lists_make(&call.a, &lists, NULL), STROBE_OK);
    assert_int_equal(strobe_forward(&call.a, NULL, 0, NULL), STROBE_OK);
    assert_int_equal(strobe_backward(&call.a, &call.g, NULL, 0, NULL), STROBE_OK);
    memcpy(out, call.a.out.data, sizeof out), memcpy(dq, call.g.dq.data, sizeof dq);
    memset(call.a.out.data, 0xee, sizeof out), memset(call.g.dq.data, 0xee, sizeof dq);
    call.a.mask_lists = &lists;
    if (strobe_forward(&call.a, NULL, 0, NULL)) fail_msg("%s", strobe_last_error());
    if (strobe_backward(&call.a, &call.g, NULL, 0, NULL)) fail_msg("%s", strobe_last_error());
    assert_memory_equal(out, call.a.out.data, sizeof out);
    assert_memory_equal(dq, call.g.dq.data, sizeof dq);
}

/* Lists serve other dims, dtypes and kinds of mask, and a mask that lies elsewhere in the same way. */
static void test_other_calls(void **state) {
    (void)state;
    reset();
    assert_int_equal(strobe_mask_lists_make(&call.a, &lists, NULL), STROBE_OK);
    call.a.mask_lists = &lists;
    call.a.dim = 4, call.a.heads_kv = 1, call.a.mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, call.a.softcap = 30;
    call.bool_mask.data += 3;
    if (strobe_forward(&call.a, NULL, 0, NULL)) fail_msg("%s", strobe_last_error());
}

static void expect(strobe_status found, strobe_status status, const char *sentence) {
    if (found != status || strcmp(strobe_last_error(), sentence) != 0)
        fail_msg("%s: %s\ninstead of\n    %s", strobe_status_name(found), strobe_last_error(), sentence);
    assert_int_equal(lists.made, 0);
}

static void test_not_made(void **state) {
    (void)state;
    size_t bytes = 12345;
    reset();
    expect(strobe_mask_lists_make(&call.a, NULL, NULL), STROBE_INVALID_ARGUMENT, "lists is NULL; a structure is accepted");
    expect(strobe_mask_lists_make(NULL, &lists, NULL), STROBE_INVALID_ARGUMENT,
           "attention is NULL; a descriptor is accepted");
    expect(strobe_mask_lists_bytes(&call.a, &lists, NULL), STROBE_INVALID_ARGUMENT,
           "bytes is NULL; a pointer to a size_t is accepted");
    lists.uses = -1;
    expect(strobe_mask_lists_make(&call.a, &lists, NULL), STROBE_INVALID_ARGUMENT,
           "mask_lists.uses is -1; 0 to 3 is accepted");
    lists.uses = 0, call.bool_mask.data = NULL;
    expect(strobe_mask_lists_make(&call.a, &lists, NULL), STROBE_INVALID_ARGUMENT,
           "bool_mask is NULL; a pointer to its elements is accepted");
    call.a.bool_mask = NULL, call.a.block_mask = NULL;
    expect(strobe_mask_lists_bytes(&call.a, &lists, &bytes), STROBE_INVALID_ARGUMENT,
           "bool_mask and block_mask are NULL; a descriptor with one of them is accepted");
    assert_int_equal(bytes, 12345);
    reset();
    lists.struct_size = offsetof(strobe_mask_lists, made);
    assert_int_equal(strobe_mask_lists_make(&call.a, &lists, NULL), STROBE_INVALID_ARGUMENT);
    assert_non_null(strstr(strobe_last_error(), "mask_lists.struct_size is"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_made),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_other_calls),
        cmocka_unit_test(test_not_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
