/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_lab_multi_head.c: multi-head attention with its four projections: every gradient against central differences in
 * fp64, self-attention and cross-attention, with and without a causal mask; fp32 on the library's kernels close to fp64;
 * heads against a plain loop over them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lab/multi_head.h"
#include "lab/random.h"
#include "test.h"

enum { MOST = 4096 };

/* Thousands of calls of a few microseconds: threads would only wait for one another. */
static const strobe_parallel one_thread = {.struct_size = sizeof one_thread, .threads = 1};

/* A layer and everything that is written to or differentiated. */
typedef struct fixture {
    lab_multi_head layer;
    double x[MOST], y[MOST], w_q[MOST], w_k[MOST], w_v[MOST], w_o[MOST]; /* the layer points here */
    double dx[MOST], dy[MOST], dw_q[MOST], dw_k[MOST], dw_v[MOST], dw_o[MOST];
    double out[MOST], dout[MOST];
} fixture;

static fixture *create(bool self, strobe_mask_kind mask, strobe_dtype dtype) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->layer = (lab_multi_head){.batch = 2,
                                .seq_q = 5,
                                .seq_k = self ? 5 : 7,
                                .width = 6,
                                .heads = 3,
                                .dim = 4,
                                .mask = mask,
                                .dtype = dtype,
                                .x = f->x,
                                .y = self ? f->x : f->y,
                                .w_q = f->w_q,
                                .w_k = f->w_k,
                                .w_v = f->w_v,
                                .w_o = f->w_o,
                                .parallel = &one_thread};
    lab_random random = {.state = 77};
    double *all[] = {f->x, f->y, f->w_q, f->w_k, f->w_v, f->w_o, f->dout};
    for (size_t i = 0; i < COUNT(all); ++i) lab_normals(&random, all[i], 200);
    return f;
}

static void forward(fixture *f) {
    lab_multi_head_saved saved;
    assert_int_equal(lab_multi_head_forward(&f->layer, f->out, &saved), STROBE_OK);
    lab_multi_head_free(&saved);
}

static void backward(fixture *f) {
    lab_multi_head_saved saved;
    const bool self = f->layer.x == f->layer.y;
    const lab_multi_head_gradients g = {f->dx, self ? f->dx : f->dy, f->dw_q, f->dw_k, f->dw_v, f->dw_o};
    assert_int_equal(lab_multi_head_forward(&f->layer, f->out, &saved), STROBE_OK);
    assert_int_equal(lab_multi_head_backward(&f->layer, &saved, f->dout, &g), STROBE_OK);
    lab_multi_head_free(&saved);
}

/* sum of out * dout: its gradients are what backward gives. */
static double loss(fixture *f) {
    forward(f);
    double sum = 0;
    for (int64_t e = 0; e < f->layer.batch * f->layer.seq_q * f->layer.width; ++e) sum += f->out[e] * f->dout[e];
    return sum;
}

/* Central differences: their error is of the order of step^2, about 1e-10 here, and of the rounding of the loss over step.
 */
static void check_differences(fixture *f, double *values, const double *gradient, int64_t count) {
    const double step = 1e-5;
    for (int64_t e = 0; e < count; ++e) {
        const double kept = values[e];
        values[e] = kept + step;
        const double above = loss(f);
        values[e] = kept - step;
        const double below = loss(f);
        values[e] = kept;
        const double difference = (above - below) / (2 * step);
        if (!(fabs(difference - gradient[e]) < 1e-7 * (1 + fabs(difference))))
            fail_msg("element %lld: %.12g by differences, %.12g by backward", (long long)e, difference, gradient[e]);
    }
}

static void test_gradients_by_finite_differences(void **state) {
    (void)state;
    static const strobe_mask_kind masks[] = {STROBE_MASK_NONE, STROBE_MASK_CAUSAL_BOTTOM_RIGHT};
    for (int self = 0; self < 2; ++self)
        for (size_t k = 0; k < COUNT(masks); ++k) {
            fixture *f = create(self, masks[k], STROBE_FP64);
            const lab_multi_head *l = &f->layer;
            const int64_t weights = l->width * l->heads * l->dim;
            backward(f);
            check_differences(f, f->x, f->dx, l->batch * l->seq_q * l->width);
            if (!self) check_differences(f, f->y, f->dy, l->batch * l->seq_k * l->width);
            check_differences(f, f->w_q, f->dw_q, weights);
            check_differences(f, f->w_k, f->dw_k, weights);
            check_differences(f, f->w_v, f->dw_v, weights);
            check_differences(f, f->w_o, f->dw_o, weights);
            free(f);
        }
}

