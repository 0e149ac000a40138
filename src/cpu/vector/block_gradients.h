/* SPDX-License-Identifier: BSD-3-Clause
 *
 * block_gradients.h: the work of the backward between its products, on a block of keys and a tile of query rows:
 *
 *     S; softcap, bias, ALiBi, function, mask (scores.h)   P = exp(S - lse) = 2^((S scale - lse) log2 e)
 *     dropout Z                            dS = P (Z dP - delta), times the function's and softcap's slope;  P becomes Z P
 *
 * and, once for each row, delta = rowsum(dO * O) - dlse, and the row's part of its sink's gradient. One text for every
 * level, AMX included. */
#ifndef STROBE_CPU_BLOCK_GRADIENTS_H
#define STROBE_CPU_BLOCK_GRADIENTS_H

#include "cpu/vector/dropout.h"
#include "cpu/vector/score_gradients.h"
#include "cpu/vector/scores.h"

/* The statistics of a tile's rows: -lse, -inf for rows that see no key; delta = rowsum(dO * O) - dlse. */
struct row_statistics {
    float *minus_lse, *delta, *minus_delta; /* [TILE_ROWS]; -delta is where the chain of dP starts from on AMX */
    float *of_sink;                         /* [TILE_ROWS] the row's part of dsinks; NULL: not wanted */
};

/* The scores and gradients of a block pair, all [BLOCK_KEYS][TILE_ROWS]. */
struct block {
    float *p, *ds;    /* S, then P; dP, then dS */
    float *z, *slope; /* dropout's factors; softcap's slope */
    float *row_sums;  /* [2][TILE_ROWS] of dS and of P over keys, for dsinks, are added to; NULL: not wanted */
};

/* The dot product of two rows, to fp32 accuracy; its order depends on the level. */
static inline double dot_rows(const float *a, const float *b, int64_t columns) {
    vec sum = v_set(0);
    int64_t x = 0;
    for (; x + LANES <= columns; x += LANES) sum = v_fma(v_load(a + x), v_load(b + x), sum);
    float lanes[LANES];
    v_store(lanes, sum);
    double total = 0;
    for (int lane = 0; lane < LANES; ++lane) total += (double)lanes[lane];
    for (; x < columns; ++x) total += (double)a[x] * (double)b[x];
    return total;
}

/* Computes lse log2 e and delta of a tile's rows. row: [2][dim_v] of scratch. */
static inline void read_row_statistics(const struct row_statistics *to, const struct tile_rows *t, float *row) {
    const strobe_attention *a = &t->p->a;
    const strobe_gradients *g = &t->p->g;
    for (int64_t r = 0; r < TILE_ROWS; ++r) {
        to->delta[r] = 0;
        to->minus_delta[r] = 0;
        to->minus_lse[r] = -INFINITY;
        if (r >= t->n) continue;
        const double lse = element_load(a->lse.data, a->lse.dtype, tile_offset(t, &a->lse, r));
        if (lse == -(double)INFINITY) continue;
        widen_row(row, a->out.data, a->out.dtype, tile_offset(t, &a->out, r), a->dim_v);
        widen_row(row + a->dim_v, g->dout.data, g->dout.dtype, tile_offset(t, &g->dout, r), a->dim_v);
        double delta = dot_rows(row, row + a->dim_v, a->dim_v);
        if (g->dlse.data) delta -= element_load(g->dlse.data, g->dlse.dtype, tile_offset(t, &g->dlse, r));
        to->delta[r] = (float)delta;
        to->minus_delta[r] = (float)-delta;
        to->minus_lse[r] = (float)-lse;
    }
}

/* D - dlse of a row. Delta is that, with the error of an O that was rounded. A row's dS, before anything has multiplied
 * them, add up to D - keys delta, where its weights add up to `keys`, 1 - p_sink: so D is found without O. A call may have
 * a part of the keys, or none, with out and lse of all of them; the weights tell, and delta stays. Beside a sink far above
 * all scores they are less than what rounding lse to fp32 does to p_sink, which tells nothing then. */
static inline double gradient_of_row(double delta, double p_sink, double lse, double dlse, double ds, double keys) {
    const double exact = ds + keys * delta - dlse, missing = fabs(keys - (1 - p_sink));
    return keys > 0 && missing <= keys / 1024 + p_sink * fabs(lse) * 0x1p-22 && isfinite(exact) ? exact : delta;
}

