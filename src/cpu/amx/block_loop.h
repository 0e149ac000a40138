/* SPDX-License-Identifier: BSD-3-Clause
 *
 * block_loop.h: the loop over blocks of the AMX backward, for a block of query rows and the keys of a super-block. Rows are
 * cut into tiles of 32, keys into strips of 32. The loop takes one block pair, a tile and a strip, after another through a
 * software pipeline of three stages: S^T and dP^T of a pair (tile products), P and dS of the pair before it (vectors), and
 * dV and dK of the strip before it (tile products, between which the vector work is done).
 *
 *     time ->     step n                              step n + 1
 *     tiles       dV, dK (strip - 1)  S, dP (n)       dV, dK (strip - 1)  S, dP (n + 1)      at the end of a batch of
 *     vectors     P, dS (n - 1)                       P, dS (n)                              strips: dQ, tile by tile
 *
 * In bf16, vector work that dV and dK leave over is done under S. S^T and dP^T have one buffer, 8 KiB that stay in L1: P and
 * dS of a pair are computed before the next S^T is stored there. In parts vector work is paced over all products of a step,
 * dP too, since it would fill a part of them and leave the others none: so S^T and dP^T have two buffers. dQ, for which no
 * vector work is left, covers the packing of the next block of rows in parts. P^T and dS^T have two buffers of a strip each,
 * and dS^T as pairs of keys has one for a whole batch of strips, so that dQ, 8 KiB a tile at dim 64, is loaded and stored
 * once in 256 keys. */
#ifndef STROBE_CPU_AMX_BLOCK_LOOP_H
#define STROBE_CPU_AMX_BLOCK_LOOP_H

#include <float.h>

#include "cpu/amx/backward.h"

/* A strip of keys from j0 on, and the tiles [begin, end) that see some of it. */
struct strip {
    int64_t j0, begin, end;
    uint32_t seen; /* one bit a tile: some of its rows sees some key of the strip; tile begin's is set */
    uint32_t full; /* one bit a tile: each of its rows sees each key of the strip */
};

/* A strip and a tile; `buffer` is the one of two that takes the pair's P^T and dS^T, `scores` the one of its S^T and dP^T.
 */
struct block_pair {
    const struct strip *strip;
    int64_t tile, buffer, scores;
};

/* The products for dV and dK of a strip, in groups of 32 columns, of which `next` is the next one. */
struct dkdv {
    const struct strip *strip;
    int64_t buffer, next, groups;
};

/* The state of the loop. */
struct block_loop {
    const struct backward *f;
    const struct scratch *c;
    struct row_block *rows;
    const struct keys *k;
    float factor;                      /* of S in the exponent: exponent_factor(), in parts score_scale() */
    struct strip strips[BATCH_STRIPS]; /* the batch */
    int64_t count;                     /* of its strips */
    bool last;                         /* it is the last one of the block of rows */
    struct tiles_2x2 pending;          /* where the sums in T0 to T3 are still to be stored */
    struct packing packing;            /* of the next block of rows, to be done under dQ of the last batch */
};

static struct gradient_operands operands_of(const struct block_loop *loop, const struct strip *strip, int64_t tile,
                                            int64_t buffer) {
    const struct scratch *c = loop->c;
    const int64_t at = (buffer * BLOCK_TILES + tile) * OPERAND_WORDS, n = strip - loop->strips;
    return (struct gradient_operands){c->p + at, c->ds + at, c->pairs + (n * BLOCK_TILES + tile) * OPERAND_WORDS};
}

/* S^T and dP^T of a pair. */
static inline struct block block_of(const struct block_loop *loop, const struct block_pair *pair) {
    struct block block = loop->c->block;
    block.p += pair->scores * PAIR_FLOATS;
    block.ds += pair->scores * PAIR_FLOATS;
    return block;
}

static inline bool sees(const struct strip *strip, int64_t tile) { return strip->seen >> tile & 1; }

