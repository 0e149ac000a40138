/* SPDX-License-Identifier: BSD-3-Clause
 *
 * append.c (cpu): strobe_append on the CPU: every row of q, k and v is loaded, turned, transformed and stored, or copied
 * where nothing is to be done. A task has some rows of one tensor, all heads of them; no two tasks write one byte. */
#include "cpu/append.h"

#include "core/parallel.h"
#include "cpu/row.h"

enum {
    BYTES_A_TASK = 32 << 10,      /* of a source, at least */
    BYTES_WORTH_WAKING = 1 << 20, /* below, waking threads costs more than it gains */
};

struct work {
    const struct appending *call;
    int64_t rows_a_task[APPEND_TENSORS], tasks[APPEND_TENSORS];
};

/* A row of one head, and where it goes. */
struct row {
    const struct append_tensor *t;
    int64_t from, to, sequence, position, head;
    float *scale; /* of block 1: written; else read; NULL: none */
};

static int64_t bytes_of(int32_t dtype) { return (int64_t)strobe__dtype_bytes(dtype); }

static void append_row(const struct appending *call, const struct row *r) {
    const struct quantise_tensor *t = &r->t->t;
    const int32_t dtype = r->t->to_dtype;
    float x[DIM_LIMIT];
    if (t->from_dtype == dtype && !t->rotary && !t->hadamard) {
        const int64_t bytes = bytes_of(dtype);
        memmove(t->to + r->to * bytes, (const char *)t->from + r->from * bytes, (size_t)(t->dim * bytes));
        return;
    }
    row_load(x, t->from, t->from_dtype, r->from, t->dim);
    if (t->rotary) row_rotate(x, &call->choices, r->position);
    if (t->hadamard) row_transform(x, &call->choices, t->dim);
    if (dtype != STROBE_FP8_E4M3 && dtype != STROBE_INT8) {
        row_store(t->to, dtype, r->to, x, t->dim);
        return;
    }
    if (t->block == 1) {
        const float largest = row_largest(x, t->dim, t->int8);
        *r->scale = largest != largest ? largest : scale_of_largest(largest, t->int8);
    }
    row_store_quantised(t->to + r->to, x, t->dim, *r->scale, t->int8);
}

/* All heads of the row at [batch, row] of a source, if a sequence has it and it goes anywhere. */
static void append_heads(const struct appending *call, const struct append_tensor *at, int64_t batch, int64_t row) {
    const struct quantise_tensor *t = &at->t;
    struct quantise_row found;
    struct append_place place = {batch, row};
    if (!quantise_find(t, batch, row, &found)) return;
    if (at->cached) place = append_place_of(&call->cache, found.sequence, found.row, batch * t->rows + row);
    if (place.entry < 0) return;
    struct row r = {.t = at, .sequence = found.sequence};
    if (t->rotary) r.position = append_position(&call->cache, at, found.sequence, found.row);
    for (r.head = 0; r.head < t->heads; ++r.head) {
        r.from = batch * t->from_stride[0] + row * t->from_stride[1] + r.head * t->from_stride[2];
        r.to = place.entry * t->to_stride[0] + place.row * t->to_stride[1] + r.head * t->to_stride[2];
        if (t->scale && t->block == 1)
            r.scale = t->scale + place.entry * t->scale_stride[0] + place.row * t->scale_stride[1] +
                      r.head * t->scale_stride[2];
        else if (t->scale)
            r.scale = t->scale + r.sequence * t->scale_stride[0] + r.head * t->scale_stride[2];
        append_row(call, &r);
    }
}

static void append_task(void *context, int64_t index, int32_t worker) {
    const struct work *w = context;
    int which = 0;
    (void)worker;
    for (; index >= w->tasks[which]; ++which) index -= w->tasks[which];
    const struct append_tensor *at = &w->call->tensor[which];
    const int64_t rows = at->t.rows, first = index * w->rows_a_task[which], end = first + w->rows_a_task[which];
    for (int64_t n = first; n < end && n < rows * at->t.batch; ++n) append_heads(w->call, at, n / rows, n % rows);
}

strobe_status strobe__cpu_append(const struct appending *call, void *stream) {
    struct work w = {.call = call};
    int64_t tasks = 0, bytes = 0;
    (void)stream;
    for (int n = 0; n < APPEND_TENSORS; ++n) {
        const struct quantise_tensor *t = &call->tensor[n].t;
        if (!t->from) continue;
        const int64_t rows = t->batch * t->rows, of_row = t->heads * t->dim * bytes_of(t->from_dtype);
        w.rows_a_task[n] = (BYTES_A_TASK + of_row - 1) / of_row;
        w.tasks[n] = (rows + w.rows_a_task[n] - 1) / w.rows_a_task[n];
        tasks += w.tasks[n], bytes += rows * of_row;
    }
    if (bytes >= BYTES_WORTH_WAKING)
        strobe__parallel_for(call->p.a.parallel, tasks, append_task, &w);
    else
        for (int64_t index = 0; index < tasks; ++index) append_task(&w, index, 0);
    return STROBE_OK;
}
