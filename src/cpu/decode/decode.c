/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode.c: split-KV decoding (Flash-Decoding, Dao et al., 2023): few query rows on a long K and V, as in a step of
 * generation. One text for every level of vectors. split_kv.h has the splits and their merge, decode_rows.h the products.
 *
 *   a task is a split of one K/V head, or of several whose rows are adjacent in memory
 *     for each block of keys, MOST_KEYS of one head or BLOCK_KEYS of several:
 *       for each head:  s = q . k
 *       for each head:  online softmax: m, l, P = exp(s - m) = 2^(s c - m c), rescale
 *       for each head:  o = rescale o + P v
 *
 * K and V are read once from memory, a chunk of BLOCK_KEYS at a time, and for the other rows of the group again from L1. A
 * line is prefetched about a page before it is read. In [batch, seq, heads, dim] the heads of a task are read side by side,
 * since one after the other would visit each page once a head. Keys outside of a row's band are not read for it. What a
 * boolean mask hides gets the score -inf, and so P = 0; as 0 * NaN is NaN, a task whose O is not finite then is done again,
 * row by row, with the V of those keys left out.
 *
 * With STROBE_BYTE_PRODUCTS it is another kernel, of int8 K and V alone: decode_bytes.h has its products.
 *
 * docs/kernels/cpu.md has the versions and what was tried, docs/benchmarks.md the figures. */
#include "cpu/cpuid.h"
#include "cpu/decode/decode_rows.h"
#if defined(STROBE_BYTE_PRODUCTS)
#include "cpu/decode/decode_bytes.h"
#define DECODE_KERNEL(name) LEVEL_KERNEL(name##_int8)
#else
#define DECODE_KERNEL(name) LEVEL_KERNEL(name)
#endif
#include "cpu/decode/split_kv.h"
#include "cpu/scratch.h"
#include "cpu/table.h"
#include "cpu/vector/nonfinite.h"

enum { PREFETCH_BYTES = 4096 }; /* how far ahead a head prefetches; 1, 2 and 8 KiB were no faster (docs/kernels/cpu.md) */

struct decode {
    struct split_kv split;
    char *workspace;
    size_t scratch_bytes;
    int64_t q_padded;
    bool into_l2; /* what is prefetched */
};

/* One worker's memory. */
struct scratch {
    float *q;                 /* [heads_a_task][rows][q_padded] fp32, in the lane order of decode_rows.h */
    float *digits;            /* the same as digits, for decode_bytes.h */
    float *s;                 /* [heads_a_task][rows][ROW_SCORES] scores, then P */
    float *rescale;           /* [heads_a_task][rows] */
    uintptr_t *k_row, *v_row; /* [MOST_KEYS + BLOCK_KEYS] of keys in pages: where those of the block, and of the next
                                 BLOCK_KEYS, lie, of the task's first head; 0: nowhere */
};

/* The current block of keys, of a task. */
struct block {
    const struct decode *f;
    struct split_task t;
    int64_t j0, keys, most_keys; /* first key; how many; how many a whole block has */
    int64_t chunk;               /* keys that all rows read before the next ones are read */
    bool missing;                /* some of the keys are in no page */
    bool leaves_out;             /* V of keys that the boolean mask hides is left out of the product */
    struct scratch c;
};

/* The floats that a row of q takes as digits. */
static int64_t digits_of_row(int64_t columns) {
#if defined(STROBE_BYTE_PRODUCTS)
    return digit_floats(columns);
#else
    (void)columns;
    return 0;
#endif
}

static size_t lay_out(struct scratch *t, float *base, const struct problem *p, int64_t heads) {
    const int64_t rows = heads * p->a.seq_q * p->group;
    size_t used = 0;
    t->q = take(base, &used, rows * padded_columns(p->a.dim));
    t->digits = take(base, &used, rows * digits_of_row(p->a.dim));
    t->s = take(base, &used, rows * ROW_SCORES);
    t->rescale = take(base, &used, rows);
    const int64_t addresses = p->a.paged ? (MOST_KEYS + BLOCK_KEYS) * (int64_t)(sizeof *t->k_row / sizeof(float)) : 0;
    t->k_row = (uintptr_t *)(void *)take(base, &used, addresses);
    t->v_row = (uintptr_t *)(void *)take(base, &used, addresses);
    return used * sizeof(float);
}

