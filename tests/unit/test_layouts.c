/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_layouts.c: a tensor's layout changes where results lie and not one bit of them, in every kernel: permuted axes, gaps
 * between rows, data that no vector is aligned to, axes that run backwards, packed qkv, K and V that repeat. Gaps hold NaN
 * before and after. */
#include <math.h>
#include <string.h>

#include "kernel_table.h"
#include "math/float16.h"
#include "test.h"

/* Elements from one index to the next, for a tensor with these extents. */
typedef void layout(int64_t stride[3], const int64_t extent[3], int64_t inner);

static void batch_heads_rows(int64_t stride[3], const int64_t extent[3], int64_t inner) {
    stride[0] = extent[2] * extent[1] * inner, stride[1] = inner, stride[2] = extent[1] * inner;
}

static void rows_batch_heads(int64_t stride[3], const int64_t extent[3], int64_t inner) {
    stride[0] = extent[2] * inner, stride[1] = extent[0] * extent[2] * inner, stride[2] = inner;
}

static void heads_rows_batch(int64_t stride[3], const int64_t extent[3], int64_t inner) {
    stride[0] = inner, stride[1] = extent[0] * inner, stride[2] = extent[1] * extent[0] * inner;
}

static void gaps(int64_t stride[3], const int64_t extent[3], int64_t inner) {
    stride[2] = inner + 3, stride[1] = extent[2] * stride[2] + 1, stride[0] = extent[1] * stride[1] + 7;
}

static void backwards(int64_t stride[3], const int64_t extent[3], int64_t inner) {
    stride[2] = -inner, stride[1] = -extent[2] * inner, stride[0] = -extent[1] * extent[2] * inner;
}

static void rows_backwards_with_gaps(int64_t stride[3], const int64_t extent[3], int64_t inner) {
    gaps(stride, extent, inner);
    stride[1] = -stride[1];
}

static const struct {
    const char *name;
    layout *layout;
    int shift; /* elements from a multiple of 64 bytes */
} layouts[] = {
    {"[batch, heads, rows]", batch_heads_rows, 0},
    {"[rows, batch, heads]", rows_batch_heads, 0},
    {"[heads, rows, batch]", heads_rows_batch, 3},
    {"contiguous, one element off", NULL, 1},
    {"gaps, seven elements off", gaps, 7},
    {"backwards", backwards, 0},
    {"rows backwards with gaps", rows_backwards_with_gaps, 5},
};

static const struct shape shapes[] = {
    {"fp32", .batch = 2, .seq_q = 50, .seq_k = 67, .heads_q = 4, .heads_kv = 2, .dim = 19, .dim_v = 10,
     .features = SINKS | WITH_DLSE},
    {"fp16, bias, causal", .batch = 2, .seq_q = 19, .seq_k = 70, .heads_q = 3, .dim = 16, .dtype = STROBE_FP16,
     .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = BIAS | PER_SCORE},
    {"bf16, packed", .batch = 3, .seq_q = 30, .seq_k = 66, .heads_q = 2, .heads_kv = 1, .dim = 32, .dtype = STROBE_BF16,
     .features = PACKED},
    {"fp64, bias for all heads", .batch = 2, .seq_q = 5, .seq_k = 6, .heads_q = 2, .dim = 3, .dtype = STROBE_FP64,
     .features = BIAS | PER_BATCH | PER_ROW | WITH_DLSE},
};

static void move(struct fixture *f, size_t n) {
    for (enum tensor t = 0; t < TENSORS; ++t) {
        struct slot *s = &f->slot[t];
        const bool bias = t == BIAS_TERM || t == DBIAS;
        if (!s->base || t == SINK_LOGITS || t == DSINKS) continue;
        int64_t stride[3];
        memcpy(stride, s->stride, sizeof stride);
        if (layouts[n].layout) layouts[n].layout(stride, s->extent, s->inner);
        for (int axis = 0; bias && axis < 3; ++axis)
            if (s->extent[axis] == 1) stride[axis] = 0; /* broadcast, as it was */
        slot_move(s, stride, layouts[n].shift);
    }
    fixture_bind(f);
}

static void check_same(const struct fixture *x, const struct fixture *y, strobe_operation operation, const char *what,
                       const char *kernel) {
    for (enum tensor t = 0; t < TENSORS; ++t)
        if (is_output(x, t, operation) && !slot_equal(&x->slot[t], &y->slot[t]))
            fail_msg("%s: %s depends on the layout: %s", kernel, tensor_names[t], what);
    if (!fixture_guards_hold(y)) fail_msg("%s wrote between or around the elements of: %s", kernel, what);
}

