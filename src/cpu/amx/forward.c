/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward.c (amx): FlashAttention-2's forward (Dao, 2023, algorithm 1) on AMX tiles in bf16. The same text is compiled for
 * fp16 and fp32, whose numbers are split into bf16 parts (amx/operand.h). The softmax of one block overlaps with the
 * products of its neighbours as in FlashAttention-3 (Shah et al., 2024, section 3.2), here between vector units and tile
 * unit: amx/step.h has this pipeline and the memory map of a tile.
 *
 *   a task is some tiles of 32 packed query rows (rows.h) of one K/V head
 *   for each super-block of keys, half of L2:           V^T is packed once, K is copied unless it can be read in place
 *     for each tile of the task:                        Q^T is packed; m, l and O^T wait in memory between super-blocks
 *       for each block of 64 keys that the tile sees:   a step of the pipeline, three stages
 *         S^T = K Q^T;  softcap, bias, ALiBi and mask where there are any
 *         online softmax:  P = exp(S - m) = 2^(S c - m c), c = scale log2 e;  l += rowsum(P)
 *         O^T += V^T P^T
 *   O / l and lse = m + ln l are written once
 *
 * Lagging maximum: m is not the running maximum of a row but the maximum of the first block in which the row sees a key. It
 * moves to the true maximum, and O and l are rescaled, only when the exponentials of a block sum to more than RESCALE_ABOVE;
 * below that, fp32 is equally precise at any magnitude. So the usual block has no pass for the maximum and no rescale.
 * RESCALE_ABOVE is part of the result, since m is in lse and in O. l sums P in fp32, before P is rounded to bf16.
 *
 * Skip: a tile loops over the blocks of which it sees some (visible.h), and the last block is cut to half of its keys where
 * the band hides the others. A block that no tile sees is not packed. The number of threads decides how many rows a task
 * has, but results do not depend on it: tiles, blocks and the order of every sum follow from shapes and masks alone.
 *
 * docs/kernels/cpu.md has the versions and what was tried, docs/benchmarks.md the figures. */
#include "core/parallel.h"
#include "cpu/amx/online_softmax.h"
#include "cpu/amx/sizes.h"
#include "cpu/amx/tasks.h"
#include "cpu/scratch.h"
#include "cpu/table.h"
#include "cpu/vector/finish.h"

enum {
    STREAM_ABOVE = 1 << 19, /* bytes of output: beyond, results bypass the caches, since they would not stay in L2 */
    TASKS_A_WORKER = 4,     /* wanted at least, to balance the threads */
};

static int64_t state_floats(const struct forward *f) { return f->v_padded * TILE_ROWS + 2 * TILE_ROWS; }

static size_t lay_out(struct scratch *t, float *base, const struct forward *f) {
    size_t used = 0;
    t->k = (uint16_t *)take(base, &used, f->k_in_place ? 0 : PARTS * f->super_keys * f->k_padded / 2);
    t->tail = (uint16_t *)take(base, &used, f->k_in_place ? BLOCK_KEYS * f->k_padded / 2 : 0);
    t->v = (uint16_t *)take(base, &used, PARTS * f->super_keys * f->v_padded / 2);
    t->v_nonfinite = (uint64_t *)(void *)take(base, &used, f->super_keys / BLOCK_KEYS * 2);
    t->k_nonfinite = (uint64_t *)(void *)take(base, &used, f->super_keys / BLOCK_KEYS * 2);
    t->packed = (bool *)(void *)take(base, &used, (f->super_keys / BLOCK_KEYS + 3) / 4);
    const int64_t columns = f->p->a.dim > f->p->a.dim_v ? f->p->a.dim : f->p->a.dim_v;
    t->rows = (number *)take(base, &used, f->p->a.paged ? BLOCK_KEYS * columns * (int64_t)sizeof(number) / 4 : 0);
    t->q = (uint16_t *)take(base, &used, PARTS * TILE_ROWS * f->k_padded / 2);
    for (int n = 0; n < 2; ++n) {
        t->s[n] = take(base, &used, BLOCK_KEYS * TILE_ROWS);
        t->p[n] = (uint32_t *)take(base, &used, PARTS * P_WORDS);
    }
    t->state = take(base, &used, f->states * state_floats(f));
    const struct score_memory score = take_score_memory(base, &used, f->p);
    t->score = take_tile_memory(&score, base, &used, f->p);
    return used * sizeof(float);
}