static void pack_queries(const struct block *b) {
    const struct problem *p = b->f->split.p;
    const int64_t dim = p->a.dim, rows = b->f->split.rows;
    float wide[DIM_LIMIT];
    for (int64_t h = 0; h < b->t.heads; ++h) {
        const struct tile_rows t = decode_rows(p, &b->t.s, b->t.first_head + h);
        for (int64_t r = 0; r < t.n; ++r) {
            float *q = b->c.q + (h * rows + r) * b->f->q_padded;
            widen_row(wide, p->a.q.data, p->a.q.dtype, tile_offset(&t, &p->a.q, r), dim);
            to_lane_order(q, wide, p->a.k.dtype, dim, query_factor(p));
#if defined(STROBE_BYTE_PRODUCTS)
            pack_digits(b->c.digits + (h * rows + r) * digits_of_row(dim), wide, dim, query_factor(p));
#endif
        }
    }
}

/* Rows [r, r + count) of a head, which see the same keys [first, end) of the block; count is 1, 2 or 4. */
struct same_rows {
    int64_t first, end;
    int count;
};

static struct same_rows rows_at(const struct tile_rows *t, int64_t r, int64_t j0, int64_t keys) {
    const struct band *band = &t->s.band;
    struct same_rows same = {.first = band_first(band, packed_row(t, r)), .end = band_end(band, packed_row(t, r))};
    int alike = 1;
    while (alike < ROWS_AT_ONCE && r + alike < t->n && band_first(band, packed_row(t, r + alike)) == same.first &&
           band_end(band, packed_row(t, r + alike)) == same.end)
        ++alike;
    same.count = alike >= 4 ? 4 : alike >= 2 ? 2 : 1;
    if (same.first < j0) same.first = j0;
    if (same.end > j0 + keys) same.end = j0 + keys;
    return same;
}

/* Bytes from what head h reads to what it prefetches: its own keys a page further on, or with several heads what the next
 * head reads. Nothing has to be there, so the sum may wrap around. */
static size_t prefetch_distance(const struct split_task *t, const strobe_tensor *x, int64_t columns, int64_t h) {
    const size_t bytes = (size_t)bytes_of(x->dtype), key = (size_t)x->stride[1] * bytes, head = (size_t)x->stride[2] * bytes;
    if (t->heads == 1) return PREFETCH_BYTES / ((size_t)columns * bytes) * key;
    return h + 1 < t->heads ? head : BLOCK_KEYS * key - (size_t)h * head;
}

/* The same where keys are in pages. */
static struct keys_in_memory keys_in_pages(const struct block *b, const strobe_tensor *x, int64_t columns, int64_t j,
                                           int64_t h) {
    const size_t bytes = (size_t)bytes_of(x->dtype), head = (size_t)x->stride[2] * bytes;
    const uintptr_t *row = x == &b->f->split.p->a.k ? b->c.k_row : b->c.v_row;
    struct keys_in_memory keys = {
        .columns = columns, .row = row + (j - b->j0), .head = (size_t)h * head, .into_l2 = b->f->into_l2};
    const bool last = h + 1 == b->t.heads;
    const int64_t ahead = b->t.heads > 1 ? BLOCK_KEYS : PREFETCH_BYTES / (columns * (int64_t)bytes);
    if (last) keys.ahead = ahead < BLOCK_KEYS ? ahead : BLOCK_KEYS;
    keys.prefetch = last ? -keys.head : head;
    return keys;
}

/* Finds the rows of the block's keys, and of those that are prefetched meanwhile, in one of K and V. Behind the last key of
 * the task it repeats: tables are not read there. Returns whether some of the block's keys are nowhere. */
static bool find_keys(uintptr_t *row, const struct block *b, const strobe_tensor *x) {
    const int64_t left = b->t.end - b->j0, count = left < b->keys + BLOCK_KEYS ? left : b->keys + BLOCK_KEYS;
    const uintptr_t stride = (uintptr_t)(x->stride[1] * bytes_of(x->dtype));
    bool missing = false;
    for (int64_t j = 0, n; j < count; j += n) {
        n = strobe__keys_together(&b->t.s, b->j0 + j, count - j);
        const bool exists = strobe__key_exists(&b->t.s, b->j0 + j);
        const int64_t at = exists ? strobe__key_offset(x, &b->t.s, b->j0 + j, b->t.first_head) * bytes_of(x->dtype) : 0;
        for (int64_t i = 0; i < n; ++i) row[j + i] = exists ? (uintptr_t)x->data + (uintptr_t)at + (uintptr_t)i * stride : 0;
        missing = missing || (!exists && j < b->keys);
    }
    for (int64_t j = count; j < b->keys + BLOCK_KEYS; ++j) row[j] = row[count - 1];
    return missing;
}