/* What a tile sees of the keys [j0, j1) of a strip. The band alone is asked first, which takes no more than comparisons. */
static enum coverage see_strip(const struct block_loop *loop, const struct strip *strip, int64_t tile, int64_t j1) {
    const struct visible *band = &loop->rows->visible[tile];
    const struct tile_rows *t = &loop->rows->tile[tile];
    struct visible_block *v = &loop->c->visible[(strip - loop->strips) * BLOCK_TILES + tile];
    if (j1 <= band->first || strip->j0 >= band->end) return BLOCK_SKIPPED;
    const bool full = j1 - strip->j0 == STRIP_KEYS && strip->j0 >= band->all_first && j1 <= band->all_end;
    if (full && !loop->f->has_features) return BLOCK_FULL; /* without features nobody asks for more */
    see_block(v, t, &loop->rows->features[tile], strip->j0, j1 - strip->j0);
    return v->coverage;
}

/* Finds the tiles that see some of the strip, and packs what is not packed yet. Returns whether there are any, else the
 * strip is skipped. */
static bool find_tiles(const struct block_loop *loop, struct strip *strip) {
    const struct scratch *c = loop->c;
    struct row_block *rows = loop->rows;
    const int64_t left = loop->k->s.keys - strip->j0, keys = left < STRIP_KEYS ? left : STRIP_KEYS;
    const int64_t block = (strip->j0 - loop->k->first) / BLOCK_KEYS;
    strip->begin = strip->end = 0;
    strip->seen = strip->full = 0;
    for (int64_t n = 0; n < rows->tiles; ++n) {
        const enum coverage coverage = see_strip(loop, strip, n, strip->j0 + keys);
        if (coverage == BLOCK_SKIPPED) continue;
        if (strip->end == 0) strip->begin = n;
        strip->end = n + 1;
        strip->seen |= 1u << n;
        if (coverage == BLOCK_FULL && keys == STRIP_KEYS) strip->full |= 1u << n;
        if (!rows->packed[n]) pack_tile(loop->f, c, rows, n);
    }
    if (strip->seen && !c->packed[block]) pack_block(loop->f, c, loop->k, loop->k->first + block * BLOCK_KEYS);
    return strip->seen != 0;
}

/* The vector work of a pair: P and dS from S and dP. */
ALWAYS_INLINE struct softmax_gradients softmax_gradients_of(const struct block_loop *loop, const struct block_pair *pair) {
    const struct tile_rows *t = &loop->rows->tile[pair->tile];
    const struct row_statistics of_rows = statistics_of(&loop->f->tasks, &t->s, t->kv, loop->rows->first + pair->tile);
    struct softmax_gradients work;
    const struct block block = block_of(loop, pair);
    work.s = block.p;
    work.dp = block.ds;
    work.slope = work.z = work.minus_delta = NULL;
    work.ds_sums = loop->f->tasks.ds_sums ? loop->c->ds_sums + pair->tile * 2 * TILE_ROWS : NULL;
    work.left = STRIP_KEYS / 2;
    work.due = work.pace = 0;
    work.hidden = false;
    work.to = operands_of(loop, pair->strip, pair->tile, pair->buffer);
    work.factor = v_set(loop->factor);
    for (int i = 0; i < VECTORS; ++i) {
        const vec shift = v_mul(v_load(of_rows.minus_lse + i * LANES), v_set(PARTS == 1 ? (float)LOG2_E : 1));
        work.shift[i] = v_min(v_set(FLT_MAX), shift); /* infinite under a bias of finfo.min alone: then P is 0, and no NaN */
        work.sum[i] = work.weights[i] = v_set(0);
        work.rows[i] = lanes_first(t->n - i * LANES);
    }
    return work;
}

/* Whether a pair is plain: without a feature, and every row sees every key. Its S needs nothing before the exponential. */
static inline bool is_plain(const struct block_loop *loop, const struct block_pair *pair) {
    return !loop->f->has_features && pair->strip->full >> pair->tile & 1;
}