/* Where K of block j0 lies: with the caller, in the worker's copy, or in the tail. */
static const uint16_t *block_of_k(const struct forward *f, const struct scratch *t, const struct keys *k, int64_t j0,
                                  int64_t *stride) {
    const strobe_tensor *x = &f->p->a.k;
    *stride = f->k_padded;
    if (!f->k_in_place) return t->k + PARTS * (j0 - k->first) * f->k_padded;
    if (k->s.keys - j0 < BLOCK_KEYS) return t->tail;
    *stride = x->stride[1];
    return (const uint16_t *)x->data + strobe__key_offset(x, &k->s, j0, k->kv);
}

/* Packs K and V of the block from key j0 on. */
static void pack_block(const struct forward *f, const struct scratch *t, const struct keys *k, int64_t j0) {
    const strobe_attention *a = &f->p->a;
    const int64_t left = k->s.keys - j0, n = left < BLOCK_KEYS ? left : BLOCK_KEYS, at = j0 - k->first;
    int64_t stride;
    const number *key = rows_together(t->rows, &a->k, &k->s, k->kv, j0, n, a->dim, &stride);
    const bool search = f->some_hidden || PARTS > 1; /* in parts, an infinity times a part of zero would be NaN */
    bool finite = true;
    if (!f->k_in_place)
        finite = pack_keys(t->k + PARTS * at * f->k_padded, key, stride, n, a->dim, f->k_padded);
    else if (n < BLOCK_KEYS)
        pack_keys(t->tail, key, stride, n, a->dim, f->k_padded);
    t->k_nonfinite[at / BLOCK_KEYS] = PARTS > 1 && !finite ? keys_not_finite(key, stride, n, a->dim) : 0;
    const number *value = rows_together(t->rows, &a->v, &k->s, k->kv, j0, n, a->dim_v, &stride);
    uint16_t *v = t->v + PARTS * at * f->v_padded;
    finite = pack_values(v, value, stride, n, a->dim_v, f->v_padded, 0);
    t->v_nonfinite[at / BLOCK_KEYS] = search && !finite ? keys_not_finite(value, stride, n, a->dim_v) : 0;
    if (t->v_nonfinite[at / BLOCK_KEYS])
        pack_values(v, value, stride, n, a->dim_v, f->v_padded, t->v_nonfinite[at / BLOCK_KEYS]);
}

/* Starts a super-block: packs all of it, or nothing yet. */
static void start_super_block(const struct forward *f, const struct scratch *t, const struct keys *k) {
    for (int64_t j0 = k->first; j0 < k->end; j0 += BLOCK_KEYS) {
        t->packed[(j0 - k->first) / BLOCK_KEYS] = !f->packs_late;
        if (!f->packs_late) pack_block(f, t, k, j0);
    }
}

/* Where a tile begins its walk: at its first block. With ALiBi, whose scores grow towards the diagonal, that is the last
 * block with a row's diagonal, from which the walk goes down and then up behind it: m would have to move with each block
 * that came closer. */
static struct block_walk start_walk(const struct forward *f, const struct scratch *c, const struct tile *t,
                                    const struct keys *k) {
    struct block_walk w;
    const int64_t first = tile_first_key(&t->rows) / BLOCK_KEYS * BLOCK_KEYS, end = tile_end_key(&t->rows);
    w.begin = first > k->first ? first : k->first;
    w.end = end < k->end ? end : k->end;
    w.j0 = w.up_from = w.begin;
    w.step = BLOCK_KEYS;
    w.all_first = w.all_end = 0;
    if (w.begin >= w.end) return w;
    w.all_first = band_first(&t->rows.s.band, packed_row(&t->rows, t->rows.n - 1));
    w.all_end = band_end(&t->rows.s.band, packed_row(&t->rows, 0));
    w.features.score = c->score;
    find_row_features(&w.features, &t->rows);
    if (!f->p->a.alibi) return w;
    const int64_t diagonal = w.features.alibi_key[t->rows.n - 1], last = w.end - 1;
    const int64_t top = diagonal < w.begin ? w.begin : diagonal < last ? diagonal : last;
    w.j0 = w.begin + (top - w.begin) / BLOCK_KEYS * BLOCK_KEYS;
    w.up_from = w.j0 + BLOCK_KEYS;
    w.step = -BLOCK_KEYS;
    return w;
}

