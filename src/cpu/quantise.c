/* SPDX-License-Identifier: BSD-3-Clause
 *
 * quantise.c (cpu): strobe_quantise on the CPU: the means of K, then for each tensor the largest magnitude of the rows that
 * share a scale, the scales, and the bytes. Largest magnitudes are gathered in the scales themselves, as bit patterns, whose
 * order is that of the numbers. What a row becomes on the way is worked out twice; the order of every operation is that of
 * math/quantise.h. */
#include "cpu/quantise.h"

#include <math.h>

#include "core/element.h"
#include "core/parallel.h"
#include "cpu/row.h"

enum {
    ROWS_A_TASK = 64,
    SUMMED_COLUMNS = 1024, /* a power of two of at least DIM_LIMIT */
};

struct work {
    const struct quantise_tensor *t;
    const struct quantise_choices *c;
    int64_t chunks; /* tasks of a head */
    bool stores;    /* else magnitudes are gathered */
};

static float load(const struct quantise_tensor *t, int64_t row, int64_t c) {
    return (float)element_load(t->from, t->from_dtype, row + c);
}

/* Column c of a row after rotary embedding; at: the row's offset. */
static float turned(const struct work *w, int64_t at, int64_t position, int64_t c) {
    const struct quantise_tensor *t = w->t;
    const int64_t pairs = w->c->pairs;
    if (!t->rotary || c >= 2 * pairs) return load(t, at, c);
    const int64_t pair = w->c->interleaved ? c / 2 : c % pairs;
    const bool second = w->c->interleaved ? c % 2 : c >= pairs;
    const float a = load(t, at, w->c->interleaved ? 2 * pair : pair);
    const float b = load(t, at, w->c->interleaved ? 2 * pair + 1 : pair + pairs);
    const struct rotary_angle angle = rotary_angle_at(w->c, position, pair);
    return second ? turned_second(a, b, angle.cos, angle.sin) : turned_first(a, b, angle.cos, angle.sin);
}

/* A row as it is to be quantised, into x [dim]. */
static void row_of(const struct work *w, float *x, int64_t batch, int64_t row, int64_t head,
                   const struct quantise_row *place) {
    const struct quantise_tensor *t = w->t;
    const int64_t at = batch * t->from_stride[0] + row * t->from_stride[1] + head * t->from_stride[2];
    const float *mean = t->mean ? t->mean + (place->sequence * t->heads + head) * t->dim : NULL;
    row_load(x, t->from, t->from_dtype, at, t->dim);
    if (t->rotary) row_rotate(x, w->c, t->start + place->row);
    if (w->stores && t->lse_shift) {
        const int64_t of_head = (place->sequence * (t->heads / t->group) + head / t->group) * t->dim;
        float sum[SUMMED_COLUMNS / 8] = {0}; /* of eight columns each; then halves are added to halves */
        for (int64_t c = 0; t->key_mean && c < t->dim; ++c) sum[c / 8] = fmaf(x[c], t->key_mean[of_head + c], sum[c / 8]);
        for (int width = SUMMED_COLUMNS / 16; width > 0; width /= 2)
            for (int n = 0; n < width; ++n) sum[n] += sum[n + width];
        t->lse_shift[batch * t->shift_stride[0] + row * t->shift_stride[1] + head * t->shift_stride[2]] =
            t->scale_of_scores * sum[0];
    }
    for (int64_t c = 0; mean && c < t->dim; ++c) x[c] -= mean[c];
    if (t->hadamard) row_transform(x, w->c, t->dim);
}