static const struct visible_block all_vectors = {.coverage = BLOCK_PARTIAL, .first = 0, .end = VECTORS};

/* P and dS of a pair where dbias is wanted, which is the sum of dS, or a function's slope: all at once. */
static void finish_with_dbias(const struct block_loop *loop, const struct block_pair *pair, struct softmax_gradients *work,
                              int64_t keys, bool hidden) {
    const struct backward *f = loop->f;
    const struct tile_rows *t = &loop->rows->tile[pair->tile];
    const struct row_statistics of_rows = statistics_of(&f->tasks, &t->s, t->kv, loop->rows->first + pair->tile);
    struct block block = block_of(loop, pair);
    block.row_sums = work->ds_sums;
    gradients_of_block(&f->tasks.sums, &block, t, &loop->rows->features[pair->tile], &of_rows, &f->tasks.place, &all_vectors,
                       pair->strip->j0, keys, hidden);
    for (int64_t at = keys * TILE_ROWS; at < PAIR_FLOATS; at += LANES) v_store(block.p + at, v_set(-INFINITY));
    while (work->left > 0) softmax_gradients_variant(work, HIDDEN_WORK, true);
}

/* What is needed of softcap and dropout when P and dS are computed. */
static void start_ds_features(const struct block_loop *loop, const struct block_pair *pair, struct softmax_gradients *work,
                              int64_t keys) {
    const struct backward *f = loop->f;
    const struct tile_rows *t = &loop->rows->tile[pair->tile];
    const struct row_statistics of_rows = statistics_of(&f->tasks, &t->s, t->kv, loop->rows->first + pair->tile);
    if (f->p->a.softcap > 0) work->slope = loop->c->block.slope;
    if (f->p->a.dropout) {
        work->z = loop->c->block.z;
        work->minus_delta = of_rows.minus_delta;
        dropout_factors(loop->c->block.z, &loop->rows->features[pair->tile], &all_vectors, &f->tasks.place, pair->strip->j0,
                        keys);
    }
    work->hidden = work->hidden || work->slope || work->z;
}

/* Finishes the scores of a pair that is not plain: features and mask. */
static void finish_pair_scores(struct block_loop *loop, const struct block_pair *pair, struct softmax_gradients *work) {
    const struct backward *f = loop->f;
    const struct tile_rows *t = &loop->rows->tile[pair->tile];
    const struct row_features *features = &loop->rows->features[pair->tile];
    const struct visible_block *v = &loop->c->visible[(pair->strip - loop->strips) * BLOCK_TILES + pair->tile];
    const struct block block = block_of(loop, pair);
    const int64_t j0 = pair->strip->j0, left = t->s.keys - j0, keys = left < STRIP_KEYS ? left : STRIP_KEYS;
    store_pending(&loop->pending);
    tile_barrier();
    const bool hidden = finish_block_scores(block.p, block.slope, t, features, v, j0, keys,
                                            f->has_terms ? (float)f->p->a.scale : 1);
    if (v->coverage == BLOCK_PARTIAL && v->end - v->first < VECTORS) /* one vector of rows sees nothing */
        for (int64_t at = v->first > 0 ? 0 : v->end * LANES; at < keys * TILE_ROWS; at += TILE_ROWS)
            v_store(block.p + at, v_set(-INFINITY));
    for (int64_t at = keys * TILE_ROWS; at < PAIR_FLOATS; at += LANES) v_store(block.p + at, v_set(-INFINITY));
    work->hidden = hidden || keys < STRIP_KEYS;
    if (f->p->g.dbias || f->p->features & FEATURE(SCORE))
        finish_with_dbias(loop, pair, work, keys, work->hidden);
    else
        start_ds_features(loop, pair, work, keys);
}

/* The exponents of a pair where some_lse_is_far(), by taking S scale - lse first, which is exact near the row's maximum. A
 * hidden score stays -inf, which says that it is hidden, also beside an lse that is a NaN. */
