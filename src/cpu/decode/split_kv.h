/* SPDX-License-Identifier: BSD-3-Clause
 *
 * split_kv.h: split-KV decoding ("Flash-Decoding", Dao et al., 2023): the keys of a sequence are cut into splits, each of
 * which gives its rows a partial result (m, l, o). The split-KV merge adds the partials of a row in the order of their
 * splits, by the identity of math/lse.h.
 *
 * A split has tuning.split_keys keys if that is given, else DEFAULT_SPLIT, or more where the longest sequence of the call
 * would have more than MOST_SPLITS of them. So splits follow from lengths alone, and with split_keys given from the key's
 * position alone. How many heads share a task depends on the number of threads; results do not. The workspace is sized by
 * the bound seq_k, the work by the lengths that the sequences have. */
#ifndef STROBE_CPU_SPLIT_KV_H
#define STROBE_CPU_SPLIT_KV_H

#include "core/parallel.h"
#include "cpu/decode/decode_rows.h"
#include "cpu/table.h"
#include "cpu/vector/finish.h"

enum {
    DEFAULT_SPLIT = 1024,        /* keys */
    MOST_SPLITS = 128,           /* of a sequence, unless split_keys is given: bounds the workspace and the merge */
    LEAST_TASKS_A_WORKER = 2,    /* wanted; where there are fewer, fewer heads share a task */
    HEADS_A_TASK = 32,           /* at most, of decode.c */
    HEADS_A_TASK_ON_TILES = 16,  /* at most, of amx/decode.c and amx/decode_int8.c */
    BYTES_WORTH_WAKING = 2 << 20 /* of K and V: below, waking threads costs more than it gains */
};

struct split_kv {
    const struct problem *p;
    float *partials;              /* [batch][heads_kv][splits][rows][partial_floats]: m, l, up to LANES unused, o */
    int64_t split, splits;        /* keys of a split; splits of the longest sequence */
    int64_t rows, partial_floats; /* query rows of a K/V head; floats of a partial */
    int64_t heads_a_task;
};

/* What a task does: keys [first, end) of a sequence, a split or the part of it that exists, for some K/V heads. */
struct split_task {
    struct sequence s;
    int64_t split, first, end;
    int64_t first_head, heads; /* no heads: nothing is to be done */
};

/* The partial result of one row over one split: o is the sum of P v, not divided by l. */
struct partial {
    float *o; /* [padded_columns(dim_v)], in lane order (to_lane_order) */
    float *m, *l;
};

static inline int64_t quotient_up(int64_t n, int64_t by) { return n / by + (n % by != 0); }

static inline int64_t split_keys_for(const struct problem *p, int64_t longest) {
    const int64_t least = quotient_up(quotient_up(longest, MOST_SPLITS), BLOCK_KEYS) * BLOCK_KEYS;
    return p->tuning.split_keys ? p->tuning.split_keys : least > DEFAULT_SPLIT ? least : DEFAULT_SPLIT;
}

/* The splits of `keys` keys. There is at least one: the rows of a sequence without keys have to be written too. */
static inline int64_t splits_of(int64_t keys, int64_t split) { return keys > split ? quotient_up(keys, split) : 1; }

static inline int64_t longest_sequence(const struct problem *p) {
    int64_t longest = p->a.varlen ? 0 : p->a.seq_k;
    for (int64_t b = 0; p->a.varlen && b < p->a.batch; ++b) {
        const int64_t keys = strobe__sequence(p, b).keys;
        if (keys > longest) longest = keys;
    }
    return longest;
}

/* How many heads may share a task, at most `most`. Only heads that are adjacent in memory do, as in [batch, seq, heads,
 * dim]; one after the other they would visit each page once a head. */
static inline int64_t heads_side_by_side(const strobe_attention *a, int64_t most) {
    const bool side_by_side = a->k.stride[2] < a->k.stride[1] && a->k.stride[2] >= 0;
    return !side_by_side ? 1 : a->heads_kv < most ? a->heads_kv : most;
}

static inline struct split_kv split_kv_of(const struct problem *p, int64_t longest, int64_t most_heads) {
    const strobe_attention *a = &p->a;
    struct split_kv f = {.p = p, .rows = a->seq_q * p->group, .split = split_keys_for(p, longest)};
    f.splits = splits_of(longest, f.split);
    f.partial_floats = LANES + padded_columns(a->dim_v);
    const int64_t most = heads_side_by_side(a, most_heads),
                  tasks = LEAST_TASKS_A_WORKER * (int64_t)strobe__workers(a->parallel);
    f.heads_a_task = strobe__product(a->batch * a->heads_kv, f.splits) / tasks;
    f.heads_a_task = f.heads_a_task < 1 ? 1 : f.heads_a_task < most ? f.heads_a_task : most;
    return f;
}

/* The bytes of all partials for lengths up to the bound seq_k. A size that overflows becomes INT64_MAX / 2, more than any
 * memory. */
static inline size_t partials_bytes(const struct problem *p) {
    const struct split_kv f = split_kv_of(p, p->a.seq_k, 1);
    const int64_t longest_splits = splits_of(p->a.seq_k, p->tuning.split_keys ? f.split : DEFAULT_SPLIT);
    const int64_t splits = p->tuning.split_keys || longest_splits < MOST_SPLITS ? longest_splits : MOST_SPLITS;
    const int64_t heads = strobe__product(p->a.batch, p->a.heads_kv);
    const int64_t bytes = strobe__product(strobe__product(heads, splits),
                                          f.rows * f.partial_floats * (int64_t)sizeof(float));
    return (size_t)(bytes < INT64_MAX / 2 ? bytes : INT64_MAX / 2);
}

