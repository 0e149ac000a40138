/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode.c (amx): split-KV decoding (Flash-Decoding, Dao et al., 2023) of up to 16 bf16 query rows that share a K/V head.
 * The rows are one tile, and K and V are multiplied as they lie in memory. cpu/decode/split_kv.h has the splits and their
 * merge.
 *
 *   for each block of BLOCK_KEYS keys, for each head of the task:
 *     S^T = K Q^T                              tiles    16 keys at a time: T0..T3 += (T4: K) (T6: Q^T)
 *     m' = max(m, S);  P^T = 2^(S^T c - m' c)  vectors  queries across the lanes; l, and O where m grew, are rescaled
 *     P^T transposed                           vectors  16 keys at a time, into two operands
 *     O += P V                                 tiles    T0..T3 += (T4, T5: P) (T6, T7: V), 16 keys x 64 columns at a time
 *
 * V is read without interleaving. A tile product wants pairs of neighbouring keys of one column, while a row of V holds
 * neighbouring columns of one key. Interleaving two rows would cost a load, a shuffle and a store a line, and tile loads
 * would wait for the stores. Instead a line of V counts as 16 pairs of columns, and P has a zero in every pair: the operand
 * (p, 0) gives the even columns of O, (0, p) the odd ones. Half of the products multiply zeros, for which the tile unit has
 * the time. With up to 8 rows both operands fit one tile, and no product is wasted.
 *
 * 0 * NaN is NaN. Where O is not finite at the end of a split, the split is computed again with every V that is not finite
 * left out of the product and added to the rows and columns that it belongs to.
 *
 * K and V are streamed past L1. Memory of a worker at d = 128: S 4 KiB, P 8 KiB; for each head Q 8 KiB, O 8 KiB.
 *
 * docs/kernels/cpu.md has the versions and what was tried, docs/benchmarks.md the figures. */
#include "cpu/amx/decode.h"
#include "cpu/amx/pack.h"
#include "cpu/decode/split_kv.h"
#include "cpu/scratch.h"
#include "cpu/table.h"
#include "cpu/vector/nonfinite.h"
#include "cpu/vector/visible.h"

enum { HALF_TILE_ROWS = TILE_SIDE / 2 };

struct decode {
    struct split_kv split;
    char *workspace;
    size_t scratch_bytes;
    int64_t k_padded, v_padded;
    bool half_tile;  /* half a tile holds all rows of a head */
    bool prefetches; /* K and V are too large for L2 */
};

/* The queries and sums of one head. */
struct head {
    uint16_t *q;  /* as pack_queries() leaves it; the second half is not used */
    float *o;     /* [16][v_padded], or [2][8][v_padded / 2] with half_tile: see columns_at() */
    float *m, *l; /* [16] */
};

/* One worker's memory. */
struct scratch {
    uint16_t *k;    /* [64 keys][k_padded] a block that cannot be read in place */
    float *s;       /* [64 keys][16 queries] */
    uint16_t *p;    /* [even columns, odd columns][4][16 queries][16 keys] pairs of an element of P and a zero */
    uint16_t *v;    /* [64 keys][v_padded] a block that cannot be read in place */
    uint16_t *rows; /* [64 keys][dim or dim_v] of keys in pages, side by side */
    struct head head[HEADS_A_TASK_ON_TILES];
};

/* The current block of keys. */
struct block {
    const struct decode *f;
    struct split_task t;
    int64_t j0, keys;
    bool checks_v; /* the split is computed again, and each block's V is searched for what is not finite */
    struct scratch c;
};

static size_t lay_out(struct scratch *c, float *base, const struct decode *f, int64_t heads) {
    size_t used = 0;
    c->k = (uint16_t *)take(base, &used, BLOCK_KEYS * f->k_padded / 2);
    c->s = take(base, &used, BLOCK_KEYS * TILE_SIDE);
    c->p = (uint16_t *)take(base, &used, 2 * KEY_TILES * TILE_ELEMENTS / 2);
    c->v = (uint16_t *)take(base, &used, BLOCK_KEYS * f->v_padded / 2);
    const int64_t columns = f->k_padded > f->v_padded ? f->k_padded : f->v_padded;
    c->rows = (uint16_t *)take(base, &used, f->split.p->a.paged ? BLOCK_KEYS * columns / 2 : 0);
    for (int64_t h = 0; h < heads; ++h) {
        c->head[h].q = (uint16_t *)take(base, &used, TILE_ROWS * f->k_padded / 2);
        c->head[h].o = take(base, &used, TILE_SIDE * f->v_padded);
        c->head[h].m = take(base, &used, TILE_SIDE);
        c->head[h].l = take(base, &used, TILE_SIDE);
    }
    return used * sizeof(float);
}

