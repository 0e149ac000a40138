/* SPDX-License-Identifier: BSD-3-Clause
 *
 * problem.h: a call after it has been read and checked. A problem holds the caller's structures in full length with every
 * default filled in, so that kernels speak the vocabulary of the public header and never ask "or the default?".
 *
 *     strobe__problem_read()      copies structures of any size, fills in defaults         problem.c
 *     strobe__problem_validate()  checks every argument, refuses with a sentence           validate.c
 *
 * The rest of this file is what kernels ask of a problem: sequences, rows, bands. */
#ifndef STROBE_CORE_PROBLEM_H
#define STROBE_CORE_PROBLEM_H

#include <stdbool.h>

#include "core/feature.h"
#include "core/score/score.h"
#include "core/status.h"
#include "math/mask.h"
#include "math/philox.h"

/* No extent is larger: then sums of a few extents, and mask.h's arithmetic, stay far inside int64_t. */
#define LARGEST_EXTENT ((int64_t)1 << 40)
/* Nor has a sequence, or a batch, more rows or entries of all heads: a count of them, rounded up to tiles, is no overflow.
 */
#define LARGEST_COUNT ((int64_t)1 << 48)

/* The largest dim and dim_v, those of multi-head latent attention. */
enum { DIM_LIMIT = 576, DIM_V_LIMIT = 512 };

struct problem {
    strobe_operation operation;
    bool runs;                 /* data is there and will be touched; false in queries */
    bool stores;               /* not attention: q, k, v and scales are written, or not there; nothing else is */
    bool by_slots;             /* of strobe_append: keys are named by slots, so that a page table may be missing */
    strobe_attention a;        /* its feature pointers are NULL or lead to the copies below */
    strobe_gradients g;        /* all zero in the forward */
    strobe_tensor added_to[3]; /* the caller's dq, dk, dv where g has others, which are added to them: core/accumulate.h */
    int64_t group;             /* heads_q / heads_kv */
    bool visible_is_band;      /* the function's `visible` has become the mask: core/score/band.h */
    bool no_rows, no_keys;     /* packed on a GPU and without memory: there are none, whatever bound the caller states */

    feature_set features; /* what is asked for, as kernels declare it, worked out once */
    struct dtypes dtypes;

    strobe_varlen varlen;
    strobe_paged paged;
    strobe_bias bias;
    strobe_bool_mask bool_mask;
    strobe_block_mask block_mask;
    strobe_alibi alibi;
    strobe_sinks sinks;
    strobe_dropout dropout;
    strobe_scales scales;
    strobe_parallel parallel;
    strobe_tuning tuning;
    strobe_bias dbias;
    strobe_sinks dsinks;
    strobe_score_arguments score;
    strobe_score_gradients dscore;
    strobe_mask_lists mask_lists;
    struct score_call score_call; /* of both, read and with defaults; only where there is a score */
};

/* gradients NULL means the forward. runs: the call touches data, so pointers must be there. */
strobe_status strobe__problem_read(struct problem *problem, const strobe_attention *attention,
                                   const strobe_gradients *gradients, bool runs);
strobe_status strobe__problem_validate(const struct problem *problem);

/* Works out features and dtypes anew; reading does it. */
void strobe__problem_ask(struct problem *problem);

/* Copies a caller's structure of any struct_size into one of the size that this library knows; the rest is zero. `name` is
 * for the sentence. */
strobe_status strobe__struct_copy(void *target, size_t target_bytes, const void *source, const char *name);

/* Contiguous strides where all three are zero. */
void strobe__default_stride(int64_t stride[3], int64_t batch, int64_t seq, int64_t head);

/* x * y for a default stride, INT64_MAX on overflow: no offset is that large, so validation refuses it. */
int64_t strobe__product(int64_t x, int64_t y);

size_t strobe__dtype_bytes(int32_t dtype);
const char *strobe__dtype_name(int32_t dtype);

/* Entry b of cu_seqlens_* or used_*. */
int64_t strobe__varlen_entry(const strobe_varlen *varlen, const void *entries, int64_t b);

/* Rows of a packed tensor: `total` where it is given, else the last of its offsets; -1 where the host cannot read that. */
int64_t strobe__packed_total(const struct problem *problem, const void *cu_seqlens, int64_t total);

/* One batch entry: its lengths, and the elements from a tensor's data to the entry's row 0. */
struct sequence {
    int64_t b;
    int64_t rows, keys;
    int64_t first_row, first_key; /* rows before it in a packed tensor, else 0; the keys that are padding also */
    bool packed_q, packed_k;
    struct band band;              /* mask kind, window and starts */
    const int32_t *pages;          /* of its keys; NULL: not in pages */
    int64_t page_size, page_count; /* page_count: that there are */
    int32_t page_shift;            /* of a size that is a power of two, else -1 */
};

/* The band of a sequence of s->rows and s->keys, from mask kind, window and starts. */
struct band strobe__band(const struct problem *problem, const struct sequence *s);

struct sequence strobe__sequence(const struct problem *problem, int64_t b);

/* Extents of dbias in the order of its strides, batch, head, row: 1 where it is broadcast, by a stride of 0. An axis of no
 * entries that is broadcast has one as well, whose gradient is 0; any other leaves dbias without elements. */
void strobe__dbias_extent(const struct problem *problem, int64_t extent[3]);

/* The key at which ALiBi's distance from row 0 is zero: always on the bottom-right diagonal. */
static inline int64_t strobe__alibi_diagonal(const struct problem *p, const struct sequence *s) {
    return p->a.q_start - p->a.k_start + s->keys - s->rows;
}