static struct keys_in_memory keys_at(const struct block *b, const strobe_tensor *x, int64_t columns, int64_t j, int64_t h) {
    if (b->t.s.pages) return keys_in_pages(b, x, columns, j, h);
    const int64_t at = strobe__key_offset(x, &b->t.s, j, b->t.first_head + h) * bytes_of(x->dtype);
    return (struct keys_in_memory){.data = (const char *)x->data + at,
                                   .stride = x->stride[1],
                                   .columns = columns,
                                   .prefetch = prefetch_distance(&b->t, x, columns, h),
                                   .into_l2 = b->f->into_l2};
}

/* What for_each_chunk() does for rows from r on of head h and keys of a chunk that they see, which exist all or none. */
typedef void chunk_step(const struct block *b, const struct tile_rows *t, int64_t h, int64_t r, struct same_rows same);

/* s[j] *= factor[j step]. */
static void scale_run(float *s, const float *factor, int64_t step, int64_t keys) {
    int64_t j = 0;
    for (; step == 1 && j + LANES <= keys; j += LANES) v_store(s + j, v_mul(v_load(s + j), v_load(factor + j)));
    for (; j < keys; ++j) s[j] *= factor[j * step];
}

/* Multiplies scores or P of a few rows, s [count][ROW_SCORES] from key `first` on, by the keys' scales. */
static void scale_keys(const struct block *b, const struct tile_rows *t, float *s, struct same_rows same, const float *scale,
                       const int64_t stride[3]) {
    if (!t->p->a.scales || !scale) return;
    const int64_t block = t->p->scales.block_k, first_key = b->t.s.first_key;
    for (int64_t j = same.first, next; j < same.end; j = next) { /* the scales of the keys [j, next) are `step` apart */
        const int64_t step = block == 1 ? stride[1] : 0;
        const int64_t left = block < 2 ? strobe__keys_together(&b->t.s, j, same.end - j) : block - (first_key + j) % block;
        next = left < same.end - j ? j + left : same.end;
        const float *factor = strobe__key_scale_at(t->p, scale, stride, &b->t.s, j, t->kv);
        for (int r = 0; r < same.count; ++r) scale_run(s + r * ROW_SCORES + j - same.first, factor, step, next - j);
    }
}

/* s = q . k of rows from `row` on. */
static void key_products_of(const struct block *b, float *s, int64_t row, int rows, const struct keys_in_memory *k,
                            int64_t keys) {
    const strobe_attention *a = &b->f->split.p->a;
    const int64_t stride = b->f->q_padded;
#if defined(STROBE_BYTE_PRODUCTS)
    const int64_t digits = digits_of_row(a->dim);
    if (byte_key_products(s, b->c.digits + row * digits, digits, k, keys, rows)) return;
#endif
    products_for(a->k.dtype, rows)->keys(s, b->c.q + row * stride, stride, k, keys);
}

/* o = rescale o + P v. */
static void value_products_of(const struct block *b, float *o, const float *rescale, const float *p_block, int rows,
                              const struct keys_in_memory *v, int64_t keys) {
    const strobe_attention *a = &b->f->split.p->a;
    const int64_t stride = b->f->split.partial_floats;
#if defined(STROBE_BYTE_PRODUCTS)
    const int digits = a->out.dtype == STROBE_FP16 || a->out.dtype == STROBE_BF16 ? FEW_DIGITS : DIGITS;
    if (byte_value_products(o, stride, rescale, p_block, v, keys, rows, digits)) return;
#endif
    products_for(a->v.dtype, rows)->values(o, stride, rescale, p_block, v, keys);
}

/* s = q . k, times K's scales. */
static void multiply_keys(const struct block *b, const struct tile_rows *t, int64_t h, int64_t r, struct same_rows same) {
    const struct problem *p = t->p;
    const int64_t row = h * b->f->split.rows + r;
    float *s = b->c.s + row * ROW_SCORES + same.first - b->j0;
    if (!strobe__key_exists(&t->s, same.first)) {
        for (int n = 0; n < same.count; ++n)
            for (int64_t j = 0; j < same.end - same.first; ++j) s[n * ROW_SCORES + j] = -INFINITY;
        return;
    }
    const struct keys_in_memory k = keys_at(b, &p->a.k, p->a.dim, same.first, h);
    key_products_of(b, s, row, same.count, &k, same.end - same.first);
    scale_keys(b, t, s, same, p->scales.k, p->scales.stride_k);
}

