/* SPDX-License-Identifier: BSD-3-Clause
 *
 * job.h: what one block of threads works on. The query heads of a group share their K and V head and so their tile: packed
 * row n is row n / group of head kv * group + n % group, as in cpu/vector/rows.h. The grid is one-dimensional, so that no
 * axis of a problem meets the limit of 65535; tiles of one head are neighbours, whose K and V then stay in L2, and under a
 * band the last rows, which see the most keys, come first. */
#ifndef STROBE_CUDA_DEVICE_JOB_H
#define STROBE_CUDA_DEVICE_JOB_H

#include "cuda/device/sequence.h"

struct job {
    int b, kv, rows, keys;        /* batch entry, K/V head, the sequence's lengths */
    int64_t first_row, first_key; /* rows before it in packed tensors, else 0; the keys that are padding also */
    int64_t batch_q, batch_k;     /* b, or 0 where packed: factors of the batch strides */
    struct band band;
    int64_t alibi_diagonal;
    int tile, slice, split;
    const element *q, *dout, *k, *v; /* row 0 of the sequence, of the group's first head */
};

/* Where the sequence of batch entry t->b lies, how long it is, and its band. */
INLINE void job_sequence(struct job *t, const struct params *p) {
    int64_t rows = p->seq_q, keys = p->seq_k;
    t->first_row = t->first_key = 0;
    t->batch_q = p->cu_q ? 0 : t->b, t->batch_k = p->cu_k ? 0 : t->b;
    if (p->cu_q) t->first_row = entry(p->cu_q, p->index64, t->b), rows = entry(p->cu_q, p->index64, t->b + 1) - t->first_row;
    if (p->cu_k) t->first_key = entry(p->cu_k, p->index64, t->b), keys = entry(p->cu_k, p->index64, t->b + 1) - t->first_key;
    if (p->used_q) rows = entry(p->used_q, p->index64, t->b);
    if (p->used_k) keys = entry(p->used_k, p->index64, t->b);
    t->rows = clamp(rows, p->seq_q), t->keys = clamp(keys, p->seq_k);
    if (p->cache.leftpad) {
        const int padding = clamp(entry(p->cache.leftpad, p->index64, t->b), t->keys);
        t->first_key += padding, t->keys -= padding;
    }
    t->alibi_diagonal = p->start_shift + t->keys - t->rows;
    t->band.left = p->left, t->band.right = p->right, t->band.keys = t->keys;
    t->band.diagonal = p->bottom_right ? t->alibi_diagonal : p->start_shift;
}

/* A packed row: position and query head. */
struct place {
    int i, h;
};

INLINE struct place place_of(const struct params *p, const struct job *t, int packed) {
    const int i = p->group == 1 ? packed : packed / p->group;
    const struct place at = {i, t->kv * p->group + (packed - i * p->group)};
    return at;
}

INLINE int64_t row_offset(const struct view *x, const struct job *t, struct place at) {
    return t->batch_q * x->batch + (t->first_row + at.i) * x->row + at.h * x->head;
}

INLINE int64_t key_offset(const struct view *x, const struct job *t, int64_t j) {
    return t->batch_k * x->batch + (t->first_key + j) * x->row + t->kv * x->head;
}

INLINE int64_t score_offset(const struct view *x, const struct job *t, struct place at) {
    return t->b * x->batch + at.h * x->head + at.i * x->row;
}

/* The lowest digit of a number of mixed base; 32 bits, because division is long enough with them. */
INLINE int take_digit(unsigned *number, int base) {
    if (base == 1) return 0;
    const unsigned rest = *number / (unsigned)base, digit = *number - rest * (unsigned)base;
    *number = rest;
    return (int)digit;
}

/* Cuts an index of the grid; t lies in shared memory. Returns false where there is nothing to do: a tile of `size` past the
 * end of a short sequence, of packed rows or of keys. */
INLINE bool job_of(struct job *t, const struct params *p, unsigned index, int size, bool over_rows, bool last_first) {
    if (threadIdx.x == 0) {
        t->tile = take_digit(&index, p->tiles);
        t->slice = take_digit(&index, p->slices);
        t->split = take_digit(&index, p->splits);
        t->kv = take_digit(&index, p->heads_kv), t->b = (int)index;
        if (last_first) t->tile = p->tiles - 1 - t->tile;
        job_sequence(t, p);
        const struct place first = {0, t->kv * p->group};
        t->q = (const element *)p->q.data + row_offset(&p->q, t, first);
        t->dout = (const element *)p->dout.data + row_offset(&p->dout, t, first);
        t->k = (const element *)p->k.data + key_offset(&p->k, t, 0);
        t->v = (const element *)p->v.data + key_offset(&p->v, t, 0);
    }
    __syncthreads();
    return (int64_t)t->tile * size < (over_rows ? (int64_t)t->rows * p->group : t->keys);
}

#endif
