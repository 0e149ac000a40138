/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward_tasks.h: how a backward is cut into tasks and how dQ is summed. vector/backward.c and amx/backward.c share it.
 *
 *   1. a task is some tiles of rows:     lse log2 e and delta = rowsum(dO * O) - dlse of each packed query row (rows.h)
 *   2. a task is a range of keys of a K/V head, or all its ranges, one after the other:
 *        for each super-block of keys that fits in L2:  super_block_gradients() writes its dK and dV and adds to the range's
 * dQ
 *   3. dQ: the sum over the ranges, in the order of the keys, times the scale
 *   4. a task is a K/V head, where dsinks is wanted: the sum of its rows' parts
 *
 * Where dsinks is wanted, the sums of dS and P over each row's keys go with dQ as two more columns, and are complete in
 * step 3.
 *
 * The ranges follow from the number of keys alone, and there are enough that few heads still fill many cores. The number of
 * threads decides whether a task is a range or a whole head. Results do not depend on it: dQ of each range is summed apart,
 * and every sum over rows or keys runs in the same order whoever runs it. There are no atomics. Where a task is a head, dQ
 * of the ranges is summed in two buffers of the worker, else in a buffer for each range. So memory is linear in the
 * sequence: two dQ of a head in fp32 for each worker, or at most MOST_RANGES for each head. */
#ifndef STROBE_CPU_BACKWARD_TASKS_H
#define STROBE_CPU_BACKWARD_TASKS_H

#include "core/parallel.h"
#include "cpu/vector/block_gradients.h"

enum {
    SUPER_BYTES = 1 << 20, /* of a super-block: half of L2; half and twice as much were slower (docs/kernels/cpu.md) */
    LEAST_RANGE = 1024,    /* keys: to sum a range's dQ apart costs about as much as 40 keys */
    MOST_RANGES = 8,       /* of a head: bounds the memory of dQ */
    TASKS_A_WORKER = 4,    /* with so many heads for each worker, a head is one task */
    STATISTICS_TILES = 32, /* of a task that computes delta */
};

/* dQ of a range of keys, or of all ranges up to it. */
struct range_sum {
    float *dq;    /* [tiles][dim][TILE_ROWS]; with dsinks [dim + 2], and the last two have the sums of dS and of P */
    bool *summed; /* [tiles] dq of the tile holds sums; false: it holds anything */
};

/* The current super-block: keys [first, end), and where its part of dQ is added. */
struct keys {
    struct sequence s;
    int64_t kv, first, end;
    struct range_sum dq;
};

struct gradient_tasks {
    const struct problem *p;
    char *workspace;
    size_t scratch_bytes;                   /* of a worker */
    int64_t tiles, dq_tile, dq_floats;      /* tiles of a K/V head; floats of dQ of a tile, of a head */
    int64_t ds_sums;                        /* where the sums of dS and P are in dQ of a tile; 0: not wanted */
    int64_t ranges, range_keys, super_keys; /* of a head; keys of a range; keys of a super-block at most */
    bool apart;                             /* a range is a task; false: a head is */
    struct row_statistics rows;             /* [batch][heads_kv][tiles][TILE_ROWS] */
    struct range_sum sum;                   /* where ranges are tasks: [batch][heads_kv][ranges] */
    struct dropout_place place;
    struct score_gradients sums; /* of bias and sinks */

    /* The kernel's part: the gradients of a super-block, with memory of the worker; writing dQ of a tile. */
    void (*super_block_gradients)(const struct gradient_tasks *g, float *memory, const struct keys *k);
    void (*write_dq)(const struct tile_rows *t, const float *dq);
};

static inline struct row_statistics statistics_of(const struct gradient_tasks *g, const struct sequence *s, int64_t kv,
                                                  int64_t tile) {
    const int64_t at = ((s->b * g->p->a.heads_kv + kv) * g->tiles + tile) * TILE_ROWS;
    return (struct row_statistics){.minus_lse = g->rows.minus_lse + at,
                                   .delta = g->rows.delta + at,
                                   .minus_delta = g->rows.minus_delta + at,
                                   .of_sink = g->ds_sums ? g->rows.of_sink + at : NULL};
}

/* --------------------------------------------------------------------------------------------------- what tasks do -- */

static inline struct range_sum take_sums(const struct gradient_tasks *g, float *base, size_t *used, int64_t ranges) {
    struct range_sum sum;
    sum.dq = take(base, used, strobe__product(ranges, g->dq_floats));
    sum.summed = (bool *)(void *)take(base, used, (ranges * g->tiles + 3) / 4);
    return sum;
}

/* The start of a worker's memory: dQ of a head twice unless ranges are tasks, and two rows. The kernel's own follows.
 * Returns floats. */
static inline int64_t shared_by_tasks(const struct gradient_tasks *g, float *base, struct range_sum sum[2], float **row) {
    size_t used = 0;
    for (int n = 0; n < 2; ++n) sum[n] = take_sums(g, base, &used, !g->apart && n < g->ranges ? 1 : 0);
    *row = take(base, &used, 2 * g->p->a.dim_v);
    return (int64_t)used;
}

