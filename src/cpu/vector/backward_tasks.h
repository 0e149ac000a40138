/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward_tasks.h: what the tasks of a backward are, and how dQ is summed; one text for backward.c and amx/backward.c.
 *
 *   1. a task is rows of a K/V head:     lse log2 e and D = rowsum(dO * O) - dlse of each packed query row (rows.h)
 *   2. a task is a range of keys of a K/V head, or all its ranges, one after the other:
 *        for each super-block of keys that fits in L2:  meet_keys() writes its dK and dV and adds to the range's dQ
 *   3. dQ: the sums of the ranges, in the order of the keys, times the scale
 *
 * The keys are cut into ranges by their number alone, so that few heads still fill many cores, and a sum over rows or keys
 * runs in the same order whoever runs it: no atomics, and results do not depend on the number of threads. dQ of a range is
 * summed apart: where each head is one task, in two buffers of the worker, else in a buffer a range. Memory is linear in
 * the sequence: two dQ of a head in fp32 for each worker, or at most MOST_RANGES of each head. */
#ifndef STROBE_CPU_BACKWARD_TASKS_H
#define STROBE_CPU_BACKWARD_TASKS_H

#include "core/parallel.h"
#include "cpu/vector/block_gradients.h"

enum {
    SUPER_BYTES = 1 << 20, /* of a super-block: half of L2 */
    LEAST_RANGE = 1024,    /* keys: summing a range's dQ apart costs about as much as 40 keys */
    MOST_RANGES = 8,       /* of a head */
    TASKS_A_WORKER = 4,    /* heads that are enough for each to be one task */
    STATISTICS_TILES = 32, /* of a task */
};

/* dQ of a range, or of those up to it. */
struct range_sum {
    float *dq;    /* [tiles][dim][TILE_ROWS] */
    bool *summed; /* [tiles]: something was; before, dq is not even zero */
};

/* The super-block at hand: keys [first, end). */
struct keys {
    struct sequence s;
    int64_t kv, first, end;
    struct range_sum dq;
};

struct gradient_tasks {
    const struct problem *p;
    char *workspace;
    size_t scratch_bytes;              /* of a worker */
    int64_t tiles, dq_tile, dq_floats; /* tiles of a K/V head; floats of dQ, of a tile and of a head */
    int64_t ranges, range_keys, super_keys;
    int64_t statistics_tiles;   /* whose statistics are a task; all, where rows add to a sum of the head's, dsinks */
    bool apart;                 /* a range is a task */
    struct row_statistics rows; /* [batch][heads_kv][tiles][TILE_ROWS] */
    struct range_sum sum;       /* where ranges are tasks: [batch][heads_kv][ranges] */
    struct dropout_place place;
    struct score_gradients sums; /* of bias and sinks */

    /* The kernel's part: what its worker needs, what a super-block is, how dQ of a tile is written. */
    void (*meet_keys)(const struct gradient_tasks *g, float *memory, const struct keys *k);
    void (*write_dq)(const struct tile_rows *t, const float *dq);
};

static inline struct row_statistics statistics_of(const struct gradient_tasks *g, const struct sequence *s, int64_t kv,
                                                  int64_t tile) {
    const int64_t at = ((s->b * g->p->a.heads_kv + kv) * g->tiles + tile) * TILE_ROWS;
    return (struct row_statistics){.lse2 = g->rows.lse2 + at, .D = g->rows.D + at, .minus_D = g->rows.minus_D + at};
}

/* --------------------------------------------------------------------------------------------------- what tasks do -- */

/* A worker's memory: two dQ of a head unless ranges are tasks, a row, then the kernel's. */
static inline float *worker_memory(const struct gradient_tasks *g, int32_t worker) {
    return (float *)(void *)(g->workspace + (size_t)worker * g->scratch_bytes);
}

static inline struct range_sum take_sums(const struct gradient_tasks *g, float *base, size_t *used, int64_t ranges) {
    struct range_sum sum;
    sum.dq = take(base, used, strobe__product(ranges, g->dq_floats));
    sum.summed = (bool *)(void *)take(base, used, (ranges * g->tiles + 3) / 4);
    return sum;
}

static inline int64_t shared_by_tasks(const struct gradient_tasks *g, float *base, struct range_sum sum[2], float **row) {
    size_t used = 0;
    for (int n = 0; n < 2; ++n) sum[n] = take_sums(g, base, &used, !g->apart && n < g->ranges ? 1 : 0);
    *row = take(base, &used, 2 * g->p->a.dim_v);
    return (int64_t)used;
}

