/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_workspace.c: a caller's workspace of exactly the bytes that strobe_workspace names is enough, whatever it holds, for
 * every kernel; one byte less, or one that is not aligned, is refused before anything is written. And it is small: a few
 * tiles a thread, however long the sequences. */
#include <stdio.h>
#include <string.h>

#include "kernel_table.h"
#include "portable/posix.h"
#include "test.h"

enum { GUARD = 4096 };

static const struct shape shapes[] = {
    {"fp32", .batch = 2, .seq_q = 70, .seq_k = 90, .heads_q = 4, .heads_kv = 2, .dim = 17, .dim_v = 9},
    {"bf16, everything", .batch = 2, .seq_q = 60, .seq_k = 70, .heads_q = 4, .heads_kv = 2, .dim = 16, .dtype = STROBE_BF16,
     .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = BIAS | PER_ROW | PER_HEAD | SINKS | DROPOUT | SOFTCAP | WITH_DLSE},
    {"fp16, packed", .batch = 3, .seq_q = 50, .seq_k = 60, .heads_q = 2, .heads_kv = 1, .dim = 40, .dtype = STROBE_FP16,
     .features = PACKED | USED},
    {"decoding", .batch = 2, .seq_q = 2, .seq_k = 1100, .heads_q = 4, .heads_kv = 2, .dim = 20},
    {"fp64", .batch = 1, .seq_q = 5, .seq_k = 6, .heads_q = 2, .dim = 3, .dtype = STROBE_FP64,
     .features = BIAS | PER_SCORE | SINKS},
};

static strobe_status query(struct fixture *f, strobe_operation operation, size_t *bytes) {
    return strobe_workspace(&f->a, operation == STROBE_BACKWARD ? &f->g : NULL, bytes);
}

static strobe_status call(struct fixture *f, strobe_operation operation, void *workspace, size_t bytes) {
    return operation == STROBE_FORWARD ? strobe_forward(&f->a, workspace, bytes, NULL)
                                       : strobe_backward(&f->a, &f->g, workspace, bytes, NULL);
}

static bool outputs_are_untouched(const struct fixture *f, strobe_operation operation) {
    for (enum tensor t = 0; t < TENSORS; ++t)
        for (int64_t e = 0; is_output(f, t, operation) && e < slot_count(&f->slot[t]); ++e)
            if (!slot_is_untouched(&f->slot[t], e)) return false;
    return true;
}

static bool all_are(const unsigned char *bytes, size_t count, unsigned char value) {
    for (size_t n = 0; n < count; ++n)
        if (bytes[n] != value) return false;
    return true;
}

static void reset_outputs(struct fixture *f, strobe_operation operation) {
    for (enum tensor t = 0; t < TENSORS; ++t)
        if (is_output(f, t, operation)) slot_reset(&f->slot[t]);
}

/* The workspace is filled with a byte before the call; the result must be the expected one, and the guard bands whole. */
static void check_exact(struct fixture *f, const struct fixture *expected, strobe_operation operation, size_t bytes,
                        unsigned char fill, const char *kernel) {
    unsigned char *memory = aligned_alloc(64, (bytes + 2 * GUARD + 63) / 64 * 64);
    assert_non_null(memory);
    memset(memory, 0xa5, bytes + 2 * GUARD);
    memset(memory + GUARD, fill, bytes);
    reset_outputs(f, operation);
    if (call(f, operation, memory + GUARD, bytes)) fail_msg("%s: %s", kernel, strobe_last_error());
    for (enum tensor t = 0; t < TENSORS; ++t)
        if (is_output(f, t, operation) && !slot_equal(&f->slot[t], &expected->slot[t]))
            fail_msg("%s: %s depends on what the workspace held", kernel, tensor_names[t]);
    if (!all_are(memory, GUARD, 0xa5) || !all_are(memory + GUARD + bytes, GUARD, 0xa5))
        fail_msg("%s wrote outside its %zu bytes of workspace", kernel, bytes);
    aligned_free(memory);
}