/* Elements from tensor->data to [sequence, row, head, 0], for tensors of query rows and of keys. */
static inline int64_t strobe__row_offset(const strobe_tensor *t, const struct sequence *s, int64_t i, int64_t h) {
    return (s->packed_q ? 0 : s->b * t->stride[0]) + (s->first_row + i) * t->stride[1] + h * t->stride[2];
}

/* Of keys in pages: the slot of key j in its page. */
static inline int64_t strobe__key_slot(const struct sequence *s, int64_t j) {
    const int64_t at = s->first_key + j;
    return s->page_shift >= 0 ? at & (s->page_size - 1) : at % s->page_size;
}

/* The page of key j, -1 where its number is not that of a page. */
static inline int64_t strobe__key_page(const struct sequence *s, int64_t j) {
    const int64_t at = s->first_key + j;
    const int64_t page = s->pages[s->page_shift >= 0 ? at >> s->page_shift : at / s->page_size];
    return page >= 0 && page < s->page_count ? page : -1;
}

/* Whether key j has memory. Keys of a page that is none have not; they are invisible. */
static inline bool strobe__key_exists(const struct sequence *s, int64_t j) {
    return !s->pages || strobe__key_page(s, j) >= 0;
}

/* Of the n keys from j on, how many follow each other in memory, one stride apart. */
static inline int64_t strobe__keys_together(const struct sequence *s, int64_t j, int64_t n) {
    const int64_t left = s->pages ? s->page_size - strobe__key_slot(s, j) : n;
    return left < n ? left : n;
}

/* Whether the keys [j, j + n) exist and follow each other in memory. */
static inline bool strobe__keys_in_place(const struct sequence *s, int64_t j, int64_t n) {
    return strobe__keys_together(s, j, n) == n && (n == 0 || strobe__key_exists(s, j));
}

/* Of n <= 64 keys from j on those that do not exist, as bits. */
static inline uint64_t strobe__keys_missing(const struct sequence *s, int64_t j, int64_t n) {
    uint64_t missing = 0;
    for (int64_t i = 0, count; s->pages && i < n; i += count) {
        count = strobe__keys_together(s, j + i, n - i);
        if (!strobe__key_exists(s, j + i)) missing |= ~(uint64_t)0 >> (64 - count) << i;
    }
    return missing;
}

/* Of a key that exists. */
static inline int64_t strobe__key_offset(const strobe_tensor *t, const struct sequence *s, int64_t j, int64_t h) {
    if (s->pages) return strobe__key_page(s, j) * t->stride[0] + strobe__key_slot(s, j) * t->stride[1] + h * t->stride[2];
    return (s->packed_k ? 0 : s->b * t->stride[0]) + (s->first_key + j) * t->stride[1] + h * t->stride[2];
}

/* Where the scale of key j of K/V head h is: `scale` and its strides are those of k or of v. */
static inline const float *strobe__key_scale_at(const struct problem *p, const float *scale, const int64_t stride[3],
                                                const struct sequence *s, int64_t j, int64_t h) {
    const int64_t block = p->scales.block_k;
    if (block == 0) return scale + s->b * stride[0] + h * stride[2];
    if (s->pages) return scale + strobe__key_page(s, j) * stride[0] + strobe__key_slot(s, j) * stride[1] + h * stride[2];
    return scale + (s->packed_k ? 0 : s->b * stride[0]) + (s->first_key + j) / block * stride[1] + h * stride[2];
}

/* The scale itself, 1 where there is none. */
static inline float strobe__key_scale(const struct problem *p, const float *scale, const int64_t stride[3],
                                      const struct sequence *s, int64_t j, int64_t h) {
    return p->a.scales && scale ? *strobe__key_scale_at(p, scale, stride, s, j, h) : 1;
}

/* The scale of row i of query head h, 1 where there is none. */
static inline float strobe__row_scale(const struct problem *p, const struct sequence *s, int64_t i, int64_t h) {
    const int64_t block = p->scales.block_q, *stride = p->scales.stride_q;
    if (!p->a.scales || !p->scales.q) return 1;
    if (block == 0) return p->scales.q[s->b * stride[0] + h * stride[2]];
    return p->scales.q[(s->packed_q ? 0 : s->b * stride[0]) + (s->first_row + i) / block * stride[1] + h * stride[2]];
}

/* Whether dq, dk and dv have not all one dtype. */
static inline bool strobe__gradients_differ(const struct problem *p) {
    const strobe_gradients *g = &p->g;
    return p->operation == STROBE_BACKWARD && (g->dq.dtype != g->dk.dtype || g->dk.dtype != g->dv.dtype);
}

/* Whether dk and dv alone are fp32. */
static inline bool strobe__sums_keys(const struct problem *p) {
    const strobe_gradients *g = &p->g;
    return g->dk.dtype == STROBE_FP32 && g->dv.dtype == STROBE_FP32 && g->dq.dtype != STROBE_FP32;
}

/* Whether V is the first columns of K, as in multi-head latent attention: the same memory, and the same numbers of it.
 * Packed tensors have no batch stride. */
static inline bool strobe__v_in_k(const struct problem *p) {
    const strobe_attention *a = &p->a;
    const strobe_scales *s = &p->scales;
    bool same = a->v.data == a->k.data && a->v.dtype == a->k.dtype && a->dim_v <= a->dim && (!a->scales || s->v == s->k);
    for (int axis = 0; axis < 3; ++axis) {
        same = same && (a->v.stride[axis] == a->k.stride[axis] || (axis == 0 && p->varlen.cu_seqlens_k));
        same = same && (!a->scales || s->stride_v[axis] == s->stride_k[axis]);
    }
    return same;
}

/* What math/philox.h needs; only for problems with dropout. */
struct dropout_place strobe__dropout_place(const struct problem *problem);

#endif