/* Raises a slot of magnitudes, which tasks share. A NaN's pattern is above all others. */
static void raise(float *slot, float largest) {
    uint32_t *bits = (uint32_t *)(void *)slot, before = __atomic_load_n(bits, __ATOMIC_RELAXED);
    while (before < float_bits(largest) &&
           !__atomic_compare_exchange_n(bits, &before, float_bits(largest), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

static void row_task(void *context, int64_t index, int32_t worker) {
    const struct work *w = context;
    const struct quantise_tensor *t = w->t;
    const int64_t chunk = index % w->chunks, head = index / w->chunks % t->heads, batch = index / w->chunks / t->heads;
    float x[DIM_LIMIT];
    (void)worker;
    for (int64_t row = chunk * ROWS_A_TASK; row < (chunk + 1) * ROWS_A_TASK && row < t->rows; ++row) {
        struct quantise_row place;
        if (!quantise_find(t, batch, row, &place)) continue;
        float *scale = quantise_scale_at(t, batch, place.sequence, row, head);
        row_of(w, x, batch, row, head, &place);
        if (!w->stores) {
            raise(scale, row_largest(x, t->dim, t->int8));
            continue;
        }
        uint8_t *to = t->to + batch * t->to_stride[0] + row * t->to_stride[1] + head * t->to_stride[2];
        row_store_quantised(to, x, t->dim, *scale, t->int8);
    }
}

/* Calls for every slot of the scales once; an axis with a stride of 0 has one. finish: magnitudes become scales. */
static void each_scale(const struct quantise_tensor *t, bool finish) {
    const int64_t batch = t->block == 0 ? t->sequences : t->batch, blocks = t->block == 0 ? 1 : (t->rows - 1) / t->block + 1;
    for (int64_t b = 0; b < (t->scale_stride[0] ? batch : 1); ++b)
        for (int64_t n = 0; n < (t->scale_stride[1] ? blocks : 1); ++n)
            for (int64_t h = 0; h < (t->scale_stride[2] ? t->heads : 1); ++h) {
                float *scale = t->scale + b * t->scale_stride[0] + n * t->scale_stride[1] + h * t->scale_stride[2];
                *scale = !finish ? 0 : *scale != *scale ? *scale : scale_of_largest(*scale, t->int8);
            }
}

/* The mean of K of one sequence, head and column; what is not finite counts as 0. */
static void mean_task(void *context, int64_t index, int32_t worker) {
    const struct work *w = context;
    const struct quantise_tensor *t = w->t;
    const int64_t head = index % t->heads, sequence = index / t->heads;
    int64_t first = 0, rows = t->rows;
    (void)worker;
    if (t->cu_seqlens) {
        first = quantise_entry(t, t->cu_seqlens, sequence);
        rows = quantise_entry(t, t->cu_seqlens, sequence + 1) - first;
    }
    if (t->used) rows = quantise_entry(t, t->used, sequence);
    const int64_t at = (t->cu_seqlens ? 0 : sequence * t->from_stride[0]) + head * t->from_stride[2];
    for (int64_t c = 0; c < t->dim; ++c) {
        float part[MEAN_PARTS] = {0};
        for (int64_t i = 0; i < rows; ++i) {
            const float x = turned(w, at + (first + i) * t->from_stride[1], t->start + i, c);
            if (is_finite_float(x)) part[i % MEAN_PARTS] += x;
        }
        for (int width = MEAN_PARTS / 2; width > 0; width /= 2)
            for (int n = 0; n < width; ++n) part[n] += part[n + width];
        t->mean[index * t->dim + c] = rows > 0 ? part[0] / (float)rows : 0;
    }
}

strobe_status strobe__cpu_quantise(const struct quantisation *q, void *stream) {
    (void)stream;
    static const int order[] = {QUANTISE_K, QUANTISE_V, QUANTISE_Q}; /* q's lse_shift takes K's mean */
    for (size_t n = 0; n < sizeof order / sizeof order[0]; ++n) {
        const struct quantise_tensor *t = &q->tensor[order[n]];
        if (!t->from) continue;
        struct work w = {.t = t, .c = &q->choices, .chunks = (t->rows + ROWS_A_TASK - 1) / ROWS_A_TASK};
        const int64_t tasks = w.chunks * t->heads * t->batch;
        if (t->mean) strobe__parallel_for(q->p.a.parallel, t->sequences * t->heads, mean_task, &w);
        if (!quantise_has_scales(t)) continue;
        each_scale(t, false);
        strobe__parallel_for(q->p.a.parallel, tasks, row_task, &w);
        each_scale(t, true);
        w.stores = true;
        strobe__parallel_for(q->p.a.parallel, tasks, row_task, &w);
    }
    return STROBE_OK;
}