/* The formula with explicit heads: no layout, no library. */
static void by_hand(const fixture *f, double *out) {
    const lab_multi_head *l = &f->layer;
    const int64_t inner = l->heads * l->dim;
    memset(out, 0, (size_t)(l->batch * l->seq_q * l->width) * sizeof *out);
    for (int64_t b = 0; b < l->batch; ++b)
        for (int64_t h = 0; h < l->heads; ++h)
            for (int64_t i = 0; i < l->seq_q; ++i) {
                double weight[16], sum = 0, head[16] = {0};
                for (int64_t j = 0; j < l->seq_k; ++j) {
                    double score = 0;
                    for (int64_t c = h * l->dim; c < (h + 1) * l->dim; ++c) {
                        double q = 0, k = 0;
                        for (int64_t w = 0; w < l->width; ++w) {
                            q += l->x[(b * l->seq_q + i) * l->width + w] * l->w_q[w * inner + c];
                            k += l->y[(b * l->seq_k + j) * l->width + w] * l->w_k[w * inner + c];
                        }
                        score += q * k;
                    }
                    sum += weight[j] = exp(score / sqrt((double)l->dim));
                }
                for (int64_t j = 0; j < l->seq_k; ++j)
                    for (int64_t c = 0; c < l->dim; ++c)
                        for (int64_t w = 0; w < l->width; ++w)
                            head[c] += weight[j] / sum * l->y[(b * l->seq_k + j) * l->width + w] *
                                       l->w_v[w * inner + h * l->dim + c];
                for (int64_t c = 0; c < l->dim; ++c)
                    for (int64_t w = 0; w < l->width; ++w)
                        out[(b * l->seq_q + i) * l->width + w] += head[c] * l->w_o[(h * l->dim + c) * l->width + w];
            }
}

static void test_heads_against_a_plain_loop(void **state) {
    (void)state;
    for (int self = 0; self < 2; ++self) {
        fixture *f = create(self, STROBE_MASK_NONE, STROBE_FP64);
        double out[MOST];
        for (int64_t e = 0; e < 200; ++e) f->x[e] *= 0.3; /* the plain loop has no safe softmax */
        forward(f);
        by_hand(f, out);
        for (int64_t e = 0; e < f->layer.batch * f->layer.seq_q * f->layer.width; ++e)
            assert_true(fabs(out[e] - f->out[e]) < 1e-12 * (1 + fabs(out[e])));
        free(f);
    }
}

static void test_fp32_is_close_to_fp64(void **state) {
    (void)state;
    fixture *wide = create(true, STROBE_MASK_CAUSAL_TOP_LEFT, STROBE_FP64);
    fixture *narrow = create(true, STROBE_MASK_CAUSAL_TOP_LEFT, STROBE_FP32);
    backward(wide);
    backward(narrow);
    for (int e = 0; e < 60; ++e) {
        assert_true(fabs(wide->out[e] - narrow->out[e]) < 1e-4 * (1 + fabs(wide->out[e])));
        assert_true(fabs(wide->dx[e] - narrow->dx[e]) < 1e-3 * (1 + fabs(wide->dx[e])));
        assert_true(fabs(wide->dw_q[e] - narrow->dw_q[e]) < 1e-3 * (1 + fabs(wide->dw_q[e])));
    }
    free(wide);
    free(narrow);
}

static void test_what_the_library_refuses_is_passed_on(void **state) {
    (void)state;
    fixture *f = create(true, STROBE_MASK_NONE, STROBE_FP64);
    lab_multi_head_saved saved;
    f->layer.mask = (strobe_mask_kind)99;
    assert_int_equal(lab_multi_head_forward(&f->layer, f->out, &saved), STROBE_INVALID_ARGUMENT);
    assert_null(saved.q);
    free(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_by_finite_differences),
        cmocka_unit_test(test_heads_against_a_plain_loop),
        cmocka_unit_test(test_fp32_is_close_to_fp64),
        cmocka_unit_test(test_what_the_library_refuses_is_passed_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
