/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward.c (cpu): FlashAttention-2's backward (Dao, 2023, algorithm 2): weights are recomputed from lse, block by block.
 *
 *   for a task, a K/V head:
 *     for each tile of TILE_ROWS packed query rows (rows.h):    Q^T, dO^T packed;  D = rowsum(dO * O) - dlse
 *       for each block of BLOCK_KEYS keys that the tile sees:
 *         S^T = K Q^T;  softcap, bias, ALiBi, mask                   P = 2^(S c - lse log2 e)
 *         dP^T = V dO^T;  dropout Z                                  dS = P (Z dP - D), times softcap's slope
 *         dV += (Z P)^T dO     dK += dS^T Q     dQ^T += K^T dS^T
 *       dQ, times the scale, is written
 *     dK, times the scale, and dV are written
 *
 * Queries stand outside here, not keys: dK and dV of one head are smaller than Q, dO and dQ of a group of heads, and a tile
 * is packed once. A task owns every output that it adds to, sums run in one order: no atomics, results do not depend on the
 * number of threads. Memory of a worker: seq_k (dim + dim_v) floats, and a few tiles. */
#include "core/parallel.h"
#include "cpu/block_gradients.h"
#include "cpu/cpu_kernels.h"
#include "cpu/nonfinite.h"
#include "cpu/scratch.h"

/* One worker's memory. */
struct scratch {
    struct tile_rows rows;                                  /* the tile at hand */
    float *q, *dout;                                        /* [dim][TILE_ROWS], [dim_v][TILE_ROWS] */
    float *q_rows, *dout_rows;                              /* the same as rows, [TILE_ROWS][padded] */
    bool q_nonfinite[TILE_ROWS], dout_nonfinite[TILE_ROWS]; /* rows left out of those */
    float *dq;                                              /* [dim][TILE_ROWS] */
    struct row_statistics of_rows;
    struct block block;
    float *ones;    /* [TILE_ROWS] */
    float *k, *v;   /* 2 [BLOCK_KEYS][dim] and [BLOCK_KEYS][dim_v]: converted, or without what is not finite */
    float *row;     /* [dim] or 2 [dim_v] */
    float *dk, *dv; /* [seq_k][padded] sums of the head */
};

struct backward {
    const struct problem *p;
    char *workspace;
    size_t scratch_bytes;
    int64_t k_padded, v_padded; /* dim and dim_v up to whole vectors */
    struct dropout_place place;
    struct score_gradients sums; /* of bias and sinks */
};

static int64_t padded(int64_t columns) { return (columns + LANES - 1) / LANES * LANES; }

static size_t lay_out(struct scratch *t, float *base, const struct problem *p) {
    const strobe_attention *a = &p->a;
    size_t used = 0;
    t->q = take(base, &used, a->dim * TILE_ROWS);
    t->dout = take(base, &used, a->dim_v * TILE_ROWS);
    t->q_rows = take(base, &used, TILE_ROWS * padded(a->dim));
    t->dout_rows = take(base, &used, TILE_ROWS * padded(a->dim_v));
    t->dq = take(base, &used, a->dim * TILE_ROWS);
    t->of_rows.lse2 = take(base, &used, TILE_ROWS);
    t->of_rows.D = take(base, &used, TILE_ROWS);
    t->ones = take(base, &used, TILE_ROWS);
    t->block.p = take(base, &used, BLOCK_KEYS * TILE_ROWS);
    t->block.ds = take(base, &used, BLOCK_KEYS * TILE_ROWS);
    t->block.z = take(base, &used, BLOCK_KEYS * TILE_ROWS);
    t->block.slope = take(base, &used, BLOCK_KEYS * TILE_ROWS);
    t->k = take(base, &used, 2 * BLOCK_KEYS * a->dim);
    t->v = take(base, &used, BLOCK_KEYS * a->dim_v);
    t->row = take(base, &used, a->dim > 2 * a->dim_v ? a->dim : 2 * a->dim_v);
    t->dk = take(base, &used, strobe__product(a->seq_k, padded(a->dim)));
    t->dv = take(base, &used, strobe__product(a->seq_k, padded(a->dim_v)));
    return used * sizeof(float);
}

/* The tile's rows of x, widened to [TILE_ROWS][padded]. Rows that see nothing are 0, whatever they hold, and so are rows
 * that are not finite, which `nonfinite` names. */
