/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_allocation.c: every allocation that the library makes fails in turn: the call says out of memory, with a sentence,
 * and has written nothing. Linked with -Wl,--wrap, so that what the library's objects call comes here. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernel_table.h"
#include "test.h"

/* Allocations since counting began; the one of this number fails, none when negative. */
static int allocations, failing = -1;

static bool fails(void) { return allocations++ == failing; }

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);

void *__wrap_malloc(size_t bytes) { return fails() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t count, size_t bytes) { return fails() ? NULL : __real_calloc(count, bytes); }
void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
    return fails() ? NULL : __real_aligned_alloc(alignment, bytes);
}

static const struct shape shapes[] = {
    {"fp32", .batch = 2, .seq_q = 30, .seq_k = 70, .heads_q = 4, .heads_kv = 2, .dim = 16, .features = WITH_DLSE},
    {"bf16, everything", .batch = 2, .seq_q = 20, .seq_k = 30, .heads_q = 4, .heads_kv = 2, .dim = 16, .dtype = STROBE_BF16,
     .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = BIAS | PER_ROW | SINKS | DROPOUT | SOFTCAP | ALIBI},
    {"fp64, packed", .batch = 3, .seq_q = 5, .seq_k = 6, .heads_q = 2, .dim = 3, .dtype = STROBE_FP64, .features = PACKED},
};

static bool outputs_are_untouched(const struct fixture *f, strobe_operation operation) {
    for (enum tensor t = 0; t < TENSORS; ++t)
        for (int64_t e = 0; is_output(f, t, operation) && e < slot_count(&f->slot[t]); ++e)
            if (!slot_is_untouched(&f->slot[t], e)) return false;
    return true;
}

/* The call with allocation number n failing; its status. */
static strobe_status run_with_failure(struct fixture *f, strobe_operation operation, const char *kernel, int n) {
    allocations = 0, failing = n;
    const strobe_status status = fixture_run(f, operation, kernel);
    failing = -1;
    return status;
}

static void check_kernel(struct fixture *f, strobe_operation operation, const char *kernel) {
    assert_int_equal(run_with_failure(f, operation, kernel, -1), STROBE_OK);
    const int count = allocations;
    size_t bytes = 0, named;
    assert_int_equal(strobe_workspace(&f->a, operation == STROBE_BACKWARD ? &f->g : NULL, &bytes), STROBE_OK);
    if (bytes > 0 && count == 0) fail_msg("%s needs %zu bytes and allocates nothing", kernel, bytes);
    for (int n = 0; n < count; ++n) {
        const strobe_status status = run_with_failure(f, operation, kernel, n);
        if (status != STROBE_OUT_OF_MEMORY) fail_msg("%s: allocation %d failed: %s", kernel, n, strobe_status_name(status));
        assert_int_equal(sscanf(strobe_last_error(), "a workspace of %zu bytes could not be allocated", &named), 1);
        assert_in_range(named, bytes - 63, bytes);
        if (!outputs_are_untouched(f, operation)) fail_msg("%s wrote, and ran out of memory", kernel);
    }
    assert_int_equal(run_with_failure(f, operation, kernel, count), STROBE_OK); /* and is none the worse for it */
}

static void test_each_allocation(void **state) {
    struct fixture f;
    fixture_make(&f, *state);
    for (int operation = STROBE_FORWARD; operation <= STROBE_BACKWARD; ++operation) {
        const char *names[MOST_KERNELS];
        const int kernels = kernels_for(&f, (strobe_operation)operation, names);
        assert_true(kernels > 0);
        for (int k = 0; k < kernels; ++k) check_kernel(&f, (strobe_operation)operation, names[k]);
    }
    fixture_free(&f);
}

/* With a workspace of the caller's nothing is allocated at all, nor in queries and refusals. */
static void test_nothing_is_allocated(void **state) {
    (void)state;
    for (size_t s = 0; s < COUNT(shapes); ++s) {
        struct fixture f;
        fixture_make(&f, &shapes[s]);
        for (int backward = 0; backward < 2; ++backward) {
            const strobe_gradients *g = backward ? &f.g : NULL;
            const char *kernel;
            char text[4096];
            size_t bytes;
            allocations = 0;
            assert_int_equal(strobe_workspace(&f.a, g, &bytes), STROBE_OK);
            assert_int_equal(strobe_select(&f.a, g, &kernel), STROBE_OK);
            assert_int_equal(strobe_explain(&f.a, g, text, sizeof text, NULL), STROBE_OK);
            assert_int_equal(allocations, 0);
            void *workspace = __real_aligned_alloc(64, bytes + 64);
            assert_non_null(workspace);
            assert_int_equal(backward ? strobe_backward(&f.a, g, workspace, bytes, NULL)
                                      : strobe_forward(&f.a, workspace, bytes, NULL),
                             STROBE_OK);
            assert_int_equal(allocations, 0);
            free(workspace);
        }
        fixture_free(&f);
    }
}

/* Merging needs no memory. */
static void test_merge_allocates_nothing(void **state) {
    (void)state;
    float out[2] = {1, 2}, lse[2] = {0, 0}, merged;
    const strobe_partial part[2] = {{{.data = &out[0]}, {.data = &lse[0]}}, {{.data = &out[1]}, {.data = &lse[1]}}};
    const strobe_partials m = {.struct_size = sizeof m,
                               .batch = 1,
                               .seq_q = 1,
                               .heads_q = 1,
                               .dim_v = 1,
                               .count = 2,
                               .parts = part,
                               .out.data = &merged};
    allocations = 0;
    assert_int_equal(strobe_merge(&m, NULL), STROBE_OK);
    assert_int_equal(allocations, 0);
}

int main(void) {
    struct CMUnitTest tests[COUNT(shapes) + 2];
    for (size_t n = 0; n < COUNT(shapes); ++n) tests[n] = test_of_row(shapes[n].name, test_each_allocation, &shapes[n]);
    tests[COUNT(shapes)] = (struct CMUnitTest)cmocka_unit_test(test_nothing_is_allocated);
    tests[COUNT(shapes) + 1] = (struct CMUnitTest)cmocka_unit_test(test_merge_allocates_nothing);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