static void take_differences(struct block_loop *loop, float *s, const struct row_statistics *rows,
                             struct softmax_gradients *work) {
    const vec scale = v_set(score_scale(loop->f->p)), most = v_set(FLT_MAX), hidden = v_set(-INFINITY);
    store_pending(&loop->pending);
    tile_barrier();
    for (int n = 0; n < VECTORS; ++n) {
        const vec minus_lse = v_min(most, v_load(rows->minus_lse + n * LANES));
        for (int64_t at = n * LANES; at < PAIR_FLOATS; at += TILE_ROWS) {
            const vec score = v_load(s + at);
            v_store(s + at, v_select_equal(score, hidden, hidden, v_fma(score, scale, minus_lse)));
        }
        work->shift[n] = v_set(0);
    }
    work->factor = v_set((float)LOG2_E);
}

/* Starts the vector work of a pair, which is left for the tile products to cover. Scores that need more than the exponential
 * are finished here at once. */
ALWAYS_INLINE struct softmax_gradients start_softmax_gradients(struct block_loop *loop, const struct block_pair *pair) {
    struct softmax_gradients work = softmax_gradients_of(loop, pair);
    if (!is_plain(loop, pair)) finish_pair_scores(loop, pair, &work);
    if (PARTS > 1 || work.left == 0) return work;
    const struct tile_rows *t = &loop->rows->tile[pair->tile];
    const struct row_statistics of_rows = statistics_of(&loop->f->tasks, &t->s, t->kv, loop->rows->first + pair->tile);
    if (some_lse_is_far(&of_rows)) take_differences(loop, block_of(loop, pair).p, &of_rows, &work);
    return work;
}

/* The next group of 32 columns of dV or dK, with vector work between its products. */
ALWAYS_INLINE void dkdv_step(struct block_loop *loop, struct dkdv *dkdv, struct softmax_gradients *work, enum care care) {
    const struct backward *f = loop->f;
    const struct scratch *c = loop->c;
    const int64_t k = f->k_padded, v = f->v_padded, begin = dkdv->strip->begin, depth = dkdv->strip->end - begin;
    const int64_t at = dkdv->strip->j0 - loop->k->first, v_groups = v / TILE_DEPTH, n = dkdv->next++;
    const struct gradient_operands operands = operands_of(loop, dkdv->strip, begin, dkdv->buffer);
    const bool summed = c->summed[at / STRIP_KEYS];
    const uint32_t seen = dkdv->strip->seen >> begin;
    if (n < v_groups)
        product_dkdv(&loop->pending, c->dv + at * v, operands.p, c->dout_pairs + begin * TILE_ROWS * v * PARTS, n, v_groups,
                     depth, seen, summed, work, care);
    else
        product_dkdv(&loop->pending, c->dk + at * k, operands.ds, c->q_pairs + begin * TILE_ROWS * k * PARTS, n - v_groups,
                     k / TILE_DEPTH, depth, seen, summed, work, care);
    if (dkdv->next == dkdv->groups) c->summed[at / STRIP_KEYS] = true;
}

/* One step of the pipeline: groups of dV and dK of the strip before up to `until`, then S^T and dP^T of the pair. `from` is
 * the vector work of the pair before. */