/* Sets the scores of keys that a row does not see, or that do not exist, to -inf; missing: those in no page. */
static void hide(const struct block *b, const struct tile_rows *t, float *s, uint64_t missing) {
    int32_t first[LANES] = {0}, end[LANES] = {0};
    uint32_t shown_keys[2][LANES]; /* by the boolean mask */
    memset(shown_keys, 0xff, sizeof shown_keys);
    for (int64_t r = 0; r < t->n; ++r) {
        const struct block_keys seen = keys_seen(&t->s.band, packed_row(t, r), b->j0, b->keys);
        first[r] = (int32_t)seen.first;
        end[r] = (int32_t)seen.end;
        if (!t->p->a.bool_mask) continue;
        const uint64_t shown = bits_of_bytes(mask_of_row(t, r, b->j0), b->keys);
        shown_keys[0][r] = (uint32_t)shown, shown_keys[1][r] = (uint32_t)(shown >> 32);
    }
    const __m512i firsts = _mm512_loadu_si512(first), ends = _mm512_loadu_si512(end);
    const __m512i words[2] = {_mm512_loadu_si512(shown_keys[0]), _mm512_loadu_si512(shown_keys[1])};
    for (int32_t j = 0; j < BLOCK_KEYS; ++j) {
        const __m512i key = _mm512_set1_epi32(j);
        const __mmask16 seen = _mm512_cmp_epi32_mask(key, firsts, _MM_CMPINT_NLT) &
                               _mm512_cmp_epi32_mask(key, ends, _MM_CMPINT_LT) &
                               _mm512_test_epi32_mask(words[j / 32], _mm512_set1_epi32((int32_t)(1u << j % 32)));
        const __mmask16 shown = missing >> j & 1 ? 0 : seen;
        v_store(s + j * LANES, _mm512_mask_blend_ps(shown, v_set(-INFINITY), v_load(s + j * LANES)));
    }
}

/* Stores P of 16 keys, [16 queries][16 keys] bf16 in the upper halves of words, as the two operands of values(). */
static inline void store_p(uint16_t *p, const __m512i words[TILE_SIDE], bool half_tile) {
    uint16_t *of_odd = half_tile ? p + HALF_TILE_ROWS * TILE_DEPTH : p + KEY_TILES * TILE_ELEMENTS;
    for (int64_t i = 0; i < (half_tile ? HALF_TILE_ROWS : TILE_SIDE); ++i) {
        _mm512_store_si512(p + i * TILE_DEPTH, _mm512_srli_epi32(words[i], 16));
        _mm512_store_si512(of_odd + i * TILE_DEPTH, _mm512_and_si512(words[i], _mm512_set1_epi32(-0x10000)));
    }
}

/* The online softmax of a block of scores: P, rounded to bf16, goes to p, and m and l are updated. Where m grows, l and O
 * are rescaled. l sums P before it is rounded. */
static void online_softmax(struct head *h, const float *s, uint16_t *p, float factor, int64_t padded, bool half_tile,
                           const struct prefetch *prefetch) {
    const vec c = v_set(factor), none = v_set(-INFINITY), before = v_load(h->m);
    vec high[4] = {before, before, before, before}, sum[2] = {v_set(0), v_set(0)};
    for (int64_t j = 0; j < BLOCK_KEYS; j += 4)
        for (int64_t i = 0; i < 4; ++i) high[i] = v_max(v_load(s + (j + i) * LANES), high[i]);
    const vec m = v_max(v_max(high[0], high[1]), v_max(high[2], high[3]));
    const vec shift = v_select_equal(m, none, v_set(0), m); /* subtracted first: lse loses nothing */
    for (int64_t tile = 0; tile < KEY_TILES; ++tile, p += TILE_ELEMENTS) {
        prefetch_rows(prefetch, SLOT_EXPONENTIALS, tile * TILE_SIDE / KEY_TILES, (tile + 1) * TILE_SIDE / KEY_TILES);
        __m512i words[TILE_SIDE];
        for (int64_t i = 0; i < TILE_SIDE; ++i, s += LANES) {
            const vec p_ij = v_exp2(v_mul(v_sub(v_load(s), shift), c));
            sum[i % 2] = v_add(sum[i % 2], p_ij);
            words[i] = _mm512_add_epi32(_mm512_castps_si512(p_ij), _mm512_set1_epi32(0x8000)); /* to nearest */
        }
        v_transpose(words);
        store_p(p, words, half_tile);
    }
    const vec rescale = v_select_equal(m, before, v_set(1), v_exp2(v_mul(v_sub(before, shift), c)));
    v_store(h->m, m);
    v_store(h->l, v_fma(v_load(h->l), rescale, v_add(sum[0], sum[1])));
    if (_mm512_cmp_ps_mask(m, before, _CMP_EQ_OQ) == 0xffff) return;
    float factors[LANES];
    v_store(factors, rescale);
    const int64_t width = half_tile ? padded / 2 : padded;
    for (int64_t r = 0; r < TILE_SIDE; ++r)
        for (int64_t x = 0; x < width; x += LANES) {
            float *o = h->o + r * width + x;
            v_store(o, v_mul(v_load(o), v_set(factors[half_tile ? r % HALF_TILE_ROWS : r])));
        }
}