/* o = rescale o + P v, with P times V's scales. */
static void multiply_values(const struct block *b, const struct tile_rows *t, int64_t h, int64_t r, struct same_rows same) {
    const struct problem *p = t->p;
    const struct split_kv *f = &b->f->split;
    const int64_t row = h * f->rows + r;
    if (!strobe__key_exists(&t->s, same.first)) return; /* P is 0 */
    const struct keys_in_memory v = keys_at(b, &p->a.v, p->a.dim_v, same.first, h);
    const struct partial partial = partial_at(f, b->t.s.b * p->a.heads_kv + t->kv, b->t.split, r);
    float *p_block = b->c.s + row * ROW_SCORES + same.first - b->j0, *rescale = b->c.rescale + row;
    scale_keys(b, t, p_block, same, p->scales.v, p->scales.stride_v);
    value_products_of(b, partial.o, rescale, p_block, same.count, &v, same.end - same.first);
    for (int n = 0; n < same.count; ++n) rescale[n] = 1; /* the chunks that follow must not rescale again */
}

/* The same without the keys that the mask hides, row by row. Where it hides all of a block's, rescale is 1. */
static void multiply_shown_values(const struct block *b, const struct tile_rows *t, int64_t h, int64_t r,
                                  struct same_rows same) {
    for (int64_t row = r; row < r + same.count; ++row) {
        const uint8_t *shown = mask_of_row(t, row, 0);
        struct same_rows run = {.first = same.first, .end = same.first, .count = 1};
        for (; run.first < same.end; run.first = run.end) {
            for (run.end = run.first + 1; run.end < same.end && !shown[run.end] == !shown[run.first];) ++run.end;
            if (shown[run.first]) multiply_values(b, t, h, row, run);
        }
    }
}

/* The online softmax of a row over a block: s becomes P, m and l of the partial result are updated. Returns the factor by
 * which o has to be rescaled. */
static float online_softmax(struct partial *partial, float *s, int64_t keys, float factor) {
    const float m = *partial->m;
    vec high = v_set(m), sum = v_set(0);
    for (int64_t j = keys; j % LANES != 0; ++j) s[j] = -INFINITY;
    for (int64_t j = 0; j < keys; j += LANES) high = v_max(v_load(s + j), high);
    const float highest = v_highest(high), shift = highest == -INFINITY ? 0 : highest;
    for (int64_t j = 0; j < keys; j += LANES) {
        const vec p_ij = v_exp2(v_mul(v_sub(v_load(s + j), v_set(shift)), v_set(factor)));
        sum = v_add(sum, p_ij);
        v_store(s + j, p_ij);
    }
    float power[LANES];
    v_store(power, v_exp2(v_set((m - shift) * factor)));
    const float rescale = highest == m ? 1 : power[0]; /* exactly 1, which the polynomial's 2^0 is not */
    *partial->m = highest;
    *partial->l = *partial->l * rescale + v_sum(sum);
    return rescale;
}

/* Calls step for the keys of `same`, for as many at a time as exist, or do not. */
static void step_over_keys(const struct block *b, const struct tile_rows *t, int64_t h, int64_t r, struct same_rows same,
                           chunk_step *step) {
    for (int64_t end = same.end; same.first < end; same.first = same.end) {
        for (int64_t j = same.end = b->missing ? same.first : end; j < end; ++j) {
            if (!b->c.k_row[j - b->j0] != !b->c.k_row[same.first - b->j0]) break;
            same.end = j + 1;
        }
        step(b, t, h, r, same);
    }
}

/* Calls step for every head and row, chunk after chunk of the block. */
static void for_each_chunk(const struct block *b, chunk_step *step) {
    for (int64_t j = b->j0; j < b->j0 + b->keys; j += b->chunk) {
        const int64_t left = b->j0 + b->keys - j, keys = left < b->chunk ? left : b->chunk;
        for (int64_t h = 0; h < b->t.heads; ++h) {
            const struct tile_rows t = decode_rows(b->f->split.p, &b->t.s, b->t.first_head + h);
            for (int64_t r = 0; r < t.n;) {
                const struct same_rows same = rows_at(&t, r, j, keys);
                step_over_keys(b, &t, h, r, same, step);
                r += same.count;
            }
        }
    }
}

/* Sets the scores of a row's keys that the mask hides to -inf. */
static void hide_masked(float *s, const uint8_t *shown, int64_t keys) {
    for (int64_t j = 0; j < keys; ++j) s[j] = shown[j] ? s[j] : -INFINITY;
}

