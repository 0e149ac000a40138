/* SPDX-License-Identifier: BSD-3-Clause
 *
 * array_gradients.h: what the user's score function adds to the backward: dS times the function's slope, and the gradients
 * of its arrays, the sum of dS times an element's adjoint over all scores that read the element. Which scores these are
 * follows from indices that may be anything, so that heads may share an element. Each of a few slots has all sums for some
 * heads, which are one task; the slots are added in their order. How many there are follows from shapes alone. */
#ifndef STROBE_CPU_ARRAY_GRADIENTS_H
#define STROBE_CPU_ARRAY_GRADIENTS_H

#include "cpu/vector/score_function.h"

enum { SLOT_BYTES = 32 << 20 }; /* of all slots, unless one alone is larger */

struct array_gradients {
    const struct problem *p;
    int64_t slots;                    /* 0: no gradient is wanted */
    int64_t elements;                 /* of all arrays, in a slot */
    int64_t first[SCORE_MOST_ARRAYS]; /* of an array in a slot; -1: not wanted */
    double *sums;                     /* [slots][elements] */
};

static inline int64_t array_elements(const strobe_score_elements *x) {
    return x->extent[0] * x->extent[1] * x->extent[2] * x->extent[3];
}

static inline void array_gradients_lay_out(struct array_gradients *g, void *base, size_t *floats, const struct problem *p) {
    const struct score_call *call = &p->score_call;
    *g = (struct array_gradients){.p = p};
    if (!call->wants_gradients) return;
    for (int n = 0; n < call->function->array_count; ++n) {
        g->first[n] = call->wants_gradient[n] ? g->elements : -1;
        g->elements += call->wants_gradient[n] ? array_elements(&call->array[n]) : 0;
    }
    const int64_t heads = p->a.batch * p->a.heads_kv, most = SLOT_BYTES / 8 / (g->elements > 0 ? g->elements : 1);
    g->slots = heads < most ? heads : most;
    if (g->slots < 1) g->slots = 1;
    g->sums = (double *)(void *)take(base, floats, strobe__product(2 * g->slots, g->elements));
}

/* The slot of a K/V head, and the first head of a slot; heads count through the batch. */
static inline int64_t slot_of(const struct array_gradients *g, int64_t head) {
    return head * g->slots / (g->p->a.batch * g->p->a.heads_kv);
}
static inline int64_t first_of_slot(const struct array_gradients *g, int64_t slot) {
    return (slot * g->p->a.batch * g->p->a.heads_kv + g->slots - 1) / g->slots;
}

static inline void array_gradients_start(const struct array_gradients *g) {
    if (g->slots) memset(g->sums, 0, (size_t)(g->slots * g->elements) * sizeof *g->sums);
}

/* Adds ds times the adjoint to the elements that one load reads: `count` keys of the vector of rows at run->r. */
static inline void add_to_array(const struct array_gradients *g, double *sums, const struct score_run *run, int load,
                                const float *ds, int64_t count) {
    const struct score_call *call = &g->p->score_call;
    const struct strobe_score *f = call->function;
    const struct score_load *x = &f->load[load];
    const strobe_score_elements *array = &call->array[x->array];
    const int rank = f->array_rank[x->array];
    const struct score_operand adjoint = pair_operand(run, f->adjoint[load]);
    struct score_operand index[SCORE_MOST_RANK];
    for (int axis = 0; axis < rank; ++axis) index[axis] = pair_operand(run, x->index[axis]);
    const int64_t lanes = run->t->n - run->r < LANES ? run->t->n - run->r : LANES;
    for (int64_t n = 0; n < count; ++n)
        for (int64_t lane = 0; lane < lanes; ++lane) {
            const float d = ds[n * TILE_ROWS + lane];
            if (d == 0) continue; /* a hidden pair, whose adjoint may be NaN */
            int64_t place = 0;
            for (int axis = 0; axis < rank; ++axis) {
                int32_t at;
                memcpy(&at, index[axis].at + n * index[axis].stride + lane, sizeof at);
                place = place * array->extent[axis] + at;
            }
            sums[place] += (double)d * (double)adjoint.at[n * adjoint.stride + lane];
        }
}

/* dS becomes dS times the slope, in the vectors of rows that see something, and its part of the arrays' gradients is added.
 * Where dS is 0 it stays 0. */
static inline void function_gradients(const struct array_gradients *g, float *ds, const struct tile_rows *t,
                                      const struct score_memory *m, int first, int end, int64_t j0, int64_t keys) {
    const struct score_call *call = &t->p->score_call;
    const struct strobe_score *f = call->function;
    struct score_run run = {.t = t, .m = m, .program = g->slots ? &f->of_gradients : &f->of_slope};
    double *const slot = g->slots ? g->sums + slot_of(g, t->s.b * t->p->a.heads_kv + t->kv) * g->elements : NULL;
    const vec zero = v_set(0);
    run_keys(&run, j0, keys);
    for (run.r = first * LANES; run.r < end * LANES; run.r += LANES)
        for (run.key = 0; run.key < keys; run.key += CHUNK) {
            const int64_t count = keys - run.key < CHUNK ? keys - run.key : CHUNK;
            float *const at = ds + run.key * TILE_ROWS + run.r;
            run.scores = m->input + run.key * TILE_ROWS + run.r;
            run_pairs(&run, count);
            for (int n = 0; n < f->load_count && slot; ++n)
                if (f->adjoint[n] != NO_NODE && g->first[f->load[n].array] >= 0)
                    add_to_array(g, slot + g->first[f->load[n].array], &run, n, at, count);
            const struct score_operand slope = pair_operand(&run, f->slope);
            for (int64_t n = 0; n < count; ++n) {
                const vec x = v_load(at + n * TILE_ROWS), y = v_load(slope.at + n * slope.stride);
                v_store(at + n * TILE_ROWS, v_select_equal(x, zero, zero, v_mul(x, y)));
            }
        }
}

/* Adds the slots, and rounds the sums into the caller's arrays. */
static inline void array_gradients_finish(const struct array_gradients *g) {
    const struct score_call *call = &g->p->score_call;
    for (int n = 0; g->slots && n < call->function->array_count; ++n) {
        const strobe_score_elements *to = &call->gradient[n];
        const int64_t elements = g->first[n] >= 0 ? array_elements(to) : 0;
        for (int64_t e = 0; e < elements; ++e) {
            double sum = 0;
            int64_t rest = e, at = 0;
            for (int64_t slot = 0; slot < g->slots; ++slot) sum += g->sums[slot * g->elements + g->first[n] + e];
            for (int axis = SCORE_MOST_RANK - 1; axis >= 0; --axis) {
                at += rest % to->extent[axis] * to->stride[axis];
                rest /= to->extent[axis];
            }
            element_store(to->data, to->dtype, at, sum);
        }
    }
}

#endif
