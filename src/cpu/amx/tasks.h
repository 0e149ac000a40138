/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tasks.h: the tasks of the AMX forward, and what a worker will touch soon, brought into its caches while it multiplies.
 * Between a model's other operators nothing of a call is in the worker's own caches, and rows of one head, which often lie
 * kilobytes apart, are what the processor's own prefetching finds late. A call that finds all of it in its caches would only
 * be held up, by up to an eighth of its time, so the caller's thread first asks how long four lines take to come. */
#ifndef STROBE_CPU_AMX_TASKS_H
#define STROBE_CPU_AMX_TASKS_H

#include "cpu/amx/online_softmax.h"

enum {
    AHEAD_BYTES = 1 << 18, /* of K, V and Q each, that are prefetched at most */
    STEP_BYTES = 32 * 64,  /* of all of them that a step prefetches at most: more hold up its own loads */
    FEW_STEPS = 32,        /* a task of so few steps is over soon: there each prefetches what it has to */
};

/* Rows [first, first + rows) of a K/V head. */
struct task {
    struct keys keys;
    int64_t first, rows;
};

static inline struct task task_at(const struct forward *f, int64_t index) {
    const strobe_attention *a = &f->p->a;
    const int64_t heads = a->batch * a->heads_kv;
    struct task t = {.keys = {.s = strobe__sequence(f->p, index % heads / a->heads_kv), .kv = index % heads % a->heads_kv}};
    /* Under a causal mask the last rows see the most keys, and the longest tasks first balance the threads best. */
    t.first = (f->tasks_a_head - 1 - index / heads) * f->rows_a_task;
    const int64_t left = packed_rows(f->p, &t.keys.s) - t.first;
    t.rows = left < 0 ? 0 : left < f->rows_a_task ? left : f->rows_a_task;
    return t;
}

static inline int64_t most_rows(int64_t rows, const strobe_tensor *x, int64_t columns) {
    const int64_t most = AHEAD_BYTES / columns / (int64_t)strobe__dtype_bytes(x->dtype);
    return rows < most ? rows : most;
}

/* Query rows of the task from the first one on. */
static inline struct next_rows next_queries(const struct task *t, const struct tile_rows *top, const strobe_tensor *q,
                                            int64_t dim) {
    const int64_t size = (int64_t)strobe__dtype_bytes(q->dtype), group = top->p->group, columns = dim * group;
    if (group > 1 && q->stride[2] != dim) return (struct next_rows){.data = NULL};
    return (struct next_rows){(const char *)q->data + tile_offset(top, q, 0) * size,
                              most_rows((t->rows + group - 1) / group, q, columns), q->stride[1] * size, columns * size};
}

/* The first and the last tile of a task. */
static inline void ends_of(const struct forward *f, const struct task *t, struct tile_rows *top, struct tile_rows *bottom) {
    *top = tile_rows_at(f->p, &t->keys.s, t->keys.kv, t->first);
    *bottom = tile_rows_at(f->p, &t->keys.s, t->keys.kv, t->first + (t->rows - 1) / TILE_ROWS * TILE_ROWS);
}

/* About how many steps of the pipeline a task has: its tiles see as many keys as the first and the last one on average. */
static inline int64_t steps_of(const struct forward *f, const struct task *t) {
    struct tile_rows top, bottom;
    ends_of(f, t, &top, &bottom);
    const int64_t of_top = tile_end_key(&top) - tile_first_key(&top),
                  of_bottom = tile_end_key(&bottom) - tile_first_key(&bottom), /* below 0: the tile sees none */
        keys = (of_top > 0 ? of_top : 0) + (of_bottom > 0 ? of_bottom : 0);
    return up_to(t->rows, TILE_ROWS) / TILE_ROWS * (up_to(keys, 2 * BLOCK_KEYS) / (2 * BLOCK_KEYS) + 2);
}

/* K, V and Q of a task. */
static inline void operands_of_task(const struct forward *f, const struct task *t, struct next_rows rows[OPERANDS]) {
    const strobe_attention *a = &f->p->a;
    struct tile_rows top, bottom;
    ends_of(f, t, &top, &bottom);
    const int64_t begin = tile_first_key(&top), keys = tile_end_key(&bottom) - begin;
    rows[0] = next_keys(&a->k, &t->keys.s, t->keys.kv, begin, most_rows(keys, &a->k, a->dim), a->dim);
    rows[1] = next_keys(&a->v, &t->keys.s, t->keys.kv, begin, most_rows(keys, &a->v, a->dim_v), a->dim_v);
    rows[2] = next_queries(t, &top, &a->q, a->dim);
}

/* Whether some of what the first task reads and writes is not in the caches of the core that asks. */
static inline bool first_task_is_far(const struct forward *f) {
    const strobe_tensor *out = &f->p->a.out;
    const char *line[OPERANDS + 1];
    const struct task t = task_at(f, 0);
    if (t.rows == 0) return true;
    struct next_rows rows[OPERANDS];
    operands_of_task(f, &t, rows);
    const struct tile_rows top = tile_rows_at(f->p, &t.keys.s, t.keys.kv, t.first);
    line[0] = (const char *)out->data + tile_offset(&top, out, 0) * (int64_t)strobe__dtype_bytes(out->dtype);
    int n = 1;
    for (int i = 0; i < OPERANDS; ++i)
        if (rows[i].data && rows[i].rows > 0) line[n++] = rows[i].data + rows[i].rows / 2 * rows[i].stride;
    return lines_are_far(line, n);
}

/* What the worker of task `now`, which is the index-th, comes to next, probably: workers take tasks in turns. It is spread
 * over the steps of `now`; where they are few, not over the last quarter of them, so that it is there in time. */
static inline struct next_task next_task(const struct forward *f, const struct task *now, int64_t index) {
    struct next_task n = {.rows = {{.data = NULL}}};
    index += f->workers;
    if (!f->is_far || index >= f->tasks) return n;
    const struct task t = task_at(f, index);
    if (t.rows == 0) return n;
    operands_of_task(f, &t, n.rows);
    int64_t bytes = 0;
    for (int i = 0; i < OPERANDS; ++i) bytes += n.rows[i].data ? n.rows[i].rows * n.rows[i].bytes : 0;
    const int64_t steps = steps_of(f, now);
    const bool few = steps <= FEW_STEPS;
    n.step_bytes = bytes / (few ? steps - steps / 4 : steps) + 1;
    if (n.step_bytes > STEP_BYTES && !few) n.step_bytes = STEP_BYTES;
    return n;
}

/* Prefetches a step's share, in whole rows. */
static inline void prefetch_next(struct next_task *next) {
    int64_t bytes = next->step_bytes;
    for (int n = 0; n < OPERANDS && bytes > 0; ++n) {
        struct next_rows *x = &next->rows[n];
        if (x->data && x->rows > 0) bytes = prefetch_rows(x, (bytes + x->bytes - 1) / x->bytes) * x->bytes;
    }
}

/* The lines that the results of a tile go to, to be written: its stores then find them, and wait for nothing. */
static inline void prefetch_results(const struct forward *f, const struct tile_rows *t) {
    const strobe_tensor *out = &f->p->a.out;
    const int64_t size = (int64_t)strobe__dtype_bytes(out->dtype), bytes = f->p->a.dim_v * size;
    int64_t offset[TILE_ROWS];
    tile_offsets(offset, t, out);
    for (int64_t r = 0; r < t->n; ++r)
        for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch((char *)out->data + offset[r] * size + at, 1);
}

#endif