static void check_refusals(struct fixture *f, strobe_operation operation, size_t bytes, const char *kernel) {
    char sentence[200];
    unsigned char *memory = aligned_alloc(64, bytes + 64);
    assert_non_null(memory);
    memset(memory, 0xa5, bytes + 64);
    size_t least = 0;
    assert_int_equal(call(f, operation, memory, 0), STROBE_WORKSPACE_TOO_SMALL);
    assert_int_equal(sscanf(strobe_last_error(), "workspace_bytes is 0; at least %zu is accepted", &least), 1);
    assert_int_equal(least, bytes); /* what the query said */
    assert_int_equal(call(f, operation, memory, least), STROBE_OK);
    reset_outputs(f, operation);
    memset(memory, 0xa5, bytes + 64);
    assert_int_equal(call(f, operation, memory, least - 1), STROBE_WORKSPACE_TOO_SMALL);
    snprintf(sentence, sizeof sentence, "workspace_bytes is %zu; at least %zu is accepted", least - 1, least);
    assert_string_equal(strobe_last_error(), sentence);
    assert_int_equal(call(f, operation, memory + 32, bytes), STROBE_INVALID_ARGUMENT);
    snprintf(sentence, sizeof sentence, "workspace is %p; a multiple of 64 bytes is accepted", (void *)(memory + 32));
    assert_string_equal(strobe_last_error(), sentence);
    assert_int_equal(call(f, operation, NULL, bytes), STROBE_INVALID_ARGUMENT);
    snprintf(sentence, sizeof sentence, "workspace is NULL and workspace_bytes %zu; memory of so many bytes is accepted",
             bytes);
    assert_string_equal(strobe_last_error(), sentence);
    if (!outputs_are_untouched(f, operation) || !all_are(memory, bytes + 64, 0xa5))
        fail_msg("%s wrote, and refused", kernel);
    aligned_free(memory);
}

/* A caller's threads, of which the last does all the work: the far end of the workspace. */
static void run_by_last(void *self, int64_t tasks, void (*task)(void *context, int64_t index, int32_t worker),
                        void *context) {
    const strobe_parallel *parallel = self;
    for (int64_t n = 0; n < tasks; ++n) task(context, n, parallel->threads - 1);
}

static void check_kernel(struct fixture *f, struct fixture *expected, strobe_operation operation, const char *kernel) {
    if (fixture_run(expected, operation, kernel)) fail_msg("%s", strobe_last_error());
    for (int n = 0; n < 3; ++n) {
        static const int32_t threads[] = {1, 3, 5};
        size_t bytes = 0;
        f->tuning.kernel = kernel;
        f->parallel = (strobe_parallel){.struct_size = sizeof f->parallel, .threads = threads[n], .self = &f->parallel};
        if (n == 2) f->parallel.run = run_by_last;
        assert_int_equal(query(f, operation, &bytes), STROBE_OK);
        assert_int_equal(bytes % 64, 0);
        check_exact(f, expected, operation, bytes, 0xff, kernel);
        check_exact(f, expected, operation, bytes, 0x00, kernel);
        if (bytes > 0) check_refusals(f, operation, bytes, kernel);
    }
}

static void test_exact_bytes(void **state) {
    struct fixture f, expected;
    fixture_make(&f, *state), fixture_make(&expected, *state);
    for (int operation = STROBE_FORWARD; operation <= STROBE_BACKWARD; ++operation) {
        const char *names[MOST_KERNELS];
        const int kernels = kernels_for(&f, (strobe_operation)operation, names);
        assert_true(kernels > 0);
        for (int k = 0; k < kernels; ++k) check_kernel(&f, &expected, (strobe_operation)operation, names[k]);
        fixture_forward(&f, NULL), fixture_forward(&expected, NULL); /* what backward reads */
    }
    fixture_free(&f), fixture_free(&expected);
}

/* One workspace for different calls, one after the other: the largest of what they need. */
static void test_shared_by_calls(void **state) {
    (void)state;
    struct fixture f[COUNT(shapes)], expected[COUNT(shapes)];
    size_t most = 0;
    for (size_t n = 0; n < COUNT(shapes); ++n) {
        fixture_make(&f[n], &shapes[n]), fixture_make(&expected[n], &shapes[n]);
        if (fixture_forward(&expected[n], NULL) || fixture_backward(&expected[n], NULL)) fail_msg("%s", strobe_last_error());
        for (int operation = STROBE_FORWARD; operation <= STROBE_BACKWARD; ++operation) {
            size_t bytes;
            assert_int_equal(query(&f[n], (strobe_operation)operation, &bytes), STROBE_OK);
            if (bytes > most) most = bytes;
        }
    }
    void *memory = aligned_alloc(64, most);
    assert_non_null(memory);
    for (int operation = STROBE_FORWARD; operation <= STROBE_BACKWARD; ++operation)
        for (size_t n = 0; n < COUNT(shapes); ++n) {
            assert_int_equal(call(&f[n], (strobe_operation)operation, memory, most), STROBE_OK);
            for (enum tensor t = 0; t < TENSORS; ++t)
                if (is_output(&f[n], t, (strobe_operation)operation))
                    assert_true(slot_equal(&f[n].slot[t], &expected[n].slot[t]));
        }
    aligned_free(memory);
    for (size_t n = 0; n < COUNT(shapes); ++n) fixture_free(&f[n]), fixture_free(&expected[n]);
}

/* -------------------------------------------------------------------------------------------------------------- size -- */