/* The online softmax of every row over the keys of the block that it sees. */
static void softmax_block(const struct block *b) {
    const struct split_kv *f = &b->f->split;
    for (int64_t h = 0; h < b->t.heads; ++h) {
        const struct tile_rows t = decode_rows(f->p, &b->t.s, b->t.first_head + h);
        for (int64_t r = 0; r < t.n; ++r) {
            const struct same_rows same = rows_at(&t, r, b->j0, b->keys);
            if (same.first >= same.end) continue;
            struct partial partial = partial_at(f, b->t.s.b * f->p->a.heads_kv + t.kv, b->t.split, r);
            float *s = b->c.s + (h * f->rows + r) * ROW_SCORES + same.first - b->j0;
            if (f->p->a.bool_mask) hide_masked(s, mask_of_row(&t, r, same.first), same.end - same.first);
            b->c.rescale[h * f->rows + r] = online_softmax(&partial, s, same.end - same.first, exponent_factor(f->p));
        }
    }
}

/* All rows of the task attend to its keys, block by block. */
static void attend(struct block *b) {
    const struct split_kv *f = &b->f->split;
    const struct split_task *t = &b->t;
    for (int64_t h = 0; h < t->heads; ++h) start_partials(f, t->s.b * f->p->a.heads_kv + t->first_head + h, t->split);
    for (b->j0 = t->first; b->j0 < t->end; b->j0 += b->most_keys) {
        b->keys = t->end - b->j0 < b->most_keys ? t->end - b->j0 : b->most_keys;
        if (t->s.pages) b->missing = find_keys(b->c.k_row, b, &f->p->a.k);
        if (t->s.pages) find_keys(b->c.v_row, b, &f->p->a.v);
        for_each_chunk(b, multiply_keys);
        softmax_block(b);
        for_each_chunk(b, b->leaves_out ? multiply_shown_values : multiply_values);
    }
}

static bool rows_of_task_are_finite(const struct block *b) {
    const struct split_kv *f = &b->f->split;
    bool finite = true;
    for (int64_t h = 0; h < b->t.heads; ++h)
        for (int64_t r = 0; r < f->rows; ++r) {
            const int64_t head = b->t.s.b * f->p->a.heads_kv + b->t.first_head + h;
            finite = finite && row_is_finite(partial_at(f, head, b->t.split, r).o, f->partial_floats - LANES);
        }
    return finite;
}

static void decode_task(void *context, int64_t index, int32_t worker) {
    const struct decode *f = context;
    struct block b = {.f = f, .t = split_task_at(&f->split, index)};
    if (b.t.heads == 0) return;
    const float_mode mode = enter_flush_to_zero();
    /* The block's size decides the order of sums. So it follows from the shape, and not from the heads of this task, whose
     * number follows from the number of threads. */
    const bool short_block = heads_side_by_side(&f->split.p->a, HEADS_A_TASK) > 1 || strobe__v_in_k(f->split.p);
    b.most_keys = short_block ? BLOCK_KEYS : MOST_KEYS; /* of V in K's columns: so that V is read from the cache */
    b.chunk = f->split.rows > 1 ? BLOCK_KEYS : b.most_keys;
    lay_out(&b.c, worker_memory(f->workspace, f->scratch_bytes, worker), f->split.p, f->split.heads_a_task);
    pack_queries(&b);
    attend(&b);
    if (f->split.p->a.bool_mask && !rows_of_task_are_finite(&b)) {
        b.leaves_out = true;
        attend(&b);
    }
    leave_flush_to_zero(mode);
}

size_t DECODE_KERNEL(decode_workspace)(const struct plan *plan) {
    const struct problem *p = plan->problem;
    struct scratch t;
    return (size_t)strobe__workers(p->a.parallel) * lay_out(&t, NULL, p, heads_side_by_side(&p->a, HEADS_A_TASK)) +
           partials_bytes(p);
}

strobe_status DECODE_KERNEL(decode)(const struct plan *plan, const struct execution *execution) {
    const struct problem *p = plan->problem;
    struct scratch t;
    struct decode f = {.split = split_kv_of(p, longest_sequence(p), HEADS_A_TASK), .workspace = execution->workspace};
    f.q_padded = padded_columns(p->a.dim);
    f.into_l2 = strobe__cpu_prefetches_into_l2();
    f.scratch_bytes = lay_out(&t, NULL, p, f.split.heads_a_task);
    f.split.partials = worker_memory(f.workspace, f.scratch_bytes, strobe__workers(p->a.parallel));
    run_splits(&f.split, decode_task, &f);
    return STROBE_OK;
}