/* Moves on to the next block. Returns false behind the last one. */
static inline bool walk_on(struct block_walk *w) {
    if (w->step < 0 && w->j0 < w->begin) {
        w->j0 = w->up_from;
        w->step = BLOCK_KEYS;
    }
    return w->j0 < w->end;
}

/* What the tile sees of a block. Of a whole one inside the band, without a mask, that takes no more than comparisons. */
static inline void see_next(const struct forward *f, const struct tile *t, struct block_walk *w, const struct key_block *b) {
    if (f->packs_late || b->j0 < w->all_first || b->j0 + b->keys > w->all_end) {
        see_block(&w->visible, &t->rows, &w->features, b->j0, b->keys);
        return;
    }
    w->visible.coverage = BLOCK_FULL;
    w->visible.first = 0;
    w->visible.end = vectors_of(t->rows.n);
}

/* The next block of which the tile sees some. It is cut to half of its keys where the band hides the others from all rows.
 */
static struct key_block next_block(const struct forward *f, const struct scratch *c, const struct keys *k,
                                   const struct tile *t, struct block_walk *w) {
    for (; walk_on(w); w->j0 += w->step) {
        struct key_block b = {.j0 = w->j0, .rows = w->end - w->j0 > HALF_KEYS ? BLOCK_KEYS : HALF_KEYS};
        b.keys = k->s.keys - b.j0 < b.rows ? k->s.keys - b.j0 : b.rows;
        see_next(f, t, w, &b);
        if (w->visible.coverage == BLOCK_SKIPPED) continue;
        bool *packed = &c->packed[(b.j0 - k->first) / BLOCK_KEYS];
        if (!*packed) pack_block(f, c, k, b.j0);
        *packed = true;
        w->j0 += w->step;
        return b;
    }
    return (struct key_block){.rows = 0};
}

/* What comes after the products of a step: the end of the online softmax of block b, whose scores are s and whose P is p. */
static void finish_block(const struct forward *f, struct tile *t, const struct scratch *c, const struct keys *k,
                         const struct row_features *features, struct exponentials *e, const struct key_block *b,
                         const float *s, uint32_t *p) {
    online_softmax(f, t, e, s, p, b->rows);
    if (f->p->a.dropout) apply_dropout(f, features, p, b->j0, b->rows);
    const uint64_t v_nonfinite = c->v_nonfinite[(b->j0 - k->first) / BLOCK_KEYS];
    if (v_nonfinite) add_nonfinite_keys(f, t, k, p, b->j0, b->rows == BLOCK_KEYS ? v_nonfinite : (uint32_t)v_nonfinite);
}

/* A tile attends to a super-block: the loop over the blocks that it sees, a step of the pipeline each and one more at either
 * end. */
