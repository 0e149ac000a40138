/* SPDX-License-Identifier: BSD-3-Clause
 *
 * inputs_values.c: numbers that try a kernel's arithmetic; see inputs_values.h.
 *
 * Scores that grow, fall or are low come from one direction that q and k share: every element of q is 1 plus noise, every
 * element of key j is t(j) plus noise, so that the score is about t(j) sqrt(dim) with the default scale. */
#include "problem/inputs_values.h"

#include "problem/element.h"
#include "problem/inputs_shape.h"

#include <math.h>

/* What streams of random numbers are for, beside the tensors (inputs_fill.c). */
enum { FOR_SCALES = 3000, FOR_NAN = 4000, FOR_LEVEL = 5000 };

/* t(j) of key j of count: a ramp from -level to level, up or down, or -4 level. */
static double ramp(const problem *p, int64_t j, int64_t count) {
    static const double levels[] = {0.5, 2, 8};
    /* the same level for the seeds with which the oracle measures the same problem again */
    random_stream r = random_at((uint64_t)p->seed & 0xffff, FOR_LEVEL, 0);
    const double level = levels[random_below(&r, 3)];
    const double at = count > 1 ? 2.0 * (double)j / (double)(count - 1) - 1 : 0;
    if (p->values == VALUES_LOW) return -4 * level;
    return p->values == VALUES_GROWING ? level * at : -level * at;
}

/* One key for all, but for noise in the last bits: without it the errors of all scores of a row would be the same, and
 * standard attention, which subtracts the largest, would have none. */
static void equal_key(const problem *p, float *normal, int64_t columns, random_stream *noise) {
    random_stream r = random_at((uint64_t)p->seed, FOR_LEVEL, 1);
    random_normal(&r, normal, columns);
    for (int64_t c = 0; c < columns; ++c) normal[c] *= 1 + (float)(random_below(noise, 9) - 4) * 0x1p-22f;
}

static void shape_key(const inputs *in, int64_t batch, int64_t row, float *normal, int64_t columns, random_stream *r) {
    const problem *p = &in->problem;
    if (p->values == VALUES_EQUAL) {
        equal_key(p, normal, columns, r);
        return;
    }
    const bool is_spike = random_below(r, 37) == 0;
    const double t = ramp(p, row, in->sequences[batch].keys);
    for (int64_t c = 0; c < columns; ++c) {
        if (p->values == VALUES_SPIKES) normal[c] *= is_spike ? 12 : 1;
        if (p->values >= VALUES_GROWING && p->values <= VALUES_LOW) normal[c] = (float)(t + 0.25 * (double)normal[c]);
    }
}

static void shape_query(const problem *p, int64_t row, float *normal, int64_t columns) {
    if (p->values < VALUES_GROWING || p->values > VALUES_LOW) return;
    if (p->values == VALUES_LOW && row % 2) return; /* low rows beside others */
    for (int64_t c = 0; c < columns; ++c) normal[c] = 1 + 0.25f * normal[c];
}

void values_shape_row(const inputs *in, tensor_id id, int64_t batch, int64_t row, float *normal, random_stream *r) {
    const problem *p = &in->problem;
    const int64_t columns = in->tensor[id].extent[3];
    if (id == T_Q) shape_query(p, row, normal, columns);
    if (id == T_K) shape_key(in, batch, row, normal, columns, r);
    const bool token = id == T_Q || id == T_K || id == T_V || id == T_DOUT;
    for (int64_t c = 0; token && c < columns; ++c) {
        if (p->values == VALUES_OUTLIERS && random_below(r, 64) == 0) normal[c] *= 16;
    }
}

/* The number of the scale of a row of k and v, or of q, that stands at `row` of the tensor. */
static uint64_t scale_of_row(const problem *p, bool keys, int64_t batch, int64_t row, int64_t head, int64_t heads) {
    static const int64_t shared_rows[] = {[SCALES_TOKEN] = 1, [SCALES_ROWS] = SCALE_ROWS, [SCALES_BLOCKS] = SCALE_BLOCK};
    if (p->scales == SCALES_TENSOR) return 0;
    const bool packed = p->varlen & (keys ? VARLEN_CU_K : VARLEN_CU_Q);
    const uint64_t of_head = (uint64_t)(packed && p->scales == SCALES_SEQUENCE ? 0 : batch) * (uint64_t)heads +
                             (uint64_t)head;
    return p->scales == SCALES_SEQUENCE ? of_head : (of_head << 32) + (uint64_t)(row / shared_rows[p->scales]);
}

