/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward.c (vector): FlashAttention-2's backward (Dao, 2023, algorithm 2), one text for every level of vectors. P is
 * recomputed from lse, block by block. backward_tasks.h cuts the work into tasks, tile.h has the products.
 *
 *   for a super-block of keys:                                  K, V of a block packed when it is first seen (panels.h)
 *     for each tile of TILE_ROWS packed query rows (rows.h):    Q^T, dO^T packed, if it sees some block
 *       for each block of BLOCK_KEYS keys of which the tile sees some (visible.h):
 *         S^T = K Q^T;  softcap, bias, ALiBi, mask                   P = exp(S - lse) = 2^(S c - lse log2 e)
 *         dP^T = V dO^T;  dropout Z                                  dS = P (Z dP - delta), times softcap's slope
 *         dV += (Z P)^T dO     dK += dS^T Q     dQ^T += K^T dS^T
 *   dK, times the scale, and dV are written */
#include "cpu/table.h"
#include "cpu/vector/backward_tasks.h"
#include "cpu/vector/forward_tasks.h"
#include "cpu/vector/nonfinite.h"
#include "cpu/vector/panels.h"

/* One worker's memory. */
struct scratch {
    struct tile_rows rows;                                  /* the current tile */
    struct row_features features;                           /* of its rows */
    bool started;                                           /* it has been packed: it sees some key of the super-block */
    float *q, *dout;                                        /* Q^T [dim][TILE_ROWS], dO^T [dim_v][TILE_ROWS] */
    float *q_rows, *dout_rows;                              /* the same as rows, [TILE_ROWS][padded] */
    bool q_nonfinite[TILE_ROWS], dout_nonfinite[TILE_ROWS]; /* rows that are not finite: zeros in the two above */
    float *dq;                                              /* dQ^T [dim][TILE_ROWS] of the range */
    struct row_statistics of_rows;
    struct block block;
    float *ones;       /* [TILE_ROWS] */
    float *k, *v;      /* [super_keys][dim], [super_keys][dim_v]: of each block of keys, rows or panels of them */
    float *columns;    /* [super_keys][dim]: panels of K's columns */
    float *block_rows; /* [2][BLOCK_KEYS][dim], or [BLOCK_KEYS][dim_v]: rows of a block */
    float *memory;     /* [LANES][dim or dim_v] */
    float *dk, *dv;    /* [super_keys][padded] */
    int32_t *state;    /* [super_keys / BLOCK_KEYS] an enum block_state: what has been done for a block of keys */
};

/* Of a block of keys. It is loaded when the first tile sees some of it. */
enum block_state { BLOCK_UNSEEN, BLOCK_FINITE, BLOCK_NONFINITE }; /* and then, whether all of its K is finite */

struct backward {
    struct gradient_tasks tasks; /* the first field: a pointer to it is a pointer to this */
    const struct problem *p;
    int64_t k_padded, v_padded; /* dim and dim_v up to whole vectors */
    bool panels;                /* K and V are packed: there are rows enough to pay for that */
};

static int64_t padded(int64_t columns) { return (columns + LANES - 1) / LANES * LANES; }

/* Lays out a worker's memory; with base NULL only counts. Returns floats. */
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
    t->columns = take(base, &used, f->panels ? f->tasks.super_keys * a->dim : 0);
    t->block_rows = take(base, &used, BLOCK_KEYS * (2 * a->dim > a->dim_v ? 2 * a->dim : a->dim_v));
    t->memory = take(base, &used, LANES * (a->dim > a->dim_v ? a->dim : a->dim_v));
    t->dk = take(base, &used, f->tasks.super_keys * f->k_padded);
    t->dv = take(base, &used, f->tasks.super_keys * f->v_padded);
    t->state = (int32_t *)(void *)take(base, &used, f->tasks.super_keys / BLOCK_KEYS);
    const struct score_memory score = take_score_memory(base, &used, f->p);
    t->features.score = take_tile_memory(&score, base, &used, f->p);
    return used;
}