static size_t workspace_of_kernel(const char *kernel, int64_t seq, int32_t threads, int32_t dtype, bool backward) {
    const strobe_tuning tuning = {.struct_size = sizeof tuning, .kernel = kernel};
    const strobe_parallel parallel = {.struct_size = sizeof parallel, .threads = threads};
    const strobe_attention a = {.struct_size = sizeof a,
                                .batch = 1,
                                .seq_q = seq,
                                .seq_k = seq,
                                .heads_q = 16,
                                .dim = 128,
                                .dtype = dtype,
                                .parallel = &parallel,
                                .tuning = kernel ? &tuning : NULL};
    const strobe_gradients g = {.struct_size = sizeof g};
    size_t bytes = 0;
    assert_int_equal(strobe_workspace(&a, backward ? &g : NULL, &bytes), STROBE_OK);
    return bytes;
}

static size_t workspace_of(int64_t seq, int32_t threads, int32_t dtype, bool backward) {
    return workspace_of_kernel(NULL, seq, threads, dtype, backward);
}

/* 1 GiB would hold the scores of this problem. */
static void test_memory_of_forward(void **state) {
    (void)state;
    static const int32_t dtypes[] = {STROBE_FP32, STROBE_FP16, STROBE_BF16};
    for (size_t n = 0; n < COUNT(dtypes); ++n) {
        const size_t bytes = workspace_of(4096, 2, dtypes[n], false), far = workspace_of(1 << 14, 2, dtypes[n], false);
        assert_in_range(bytes, 1, 16 * 1024 * 1024 - 1);
        assert_in_range(far, bytes, 16 * 1024 * 1024 - 1); /* short sequences may do with less */
        assert_int_equal(workspace_of(1 << 20, 2, dtypes[n], false), far);
        assert_int_equal(workspace_of(1 << 20, 4, dtypes[n], false), 2 * far);
    }
    const char *portable = "cpu_forward_baseline";
    assert_int_equal(workspace_of_kernel(portable, 1024, 2, STROBE_FP32, false),
                     workspace_of_kernel(portable, 1 << 20, 2, STROBE_FP32, false));
}

/* Gradients are summed in fp32: linear in the sequence, not quadratic; exactly so where every level has whole tiles. */
static void test_memory_of_backward(void **state) {
    (void)state;
    static const int32_t dtypes[] = {STROBE_FP32, STROBE_BF16};
    static const int32_t threads[] = {2, 32}; /* more and fewer heads than the threads want */
    for (size_t n = 0; n < COUNT(dtypes); ++n)
        for (size_t m = 0; m < COUNT(threads); ++m) {
            const size_t one = workspace_of(48 << 8, threads[m], dtypes[n], true);
            const size_t two = workspace_of(48 << 9, threads[m], dtypes[n], true);
            const size_t four = workspace_of(48 << 10, threads[m], dtypes[n], true);
            assert_true(two <= 2 * one);
            assert_int_equal(four - two, 2 * (two - one));
        }
}

/* Data may be absent in a query, and its answer is that of the call. */
static void test_query_without_data(void **state) {
    (void)state;
    for (size_t n = 0; n < COUNT(shapes); ++n) {
        struct fixture f;
        fixture_make(&f, &shapes[n]);
        for (int operation = STROBE_FORWARD; operation <= STROBE_BACKWARD; ++operation) {
            size_t with, without;
            assert_int_equal(query(&f, (strobe_operation)operation, &with), STROBE_OK);
            strobe_tensor *const tensors[] = {&f.a.q,    &f.a.k,    &f.a.v,  &f.a.out, &f.a.lse,
                                              &f.g.dout, &f.g.dlse, &f.g.dq, &f.g.dk,  &f.g.dv};
            for (size_t t = 0; t < COUNT(tensors); ++t) tensors[t]->data = NULL;
            f.bias.data = f.dbias.data = f.sinks.data = f.dsinks.data = NULL;
            if (query(&f, (strobe_operation)operation, &without)) fail_msg("%s", strobe_last_error());
            assert_int_equal(with, without);
            fixture_bind(&f);
        }
        fixture_free(&f);
    }
}

int main(void) {
    struct CMUnitTest tests[COUNT(shapes) + 4];
    for (size_t n = 0; n < COUNT(shapes); ++n) tests[n] = test_of_row(shapes[n].name, test_exact_bytes, &shapes[n]);
    tests[COUNT(shapes)] = (struct CMUnitTest)cmocka_unit_test(test_shared_by_calls);
    tests[COUNT(shapes) + 1] = (struct CMUnitTest)cmocka_unit_test(test_memory_of_forward);
    tests[COUNT(shapes) + 2] = (struct CMUnitTest)cmocka_unit_test(test_memory_of_backward);
    tests[COUNT(shapes) + 3] = (struct CMUnitTest)cmocka_unit_test(test_query_without_data);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