void values_fill_scales(inputs *in) {
    static const tensor_id of[] = {T_K_SCALE, T_V_SCALE, T_Q_SCALE};
    const problem *p = &in->problem;
    for (size_t n = 0; p->scales && n < sizeof of / sizeof of[0]; ++n) {
        const buffer *t = &in->tensor[of[n]];
        const bool keys = of[n] != T_Q_SCALE;
        /* q's as of k and v: the oracle's q is fp64 where the problem's is fp8 */
        const int64_t own = keys || problem_kv_dtype(p) == STROBE_FP8_E4M3 ? problem_kv_dtype(p) : p->dtype;
        const int64_t dtype = p->qk_dtype && of[n] != T_V_SCALE ? p->qk_dtype : own;
        /* 127 times 0.04, and 448 times 0.012, are more than any usual normal number */
        const double unit = dtype == STROBE_INT8 ? 0.04 : dtype == STROBE_FP8_E4M3 ? 0.012 : 0.75;
        for (int64_t b = 0; b < t->extent[0]; ++b)
            for (int64_t i = 0; i < t->extent[1]; ++i)
                for (int64_t h = 0; h < t->extent[2]; ++h) {
                    random_stream r = random_at((uint64_t)p->seed, FOR_SCALES + n,
                                                scale_of_row(p, keys, b, i, h, t->extent[2]));
                    const double scale = unit * (1 + 0.25 * (double)random_below(&r, 4));
                    element_store(buffer_at(t, b, i, h, sizeof(float)), STROBE_FP32, scale);
                }
    }
}

/* One element of q, k or v, of int8 the row's scale, which rows may share: then of a tensor that is no int8; only where such
 * a tensor has rows. */
static void add_nan(inputs *in) {
    static const tensor_id any[] = {T_Q, T_K, T_V};
    const problem *p = &in->problem;
    random_stream r = random_at((uint64_t)p->seed, FOR_NAN, 0);
    /* a NaN of V reaches a row by its weight, which must not be so small that it is 0 in one arithmetic and not in another
     */
    const bool even_weights = p->values == VALUES_NORMAL && p->scale == 0 && !p->alibi && p->sinks != SINKS_LARGE &&
                              p->softcap <= 30;
    tensor_id id = any[random_below(&r, even_weights ? 3 : 2)];
    const int64_t b = p->batch ? random_below(&r, p->batch) : 0;
    const bool own_scale = !p->scales || p->scales == SCALES_TOKEN;
    static const tensor_id scale_of[TENSOR_COUNT] = {[T_Q] = T_Q_SCALE, [T_K] = T_K_SCALE, [T_V] = T_V_SCALE};
    if (p->qk_dtype && !own_scale && !even_weights) return;
    if (in->tensor[id].dtype == STROBE_INT8) id = own_scale ? scale_of[id] : p->qk_dtype ? T_V : T_Q;
    const buffer *t = &in->tensor[id];
    if (!p->batch || inputs_length(in, id, b) == 0) return;
    const int64_t row = random_below(&r, inputs_length(in, id, b)), head = random_below(&r, t->extent[2]);
    const size_t bytes = element_bytes(t->dtype);
    element_store(inputs_row(in, id, t, b, row, head) + (size_t)random_below(&r, t->extent[3]) * bytes, t->dtype, NAN);
}

static void hide_by_bias(inputs *in) {
    const buffer *t = &in->tensor[T_BIAS];
    const size_t bytes = element_bytes(t->dtype);
    random_stream r = random_at((uint64_t)in->problem.seed, T_DBIAS, 0);
    for (int64_t b = 0; b < t->extent[0]; ++b)
        for (int64_t i = 0; i < t->extent[1]; ++i)
            for (int64_t h = 0; h < t->extent[2]; ++h)
                for (int64_t j = 0; j < t->extent[3]; ++j)
                    if (random_below(&r, 8) == 0 || i % 11 == 10)
                        element_store(buffer_at(t, b, i, h, bytes) + (size_t)j * bytes, t->dtype, -INFINITY);
}

static void set_sinks(inputs *in) {
    enum { FAR = 7 };
    static const double far[FAR] = {-3e38, 1e4, -INFINITY, 0.5, 1e30, -1e4, -1e30};
    const buffer *t = &in->tensor[T_SINKS];
    const size_t bytes = element_bytes(t->dtype);
    for (int64_t h = 0; h < t->extent[3]; ++h) {
        unsigned char *at = t->data + (size_t)h * bytes;
        if (in->problem.sinks == SINKS_HIDDEN && h % 2 == 0) element_store(at, t->dtype, -INFINITY);
        if (in->problem.sinks == SINKS_FAR) element_store(at, t->dtype, far[(h + in->problem.seed % FAR) % FAR]);
        if (in->problem.sinks == SINKS_LARGE) element_store(at, t->dtype, (h % 2 ? -40 : 40) + element_load(at, t->dtype));
    }
}

void values_add_extremes(inputs *in) {
    if (in->problem.bias_hides) hide_by_bias(in);
    if (in->problem.sinks > SINKS_USUAL) set_sinks(in);
    if (in->problem.nan) add_nan(in);
}