/* The rows' parts of dsinks, -p_sink (D - dlse). sums: [2][TILE_ROWS] of dS and P; NULL where no row sees a key. */
static inline void write_parts_of_dsinks(const struct row_statistics *of, const struct tile_rows *t, const float *sums) {
    const strobe_sinks *sinks = &t->p->sinks;
    const strobe_tensor *dlse = &t->p->g.dlse;
    for (int64_t r = 0; r < t->n; ++r) {
        of->of_sink[r] = 0;
        if (of->minus_lse[r] == -INFINITY) continue;
        const double sink = element_load(sinks->data, sinks->dtype, packed_head(t, r));
        const double lse = -(double)of->minus_lse[r], p_sink = exp(sink - lse), delta = (double)of->delta[r];
        const double of_lse = dlse->data ? element_load(dlse->data, dlse->dtype, tile_offset(t, dlse, r)) : 0;
        const double ds = sums ? (double)sums[r] : 0, keys = sums ? (double)sums[TILE_ROWS + r] : 0;
        of->of_sink[r] = (float)(-p_sink * gradient_of_row(delta, p_sink, lse, of_lse, ds, keys));
    }
}

/* S in p becomes P, dP in ds becomes dS, in the vectors of rows that see something. hidden: some pairs are hidden, and their
 * P and dS are 0, whatever dP is, and whatever lse is in a row that sees a NaN elsewhere. */
static inline void p_and_ds(const struct problem *p, const struct block *b, const struct row_statistics *rows,
                            const struct visible_block *v, int64_t keys, bool hidden) {
    const vec scale = v_set(score_scale(p)), log2_e = v_set((float)LOG2_E), zero = v_set(0), out_of_sight = v_set(-INFINITY);
    const bool dropout = p->a.dropout, softcap = p->a.softcap > 0;
    for (int64_t lane = v->first * LANES; lane < v->end * LANES; lane += LANES) {
        const vec minus_lse = v_load(rows->minus_lse + lane), delta = v_load(rows->delta + lane);
        vec sum_ds = zero, sum_p = zero;
        for (int64_t at = lane; at < keys * TILE_ROWS; at += TILE_ROWS) {
            const vec score = v_load(b->p + at);
            vec p_ij = v_exp2(v_mul(v_fma(score, scale, minus_lse), log2_e));
            if (hidden) p_ij = v_select_equal(score, out_of_sight, zero, p_ij);
            const vec drop = dropout ? v_load(b->z + at) : v_set(1);
            const vec ds = v_mul(p_ij, v_sub(v_mul(v_load(b->ds + at), drop), delta));
            v_store(b->p + at, v_mul(p_ij, drop));
            const vec seen_ds = hidden ? v_select_equal(score, out_of_sight, zero, ds) : ds;
            v_store(b->ds + at, seen_ds);
            if (b->row_sums) sum_ds = v_add(sum_ds, seen_ds), sum_p = v_add(sum_p, p_ij);
            if (hidden && softcap) v_store(b->slope + at, v_select_equal(score, out_of_sight, zero, v_load(b->slope + at)));
        }
        if (!b->row_sums) continue;
        float *const of_ds = b->row_sums + lane, *const of_p = of_ds + TILE_ROWS;
        v_store(of_ds, v_add(v_load(of_ds), sum_ds)), v_store(of_p, v_add(v_load(of_p), sum_p));
    }
}

/* All of it, on scores that finish_block_scores() has finished; hidden: what that returned. */
static inline void gradients_of_block(const struct score_gradients *sums, const struct block *b, const struct tile_rows *t,
                                      const struct row_features *f, const struct row_statistics *rows,
                                      const struct dropout_place *place, const struct visible_block *v, int64_t j0,
                                      int64_t keys, bool hidden) {
    const struct problem *p = t->p;
    if (p->a.dropout) dropout_factors(b->z, f, v, place, j0, keys);
    p_and_ds(p, b, rows, v, keys, hidden);
    if (p->features & FEATURE(SCORE)) function_gradients(&sums->arrays, b->ds, t, &f->score, v->first, v->end, j0, keys);
    if (p->g.dbias) add_to_dbias(sums, t, v, b->ds, j0, keys);
    if (p->a.softcap > 0) multiply(b->ds, b->slope, v, keys);
}

#endif