static void attend_super_block(const struct forward *f, struct tile *t, const struct scratch *c, const struct keys *k,
                               struct next_task *ahead) {
    struct block_walk w = start_walk(f, c, t, k);
    struct key_block next = next_block(f, c, k, t, &w), now = {.rows = 0}, before = {.rows = 0}; /* exponentiated: now */
    for (int64_t n = 1; next.rows || now.rows || before.rows; ++n) {
        float *const s = c->s[n & 1], *const next_s = c->s[(n + 1) & 1];
        uint32_t *const p = c->p[n & 1];
        struct step step = {.q = c->q, .chunks = f->k_padded / TILE_DEPTH, .s = next_s, .o = t->o, .k_keys = next.rows};
        step.p = c->p[(n + 1) & 1];
        step.tiles = f->v_padded / TILE_SIDE;
        step.v_whole = before.rows == BLOCK_KEYS;
        if (next.rows) step.k = block_of_k(f, c, k, next.j0, &step.k_stride);
        step.o_empty = t->o_empty;
        if (before.rows) {
            t->o_empty = false;
            step.v = c->v + PARTS * (before.j0 - k->first) * f->v_padded;
        }
        prefetch_next(ahead);
        struct exponentials e;
        start_exponentials(&e, f, t, s, p, now.rows);
        step_run(&step, &e);
        if (now.rows) finish_block(f, t, c, k, &w.features, &e, &now, s, p);
        if (next.rows) {
            const uint64_t k_nonfinite = c->k_nonfinite[(next.j0 - k->first) / BLOCK_KEYS];
            if (k_nonfinite) score_nonfinite_keys(f, t, k, next_s, next.j0, k_nonfinite);
            finish_scores(f, t, &w, next_s, &next);
        }
        before = now;
        now = next;
        if (next.rows) next = next_block(f, c, k, t, &w);
    }
}

static void start_tile(const struct forward *f, struct tile *t, float *state, const struct tile_rows *rows) {
    *t = (struct tile){.rows = *rows, .o = state, .any_unset = true, .o_empty = true};
    t->m = state + f->v_padded * TILE_ROWS;
    t->l = t->m + TILE_ROWS;
    for (int r = 0; r < TILE_ROWS; ++r) {
        t->m[r] = -INFINITY;
        t->l[r] = 0;
    }
}

static void finish_tile(const struct forward *f, struct tile *t) {
    clear_if_empty(f, t);
    float factor[TILE_ROWS] = {0};
    finish_rows(&t->rows, t->m, t->l, factor);
    if (f->p->a.dropout)
        for (int r = 0; r < TILE_ROWS; ++r) factor[r] *= f->place.keep_scale;
    const strobe_tensor *out = &f->p->a.out;
    if (out->dtype == f->p->a.q.dtype)
        unpack_rows(&t->rows, out, t->o, f->p->a.dim_v, factor, f->streams);
    else
        tile_unpack(&t->rows, out, t->o, f->p->a.dim_v, factor);
}

static void pack_tile(const struct forward *f, const struct scratch *c, const struct tile_rows *rows) {
    const strobe_attention *a = &f->p->a;
    pack_queries(c->q, rows, &a->q, a->dim, !f->has_terms && a->scale < 0);
}

/* The forward of the packed rows [first, first + rows) of a K/V head. */
static void forward_rows(const struct forward *f, const struct scratch *c, struct keys *k, int64_t first, int64_t rows,
                         struct next_task *ahead) {
    struct tile tiles[FORWARD_MOST_ROWS / TILE_ROWS];
    const int64_t count = (rows + TILE_ROWS - 1) / TILE_ROWS, stride = state_floats(f);
    const struct tile_rows top = tile_rows_at(f->p, &k->s, k->kv, first);
    const struct tile_rows bottom = tile_rows_at(f->p, &k->s, k->kv, first + (count - 1) * TILE_ROWS);
    const int64_t begin = tile_first_key(&top) / BLOCK_KEYS * BLOCK_KEYS, end = tile_end_key(&bottom);
    const bool one_super_block = end - begin <= f->super_keys; /* then all tiles use one state, one after the other */
    for (k->first = begin; k->first < end || k->first == begin; k->first += f->super_keys) {
        k->end = end - k->first < f->super_keys ? end : k->first + f->super_keys;
        start_super_block(f, c, k);
        pack_tile(f, c, &top);
        for (int64_t n = 0; n < count; ++n) {
            const struct tile_rows at = tile_rows_at(f->p, &k->s, k->kv, first + n * TILE_ROWS);
            const struct tile_rows next = tile_rows_at(f->p, &k->s, k->kv, first + (n + 1) * TILE_ROWS);
            if (k->first == begin) start_tile(f, &tiles[n], c->state + (one_super_block ? 0 : n) * stride, &at);
            if (k->end >= end && f->is_far && !f->streams) prefetch_results(f, &at);
            attend_super_block(f, &tiles[n], c, k, ahead);
            /* Q^T of the next tile comes before the results of this one. Stores to the caches wait for those that bypass
             * them, and loads of Q^T wait for both. */
            if (n + 1 < count) pack_tile(f, c, &next);
            if (k->end >= end) finish_tile(f, &tiles[n]);
        }
    }
}