ALWAYS_INLINE void pair_step(struct block_loop *loop, const struct block_pair *pair, struct dkdv *dkdv, int64_t until,
                             const struct softmax_gradients *from, enum care care) {
    struct softmax_gradients work = *from, none = {.left = 0};
    const struct backward *f = loop->f;
    const struct scratch *c = loop->c;
    const int64_t k = f->k_padded, v = f->v_padded, at = pair->strip->j0 - loop->k->first;
    const int64_t key = at * PARTS, row = pair->tile * TILE_ROWS * PARTS;
    float *minus_delta = statistics_of(&f->tasks, &loop->k->s, loop->k->kv, loop->rows->first + pair->tile).minus_delta;
    const struct block block = block_of(loop, pair);
    const int64_t dkdv_steps = dkdv->next < until ? __builtin_popcount(dkdv->strip->seen) * (until - dkdv->next) : 0;
    if (PARTS > 1) spread_over(&work, work.left, dkdv_steps * (PRODUCTS - SCORE_PRODUCTS) + (k + v) / TILE_DEPTH * PRODUCTS);
    tile_barrier();
    while (dkdv->next < until) dkdv_step(loop, dkdv, &work, care);
    product_scores(&loop->pending, block.p, NULL, c->k + key * k, c->q + row * k, k / TILE_DEPTH, &work, care);
    product_scores(&loop->pending, block.ds, f->delta_last ? NULL : minus_delta, c->v + key * v, c->dout + row * v,
                   v / TILE_DEPTH, PARTS == 1 ? &none : &work, care);
    if (care & SUMMED_WORK && work.ds_sums) store_sums(&work);
    tile_barrier();
}

/* The step in further copies, so that plain work meets no branch and no instruction of the others. */
static __attribute__((noinline)) void pair_step_hidden(struct block_loop *loop, const struct block_pair *pair,
                                                       struct dkdv *dkdv, int64_t until,
                                                       const struct softmax_gradients *from) {
    pair_step(loop, pair, dkdv, until, from, HIDDEN_WORK);
}

static __attribute__((noinline)) void pair_step_hidden_summed(struct block_loop *loop, const struct block_pair *pair,
                                                              struct dkdv *dkdv, int64_t until,
                                                              const struct softmax_gradients *from) {
    pair_step(loop, pair, dkdv, until, from, HIDDEN_WORK + SUMMED_WORK);
}

static __attribute__((noinline)) void pair_step_summed(struct block_loop *loop, const struct block_pair *pair,
                                                       struct dkdv *dkdv, int64_t until,
                                                       const struct softmax_gradients *from) {
    pair_step(loop, pair, dkdv, until, from, SUMMED_WORK);
}

/* Starts dV and dK of the next strip, of which `last` is the last pair and P and dS are complete. Before that it does the
 * products that are left of the strip before; without `last` it only does these. Rows and keys of the next strip that are
 * not finite are added to its dV and dK and to dQ. */
static void next_dkdv(struct block_loop *loop, struct dkdv *dkdv, const struct block_pair *last) {
    const struct backward *f = loop->f;
    const strobe_attention *a = &f->p->a;
    struct softmax_gradients none = {.left = 0};
    while (dkdv->next < dkdv->groups) dkdv_step(loop, dkdv, &none, PLAIN_WORK);
    if (!last) return;
    *dkdv = (struct dkdv){.strip = last->strip, .buffer = last->buffer, .groups = (f->k_padded + f->v_padded) / TILE_DEPTH};
    if (!f->some_hidden) return;
    tile_barrier();
    const int64_t at = last->strip->j0 - loop->k->first;
    for (int64_t n = last->strip->begin; n < last->strip->end; ++n) {
        if (!sees(last->strip, n)) continue;
        const struct gradient_operands operands = operands_of(loop, last->strip, n, last->buffer);
        const struct tile_rows *t = &loop->rows->tile[n];
        const uint32_t nonfinite = (uint32_t)(loop->c->k_nonfinite[at / BLOCK_KEYS] >> at % BLOCK_KEYS);
        if (nonfinite)
            add_nonfinite_keys(f, dq_of_tile(&f->tasks, &loop->k->dq, loop->rows->first + n), t, operands.ds,
                               last->strip->j0, nonfinite);
        if (loop->rows->dout_nonfinite[n] | loop->rows->q_nonfinite[n]) start_sums(f, loop->c, at);
        add_nonfinite_rows(loop->c->dv + at * f->v_padded, t, operands.p, &f->p->g.dout, loop->rows->dout_nonfinite[n],
                           a->dim_v, f->v_padded);
        add_nonfinite_rows(loop->c->dk + at * f->k_padded, t, operands.ds, &a->q, loop->rows->q_nonfinite[n], a->dim,
                           f->k_padded);
    }
    tile_barrier();
}