static inline void statistics_task(void *context, int64_t index, int32_t worker) {
    const struct gradient_tasks *g = context;
    const int64_t heads = g->p->a.batch * g->p->a.heads_kv, kv = index % heads % g->p->a.heads_kv;
    const int64_t begin = index / heads * g->statistics_tiles, end = begin + g->statistics_tiles;
    const struct sequence s = strobe__sequence(g->p, index % heads / g->p->a.heads_kv);
    const float_mode mode = enter_flush_to_zero();
    struct range_sum sum[2];
    float *row;
    shared_by_tasks(g, worker_memory(g, worker), sum, &row);
    for (int64_t n = begin; n < end && n * TILE_ROWS < packed_rows(g->p, &s); ++n) {
        const struct row_statistics rows = statistics_of(g, &s, kv, n);
        const struct tile_rows t = tile_rows_at(g->p, &s, kv, n * TILE_ROWS);
        read_row_statistics(&rows, &t, &g->sums, row);
    }
    leave_flush_to_zero(mode);
}

/* A range's super-blocks are of about the same size: each makes its rows anew. */
static inline void backward_range(const struct gradient_tasks *g, float *memory, struct keys *k, int64_t range) {
    const int64_t begin = range * g->range_keys, left = k->s.keys - begin,
                  keys = left < g->range_keys ? left : g->range_keys;
    memset(k->dq.summed, 0, (size_t)g->tiles * sizeof *k->dq.summed);
    if (keys <= 0) return;
    const int64_t supers = (keys + g->super_keys - 1) / g->super_keys;
    const int64_t blocks = ((keys + supers - 1) / supers + BLOCK_KEYS - 1) / BLOCK_KEYS;
    for (k->first = begin; k->first < begin + keys; k->first = k->end) {
        k->end = k->first + blocks * BLOCK_KEYS < begin + keys ? k->first + blocks * BLOCK_KEYS : begin + keys;
        g->meet_keys(g, memory, k);
    }
}

/* dQ of tile n to add to. */
static inline float *dq_of_tile(const struct gradient_tasks *g, const struct range_sum *sum, int64_t n) {
    float *dq = sum->dq + n * g->dq_tile;
    if (!sum->summed[n]) memset(dq, 0, (size_t)g->dq_tile * sizeof *dq);
    sum->summed[n] = true;
    return dq;
}

/* Tile n of the next range is added. */
static inline void add_tile(const struct gradient_tasks *g, const struct range_sum *sum, const struct range_sum *next,
                            int64_t n) {
    if (!next->summed[n]) return;
    float *to = dq_of_tile(g, sum, n);
    const float *from = next->dq + n * g->dq_tile;
    for (int64_t at = 0; at < g->dq_tile; at += LANES) v_store(to + at, v_add(v_load(to + at), v_load(from + at)));
}

/* dQ of tile n, if the sequence has as many. */
static inline void write_tile(const struct gradient_tasks *g, const struct keys *k, const struct range_sum *sum, int64_t n) {
    if (n * TILE_ROWS >= packed_rows(g->p, &k->s)) return;
    const struct tile_rows t = tile_rows_at(g->p, &k->s, k->kv, n * TILE_ROWS);
    g->write_dq(&t, dq_of_tile(g, sum, n));
}

static inline struct range_sum sum_of_range(const struct gradient_tasks *g, const struct keys *k, int64_t range) {
    const int64_t at = (k->s.b * g->p->a.heads_kv + k->kv) * g->ranges + range;
    return (struct range_sum){g->sum.dq + at * g->dq_floats, g->sum.summed + at * g->tiles};
}

/* All ranges of a head, or, where they are tasks, one. The last one is added when dQ is written. */
static inline void backward_head(const struct gradient_tasks *g, int32_t worker, struct keys *k, int64_t range) {
    struct range_sum sum[2];
    float *row, *memory = worker_memory(g, worker);
    memory += shared_by_tasks(g, memory, sum, &row);
    if (g->apart) {
        k->dq = sum_of_range(g, k, range);
        backward_range(g, memory, k, range);
        return;
    }
    for (int64_t n = 0; n < g->ranges; ++n) {
        k->dq = sum[n > 0];
        backward_range(g, memory, k, n);
        for (int64_t tile = 0; n > 0 && n + 1 < g->ranges && tile < g->tiles; ++tile) add_tile(g, &sum[0], &sum[1], tile);
    }
    for (int64_t tile = 0; tile < g->tiles; ++tile) {
        if (g->ranges > 1) add_tile(g, &sum[0], &sum[1], tile);
        write_tile(g, k, &sum[0], tile);
    }
}

/* Where the bias's gradient is summed across batch entries or heads, all that share a sum are one task. Early ranges are
 * seen by the most rows under a causal mask: longest first balances threads. */
static inline void keys_task(void *context, int64_t index, int32_t worker) {
    const struct gradient_tasks *g = context;
    const strobe_attention *a = &g->p->a;
    const int64_t batches = g->sums.across_batch ? a->batch : 1, heads = g->sums.across_heads ? a->heads_kv : 1;
    const int64_t tasks_a_batch = a->heads_kv / heads, tasks = a->batch / batches * tasks_a_batch;
    const int64_t first_b = index % tasks / tasks_a_batch * batches, first_kv = index % tasks % tasks_a_batch * heads;
    const float_mode mode = enter_flush_to_zero();
    for (int64_t b = first_b; b < first_b + batches; ++b)
        for (int64_t kv = first_kv; kv < first_kv + heads; ++kv) {
            struct keys k = {.s = strobe__sequence(g->p, b), .kv = kv};
            backward_head(g, worker, &k, index / tasks);
        }
    leave_flush_to_zero(mode);
}

