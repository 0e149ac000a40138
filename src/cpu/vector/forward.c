/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward.c (cpu): FlashAttention-2's forward (Dao, "FlashAttention-2", 2023, algorithm 1), one text for every level.
 *
 *   for a task, a few tiles of TILE_ROWS query rows of one K/V head (rows.h):
 *     for each block of BLOCK_KEYS keys that some row of the task sees:            K, V converted to fp32 once
 *       for each tile that does not skip the block:
 *         S^T = K Q^T;  softcap, bias, ALiBi, mask where there are any             tile_scores, scores_finish
 *         m' = max(m, S);  P = 2^(S c - m' c);  l = l a + sum P,  a = 2^((m - m') c)   online_softmax
 *         O^T = a O^T + V^T P                                                      tile_accumulate
 *     O / l and lse = m + ln l are written once
 *
 * Memory of a worker, d = 128, AVX-512: S 12 KiB, Q and O 24 KiB each a tile, K and V are streamed. Tiles and blocks depend
 * on shapes alone, every row's sums run in key order: results do not depend on the number of threads. */
#include "core/parallel.h"
#include "cpu/scratch.h"
#include "cpu/table.h"
#include "cpu/vector/finish.h"
#include "cpu/vector/forward_tasks.h"
#include "cpu/vector/nonfinite.h"

/* A tile on its way: accumulators of its rows. */
struct tile {
    struct tile_rows rows;
    float *q;     /* [dim][TILE_ROWS] */
    float *o;     /* [dim_v][TILE_ROWS], not normalised */
    float *m, *l; /* [TILE_ROWS] largest score, sum of weights */
    int vectors;
};

/* One worker's memory. */
struct scratch {
    struct tile tile[MOST_TILES];
    float *s, *z;      /* [BLOCK_KEYS][TILE_ROWS] scores then weights, dropout's factors */
    float *correction; /* [TILE_ROWS] */
    float *k, *v;      /* [BLOCK_KEYS][dim] and 2 [BLOCK_KEYS][dim_v]: converted, or without what is not finite */
    float *row;        /* [dim or dim_v] */
};

struct forward {
    const struct problem *p;
    char *workspace;
    size_t scratch_bytes;
    int64_t tiles, tasks_a_head; /* tiles of a task */
    struct dropout_place place;
};

static size_t lay_out(struct scratch *t, float *base, const struct problem *p) {
    const strobe_attention *a = &p->a;
    size_t used = 0;
    for (int n = 0; n < MOST_TILES; ++n) {
        t->tile[n].q = take(base, &used, a->dim * TILE_ROWS);
        t->tile[n].o = take(base, &used, a->dim_v * TILE_ROWS);
        t->tile[n].m = take(base, &used, TILE_ROWS);
        t->tile[n].l = take(base, &used, TILE_ROWS);
    }
    t->s = take(base, &used, BLOCK_KEYS * TILE_ROWS);
    t->z = take(base, &used, BLOCK_KEYS * TILE_ROWS);
    t->correction = take(base, &used, TILE_ROWS);
    t->k = take(base, &used, BLOCK_KEYS * a->dim);
    t->v = take(base, &used, 2 * BLOCK_KEYS * a->dim_v);
    t->row = take(base, &used, a->dim > a->dim_v ? a->dim : a->dim_v);
    return used * sizeof(float);
}

static void start_tile(struct tile *t, const struct tile_rows *rows, float *row) {
    const strobe_attention *a = &rows->p->a;
    t->rows = *rows;
    t->vectors = vectors_of(rows->n);
    tile_pack(t->q, rows, &a->q, a->dim, query_factor(rows->p), row);
    memset(t->o, 0, (size_t)(a->dim_v * TILE_ROWS) * sizeof *t->o);
    for (int r = 0; r < TILE_ROWS; ++r) t->m[r] = -INFINITY, t->l[r] = 0;
}

/* Scores s become weights; the tile's m and l move on; correction gets what O has to be multiplied by: exactly 1 where the
 * maximum stayed, which the polynomial's 2^0 is not. A row that has seen no key yet has m = -inf and subtracts 0. */
static void online_softmax(struct tile *t, float *s, float *correction, int64_t keys, float factor) {
    const vec c = v_set(factor), none = v_set(-INFINITY), zero = v_set(0);
    for (int64_t at = 0; at < t->vectors * LANES; at += LANES) {
        const vec before = v_load(t->m + at);
        vec m = before, sum = zero;
        for (int64_t j = 0; j < keys; ++j) m = v_max(v_load(s + j * TILE_ROWS + at), m);
        const vec shift = v_select_equal(m, none, zero, v_mul(m, c));
        for (int64_t j = 0; j < keys; ++j) {
            const vec weight = v_exp2(v_sub(v_mul(v_load(s + j * TILE_ROWS + at), c), shift));
            sum = v_add(sum, weight);
            v_store(s + j * TILE_ROWS + at, weight);
        }
        const vec a = v_select_equal(m, before, v_set(1), v_exp2(v_sub(v_mul(before, c), shift)));
        v_store(t->m + at, m);
        v_store(t->l + at, v_fma(v_load(t->l + at), a, sum));
        v_store(correction + at, a);
    }
}

/* One tile meets one block of keys [j0, j0 + keys). */
static void tile_meets_block(const struct forward *f, struct tile *tile, const struct scratch *t, struct rows32 k,
                             struct rows32 v, int64_t j0, int64_t keys) {
    const strobe_attention *a = &f->p->a;
    const enum coverage coverage = tile_covers(&tile->rows, j0, j0 + keys);
    if (coverage == BLOCK_SKIPPED) return;
    tile_scores(t->s, k, tile->q, a->dim, keys, tile->vectors);
    const bool holes = scores_finish(t->s, NULL, &tile->rows, j0, keys, coverage);
    struct held_keys held = {.count = 0};
    const struct rows32 finite = holes ? hold_back(&held, v, t->v, keys, a->dim_v) : v;
    online_softmax(tile, t->s, t->correction, keys, exponent_factor(f->p));
    if (a->dropout) {
        dropout_factors(t->z, &tile->rows, &f->place, j0, keys);
        multiply(t->s, t->z, keys);
    }
    tile_accumulate(tile->o, finite, t->s, t->correction, keys, a->dim_v, tile->vectors);
    release_held(&held, tile->o, v, t->s, tile->rows.n, a->dim_v);
}

static void finish_tile(const struct tile *t) {
    float factor[TILE_ROWS];
    finish_rows(&t->rows, t->m, t->l, factor);
    tile_unpack(&t->rows, &t->rows.p->a.out, t->o, t->rows.p->a.dim_v, factor);
}

/* The tiles of a task, from packed row `first`; returns how many. */
static int start_tiles(const struct forward *f, struct scratch *t, const struct sequence *s, int64_t kv, int64_t first) {
    int count = 0;
    for (; count < f->tiles && first + count * TILE_ROWS < packed_rows(f->p, s); ++count) {
        const struct tile_rows rows = tile_rows_at(f->p, s, kv, first + count * TILE_ROWS);
        start_tile(&t->tile[count], &rows, t->row);
    }
    return count;
}

static void forward_task(void *context, int64_t index, int32_t worker) {
    const struct forward *f = context;
    const strobe_attention *a = &f->p->a;
    const int64_t heads = a->batch * a->heads_kv, kv = index % heads % a->heads_kv;
    /* The last rows see the most keys under a causal mask: longest first balances threads. */
    const int64_t first = (f->tasks_a_head - 1 - index / heads) * f->tiles * TILE_ROWS;
    const struct sequence s = strobe__sequence(f->p, index % heads / a->heads_kv);
    if (first >= packed_rows(f->p, &s)) return;

    const float_mode mode = enter_flush_to_zero();
    struct scratch t;
    lay_out(&t, (float *)(void *)(f->workspace + (size_t)worker * f->scratch_bytes), f->p);
    const int tiles = start_tiles(f, &t, &s, kv, first);
    const int64_t end = tile_end_key(&t.tile[tiles - 1].rows);
    for (int64_t j0 = tile_first_key(&t.tile[0].rows) / BLOCK_KEYS * BLOCK_KEYS; j0 < end; j0 += BLOCK_KEYS) {
        const int64_t keys = s.keys - j0 < BLOCK_KEYS ? s.keys - j0 : BLOCK_KEYS;
        const struct rows32 k = true_rows(t.k, f->p, &a->k, &s, kv, j0, keys, a->dim);
        const struct rows32 v = true_rows(t.v, f->p, &a->v, &s, kv, j0, keys, a->dim_v);
        for (int n = 0; n < tiles; ++n) tile_meets_block(f, &t.tile[n], &t, k, v, j0, keys);
    }
    for (int n = 0; n < tiles; ++n) finish_tile(&t.tile[n]);
    leave_flush_to_zero(mode);
}

size_t LEVEL_KERNEL(forward_workspace)(const struct problem *p) {
    struct scratch t;
    return (size_t)strobe__workers(p->a.parallel) * lay_out(&t, NULL, p);
}

strobe_status LEVEL_KERNEL(forward)(const struct problem *p, const struct execution *execution) {
    struct scratch t;
    struct forward f = {
        .p = p, .workspace = execution->workspace, .scratch_bytes = lay_out(&t, NULL, p), .tiles = MOST_TILES};
    const int64_t heads = p->a.batch * p->a.heads_kv, tiles = (p->a.seq_q * p->group + TILE_ROWS - 1) / TILE_ROWS;
    while (f.tiles > 1 && heads * ((tiles + f.tiles - 1) / f.tiles) < ENOUGH_TASKS) f.tiles /= 2;
    f.tasks_a_head = (tiles + f.tiles - 1) / f.tiles;
    if (p->a.dropout) f.place = strobe__dropout_place(p);
    strobe__parallel_for(p->a.parallel, heads * f.tasks_a_head, forward_task, &f);
    return STROBE_OK;
}