/* Adds the sums of dS and P of the batch to those of the tile, or, where it has none yet, writes them. */
static void add_ds_sums(const struct block_loop *loop, int64_t tile, float *dq, bool summed) {
    const float *from = loop->c->ds_sums + tile * 2 * TILE_ROWS;
    float *to = dq + loop->f->tasks.ds_sums;
    for (int64_t at = 0; at < 2 * TILE_ROWS; at += LANES)
        v_store(to + at, summed ? v_add(v_load(to + at), v_load(from + at)) : v_load(from + at));
}

/* dQ^T += K^T dS^T of a tile, over the strips of the batch that it sees. `work` packs. */
static void product_dq(struct block_loop *loop, int64_t tile, struct softmax_gradients *work) {
    const int64_t padded = loop->f->k_padded;
    const struct strip *first = loop->strips, *end = loop->strips + loop->count;
    while (first < end && !sees(first, tile)) ++first;
    if (first == end) return;
    const int64_t of_head = loop->rows->first + tile;
    const bool summed = loop->k->dq.summed[of_head];
    float *dq = loop->k->dq.dq + of_head * loop->f->tasks.dq_tile;
    if (loop->f->tasks.ds_sums) add_ds_sums(loop, tile, dq, summed);
    for (int64_t x = 0; x < padded; x += TILE_DEPTH) {
        const struct tiles_2x2 c = {dq + x * TILE_ROWS, LANES, TILE_SIDE * TILE_ROWS, TILE_ROWS * sizeof *dq};
        struct tile_rotation rotation = {&loop->pending, summed ? &c : NULL};
        for (const struct strip *s = first; s < end; ++s, rotation.pending = NULL) {
            if (!sees(s, tile)) continue;
            const int64_t at = s->j0 - loop->k->first, n = s - loop->strips;
            const uint16_t *k = loop->c->k_columns + at / BLOCK_KEYS * BLOCK_KEYS * padded * PARTS +
                                (x * BLOCK_KEYS + at % BLOCK_KEYS * TILE_DEPTH) * PARTS;
            const uint16_t *pairs = (const uint16_t *)(loop->c->pairs + (n * BLOCK_TILES + tile) * OPERAND_WORDS);
            if (rotation.pending)
                multiply_parts(k, pairs, SCORE_PRODUCTS, STREAM_A, &rotation, work, no_work, PACKING_WORK);
            else
                multiply_parts(k, pairs, SCORE_PRODUCTS, STREAM_A, NULL, work, no_work, PACKING_WORK);
        }
        loop->pending = c;
    }
    loop->k->dq.summed[of_head] = true;
}

/* dQ of all tiles, and packing of the next block of rows, if that is wanted. */
static void product_dq_of_tiles(struct block_loop *loop) {
    const struct backward *f = loop->f;
    struct softmax_gradients work = {.left = 0, .packing = &loop->packing};
    if (loop->last && loop->packing.rows) {
        const int64_t chunks = (f->k_padded + f->v_padded) / TILE_DEPTH, products_a_strip = PRODUCTS - SCORE_PRODUCTS;
        int64_t pairs = 0;
        for (int64_t n = 0; n < loop->count; ++n) pairs += __builtin_popcount(loop->strips[n].seen);
        spread_over(&work, loop->packing.rows->tiles * chunks * ROW_STEPS,
                    pairs * f->k_padded / TILE_DEPTH * products_a_strip);
    }
    for (int64_t tile = 0; tile < loop->rows->tiles; ++tile) product_dq(loop, tile, &work);
}