static void copy_rows(float *to, bool *nonfinite, const struct scratch *t, const strobe_tensor *x, int64_t columns) {
    memset(to, 0, (size_t)(TILE_ROWS * padded(columns)) * sizeof *to);
    for (int64_t r = 0; r < t->rows.n; ++r) {
        float *row = to + r * padded(columns);
        nonfinite[r] = false;
        if (t->of_rows.lse2[r] == INFINITY) continue;
        widen_row(row, x->data, x->dtype, tile_offset(&t->rows, x, r), columns);
        nonfinite[r] = !row_is_finite(row, columns);
        if (nonfinite[r]) memset(row, 0, (size_t)columns * sizeof *row);
    }
}

static void start_tile(const struct backward *f, struct scratch *t) {
    const strobe_attention *a = &f->p->a;
    read_row_statistics(&t->of_rows, &t->rows, &f->sums, t->row);
    for (int r = 0; r < TILE_ROWS; ++r) t->ones[r] = 1;
    tile_pack(t->q, &t->rows, &a->q, a->dim, query_factor(f->p), t->row);
    tile_pack(t->dout, &t->rows, &f->p->g.dout, a->dim_v, 1, t->row);
    copy_rows(t->q_rows, t->q_nonfinite, t, &a->q, a->dim);
    copy_rows(t->dout_rows, t->dout_nonfinite, t, &f->p->g.dout, a->dim_v);
    memset(t->dq, 0, (size_t)(a->dim * TILE_ROWS) * sizeof *t->dq);
}

/* G[j] += P[j][r] Y_r for the rows of a tile that are not finite: they are zeros in `rows`, lest 0 * NaN reach a key that
 * the row does not see. */
static void outer_nonfinite(float *g, const struct scratch *t, const float *p, const strobe_tensor *y, const bool *nonfinite,
                            int64_t columns, int64_t keys) {
    for (int64_t r = 0; r < t->rows.n; ++r) {
        if (!nonfinite[r]) continue;
        widen_row(t->row, y->data, y->dtype, tile_offset(&t->rows, y, r), columns);
        for (int64_t j = 0; j < keys; ++j) {
            const float weight = p[j * TILE_ROWS + r];
            for (int64_t x = 0; weight != 0 && x < columns; ++x) g[j * padded(columns) + x] += weight * t->row[x];
        }
    }
}

/* The tile at hand meets the block of keys [j0, j0 + keys). */
static void tile_meets_block(const struct backward *f, const struct scratch *t, int64_t j0, int64_t keys) {
    const strobe_attention *a = &f->p->a;
    const enum coverage coverage = tile_covers(&t->rows, j0, j0 + keys);
    if (coverage == BLOCK_SKIPPED) return;
    const int vectors = vectors_of(t->rows.n);
    const struct rows32 k = widen_rows(t->k, &a->k, strobe__key_offset(&a->k, &t->rows.s, j0, t->rows.kv), keys, a->dim);
    const struct rows32 v = widen_rows(t->v, &a->v, strobe__key_offset(&a->v, &t->rows.s, j0, t->rows.kv), keys, a->dim_v);
    float *p = t->block.p, *ds = t->block.ds;
    tile_scores(p, k, t->q, a->dim, keys, vectors);
    const bool hidden = scores_finish(p, t->block.slope, &t->rows, j0, keys, coverage);
    tile_scores(ds, v, t->dout, a->dim_v, keys, vectors);
    block_gradients(&f->sums, &t->block, &t->rows, &t->of_rows, &f->place, j0, keys, hidden);

    struct held_keys held = {.count = 0};
    const struct rows32 finite = hidden ? hold_back(&held, k, t->k, keys, a->dim) : k;
    tile_accumulate(t->dq, finite, ds, t->ones, keys, a->dim, vectors);
    release_held(&held, t->dq, k, ds, t->rows.n, a->dim);
    tile_outer(t->dv + j0 * f->v_padded, p, t->dout_rows, f->v_padded, keys, t->rows.n);
    tile_outer(t->dk + j0 * f->k_padded, ds, t->q_rows, f->k_padded, keys, t->rows.n);
    outer_nonfinite(t->dv + j0 * f->v_padded, t, p, &f->p->g.dout, t->dout_nonfinite, a->dim_v, keys);
    outer_nonfinite(t->dk + j0 * f->k_padded, t, ds, &a->q, t->q_nonfinite, a->dim, keys);
}