static inline struct partial partial_at(const struct split_kv *f, int64_t head, int64_t split, int64_t r) {
    float *at = f->partials + ((head * f->splits + split) * f->rows + r) * f->partial_floats;
    return (struct partial){.o = at + LANES, .m = at, .l = at + 1};
}

/* Resets the partials of a split of a K/V head: no key seen. */
static inline void start_partials(const struct split_kv *f, int64_t head, int64_t split) {
    memset(partial_at(f, head, split, 0).m, 0, (size_t)(f->rows * f->partial_floats) * sizeof(float));
    for (int64_t r = 0; r < f->rows; ++r) *partial_at(f, head, split, r).m = -INFINITY;
}

/* All query rows of a K/V head, which may be more than a tile of the other kernels holds. */
static inline struct tile_rows decode_rows(const struct problem *p, const struct sequence *s, int64_t kv) {
    return (struct tile_rows){.p = p, .s = *s, .kv = kv, .n = packed_rows(p, s)};
}

/* The boolean mask of packed row r from key j on. */
static inline const uint8_t *mask_of_row(const struct tile_rows *t, int64_t r, int64_t j) {
    const strobe_bool_mask *mask = &t->p->bool_mask;
    return mask->data + t->s.b * mask->stride[0] + packed_head(t, r) * mask->stride[1] + packed_row(t, r) * mask->stride[2] +
           j;
}

/* The split-KV merge of one row, in the order of the splits, into the first. Each is rescaled by exp(m_split - m). */
static inline struct partial merge_row(const struct split_kv *f, int64_t head, int64_t splits, int64_t r) {
    const struct partial whole = partial_at(f, head, 0, r);
    const float factor = exponent_factor(f->p);
    float m = -INFINITY, l = 0;
    for (int64_t n = 0; n < splits; ++n) {
        const float other = *partial_at(f, head, n, r).m;
        if (other > m) m = other;
    }
    for (int64_t n = 0; n < splits; ++n) {
        const struct partial from = partial_at(f, head, n, r);
        const bool empty = *from.m == -INFINITY && *from.l == 0; /* the row saw no key of the split */
        const float rescale = empty ? 0 : *from.m == m ? 1 : exp2f((*from.m - m) * factor);
        if (!empty) l += rescale * *from.l;
        for (int64_t x = 0; !empty && x < f->partial_floats - LANES; x += LANES) {
            const vec before = n == 0 ? v_set(0) : v_load(whole.o + x);
            v_store(whole.o + x, v_fma(v_set(rescale), v_load(from.o + x), before));
        }
    }
    *whole.m = m;
    *whole.l = l;
    return whole;
}

/* A task: merges the rows of K/V head `head`, divides by l and writes them. */
static inline void merge_task(void *context, int64_t head, int32_t worker) {
    const struct split_kv *f = context;
    const strobe_attention *a = &f->p->a;
    (void)worker;
    const struct sequence s = strobe__sequence(f->p, head / a->heads_kv);
    const struct tile_rows t = decode_rows(f->p, &s, head % a->heads_kv);
    float m[MOST_DECODE_ROWS], l[MOST_DECODE_ROWS], factor[MOST_DECODE_ROWS];
    for (int64_t r = 0; r < t.n; ++r) {
        const struct partial whole = merge_row(f, head, splits_of(s.keys, f->split), r);
        m[r] = *whole.m;
        l[r] = *whole.l;
    }
    finish_rows(&t, m, l, factor);
    for (int64_t r = 0; r < t.n; ++r) {
        float row[DIM_V_LIMIT];
        from_lane_order(row, partial_at(f, head, 0, r).o, a->v.dtype, a->dim_v, factor[r]);
        narrow_row(a->out.data, a->out.dtype, tile_offset(&t, &a->out, r), row, a->dim_v);
    }
}

static inline struct split_task split_task_at(const struct split_kv *f, int64_t index) {
    const int64_t heads_kv = f->p->a.heads_kv, groups = quotient_up(heads_kv, f->heads_a_task);
    struct split_task t = {.s = strobe__sequence(f->p, index / f->splits / groups), .split = index % f->splits};
    if (t.s.rows == 0 || t.split >= splits_of(t.s.keys, f->split)) return t;
    t.first_head = index / f->splits % groups * f->heads_a_task;
    t.heads = heads_kv - t.first_head < f->heads_a_task ? heads_kv - t.first_head : f->heads_a_task;
    t.first = t.split * f->split;
    t.end = t.s.keys - t.first < f->split ? t.s.keys : t.first + f->split;
    return t;
}

/* Runs all tasks and then all merges. A short call runs on the caller's thread, since waking threads would cost more than it
 * gains. */
static inline void run_splits(struct split_kv *f, strobe__task *task, void *context) {
    const strobe_attention *a = &f->p->a;
    const strobe_parallel alone = {.struct_size = sizeof alone, .threads = 1};
    double keys = 0;
    for (int64_t b = 0; b < a->batch; ++b) keys += (double)strobe__sequence(f->p, b).keys;
    const double row_bytes = (double)(a->dim + a->dim_v) * (double)strobe__dtype_bytes(a->k.dtype);
    const bool short_call = keys * (double)a->heads_kv * row_bytes < BYTES_WORTH_WAKING;
    const strobe_parallel *threads = short_call ? &alone : a->parallel;
    const int64_t groups = quotient_up(a->heads_kv, f->heads_a_task);
    strobe__parallel_for(threads, a->batch * groups * f->splits, task, context);
    strobe__parallel_for(threads, a->batch * a->heads_kv, merge_task, f);
}

#endif