/* Every layout of all tensors at once, against contiguous ones. */
static void test_layouts(void **state) {
    for (size_t n = 0; n < COUNT(layouts); ++n) {
        struct fixture plain, moved;
        fixture_make(&plain, *state), fixture_make(&moved, *state);
        move(&moved, n);
        for (int operation = STROBE_FORWARD; operation <= STROBE_BACKWARD; ++operation) {
            const char *names[MOST_KERNELS];
            const int kernels = kernels_for(&plain, (strobe_operation)operation, names);
            assert_true(kernels > 0);
            for (int k = 0; k < kernels; ++k) {
                if (fixture_run(&plain, (strobe_operation)operation, names[k])) fail_msg("%s", strobe_last_error());
                if (fixture_run(&moved, (strobe_operation)operation, names[k])) fail_msg("%s", strobe_last_error());
                check_same(&plain, &moved, (strobe_operation)operation, layouts[n].name, names[k]);
            }
        }
        fixture_free(&plain), fixture_free(&moved);
    }
}

/* q, k, v and their gradients as three views each of one tensor [batch, rows, 3, heads, dim]. */
static void test_packed_qkv(void **state) {
    (void)state;
    static const struct shape shape = {
        .batch = 2, .seq_q = 52, .seq_k = 52, .heads_q = 3, .dim = 8, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT};
    static const enum tensor inputs[3] = {Q, K, V}, outputs[3] = {DQ, DK, DV};
    struct fixture plain, packed;
    fixture_make(&plain, &shape), fixture_make(&packed, &shape);
    const int64_t row = 3 * 3 * 8, stride[3] = {52 * row, row, 8}, extent[3] = {2, 52, 3 * 3};
    struct slot qkv = slot_make(STROBE_FP32, extent, stride, 8, 0), dqkv = slot_make(STROBE_FP32, extent, stride, 8, 0);
    for (int n = 0; n < 3; ++n) {
        struct slot *x = &packed.slot[inputs[n]], *dx = &packed.slot[outputs[n]];
        struct slot view = *x, dview = *dx; /* into the shared memory, which the fixture does not own */
        view.data = (float *)qkv.data + n * 3 * 8, dview.data = (float *)dqkv.data + n * 3 * 8;
        view.contiguous = dview.contiguous = false;
        memcpy(view.stride, stride, sizeof stride), memcpy(dview.stride, stride, sizeof stride);
        for (int64_t e = 0; e < slot_count(x); ++e) slot_set(&view, e, slot_get(x, e));
        slot_free(x), slot_free(dx);
        *x = view, *dx = dview;
        x->base = qkv.base, x->bytes = qkv.bytes, dx->base = dqkv.base, dx->bytes = dqkv.bytes;
    }
    fixture_bind(&packed);
    if (fixture_run(&plain, STROBE_FORWARD, NULL) || fixture_run(&packed, STROBE_FORWARD, NULL))
        fail_msg("%s", strobe_last_error());
    if (fixture_run(&plain, STROBE_BACKWARD, NULL) || fixture_run(&packed, STROBE_BACKWARD, NULL))
        fail_msg("%s", strobe_last_error());
    for (enum tensor t = OUT; t <= DV; ++t)
        if ((t == OUT || t == LSE || t >= DQ) && !slot_equal(&plain.slot[t], &packed.slot[t]))
            fail_msg("%s of packed qkv differs", tensor_names[t]);
    assert_true(slot_guards_hold(&qkv) && slot_guards_hold(&dqkv));
    for (int n = 0; n < 3; ++n) packed.slot[inputs[n]].base = packed.slot[outputs[n]].base = NULL;
    slot_free(&qkv), slot_free(&dqkv);
    fixture_free(&plain), fixture_free(&packed);
}