/* Where ranges are tasks: a task is a tile of a K/V head. */
static inline void queries_task(void *context, int64_t index, int32_t worker) {
    const struct gradient_tasks *g = context;
    const strobe_attention *a = &g->p->a;
    const int64_t heads = a->batch * a->heads_kv, n = index / heads;
    const struct keys k = {.s = strobe__sequence(g->p, index % heads / a->heads_kv), .kv = index % heads % a->heads_kv};
    (void)worker;
    const float_mode mode = enter_flush_to_zero();
    const struct range_sum sum = sum_of_range(g, &k, 0);
    for (int64_t range = 1; range < g->ranges; ++range) {
        const struct range_sum next = sum_of_range(g, &k, range);
        add_tile(g, &sum, &next, n);
    }
    write_tile(g, &k, &sum, n);
    leave_flush_to_zero(mode);
}

/* ----------------------------------------------------------------------------------------------------------- sizes -- */

/* dim_padded: floats of a row of dQ; key_bytes: of a super-block's memory, a key. */
static inline struct gradient_tasks gradient_tasks_of(const struct problem *p, int64_t dim_padded, int64_t key_bytes) {
    const strobe_attention *a = &p->a;
    struct gradient_tasks g = {.p = p};
    const int64_t blocks = a->seq_k > 0 ? (a->seq_k + BLOCK_KEYS - 1) / BLOCK_KEYS : 1;
    const int64_t heads = a->batch * a->heads_kv, workers = strobe__workers(a->parallel);
    g.range_keys = (blocks + MOST_RANGES - 1) / MOST_RANGES * BLOCK_KEYS;
    if (g.range_keys < LEAST_RANGE) g.range_keys = LEAST_RANGE;
    g.ranges = (blocks * BLOCK_KEYS + g.range_keys - 1) / g.range_keys;
    g.apart = g.ranges > 1 && workers > 1 && heads < TASKS_A_WORKER * workers;
    g.super_keys = SUPER_BYTES / key_bytes / BLOCK_KEYS * BLOCK_KEYS;
    if (g.super_keys < BLOCK_KEYS) g.super_keys = BLOCK_KEYS;
    if (g.super_keys > g.range_keys) g.super_keys = g.range_keys;
    if (g.super_keys > blocks * BLOCK_KEYS) g.super_keys = blocks * BLOCK_KEYS;
    g.tiles = (a->seq_q * p->group + TILE_ROWS - 1) / TILE_ROWS;
    g.statistics_tiles = p->g.dsinks ? g.tiles : STATISTICS_TILES;
    g.dq_tile = dim_padded * TILE_ROWS;
    g.dq_floats = strobe__product(g.tiles, g.dq_tile);
    if (a->dropout) g.place = strobe__dropout_place(p);
    return g;
}

/* Lays out the workspace at `base`, of workers with `floats` of the kernel's own; NULL only counts. Returns bytes. */
static inline size_t gradient_tasks_lay_out(struct gradient_tasks *g, char *base, size_t floats) {
    const strobe_attention *a = &g->p->a;
    const int64_t heads = a->batch * a->heads_kv, rows = strobe__product(heads, g->tiles * TILE_ROWS);
    struct range_sum sum[2];
    float *row;
    g->workspace = base;
    g->scratch_bytes = ((size_t)shared_by_tasks(g, NULL, sum, &row) + floats) * sizeof(float);
    size_t bytes = (size_t)strobe__workers(a->parallel) * g->scratch_bytes, used = 0;
    bytes += score_gradients_lay_out(&g->sums, base ? base + bytes : NULL, g->p);
    float *shared = base ? (float *)(void *)(base + bytes) : NULL;
    g->rows.lse2 = take(shared, &used, rows);
    g->rows.D = take(shared, &used, rows);
    g->rows.minus_D = take(shared, &used, rows);
    g->sum = take_sums(g, shared, &used, g->apart ? heads * g->ranges : 0);
    return bytes + used * sizeof(float);
}

static inline void gradient_tasks_run(struct gradient_tasks *g) {
    const strobe_attention *a = &g->p->a;
    const int64_t heads = a->batch * a->heads_kv;
    const int64_t groups = (g->sums.across_batch ? 1 : a->batch) * (g->sums.across_heads ? 1 : a->heads_kv);
    score_gradients_start(&g->sums);
    const int64_t parts = g->tiles > 0 ? (g->tiles + g->statistics_tiles - 1) / g->statistics_tiles : 0;
    strobe__parallel_for(a->parallel, heads * parts, statistics_task, g);
    strobe__parallel_for(a->parallel, groups * (g->apart ? g->ranges : 1), keys_task, g);
    if (g->apart) strobe__parallel_for(a->parallel, heads * g->tiles, queries_task, g);
    score_gradients_finish(&g->sums);
}

#endif