static void forward_task(void *context, int64_t index, int32_t worker) {
    const struct forward *f = context;
    struct task task = task_at(f, index);
    if (task.rows == 0) return;
    struct next_task ahead = next_task(f, &task, index);
    const float_mode mode = enter_flush_to_zero();
    tiles_enter();
    struct scratch t;
    lay_out(&t, worker_memory(f->workspace, f->scratch_bytes, worker), f);
    forward_rows(f, &t, &task.keys, task.first, task.rows, &ahead);
    tiles_leave();
    if (f->streams) stream_fence(); /* orders the non-temporal stores before whatever the caller does next */
    leave_flush_to_zero(mode);
}

/* Sizes. A task has up to FORWARD_MOST_ROWS rows of a head, and fewer where the workers would have too few tasks. */
static struct forward forward_of(const struct problem *p) {
    const strobe_attention *a = &p->a;
    struct forward f = {.p = p, .k_padded = up_to(a->dim, TILE_DEPTH)};
    f.v_padded = up_to(a->dim_v, PARTS == 1 ? TILE_SIDE : 2 * TILE_SIDE);
    const int64_t keys = up_to(a->seq_k > 0 ? a->seq_k : 1, BLOCK_KEYS), rows = a->seq_q * p->group;
    f.super_keys = FORWARD_SUPER_BYTES / 2 / PARTS / (f.k_padded + f.v_padded) / BLOCK_KEYS * BLOCK_KEYS;
    if (f.super_keys > keys) f.super_keys = keys;
    /* K is read in place where its rows are adjacent: rows that are far apart fall into few sets of the cache. */
    f.k_in_place = PARTS == 1 && !a->paged && a->k.stride[1] == a->dim && a->dim == f.k_padded &&
                   (uintptr_t)a->k.data % 64 == 0;
    f.some_hidden = a->mask || a->paged || scores_have_element_masks(p);
    f.packs_late = scores_have_element_masks(p);
    f.has_terms = scores_have_terms(p);
    f.factor = exponent_factor(p);
    f.streams = a->batch * a->seq_q * a->heads_q * a->dim_v * (int64_t)sizeof(number) > STREAM_ABOVE;
    f.rows_a_task = FORWARD_MOST_ROWS;
    const int64_t wanted = TASKS_A_WORKER * (int64_t)strobe__workers(a->parallel), heads = a->batch * a->heads_kv;
    while (f.rows_a_task > FORWARD_LEAST_ROWS && heads * ((rows + f.rows_a_task - 1) / f.rows_a_task) < wanted)
        f.rows_a_task /= 2;
    f.tasks_a_head = (rows + f.rows_a_task - 1) / f.rows_a_task;
    f.states = keys <= f.super_keys ? 1 : (f.rows_a_task < rows ? f.rows_a_task : rows + TILE_ROWS - 1) / TILE_ROWS;
    if (a->dropout) f.place = strobe__dropout_place(p);
    return f;
}

size_t AMX_KERNEL(forward_workspace)(const struct plan *plan) {
    const struct problem *p = plan->problem;
    struct scratch t;
    struct forward f = forward_of(p);
    f.k_in_place = false; /* a workspace query may have no pointer to K yet */
    return (size_t)strobe__workers(p->a.parallel) * lay_out(&t, NULL, &f);
}

strobe_status AMX_KERNEL(forward)(const struct plan *plan, const struct execution *execution) {
    const struct problem *p = plan->problem;
    struct forward f = forward_of(p);
    struct scratch t;
    f.workspace = execution->workspace;
    f.scratch_bytes = lay_out(&t, NULL, &f);
    f.tasks = p->a.batch * p->a.heads_kv * f.tasks_a_head;
    f.workers = strobe__workers(p->a.parallel);
    f.is_far = f.tasks > 0 && first_task_is_far(&f);
    strobe__parallel_for(p->a.parallel, f.tasks, forward_task, &f);
    return STROBE_OK;
}