/* Copies the tile's rows of x, widened, to [TILE_ROWS][padded]. Rows that see no key become 0, whatever they hold, and so do
 * rows that are not finite, which are marked in `nonfinite`. */
static void copy_rows(float *to, bool *nonfinite, const struct scratch *t, const strobe_tensor *x, int64_t columns) {
    memset(to, 0, (size_t)(TILE_ROWS * padded(columns)) * sizeof *to);
    for (int64_t r = 0; r < t->rows.n; ++r) {
        float *row = to + r * padded(columns);
        nonfinite[r] = false;
        if (t->of_rows.minus_lse[r] == -INFINITY) continue;
        widen_row(row, x->data, x->dtype, tile_offset(&t->rows, x, r), columns);
        nonfinite[r] = !row_is_finite(row, columns);
        if (nonfinite[r]) memset(row, 0, (size_t)columns * sizeof *row);
    }
}

/* Packs Q and dO of a tile. */
static void start_tile(const struct backward *f, struct scratch *t) {
    const strobe_attention *a = &f->p->a;
    for (int r = 0; r < TILE_ROWS; ++r) t->ones[r] = 1;
    tile_pack(t->q, &t->rows, &a->q, a->dim, query_factor(f->p), t->memory);
    tile_pack(t->dout, &t->rows, &f->p->g.dout, a->dim_v, 1, t->memory);
    copy_rows(t->q_rows, t->q_nonfinite, t, &a->q, a->dim);
    copy_rows(t->dout_rows, t->dout_nonfinite, t, &f->p->g.dout, a->dim_v);
}

/* G[j] += P[j][r] Y_r for those of the rows [first, end) of a tile that are not finite, where P[j][r] is not 0. copy_rows()
 * made them zeros, since 0 * NaN would reach keys that such a row does not see. */
static void outer_nonfinite(float *g, const struct scratch *t, const float *p, const strobe_tensor *y, const bool *nonfinite,
                            int64_t first, int64_t end, int64_t columns, int64_t keys) {
    for (int64_t r = first; r < end; ++r) {
        if (!nonfinite[r]) continue;
        widen_row(t->memory, y->data, y->dtype, tile_offset(&t->rows, y, r), columns);
        for (int64_t j = 0; j < keys; ++j) {
            const float p_ij = p[j * TILE_ROWS + r];
            for (int64_t x = 0; p_ij != 0 && x < columns; ++x) g[j * padded(columns) + x] += p_ij * t->memory[x];
        }
    }
}

/* Copies n rows of K or V from key j0 on, as fp32. */
static struct rows32 copy_keys(float *to, const struct keys *k, const strobe_tensor *x, int64_t j0, int64_t n,
                               int64_t columns) {
    for (int64_t j = 0; j < n; ++j)
        widen_row(to + j * columns, x->data, x->dtype, strobe__key_offset(x, &k->s, j0 + j, k->kv), columns);
    return (struct rows32){to, columns, false};
}

/* The gradients of the current tile and the block of keys [j0, j0 + keys), which is `at` keys into the super-block, of those
 * vectors of rows that see a key of it. */
