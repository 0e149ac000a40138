/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward.c (cpu): FlashAttention-2's backward (Dao, 2023, algorithm 2): weights are recomputed from lse, block by block.
 * backward_tasks.h cuts it into tasks.
 *
 *   for a super-block of keys:                                  K, V copied as fp32;  dK = dV = 0
 *     for each tile of TILE_ROWS packed query rows (rows.h):    Q^T, dO^T packed
 *       for each block of BLOCK_KEYS keys that the tile sees:
 *         S^T = K Q^T;  softcap, bias, ALiBi, mask                   P = 2^(S c - lse log2 e)
 *         dP^T = V dO^T;  dropout Z                                  dS = P (Z dP - D), times softcap's slope
 *         dV += (Z P)^T dO     dK += dS^T Q     dQ^T += K^T dS^T
 *   dK, times the scale, and dV are written */
#include "cpu/table.h"
#include "cpu/vector/backward_tasks.h"
#include "cpu/vector/nonfinite.h"

/* One worker's memory. */
struct scratch {
    struct tile_rows rows;                                  /* the tile at hand */
    float *q, *dout;                                        /* [dim][TILE_ROWS], [dim_v][TILE_ROWS] */
    float *q_rows, *dout_rows;                              /* the same as rows, [TILE_ROWS][padded] */
    bool q_nonfinite[TILE_ROWS], dout_nonfinite[TILE_ROWS]; /* rows left out of those */
    float *dq;                                              /* [dim][TILE_ROWS], where the range sums it */
    struct row_statistics of_rows;
    struct block block;
    float *ones;    /* [TILE_ROWS] */
    float *k, *v;   /* [super_keys][dim], [super_keys][dim_v] */
    float *finite;  /* [BLOCK_KEYS][dim]: K without what is not finite */
    float *row;     /* [dim or dim_v] */
    float *dk, *dv; /* [super_keys][padded] */
};

struct backward {
    struct gradient_tasks tasks; /* first: what the tasks are given leads here */
    const struct problem *p;
    int64_t k_padded, v_padded; /* dim and dim_v up to whole vectors */
};

static int64_t padded(int64_t columns) { return (columns + LANES - 1) / LANES * LANES; }