/* The pipeline over a batch of strips, pair after pair, and then dQ of each tile. */
static void loop_over_batch(struct block_loop *loop) {
    struct block_pair before = {.strip = NULL};
    struct dkdv dkdv = {.strip = NULL};
    int64_t buffer = 0, scores = 0;
    if (loop->f->tasks.ds_sums) memset(loop->c->ds_sums, 0, BLOCK_TILES * 2 * TILE_ROWS * sizeof *loop->c->ds_sums);
    for (int64_t n = 0; n < loop->count; ++n) {
        const struct strip *s = &loop->strips[n];
        const int64_t last = __builtin_popcount(s->seen) - 1; /* of its pairs */
        int64_t done = 0;
        for (int64_t tile = s->begin; tile < s->end; ++tile) {
            if (!sees(s, tile)) continue;
            const struct block_pair pair = {.strip = s, .tile = tile, .buffer = buffer, .scores = scores};
            scores ^= PARTS > 1;
            struct softmax_gradients work = {.left = 0, .ds_sums = NULL};
            if (before.strip) work = start_softmax_gradients(loop, &before);
            const int64_t until = done == 0 ? 0 : dkdv.groups * done / last;
            if (loop->f->tasks.ds_sums && (PARTS > 1 || work.hidden))
                pair_step_hidden_summed(loop, &pair, &dkdv, until, &work);
            else if (loop->f->tasks.ds_sums)
                pair_step_summed(loop, &pair, &dkdv, until, &work);
            else if (work.hidden)
                pair_step_hidden(loop, &pair, &dkdv, until, &work);
            else
                pair_step(loop, &pair, &dkdv, until, &work, PLAIN_WORK);
            if (before.strip && before.strip != s) next_dkdv(loop, &dkdv, &before);
            before = pair;
            ++done;
        }
        buffer ^= 1;
    }
    if (!before.strip) return;
    struct softmax_gradients work = start_softmax_gradients(loop, &before);
    store_pending(&loop->pending);
    if (work.ds_sums) {
        finish_softmax_gradients(&work, HIDDEN_WORK + SUMMED_WORK);
        store_sums(&work);
    } else {
        finish_softmax_gradients(&work, HIDDEN_WORK);
    }
    tile_barrier();
    next_dkdv(loop, &dkdv, &before);
    next_dkdv(loop, &dkdv, NULL);
    product_dq_of_tiles(loop);
    store_pending(&loop->pending);
    tile_barrier();
}

/* The gradients of a block of rows, in batches of strips of about the same size. next: the block that is to be packed
 * meanwhile; or NULL. */
static void loop_over_strips(const struct backward *f, const struct scratch *c, struct row_block *rows, const struct keys *k,
                             struct row_block *next) {
    struct block_loop loop;
    loop.f = f;
    loop.c = c;
    loop.rows = rows;
    loop.k = k;
    loop.factor = PARTS == 1 ? exponent_factor(f->p) : score_scale(f->p);
    loop.count = 0;
    loop.pending.at = NULL;
    loop.packing.f = f;
    loop.packing.c = c;
    loop.packing.rows = next;
    loop.packing.tile = 0;
    loop.packing.started = loop.packing.of_dout = false;
    const int64_t strips = (rows->end - rows->begin + STRIP_KEYS - 1) / STRIP_KEYS,
                  batches = (strips + BATCH_STRIPS - 1) / BATCH_STRIPS;
    const int64_t batch = (strips + batches - 1) / batches;
    for (int64_t j0 = rows->begin; j0 < rows->end; j0 += STRIP_KEYS) {
        loop.last = j0 + STRIP_KEYS >= rows->end;
        loop.strips[loop.count].j0 = j0;
        if (find_tiles(&loop, &loop.strips[loop.count])) ++loop.count;
        if (loop.count == batch || loop.last) {
            loop_over_batch(&loop);
            loop.count = 0;
        }
    }
    while (next && loop.packing.tile < next->tiles) pack_step(&loop.packing);
}

#endif