static void store_keys(const struct sequence *s, int64_t kv, const strobe_tensor *x, const float *from, int64_t columns,
                       float factor) {
    for (int64_t j = 0; j < s->keys; ++j) {
        const int64_t at = strobe__key_offset(x, s, j, kv);
        for (int64_t c = 0; c < columns; ++c)
            element_store(x->data, x->dtype, at + c, (double)(from[j * padded(columns) + c] * factor));
    }
}

static void backward_head(const struct backward *f, struct scratch *t, int64_t b, int64_t kv) {
    const strobe_attention *a = &f->p->a;
    const struct sequence s = strobe__sequence(f->p, b);
    float scale[TILE_ROWS];
    for (int r = 0; r < TILE_ROWS; ++r) scale[r] = (float)a->scale;
    memset(t->dk, 0, (size_t)(s.keys * f->k_padded) * sizeof *t->dk);
    memset(t->dv, 0, (size_t)(s.keys * f->v_padded) * sizeof *t->dv);
    for (int64_t first = 0; first < packed_rows(f->p, &s); first += TILE_ROWS) {
        t->rows = tile_rows_at(f->p, &s, kv, first);
        start_tile(f, t);
        const int64_t end = tile_end_key(&t->rows);
        for (int64_t j0 = tile_first_key(&t->rows) / BLOCK_KEYS * BLOCK_KEYS; j0 < end; j0 += BLOCK_KEYS)
            tile_meets_block(f, t, j0, s.keys - j0 < BLOCK_KEYS ? s.keys - j0 : BLOCK_KEYS);
        tile_unpack(&t->rows, &f->p->g.dq, t->dq, a->dim, scale);
    }
    store_keys(&s, kv, &f->p->g.dk, t->dk, a->dim, (float)a->scale);
    store_keys(&s, kv, &f->p->g.dv, t->dv, a->dim_v, 1);
}

/* A task is a K/V head, or, where the bias's gradient is summed across batch entries or heads, all that share a sum. */
static void backward_task(void *context, int64_t index, int32_t worker) {
    const struct backward *f = context;
    const strobe_attention *a = &f->p->a;
    const int64_t batches = f->sums.across_batch ? a->batch : 1, heads = f->sums.across_heads ? a->heads_kv : 1;
    const int64_t tasks_a_batch = a->heads_kv / heads;
    struct scratch t;
    lay_out(&t, (float *)(void *)(f->workspace + (size_t)worker * f->scratch_bytes), f->p);
    const float_mode mode = enter_flush_to_zero();
    for (int64_t b = index / tasks_a_batch * batches; b < (index / tasks_a_batch + 1) * batches; ++b)
        for (int64_t kv = index % tasks_a_batch * heads; kv < (index % tasks_a_batch + 1) * heads; ++kv)
            backward_head(f, &t, b, kv);
    leave_flush_to_zero(mode);
}

size_t LEVEL_KERNEL(backward_workspace)(const struct problem *p) {
    struct scratch t;
    struct score_gradients sums;
    return (size_t)strobe__workers(p->a.parallel) * lay_out(&t, NULL, p) + score_gradients_lay_out(&sums, NULL, p);
}

strobe_status LEVEL_KERNEL(backward)(const struct problem *p, const struct execution *execution) {
    struct scratch t;
    struct backward f = {.p = p, .workspace = execution->workspace, .scratch_bytes = lay_out(&t, NULL, p)};
    f.k_padded = padded(p->a.dim), f.v_padded = padded(p->a.dim_v);
    if (p->a.dropout) f.place = strobe__dropout_place(p);
    score_gradients_lay_out(&f.sums, f.workspace + (size_t)strobe__workers(p->a.parallel) * f.scratch_bytes, p);
    score_gradients_start(&f.sums);
    const int64_t tasks = (f.sums.across_batch ? 1 : p->a.batch) * (f.sums.across_heads ? 1 : p->a.heads_kv);
    strobe__parallel_for(p->a.parallel, tasks, backward_task, &f);
    score_gradients_finish(&f.sums);
    return STROBE_OK;
}