static void block_pair_gradients(const struct backward *f, const struct scratch *t, const struct visible_block *visible,
                                 const struct keys *of, int64_t at, int64_t j0, int64_t keys) {
    const strobe_attention *a = &f->p->a;
    const int vectors = visible->end - visible->first;
    const int64_t first = visible->first * LANES, end = visible->end * LANES < t->rows.n ? visible->end * LANES : t->rows.n;
    const struct rows32 k = {t->k + at * a->dim, a->dim, f->panels}, v = {t->v + at * a->dim_v, a->dim_v, f->panels};
    const struct rows32 columns = f->panels ? (struct rows32){t->columns + at * a->dim, 0, true} : k;
    float *p = t->block.p, *ds = t->block.ds, *dk = t->dk + at * f->k_padded, *dv = t->dv + at * f->v_padded;
    tile_scores(p + first, k, t->q + first, a->dim, keys, vectors);
    const bool hidden = finish_block_scores(p, t->block.slope, &t->rows, &t->features, visible, j0, keys, 1);
    tile_scores(ds + first, v, t->dout + first, a->dim_v, keys, vectors);
    gradients_of_block(&f->tasks.sums, &t->block, &t->rows, &t->features, &t->of_rows, &f->tasks.place, visible, j0, keys,
                       hidden);

    if (hidden && t->state[at / BLOCK_KEYS] == BLOCK_NONFINITE) {
        struct nonfinite_keys nonfinite;
        const struct rows32 rows = copy_keys(t->block_rows, of, &a->k, j0, keys, a->dim);
        const struct rows32 finite = leave_out_nonfinite(&nonfinite, rows, t->block_rows, keys, a->dim);
        tile_accumulate(t->dq + first, finite, ds + first, t->ones, keys, a->dim, vectors);
        add_nonfinite(&nonfinite, t->dq, rows, ds, first, end, a->dim);
    } else {
        tile_accumulate(t->dq + first, columns, ds + first, t->ones, keys, a->dim, vectors);
    }
    tile_outer(dv, p + first, t->dout_rows + first * f->v_padded, f->v_padded, keys, end - first);
    tile_outer(dk, ds + first, t->q_rows + first * f->k_padded, f->k_padded, keys, end - first);
    outer_nonfinite(dv, t, p, &f->p->g.dout, t->dout_nonfinite, first, end, a->dim_v, keys);
    outer_nonfinite(dk, t, ds, &a->q, t->q_nonfinite, first, end, a->dim, keys);
}

/* Loads the block of keys that is `at` keys into the super-block, and clears its dK and dV. */
static void start_block(const struct backward *f, const struct scratch *t, const struct keys *k, int64_t at, int64_t keys) {
    const strobe_attention *a = &f->p->a;
    float *to_k = f->panels ? t->block_rows : t->k + at * a->dim, *to_v = f->panels ? t->block_rows : t->v + at * a->dim_v;
    const struct rows32 v = copy_keys(to_v, k, &a->v, k->first + at, keys, a->dim_v);
    if (f->panels) pack_keys(t->v + at * a->dim_v, v, keys, a->dim_v);
    const struct rows32 rows = copy_keys(to_k, k, &a->k, k->first + at, keys, a->dim);
    if (f->panels) {
        pack_keys(t->k + at * a->dim, rows, keys, a->dim);
        pack_columns(t->columns + at * a->dim, rows, keys, a->dim);
    }
    memset(t->dk + at * f->k_padded, 0, (size_t)(keys * f->k_padded) * sizeof *t->dk);
    memset(t->dv + at * f->v_padded, 0, (size_t)(keys * f->v_padded) * sizeof *t->dv);
    t->state[at / BLOCK_KEYS] = rows_are_finite(rows, keys, a->dim) ? BLOCK_FINITE : BLOCK_NONFINITE;
}

/* Writes dK or dV of a super-block, times factor: zeros for blocks that no row sees. */
static void store_keys(const struct scratch *t, const struct keys *k, const strobe_tensor *x, float *from, int64_t columns,
                       float factor) {
    for (int64_t j = k->first; j < k->end; ++j, from += padded(columns)) {
        const bool seen = t->state[(j - k->first) / BLOCK_KEYS] != BLOCK_UNSEEN;
        for (int64_t c = 0; c < columns; c += LANES)
            v_store(from + c, seen ? v_mul(v_load(from + c), v_set(factor)) : v_set(0));
        narrow_row(x->data, x->dtype, strobe__key_offset(x, &k->s, j, k->kv), from, columns);
    }
}

/* Tile n of the head and the block of keys from j0 on, if they see each other. A tile is packed, and a block loaded, when
 * that happens for the first time. */