static inline void statistics_task(void *context, int64_t index, int32_t worker) {
    const struct gradient_tasks *g = context;
    const int64_t heads = g->p->a.batch * g->p->a.heads_kv, kv = index % heads % g->p->a.heads_kv;
    const int64_t begin = index / heads * STATISTICS_TILES, end = begin + STATISTICS_TILES;
    const struct sequence s = strobe__sequence(g->p, index % heads / g->p->a.heads_kv);
    const float_mode mode = enter_flush_to_zero();
    struct range_sum sum[2];
    float *row;
    shared_by_tasks(g, worker_memory(g->workspace, g->scratch_bytes, worker), sum, &row);
    for (int64_t n = begin; n < end && n * TILE_ROWS < packed_rows(g->p, &s); ++n) {
        const struct row_statistics rows = statistics_of(g, &s, kv, n);
        const struct tile_rows t = tile_rows_at(g->p, &s, kv, n * TILE_ROWS);
        read_row_statistics(&rows, &t, row);
    }
    leave_flush_to_zero(mode);
}

/* The gradients of a range, in super-blocks of about the same size, since each packs all query rows again. */
static inline void backward_range(const struct gradient_tasks *g, float *memory, struct keys *k, int64_t range) {
    const int64_t begin = range * g->range_keys, left = k->s.keys - begin,
                  keys = left < g->range_keys ? left : g->range_keys;
    memset(k->dq.summed, 0, (size_t)g->tiles * sizeof *k->dq.summed);
    if (keys <= 0) return;
    const int64_t supers = (keys + g->super_keys - 1) / g->super_keys;
    const int64_t blocks = ((keys + supers - 1) / supers + BLOCK_KEYS - 1) / BLOCK_KEYS;
    for (k->first = begin; k->first < begin + keys; k->first = k->end) {
        k->end = k->first + blocks * BLOCK_KEYS < begin + keys ? k->first + blocks * BLOCK_KEYS : begin + keys;
        g->super_block_gradients(g, memory, k);
    }
}

/* dQ of tile n, to be added to. */
static inline float *dq_of_tile(const struct gradient_tasks *g, const struct range_sum *sum, int64_t n) {
    float *dq = sum->dq + n * g->dq_tile;
    if (!sum->summed[n]) memset(dq, 0, (size_t)g->dq_tile * sizeof *dq);
    sum->summed[n] = true;
    return dq;
}

/* Adds dQ of tile n of the next range. */
static inline void add_tile(const struct gradient_tasks *g, const struct range_sum *sum, const struct range_sum *next,
                            int64_t n) {
    if (!next->summed[n]) return;
    float *to = dq_of_tile(g, sum, n);
    const float *from = next->dq + n * g->dq_tile;
    for (int64_t at = 0; at < g->dq_tile; at += LANES) v_store(to + at, v_add(v_load(to + at), v_load(from + at)));
}

/* Writes dQ of tile n, and its rows' parts of dsinks, if the sequence has as many tiles. */
static inline void write_tile(const struct gradient_tasks *g, const struct keys *k, const struct range_sum *sum, int64_t n) {
    if (n * TILE_ROWS >= packed_rows(g->p, &k->s)) return;
    const struct tile_rows t = tile_rows_at(g->p, &k->s, k->kv, n * TILE_ROWS);
    if (g->ds_sums) {
        const struct row_statistics of = statistics_of(g, &k->s, k->kv, n);
        write_parts_of_dsinks(&of, &t, sum->summed[n] ? sum->dq + n * g->dq_tile + g->ds_sums : NULL);
    }
    g->write_dq(&t, dq_of_tile(g, sum, n));
}

static inline struct range_sum sum_of_range(const struct gradient_tasks *g, const struct keys *k, int64_t range) {
    const int64_t at = (k->s.b * g->p->a.heads_kv + k->kv) * g->ranges + range;
    return (struct range_sum){g->sum.dq + at * g->dq_floats, g->sum.summed + at * g->tiles};
}