/* The floats of a worker. */
static size_t lay_out(struct scratch *t, float *base, const struct backward *f) {
    const strobe_attention *a = &f->p->a;
    size_t used = 0;
    t->q = take(base, &used, a->dim * TILE_ROWS);
    t->dout = take(base, &used, a->dim_v * TILE_ROWS);
    t->q_rows = take(base, &used, TILE_ROWS * padded(a->dim));
    t->dout_rows = take(base, &used, TILE_ROWS * padded(a->dim_v));
    t->ones = take(base, &used, TILE_ROWS);
    t->block.p = take(base, &used, BLOCK_KEYS * TILE_ROWS);
    t->block.ds = take(base, &used, BLOCK_KEYS * TILE_ROWS);
    t->block.z = take(base, &used, BLOCK_KEYS * TILE_ROWS);
    t->block.slope = take(base, &used, BLOCK_KEYS * TILE_ROWS);
    t->k = take(base, &used, f->tasks.super_keys * a->dim);
    t->v = take(base, &used, f->tasks.super_keys * a->dim_v);
    t->finite = take(base, &used, BLOCK_KEYS * a->dim);
    t->row = take(base, &used, a->dim > a->dim_v ? a->dim : a->dim_v);
    t->dk = take(base, &used, f->tasks.super_keys * f->k_padded);
    t->dv = take(base, &used, f->tasks.super_keys * f->v_padded);
    return used;
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
    for (int r = 0; r < TILE_ROWS; ++r) t->ones[r] = 1;
    tile_pack(t->q, &t->rows, &a->q, a->dim, query_factor(f->p), t->row);
    tile_pack(t->dout, &t->rows, &f->p->g.dout, a->dim_v, 1, t->row);
    copy_rows(t->q_rows, t->q_nonfinite, t, &a->q, a->dim);
    copy_rows(t->dout_rows, t->dout_nonfinite, t, &f->p->g.dout, a->dim_v);
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

/* The tile at hand meets the block of keys [j0, j0 + keys), which is `at` keys into the super-block. */
static void tile_meets_block(const struct backward *f, const struct scratch *t, int64_t at, int64_t j0, int64_t keys) {
    const strobe_attention *a = &f->p->a;
    const enum coverage coverage = tile_covers(&t->rows, j0, j0 + keys);
    if (coverage == BLOCK_SKIPPED) return;
    const int vectors = vectors_of(t->rows.n);
    const struct rows32 k = {t->k + at * a->dim, a->dim}, v = {t->v + at * a->dim_v, a->dim_v};
    float *p = t->block.p, *ds = t->block.ds, *dk = t->dk + at * f->k_padded, *dv = t->dv + at * f->v_padded;
    tile_scores(p, k, t->q, a->dim, keys, vectors);
    const bool hidden = scores_finish(p, t->block.slope, &t->rows, j0, keys, coverage);
    tile_scores(ds, v, t->dout, a->dim_v, keys, vectors);
    block_gradients(&f->tasks.sums, &t->block, &t->rows, &t->of_rows, &f->tasks.place, j0, keys, hidden);

    struct held_keys held = {.count = 0};
    const struct rows32 finite = hidden ? hold_back(&held, k, t->finite, keys, a->dim) : k;
    tile_accumulate(t->dq, finite, ds, t->ones, keys, a->dim, vectors);
    release_held(&held, t->dq, k, ds, t->rows.n, a->dim);
    tile_outer(dv, p, t->dout_rows, f->v_padded, keys, t->rows.n);
    tile_outer(dk, ds, t->q_rows, f->k_padded, keys, t->rows.n);
    outer_nonfinite(dv, t, p, &f->p->g.dout, t->dout_nonfinite, a->dim_v, keys);
    outer_nonfinite(dk, t, ds, &a->q, t->q_nonfinite, a->dim, keys);
}

/* Rows of K or V as fp32, side by side: in place, rows of [batch, seq, heads, dim] may lie 4 KiB apart, all in the same
 * lines of L1. */
static void copy_keys(float *to, const struct keys *k, const strobe_tensor *x, int64_t columns) {
    for (int64_t j = k->first; j < k->end; ++j, to += columns)
        widen_row(to, x->data, x->dtype, strobe__key_offset(x, &k->s, j, k->kv), columns);
}

static void store_keys(const struct keys *k, const strobe_tensor *x, const float *from, int64_t columns, float factor) {
    for (int64_t j = k->first; j < k->end; ++j, from += padded(columns)) {
        const int64_t at = strobe__key_offset(x, &k->s, j, k->kv);
        for (int64_t c = 0; c < columns; ++c) element_store(x->data, x->dtype, at + c, (double)(from[c] * factor));
    }
}

/* The kernel's part of a task. */
static void meet_keys(const struct gradient_tasks *g, float *memory, const struct keys *k) {
    const struct backward *f = (const struct backward *)(const void *)g;
    struct scratch t;
    lay_out(&t, memory, f);
    copy_keys(t.k, k, &f->p->a.k, f->p->a.dim);
    copy_keys(t.v, k, &f->p->a.v, f->p->a.dim_v);
    memset(t.dk, 0, (size_t)((k->end - k->first) * f->k_padded) * sizeof *t.dk);
    memset(t.dv, 0, (size_t)((k->end - k->first) * f->v_padded) * sizeof *t.dv);
    for (int64_t n = 0; n * TILE_ROWS < packed_rows(f->p, &k->s); ++n) {
        t.rows = tile_rows_at(f->p, &k->s, k->kv, n * TILE_ROWS);
        int64_t begin = tile_first_key(&t.rows) / BLOCK_KEYS * BLOCK_KEYS, end = tile_end_key(&t.rows);
        if (begin < k->first) begin = k->first;
        if (end > k->end) end = k->end;
        if (begin >= end) continue;
        t.of_rows = statistics_of(g, &k->s, k->kv, n);
        t.dq = dq_of_tile(g, &k->dq, n);
        start_tile(f, &t);
        for (int64_t j0 = begin; j0 < end; j0 += BLOCK_KEYS) {
            const int64_t at = j0 - k->first, keys = k->end - j0 < BLOCK_KEYS ? k->end - j0 : BLOCK_KEYS;
            tile_meets_block(f, &t, at, j0, keys);
        }
    }
    store_keys(k, &f->p->g.dk, t.dk, f->p->a.dim, (float)f->p->a.scale);
    store_keys(k, &f->p->g.dv, t.dv, f->p->a.dim_v, 1);
}

static void write_dq(const struct tile_rows *t, const float *dq) {
    float scale[TILE_ROWS];
    for (int r = 0; r < TILE_ROWS; ++r) scale[r] = (float)t->p->a.scale;
    tile_unpack(t, &t->p->g.dq, dq, t->p->a.dim, scale);
}

static struct backward backward_of(const struct problem *p) {
    struct backward f = {.p = p, .k_padded = padded(p->a.dim), .v_padded = padded(p->a.dim_v)};
    const int64_t key_bytes = 8 * (f.k_padded + f.v_padded); /* K, V, dK, dV */
    f.tasks = gradient_tasks_of(p, p->a.dim, key_bytes);
    f.tasks.meet_keys = meet_keys, f.tasks.write_dq = write_dq;
    return f;
}

size_t LEVEL_KERNEL(backward_workspace)(const struct problem *p) {
    struct scratch t;
    struct backward f = backward_of(p);
    return gradient_tasks_lay_out(&f.tasks, NULL, lay_out(&t, NULL, &f));
}

strobe_status LEVEL_KERNEL(backward)(const struct problem *p, const struct execution *execution) {
    struct scratch t;
    struct backward f = backward_of(p);
    gradient_tasks_lay_out(&f.tasks, execution->workspace, lay_out(&t, NULL, &f));
    gradient_tasks_run(&f.tasks);
    return STROBE_OK;
}