/* Where the 16 even (odd = 0) or odd columns of row r lie in O, of the 32 columns from x on. */
static int64_t columns_at(const struct decode *f, int64_t r, int64_t x, int64_t odd) {
    return f->half_tile ? (odd * HALF_TILE_ROWS + r) * (f->v_padded / 2) + x / 2 : r * f->v_padded + x + odd * TILE_SIDE;
}

/* O += P V for the keys that were left out of V because they are not finite, in rows where their P is not 0. */
static void add_nonfinite_keys(const struct block *b, struct head *h, const struct tile_rows *t, const uint16_t *v,
                               int64_t stride, uint64_t v_nonfinite) {
    for (int64_t j = 0; v_nonfinite; ++j, v_nonfinite >>= 1, v += stride)
        for (int64_t r = 0; r < t->n && v_nonfinite & 1; ++r) {
            const uint16_t *p = b->c.p + j / TILE_SIDE * TILE_ELEMENTS + r * TILE_DEPTH + j % TILE_SIDE * 2;
            const float p_ij = bf16_to_float(*p);
            for (int64_t x = 0; x < b->f->split.p->a.dim_v && p_ij != 0; ++x) {
                const int64_t group = x - x % TILE_DEPTH;
                h->o[columns_at(b->f, r, group, x % 2) + x % TILE_DEPTH / 2] += p_ij * bf16_to_float(v[x]);
            }
        }
}

/* One head attends to the current block of keys. */
static void attend_block(const struct block *b, struct head *h, int64_t kv) {
    const struct decode *f = b->f;
    const strobe_attention *a = &f->split.p->a;
    const struct tile_rows t = decode_rows(f->split.p, &b->t.s, kv);
    const enum coverage coverage = tile_covers(&t, b->j0, b->j0 + b->keys);
    if (coverage == BLOCK_SKIPPED) return;
    int64_t k_stride, v_stride;
    const uint16_t *k = rows_together(b->c.rows, &a->k, &b->t.s, kv, b->j0, b->keys, a->dim, &k_stride);
    const uint64_t missing = strobe__keys_missing(&b->t.s, b->j0, b->keys);
    const bool some_hidden = coverage != BLOCK_FULL || b->keys < BLOCK_KEYS || missing;
    const bool k_in_place = b->keys == BLOCK_KEYS && f->k_padded == a->dim;
    if (!k_in_place) pack_keys(b->c.k, k, k_stride, b->keys, a->dim, f->k_padded);
    struct prefetch prefetch = {.bytes = 0};
    if (f->prefetches && strobe__keys_in_place(&b->t.s, b->j0, b->keys))
        prefetch = plan_prefetch(a, k, (const uint16_t *)a->v.data + strobe__key_offset(&a->v, &b->t.s, b->j0, kv),
                                 h - b->c.head, b->t.heads);
    tile_barrier();
    scores(b->c.s, k_in_place ? k : b->c.k, k_in_place ? k_stride : f->k_padded, h->q, f->k_padded, &prefetch);
    tile_barrier();
    if (some_hidden || a->bool_mask) hide(b, &t, b->c.s, missing);
    online_softmax(h, b->c.s, b->c.p, exponent_factor(f->split.p), f->v_padded, f->half_tile, &prefetch);
    const uint16_t *v = rows_together(b->c.rows, &a->v, &b->t.s, kv, b->j0, b->keys, a->dim_v, &v_stride);
    const uint64_t v_nonfinite = some_hidden || b->checks_v ? keys_not_finite(v, v_stride, b->keys, a->dim_v) : 0;
    const bool v_in_place = b->keys == BLOCK_KEYS && f->v_padded == a->dim_v && !v_nonfinite;
    if (!v_in_place) pack_keys(b->c.v, v, v_stride, b->keys, a->dim_v, f->v_padded);
    for (int64_t j = 0; j < BLOCK_KEYS; ++j)
        if (v_nonfinite >> j & 1) memset(b->c.v + j * f->v_padded, 0, (size_t)f->v_padded * sizeof *v);
    tile_barrier();
    (f->half_tile ? values_half_tile : values)(h->o, f->v_padded, b->c.p, v_in_place ? v : b->c.v,
                                               v_in_place ? v_stride : f->v_padded, &prefetch);
    tile_barrier();
    if (v_nonfinite) add_nonfinite_keys(b, h, &t, v, v_stride, v_nonfinite);
}