/* A stride of 0 on an input repeats it: the same as copies. */
static void test_repeated_keys(void **state) {
    (void)state;
    static const struct shape shape = {.batch = 2, .seq_q = 20, .seq_k = 70, .heads_q = 4, .heads_kv = 2, .dim = 12};
    for (int axis = 0; axis < 3; ++axis) {
        struct fixture copies, repeated;
        fixture_make(&copies, &shape), fixture_make(&repeated, &shape);
        for (enum tensor t = K; t <= V; ++t) {
            struct slot *x = &copies.slot[t], *y = &repeated.slot[t];
            for (int64_t e = 0; e < slot_count(x); ++e) {
                int64_t at[3] = {e / x->inner / x->extent[2] / x->extent[1], e / x->inner / x->extent[2] % x->extent[1],
                                 e / x->inner % x->extent[2]};
                at[axis] = 0;
                slot_set(x, e, slot_get(x, slot_element(x, at[0], at[1], at[2], e % x->inner)));
            }
            y->stride[axis] = 0, y->contiguous = false;
        }
        fixture_bind(&repeated);
        for (int operation = STROBE_FORWARD; operation <= STROBE_BACKWARD; ++operation) {
            if (fixture_run(&copies, (strobe_operation)operation, NULL)) fail_msg("%s", strobe_last_error());
            if (fixture_run(&repeated, (strobe_operation)operation, NULL)) fail_msg("%s", strobe_last_error());
            for (enum tensor t = 0; t < TENSORS; ++t)
                if (is_output(&copies, t, (strobe_operation)operation) && !slot_equal(&copies.slot[t], &repeated.slot[t]))
                    fail_msg("axis %d: %s of repeated keys differs from that of copies", axis, tensor_names[t]);
        }
        fixture_free(&copies), fixture_free(&repeated);
    }
}

/* Each element of `rounded` is that of the fp32 tensor, rounded to nearest. The reference has a float64 result to round. */
static void check_rounded(const struct slot *fp32, const struct slot *rounded, const char *kernel, enum tensor t) {
    const bool exact = strncmp(kernel, "reference_", 10) != 0;
    for (int64_t e = 0; e < slot_count(fp32); ++e) {
        const double x = slot_get(fp32, e), y = slot_get(rounded, e), distance = fabs(y - x);
        const float value = (float)x;
        const double expected = rounded->dtype == STROBE_FP16   ? (double)fp16_to_float(float_to_fp16(value))
                                : rounded->dtype == STROBE_BF16 ? (double)bf16_to_float(float_to_bf16(value))
                                                                : x;
        if (exact ? y != expected : !(distance <= dtype_rounding(rounded->dtype) * (fabs(x) + 0x1p-14) + 0x1p-23 * fabs(x)))
            fail_msg("%s: %s[%lld] is %.9g in fp32 and %.9g rounded", kernel, tensor_names[t], (long long)e, x, y);
    }
}

/* Results in another dtype are the fp32 results, rounded once. */
static void test_output_dtypes(void **state) {
    (void)state;
    static const struct shape shape = {
        .batch = 1, .seq_q = 20, .seq_k = 40, .heads_q = 2, .dim = 12, .features = BIAS | PER_HEAD | PER_ROW};
    static const int32_t dtypes[] = {STROBE_FP16, STROBE_BF16, STROBE_FP64};
    for (size_t d = 0; d < COUNT(dtypes); ++d)
        for (int operation = STROBE_FORWARD; operation <= STROBE_BACKWARD; ++operation) {
            struct fixture plain, other;
            const char *names[MOST_KERNELS];
            fixture_make(&plain, &shape), fixture_make(&other, &shape);
            if (fixture_forward(&plain, NULL) || fixture_forward(&other, NULL)) fail_msg("%s", strobe_last_error());
            for (enum tensor t = 0; t < TENSORS; ++t) {
                struct slot *s = &other.slot[t];
                if (!is_output(&other, t, (strobe_operation)operation) || t == LSE) continue;
                slot_free(s);
                *s = slot_make(dtypes[d], plain.slot[t].extent, plain.slot[t].stride, plain.slot[t].inner, 0);
            }
            fixture_bind(&other);
            const int kernels = kernels_for(&other, (strobe_operation)operation, names);
            assert_true(kernels > 0);
            for (int k = 0; k < kernels; ++k) {
                if (fixture_run(&plain, (strobe_operation)operation, names[k])) fail_msg("%s", strobe_last_error());
                if (fixture_run(&other, (strobe_operation)operation, names[k])) fail_msg("%s", strobe_last_error());
                for (enum tensor t = 0; t < TENSORS; ++t)
                    if (is_output(&other, t, (strobe_operation)operation))
                        check_rounded(&plain.slot[t], &other.slot[t], names[k], t);
            }
            fixture_free(&plain), fixture_free(&other);
        }
}

int main(void) {
    struct CMUnitTest tests[COUNT(shapes) + 3];
    for (size_t n = 0; n < COUNT(shapes); ++n) tests[n] = test_of_row(shapes[n].name, test_layouts, &shapes[n]);
    tests[COUNT(shapes)] = (struct CMUnitTest)cmocka_unit_test(test_packed_qkv);
    tests[COUNT(shapes) + 1] = (struct CMUnitTest)cmocka_unit_test(test_repeated_keys);
    tests[COUNT(shapes) + 2] = (struct CMUnitTest)cmocka_unit_test(test_output_dtypes);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