/* The gradients of a head: of all its ranges, or of one where ranges are tasks. The last is added when dQ is written. */
static inline void backward_head(const struct gradient_tasks *g, int32_t worker, struct keys *k, int64_t range) {
    struct range_sum sum[2];
    float *row, *memory = worker_memory(g->workspace, g->scratch_bytes, worker);
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

/* A task of step 2. All batch entries and heads that share a sum of dbias are one task. Under a causal mask early ranges are
 * seen by the most rows, and the longest tasks first balance the threads best. */
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

/* The same where the user's function has arrays with gradients: the heads of a slot are one task. */
static inline void slot_task(void *context, int64_t index, int32_t worker) {
    const struct gradient_tasks *g = context;
    const struct array_gradients *arrays = &g->sums.arrays;
    const float_mode mode = enter_flush_to_zero();
    for (int64_t head = first_of_slot(arrays, index); head < first_of_slot(arrays, index + 1); ++head) {
        struct keys k = {.s = strobe__sequence(g->p, head / g->p->a.heads_kv), .kv = head % g->p->a.heads_kv};
        backward_head(g, worker, &k, 0);
    }
    leave_flush_to_zero(mode);
}

/* A task of step 3, where ranges are tasks: dQ of one tile of a K/V head. */
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

/* A task of step 4: dsinks of a K/V head's query heads, in a batch entry. */
static inline void sinks_task(void *context, int64_t index, int32_t worker) {
    const struct gradient_tasks *g = context;
    const strobe_attention *a = &g->p->a;
    const struct sequence s = strobe__sequence(g->p, index / a->heads_kv);
    double *const sums = g->sums.dsinks + s.b * a->heads_q;
    (void)worker;
    for (int64_t n = 0; n * TILE_ROWS < packed_rows(g->p, &s); ++n) {
        const struct tile_rows t = tile_rows_at(g->p, &s, index % a->heads_kv, n * TILE_ROWS);
        const struct row_statistics of = statistics_of(g, &s, t.kv, n);
        for (int64_t r = 0; r < t.n; ++r) sums[packed_head(&t, r)] += (double)of.of_sink[r];
    }
}

/* ----------------------------------------------------------------------------------------------------------- sizes -- */

/* dim_padded: floats of a row of dQ; key_bytes: bytes of a super-block's memory for each key. */
static inline struct gradient_tasks gradient_tasks_of(const struct problem *p, int64_t dim_padded, int64_t key_bytes) {
    const strobe_attention *a = &p->a;
    struct gradient_tasks g = {.p = p};
    const int64_t blocks = a->seq_k > 0 ? (a->seq_k + BLOCK_KEYS - 1) / BLOCK_KEYS : 1;
    const int64_t heads = a->batch * a->heads_kv, workers = strobe__workers(a->parallel);
    g.range_keys = (blocks + MOST_RANGES - 1) / MOST_RANGES * BLOCK_KEYS;
    if (g.range_keys < LEAST_RANGE) g.range_keys = LEAST_RANGE;
    g.ranges = (blocks * BLOCK_KEYS + g.range_keys - 1) / g.range_keys;
    g.apart = g.ranges > 1 && !p->score_call.wants_gradients && workers > 1 && heads < TASKS_A_WORKER * workers;
    g.super_keys = SUPER_BYTES / key_bytes / BLOCK_KEYS * BLOCK_KEYS;
    if (g.super_keys < BLOCK_KEYS) g.super_keys = BLOCK_KEYS;
    if (g.super_keys > g.range_keys) g.super_keys = g.range_keys;
    if (g.super_keys > blocks * BLOCK_KEYS) g.super_keys = blocks * BLOCK_KEYS;
    g.tiles = (a->seq_q * p->group + TILE_ROWS - 1) / TILE_ROWS;
    g.dq_tile = (dim_padded + (p->g.dsinks ? 2 : 0)) * TILE_ROWS;
    g.ds_sums = p->g.dsinks ? dim_padded * TILE_ROWS : 0;
    g.dq_floats = strobe__product(g.tiles, g.dq_tile);
    if (a->dropout) g.place = strobe__dropout_place(p);
    return g;
}

/* Lays out the workspace at `base`; with NULL only counts. floats: of the kernel's own memory for each worker. Returns
 * bytes. */
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
    g->rows.minus_lse = take(shared, &used, rows);
    g->rows.delta = take(shared, &used, rows);
    g->rows.minus_delta = take(shared, &used, rows);
    g->rows.of_sink = take(shared, &used, g->ds_sums ? rows : 0);
    g->sum = take_sums(g, shared, &used, g->apart ? heads * g->ranges : 0);
    return bytes + used * sizeof(float);
}

static inline void gradient_tasks_run(struct gradient_tasks *g) {
    const strobe_attention *a = &g->p->a;
    const int64_t heads = a->batch * a->heads_kv;
    const int64_t groups = (g->sums.across_batch ? 1 : a->batch) * (g->sums.across_heads ? 1 : a->heads_kv);
    score_gradients_start(&g->sums);
    const int64_t parts = (g->tiles + STATISTICS_TILES - 1) / STATISTICS_TILES;
    strobe__parallel_for(a->parallel, heads * parts, statistics_task, g);
    if (g->sums.arrays.slots)
        strobe__parallel_for(a->parallel, g->sums.arrays.slots, slot_task, g);
    else
        strobe__parallel_for(a->parallel, groups * (g->apart ? g->ranges : 1), keys_task, g);
    if (g->apart) strobe__parallel_for(a->parallel, heads * g->tiles, queries_task, g);
    if (g->ds_sums) strobe__parallel_for(a->parallel, heads, sinks_task, g);
    score_gradients_finish(&g->sums);
}

#endif