static void visit_block(const struct backward *f, struct scratch *t, const struct keys *k, int64_t n, int64_t j0) {
    const int64_t at = j0 - k->first, keys = k->end - j0 < BLOCK_KEYS ? k->end - j0 : BLOCK_KEYS;
    struct visible_block visible;
    see_block(&visible, &t->rows, &t->features, j0, keys);
    if (visible.coverage == BLOCK_SKIPPED) return;
    if (!t->started) {
        t->of_rows = statistics_of(&f->tasks, &k->s, k->kv, n);
        t->dq = dq_of_tile(&f->tasks, &k->dq, n);
        t->block.row_sums = f->tasks.ds_sums ? t->dq + f->tasks.ds_sums : NULL;
        start_tile(f, t);
        t->started = true;
    }
    if (t->state[at / BLOCK_KEYS] == BLOCK_UNSEEN) start_block(f, t, k, at, keys);
    block_pair_gradients(f, t, &visible, k, at, j0, keys);
}

/* The kernel's part of a task: dK and dV of a super-block of keys, and its part of dQ. */
static void super_block_gradients(const struct gradient_tasks *g, float *memory, const struct keys *k) {
    const struct backward *f = (const struct backward *)(const void *)g;
    struct scratch t;
    lay_out(&t, memory, f);
    for (int64_t at = 0; at < k->end - k->first; at += BLOCK_KEYS) t.state[at / BLOCK_KEYS] = BLOCK_UNSEEN;
    for (int64_t n = 0; n * TILE_ROWS < packed_rows(f->p, &k->s); ++n) {
        t.rows = tile_rows_at(f->p, &k->s, k->kv, n * TILE_ROWS);
        int64_t begin = tile_first_key(&t.rows) / BLOCK_KEYS * BLOCK_KEYS, end = tile_end_key(&t.rows);
        if (begin < k->first) begin = k->first;
        if (end > k->end) end = k->end;
        if (begin >= end) continue;
        find_row_features(&t.features, &t.rows);
        t.started = false;
        for (int64_t j0 = begin; j0 < end; j0 += BLOCK_KEYS) visit_block(f, &t, k, n, j0);
    }
    store_keys(&t, k, &f->p->g.dk, t.dk, f->p->a.dim, (float)f->p->a.scale);
    store_keys(&t, k, &f->p->g.dv, t.dv, f->p->a.dim_v, 1);
}

/* Writes dQ of a tile, times the scale. */
static void write_dq(const struct tile_rows *t, const float *dq) {
    float scale[TILE_ROWS];
    for (int r = 0; r < TILE_ROWS; ++r) scale[r] = (float)t->p->a.scale;
    tile_unpack(t, &t->p->g.dq, dq, t->p->a.dim, scale);
}

static struct backward backward_of(const struct problem *p) {
    struct backward f = {.p = p, .k_padded = padded(p->a.dim), .v_padded = padded(p->a.dim_v)};
    f.panels = SMALL_CACHES && p->a.seq_q * p->group >= PANEL_ROWS; /* 0 to 3 % slower on AVX-512 */
    const int64_t key_bytes = 8 * (f.k_padded + f.v_padded);        /* K, V, dK, dV */
    f.tasks = gradient_tasks_of(p, p->a.dim, key_bytes);
    f.tasks.super_block_gradients = super_block_gradients;
    f.tasks.write_dq = write_dq;
    return f;
}

size_t LEVEL_KERNEL(backward_workspace)(const struct plan *plan) {
    const struct problem *p = plan->problem;
    struct scratch t;
    struct backward f = backward_of(p);
    return gradient_tasks_lay_out(&f.tasks, NULL, lay_out(&t, NULL, &f));
}

strobe_status LEVEL_KERNEL(backward)(const struct plan *plan, const struct execution *execution) {
    const struct problem *p = plan->problem;
    struct scratch t;
    struct backward f = backward_of(p);
    gradient_tasks_lay_out(&f.tasks, execution->workspace, lay_out(&t, NULL, &f));
    gradient_tasks_run(&f.tasks);
    return STROBE_OK;
}