static void start_head(const struct decode *f, struct head *h, const struct tile_rows *t) {
    const strobe_attention *a = &f->split.p->a;
    pack_queries(h->q, t, &a->q, a->dim, a->scale < 0);
    memset(h->o, 0, (size_t)(TILE_SIDE * f->v_padded) * sizeof *h->o);
    for (int r = 0; r < TILE_SIDE; ++r) {
        h->m[r] = -INFINITY;
        h->l[r] = 0;
    }
}

/* Writes the partial result of a head's rows. */
static void finish_head(const struct decode *f, const struct head *h, const struct split_task *t, int64_t kv) {
    const int64_t dim = f->split.p->a.dim_v;
    for (int64_t r = 0; r < f->split.rows; ++r) {
        const struct partial partial = partial_at(&f->split, t->s.b * f->split.p->a.heads_kv + kv, t->split, r);
        *partial.m = h->m[r];
        *partial.l = h->l[r];
        float lanes[256], row[256];
        float *to = dim == f->v_padded ? partial.o : lanes;
        for (int64_t x = 0; x < f->v_padded; x += TILE_DEPTH)
            for (int64_t odd = 0; odd < 2; ++odd)
                memcpy(to + x + odd * TILE_SIDE, h->o + columns_at(f, r, x, odd), TILE_SIDE * sizeof *to);
        if (dim == f->v_padded) continue;
        from_lane_order(row, lanes, STROBE_BF16, f->v_padded, 1); /* in a partial the last pair overlaps the one before */
        to_lane_order(partial.o, row, STROBE_BF16, dim, 1);
    }
}

/* Heads [first, end) of the task attend to the keys of its split, block by block. */
static void attend_split(struct block *b, int64_t first, int64_t end, bool checks_v) {
    const struct split_task *t = &b->t;
    b->checks_v = checks_v;
    for (int64_t h = first; h < end; ++h) {
        const struct tile_rows rows = decode_rows(b->f->split.p, &t->s, t->first_head + h);
        start_head(b->f, &b->c.head[h], &rows);
    }
    for (b->j0 = t->first; b->j0 < t->end; b->j0 += BLOCK_KEYS) {
        b->keys = t->end - b->j0 < BLOCK_KEYS ? t->end - b->j0 : BLOCK_KEYS;
        for (int64_t h = first; h < end; ++h) attend_block(b, &b->c.head[h], t->first_head + h);
    }
}

static void decode_task(void *context, int64_t index, int32_t worker) {
    const struct decode *f = context;
    struct block b = {.f = f, .t = split_task_at(&f->split, index)};
    if (b.t.heads == 0) return;
    const float_mode mode = enter_flush_to_zero();
    tiles_enter();
    lay_out(&b.c, worker_memory(f->workspace, f->scratch_bytes, worker), f, f->split.heads_a_task);
    attend_split(&b, 0, b.t.heads, false);
    for (int64_t h = 0; h < b.t.heads; ++h) {
        if (!row_is_finite(b.c.head[h].o, (f->half_tile ? HALF_TILE_ROWS : TILE_SIDE) * f->v_padded))
            attend_split(&b, h, h + 1, true);
        finish_head(f, &b.c.head[h], &b.t, b.t.first_head + h);
    }
    tiles_leave();
    leave_flush_to_zero(mode);
}

static struct decode decode_of(const struct problem *p, int64_t longest) {
    return (struct decode){.split = split_kv_of(p, longest, HEADS_A_TASK_ON_TILES),
                           .prefetches = worth_prefetching(&p->a, longest),
                           .half_tile = p->a.seq_q * p->group <= HALF_TILE_ROWS,
                           .k_padded = up_to(p->a.dim, TILE_DEPTH),
                           .v_padded = up_to(p->a.dim_v, TILE_DEPTH)};
}

size_t LEVEL_KERNEL(decode_workspace)(const struct plan *plan) {
    const struct problem *p = plan->problem;
    struct scratch c;
    const struct decode f = decode_of(p, p->a.seq_k);
    return (size_t)strobe__workers(p->a.parallel) * lay_out(&c, NULL, &f, heads_side_by_side(&p->a, HEADS_A_TASK_ON_TILES)) +
           partials_bytes(p);
}

strobe_status LEVEL_KERNEL(decode)(const struct plan *plan, const struct execution *execution) {
    const struct problem *p = plan->problem;
    struct scratch c;
    struct decode f = decode_of(p, longest_sequence(p));
    f.workspace = execution->workspace;
    f.scratch_bytes = lay_out(&c, NULL, &f, f.split.heads_a_task);
    f.split.partials = worker_memory(f.workspace, f.scratch_bytes, strobe__workers(p->a.parallel));
    run_splits(&f.split, decode_task, &f);
    return STROBE_OK;
}
