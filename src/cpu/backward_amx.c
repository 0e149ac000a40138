/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward_amx.c: FlashAttention-2's backward (Dao, 2023, algorithm 2) in bf16 on AMX tiles. amx_gradients.h has the
 * products and the form of their operands.
 *
 *   1. for each K/V head:    lse log2 e and D = rowsum(dO * O) - dlse of each packed query row (rows.h)
 *   2. for a task, a range of the keys of a K/V head, or all its ranges, one after the other:
 *        for each super-block of keys that fits in L2:          K, V, K^T packed once;  dK = dV = 0
 *          for each block of BLOCK_TILES tiles of 32 rows:      Q^T, dO^T, and Q, dO as pairs of rows, packed once
 *            for each block of 64 keys that some row sees:
 *              for each tile:  S^T = K Q^T;  softcap, bias, ALiBi, mask where there are any;  dP^T = V dO^T
 *                              P = 2^(S c - lse log2 e);  dS = P (Z dP - D)                          block_gradients.h
 *              dV += (Z P)^T dO     dK += dS^T Q     dQ^T += K^T dS^T
 *          dK, times the scale, and dV are written
 *   3. dQ: the sums of the ranges, in the order of the keys, times the scale
 *
 * The keys are cut into ranges by their number alone, so that few heads still fill many cores, and a sum over rows or keys
 * runs in the same order whoever runs it: no atomics, and results do not depend on the number of threads. dQ of a range is
 * summed apart: where each head is one task, in two buffers of the worker, else in a buffer a range. */
#include "core/parallel.h"
#include "cpu/amx_pack_gradients.h"
#include "cpu/block_gradients.h"
#include "cpu/cpu_kernels.h"
#include "cpu/scratch.h"

enum {
    SUPER_BYTES = 1 << 20, /* of a super-block: half of L2 */
    LEAST_RANGE = 1024,    /* keys: summing a range's dQ apart costs about as much as 40 keys */
    MOST_RANGES = 8,       /* of a head */
    TASKS_A_WORKER = 4,    /* heads that are enough for each to be one task */
};

/* One worker's memory. */
struct scratch {
    uint16_t *k, *v;                     /* super-block: [keys / 64] blocks of operands A */
    uint16_t *k_columns;                 /* K^T, [keys / 64][dim / 16][2] tiles */
    uint64_t *held;                      /* a block each: keys whose K is not finite, left out of K^T */
    float *dk, *dv;                      /* [keys / 64] blocks */
    uint16_t *q, *dout;                  /* [BLOCK_TILES] operands B: pairs of columns */
    uint16_t *q_pairs, *dout_pairs;      /* [BLOCK_TILES] operands B: pairs of rows */
    struct weights weights[BLOCK_TILES]; /* neighbours in memory */
    struct block block;                  /* S^T and dP^T of a tile, and their features */
    float *dq[2];                        /* sums of a head: [tiles][dim][TILE_ROWS] of all ranges so far, of the last */
    float *row;                          /* 2 [dim_v] */
};

struct backward {
    const struct problem *p;
    char *workspace;
    size_t scratch_bytes;
    int64_t k_padded, v_padded, super_keys;
    int64_t tiles, dq_floats;           /* of a K/V head */
    int64_t ranges, range_keys;         /* of a K/V head */
    bool apart;                         /* a range is a task */
    bool may_hide, has_terms, has_more; /* what scores have; has_more: what block_gradients() is needed for */
    struct row_statistics rows;         /* [batch][heads_kv][tiles][TILE_ROWS] */
    float *dq;                          /* where ranges are tasks: [batch][heads_kv][ranges][dq_floats] */
    struct dropout_place place;
    struct score_gradients sums; /* of bias and sinks */
};

/* Rows that meet keys together. */
struct row_block {
    struct tile_rows tile[BLOCK_TILES];
    int64_t first, tiles; /* number of the first tile */
    uint32_t q_held[BLOCK_TILES], dout_held[BLOCK_TILES];
};

/* The super-block at hand. */
struct keys {
    struct sequence s;
    int64_t kv, first, end;
    float *dq; /* of the range */
};

static size_t lay_out(struct scratch *t, float *base, const struct backward *f) {
    const int64_t k = f->k_padded, v = f->v_padded, rows = BLOCK_TILES * TILE_ROWS;
    size_t used = 0;
    t->k = (uint16_t *)take(base, &used, f->super_keys * k / 2);
    t->v = (uint16_t *)take(base, &used, f->super_keys * v / 2);
    t->k_columns = (uint16_t *)take(base, &used, f->super_keys * k / 2);
    t->held = (uint64_t *)(void *)take(base, &used, f->super_keys / BLOCK_KEYS * 2);
    t->dk = take(base, &used, f->super_keys * k);
    t->dv = take(base, &used, f->super_keys * v);
    t->q = (uint16_t *)take(base, &used, rows * k / 2);
    t->dout = (uint16_t *)take(base, &used, rows * v / 2);
    t->q_pairs = (uint16_t *)take(base, &used, rows * k / 2);
    t->dout_pairs = (uint16_t *)take(base, &used, rows * v / 2);
    float *forms[3];
    for (int n = 0; n < 3; ++n) forms[n] = take(base, &used, BLOCK_TILES * FORM_WORDS);
    for (int64_t n = 0; n < BLOCK_TILES && base; ++n)
        t->weights[n] = (struct weights){.p = (uint32_t *)forms[0] + n * FORM_WORDS,
                                         .ds = (uint32_t *)forms[1] + n * FORM_WORDS,
                                         .pairs = (uint32_t *)forms[2] + n * FORM_WORDS};
    t->block.p = take(base, &used, BLOCK_KEYS * TILE_ROWS);
    t->block.ds = take(base, &used, BLOCK_KEYS * TILE_ROWS);
    t->block.z = take(base, &used, BLOCK_KEYS * TILE_ROWS);
    t->block.slope = take(base, &used, BLOCK_KEYS * TILE_ROWS);
    for (int n = 0; n < 2; ++n) t->dq[n] = take(base, &used, !f->apart && n < f->ranges ? f->dq_floats : 0);
    t->row = take(base, &used, 2 * f->p->a.dim_v);
    return used * sizeof(float);
}

static struct row_statistics statistics_of(const struct backward *f, const struct sequence *s, int64_t kv, int64_t tile) {
    const int64_t at = ((s->b * f->p->a.heads_kv + kv) * f->tiles + tile) * TILE_ROWS;
    return (struct row_statistics){.lse2 = f->rows.lse2 + at, .D = f->rows.D + at};
}

/* ---------------------------------------------------------------------------------------------------- rows and keys -- */

/* Packs the rows of a block of tiles. */
static void start_rows(const struct backward *f, const struct scratch *c, struct row_block *rows, const struct keys *k) {
    const strobe_attention *a = &f->p->a;
    const bool flip = !f->has_terms && a->scale < 0;
    const int64_t all = packed_rows(f->p, &k->s);
    for (rows->tiles = 0; rows->tiles < BLOCK_TILES && (rows->first + rows->tiles) * TILE_ROWS < all; ++rows->tiles) {
        const int64_t n = rows->tiles, k_at = n * TILE_ROWS * f->k_padded, v_at = n * TILE_ROWS * f->v_padded;
        rows->tile[n] = tile_rows_at(f->p, &k->s, k->kv, (rows->first + n) * TILE_ROWS);
        const struct tile_rows *t = &rows->tile[n];
        rows->q_held[n] = f->may_hide ? rows_not_finite(t, &a->q, a->dim) : 0;
        rows->dout_held[n] = f->may_hide ? rows_not_finite(t, &f->p->g.dout, a->dim_v) : 0;
        pack_queries(c->q + k_at, t, &a->q, a->dim, flip);
        pack_queries(c->dout + v_at, t, &f->p->g.dout, a->dim_v, false);
        pack_row_pairs(c->q_pairs + k_at, t, &a->q, a->dim, f->k_padded, rows->q_held[n]);
        pack_row_pairs(c->dout_pairs + v_at, t, &f->p->g.dout, a->dim_v, f->v_padded, rows->dout_held[n]);
    }
}

static void start_keys(const struct backward *f, const struct scratch *c, const struct keys *k) {
    const strobe_attention *a = &f->p->a;
    for (int64_t j0 = k->first; j0 < k->end; j0 += BLOCK_KEYS) {
        const int64_t left = k->s.keys - j0, n = left < BLOCK_KEYS ? left : BLOCK_KEYS, at = j0 - k->first;
        const uint16_t *key = (const uint16_t *)a->k.data + strobe__key_offset(&a->k, &k->s, j0, k->kv);
        const uint16_t *value = (const uint16_t *)a->v.data + strobe__key_offset(&a->v, &k->s, j0, k->kv);
        const uint64_t held = f->may_hide ? keys_not_finite(key, a->k.stride[1], n, a->dim) : 0;
        c->held[at / BLOCK_KEYS] = held;
        pack_key_tiles(c->k + at * f->k_padded, key, a->k.stride[1], n, a->dim, f->k_padded);
        pack_key_tiles(c->v + at * f->v_padded, value, a->v.stride[1], n, a->dim_v, f->v_padded);
        pack_values(c->k_columns + at * f->k_padded, key, a->k.stride[1], n, a->dim, f->k_padded, held);
    }
    const int64_t keys = up_to(k->end - k->first, BLOCK_KEYS);
    memset(c->dk, 0, (size_t)(keys * f->k_padded) * sizeof *c->dk);
    memset(c->dv, 0, (size_t)(keys * f->v_padded) * sizeof *c->dv);
}

static void finish_keys(const struct backward *f, const struct scratch *c, const struct keys *k) {
    const strobe_tensor *dk = &f->p->g.dk, *dv = &f->p->g.dv;
    for (int64_t j0 = k->first; j0 < k->end; j0 += BLOCK_KEYS) {
        const int64_t left = k->s.keys - j0, n = left < BLOCK_KEYS ? left : BLOCK_KEYS, at = j0 - k->first;
        unpack_key_tiles((uint16_t *)dk->data + strobe__key_offset(dk, &k->s, j0, k->kv), dk->stride[1],
                         c->dk + at * f->k_padded, n, f->p->a.dim, f->k_padded, (float)f->p->a.scale);
        unpack_key_tiles((uint16_t *)dv->data + strobe__key_offset(dv, &k->s, j0, k->kv), dv->stride[1],
                         c->dv + at * f->v_padded, n, f->p->a.dim_v, f->v_padded, 1);
    }
}

/* ---------------------------------------------------------------------------------------- a block of rows and of keys -- */

/* S^T and dP^T of a tile become P^T and dS^T. */
static void weigh_tile(const struct backward *f, const struct scratch *c, const struct row_block *rows, int64_t n,
                       int64_t j0) {
    const struct tile_rows *t = &rows->tile[n];
    const int64_t left = t->s.keys - j0, keys = left < BLOCK_KEYS ? left : BLOCK_KEYS;
    const struct row_statistics of_rows = statistics_of(f, &t->s, t->kv, rows->first + n);
    struct weighing_gradients w = {.s = c->block.p, .dp = c->block.ds, .to = c->weights[n]};
    w.factor = v_set(exponent_factor(f->p));
    for (int i = 0; i < VECTORS; ++i) {
        w.lse2[i] = v_load(of_rows.lse2 + i * LANES);
        w.D[i] = v_load(of_rows.D + i * LANES);
        w.rows[i] = (__mmask16)columns_mask(t->n - i * LANES);
    }
    if (f->has_terms)
        for (int64_t at = 0; at < BLOCK_KEYS * TILE_ROWS; at += LANES)
            v_store(c->block.p + at, v_mul(v_load(c->block.p + at), v_set((float)f->p->a.scale)));
    const enum coverage coverage = tile_covers(t, j0, j0 + keys) == BLOCK_FULL ? BLOCK_FULL : BLOCK_PARTIAL;
    const bool hidden = scores_finish(c->block.p, c->block.slope, t, j0, keys, coverage) || keys < BLOCK_KEYS;
    for (int64_t at = keys * TILE_ROWS; at < BLOCK_KEYS * TILE_ROWS; at += LANES) {
        v_store(c->block.p + at, v_set(-INFINITY));
        if (f->has_more) v_store(c->block.slope + at, v_set(0)), v_store(c->block.z + at, v_set(0));
    }
    if (f->has_more) {
        block_gradients(&f->sums, &c->block, t, &of_rows, &f->place, j0, keys, hidden);
        for (int64_t at = keys * TILE_ROWS; at < BLOCK_KEYS * TILE_ROWS; at += LANES)
            v_store(c->block.p + at, v_set(0)), v_store(c->block.ds + at, v_set(0));
        weigh_gradients(&w, true, true);
    } else if (hidden)
        weigh_gradients(&w, true, false);
    else
        weigh_gradients(&w, false, false);
}

/* G[j] += P[j][r] Y_r for the rows of a tile that are not finite: they were left out of Y, lest 0 * NaN reach a key that the
 * row does not see. */
static void add_held_rows(float *g, const struct tile_rows *t, const uint32_t *form, const strobe_tensor *y, uint32_t held,
                          int64_t columns, int64_t padded, int64_t keys) {
    for (int64_t r = 0; held; ++r, held >>= 1) {
        if (!(held & 1)) continue;
        const uint16_t *row = (const uint16_t *)y->data + tile_offset(t, y, r);
        for (int64_t j = 0; j < keys; ++j) {
            const float weight = weight_of(form, j, r);
            float *to = g + j / TILE_SIDE * TILE_SIDE * padded + j % TILE_SIDE * TILE_SIDE;
            for (int64_t x = 0; weight != 0 && x < columns; ++x)
                to[x / TILE_SIDE * TILE_SIDE * TILE_SIDE + x % TILE_SIDE] += weight * bf16_to_float(row[x]);
        }
    }
}

/* dQ += dS K for the keys that were left out of K^T, to the rows that see them. */
static void add_held_keys(const struct backward *f, float *dq, const struct tile_rows *t, const uint32_t *form, int64_t j0,
                          uint64_t held) {
    const strobe_tensor *k = &f->p->a.k;
    for (int64_t j = 0; held; ++j, held >>= 1) {
        if (!(held & 1)) continue;
        const uint16_t *row = (const uint16_t *)k->data + strobe__key_offset(k, &t->s, j0 + j, t->kv);
        for (int64_t r = 0; r < t->n; ++r) {
            const float weight = weight_of(form, j, r);
            for (int64_t x = 0; weight != 0 && x < f->p->a.dim; ++x) dq[x * TILE_ROWS + r] += weight * bf16_to_float(row[x]);
        }
    }
}

/* The rows that some key of a block meets: tiles [begin, end). */
static bool tiles_that_see(const struct row_block *rows, int64_t j0, int64_t *begin, int64_t *end) {
    *begin = rows->tiles, *end = 0;
    for (int64_t n = 0; n < rows->tiles; ++n) {
        const int64_t keys = rows->tile[n].s.keys, j1 = keys - j0 < BLOCK_KEYS ? keys : j0 + BLOCK_KEYS;
        if (tile_covers(&rows->tile[n], j0, j1) == BLOCK_SKIPPED) continue;
        if (*end == 0) *begin = n;
        *end = n + 1;
    }
    return *end > *begin;
}

/* The rows at hand meet the block of keys at j0. */
static void rows_meet_block(const struct backward *f, const struct scratch *c, const struct row_block *rows,
                            const struct keys *k, int64_t j0) {
    const strobe_attention *a = &f->p->a;
    const int64_t at = j0 - k->first, k_chunks = f->k_padded / TILE_DEPTH, v_chunks = f->v_padded / TILE_DEPTH;
    int64_t begin, end;
    if (!tiles_that_see(rows, j0, &begin, &end)) return;
    for (int64_t n = begin; n < end; ++n) {
        tile_product_scores(c->block.p, c->k + at * f->k_padded, c->q + n * TILE_ROWS * f->k_padded, k_chunks);
        tile_product_scores(c->block.ds, c->v + at * f->v_padded, c->dout + n * TILE_ROWS * f->v_padded, v_chunks);
        tile_barrier();
        weigh_tile(f, c, rows, n, j0);
        tile_barrier();
    }
    float *dk = c->dk + at * f->k_padded, *dv = c->dv + at * f->v_padded;
    tile_product_outer(dv, c->weights[begin].p, c->dout_pairs + begin * TILE_ROWS * f->v_padded, 2 * v_chunks, end - begin);
    tile_product_outer(dk, c->weights[begin].ds, c->q_pairs + begin * TILE_ROWS * f->k_padded, 2 * k_chunks, end - begin);
    const uint64_t held = c->held[at / BLOCK_KEYS];
    for (int64_t n = begin; n < end; ++n) {
        float *dq = k->dq + (rows->first + n) * TILE_ROWS * f->k_padded;
        tile_product_queries(dq, c->k_columns + at * f->k_padded, c->weights[n].pairs, 2 * k_chunks);
        if (!f->may_hide) continue;
        tile_barrier();
        add_held_keys(f, dq, &rows->tile[n], c->weights[n].ds, j0, held);
        add_held_rows(dv, &rows->tile[n], c->weights[n].p, &f->p->g.dout, rows->dout_held[n], a->dim_v, f->v_padded,
                      BLOCK_KEYS);
        add_held_rows(dk, &rows->tile[n], c->weights[n].ds, &a->q, rows->q_held[n], a->dim, f->k_padded, BLOCK_KEYS);
        tile_barrier();
    }
}

/* ------------------------------------------------------------------------------------------------------------ tasks -- */

/* The rows of a head meet a super-block. */
static void rows_meet_keys(const struct backward *f, const struct scratch *c, const struct keys *k) {
    const int64_t tiles = up_to(packed_rows(f->p, &k->s), TILE_ROWS) / TILE_ROWS;
    struct row_block rows;
    for (rows.first = 0; rows.first < tiles; rows.first += BLOCK_TILES) {
        const int64_t last = rows.first + BLOCK_TILES < tiles ? rows.first + BLOCK_TILES - 1 : tiles - 1;
        const struct tile_rows top = tile_rows_at(f->p, &k->s, k->kv, rows.first * TILE_ROWS);
        const struct tile_rows bottom = tile_rows_at(f->p, &k->s, k->kv, last * TILE_ROWS);
        int64_t begin = tile_first_key(&top) / BLOCK_KEYS * BLOCK_KEYS, end = tile_end_key(&bottom);
        if (begin < k->first) begin = k->first;
        if (end > k->end) end = k->end;
        if (begin >= end) continue;
        start_rows(f, c, &rows, k);
        for (int64_t j0 = begin; j0 < end; j0 += BLOCK_KEYS) rows_meet_block(f, c, &rows, k, j0);
    }
}

static void backward_range(const struct backward *f, const struct scratch *c, struct keys *k, int64_t range) {
    const int64_t begin = range * f->range_keys, end = begin + f->range_keys;
    memset(k->dq, 0, (size_t)f->dq_floats * sizeof *k->dq);
    for (k->first = begin; k->first < end && k->first < k->s.keys; k->first += f->super_keys) {
        k->end = k->first + f->super_keys < end ? k->first + f->super_keys : end;
        if (k->end > k->s.keys) k->end = k->s.keys;
        start_keys(f, c, k);
        rows_meet_keys(f, c, k);
        finish_keys(f, c, k);
    }
}

static void add_to(float *sum, const float *x, int64_t floats) {
    for (int64_t at = 0; at < floats; at += LANES) v_store(sum + at, v_add(v_load(sum + at), v_load(x + at)));
}

/* dQ of tiles [begin, end). */
static void write_dq(const struct backward *f, const struct keys *k, const float *dq, int64_t begin, int64_t end) {
    float scale[TILE_ROWS];
    for (int r = 0; r < TILE_ROWS; ++r) scale[r] = (float)f->p->a.scale;
    for (int64_t n = begin; n < end && n * TILE_ROWS < packed_rows(f->p, &k->s); ++n) {
        const struct tile_rows t = tile_rows_at(f->p, &k->s, k->kv, n * TILE_ROWS);
        unpack_rows(&t, &f->p->g.dq, dq + n * TILE_ROWS * f->k_padded, f->p->a.dim, scale);
    }
}

static void backward_head(const struct backward *f, const struct scratch *c, struct keys *k) {
    for (int64_t range = 0; range < f->ranges; ++range) {
        k->dq = c->dq[range > 0];
        backward_range(f, c, k, range);
        if (range > 0) add_to(c->dq[0], c->dq[1], f->dq_floats);
    }
    write_dq(f, k, c->dq[0], 0, f->tiles);
}

static float *dq_of_range(const struct backward *f, const struct keys *k, int64_t range) {
    return f->dq + ((k->s.b * f->p->a.heads_kv + k->kv) * f->ranges + range) * f->dq_floats;
}

static struct scratch enter_task(const struct backward *f, int32_t worker) {
    struct scratch c;
    lay_out(&c, (float *)(void *)(f->workspace + (size_t)worker * f->scratch_bytes), f);
    return c;
}

/* 1: a task is a K/V head. */
static void statistics_task(void *context, int64_t index, int32_t worker) {
    const struct backward *f = context;
    const struct scratch c = enter_task(f, worker);
    const float_mode mode = enter_flush_to_zero();
    const int64_t kv = index % f->p->a.heads_kv;
    const struct sequence s = strobe__sequence(f->p, index / f->p->a.heads_kv);
    for (int64_t n = 0; n * TILE_ROWS < packed_rows(f->p, &s); ++n) {
        const struct row_statistics rows = statistics_of(f, &s, kv, n);
        const struct tile_rows t = tile_rows_at(f->p, &s, kv, n * TILE_ROWS);
        read_row_statistics(&rows, &t, &f->sums, c.row);
    }
    leave_flush_to_zero(mode);
}

/* 2: a task is a K/V head or a range of it, or, where the bias's gradient is summed across batch entries or heads, that of
 * all that share a sum. Early ranges are seen by the most rows under a causal mask: longest first balances threads. */
static void keys_task(void *context, int64_t index, int32_t worker) {
    const struct backward *f = context;
    const strobe_attention *a = &f->p->a;
    const int64_t batches = f->sums.across_batch ? a->batch : 1, heads = f->sums.across_heads ? a->heads_kv : 1;
    const int64_t tasks_a_batch = a->heads_kv / heads, tasks = a->batch / batches * tasks_a_batch;
    const int64_t first_b = index % tasks / tasks_a_batch * batches, first_kv = index % tasks % tasks_a_batch * heads;
    const struct scratch c = enter_task(f, worker);
    const float_mode mode = enter_flush_to_zero();
    tiles_enter();
    for (int64_t b = first_b; b < first_b + batches; ++b)
        for (int64_t kv = first_kv; kv < first_kv + heads; ++kv) {
            struct keys k = {.s = strobe__sequence(f->p, b), .kv = kv};
            if (!f->apart) {
                backward_head(f, &c, &k);
                continue;
            }
            k.dq = dq_of_range(f, &k, index / tasks);
            backward_range(f, &c, &k, index / tasks);
        }
    tiles_leave();
    leave_flush_to_zero(mode);
}

/* 3, where ranges are tasks: a task is BLOCK_TILES tiles of a K/V head. */
static void queries_task(void *context, int64_t index, int32_t worker) {
    const struct backward *f = context;
    const strobe_attention *a = &f->p->a;
    const int64_t heads = a->batch * a->heads_kv, begin = index / heads * BLOCK_TILES, tile = TILE_ROWS * f->k_padded;
    const int64_t end = begin + BLOCK_TILES < f->tiles ? begin + BLOCK_TILES : f->tiles;
    struct keys k = {.s = strobe__sequence(f->p, index % heads / a->heads_kv), .kv = index % heads % a->heads_kv};
    (void)worker;
    const float_mode mode = enter_flush_to_zero();
    float *sum = dq_of_range(f, &k, 0);
    for (int64_t range = 1; range < f->ranges; ++range)
        add_to(sum + begin * tile, dq_of_range(f, &k, range) + begin * tile, (end - begin) * tile);
    write_dq(f, &k, sum, begin, end);
    leave_flush_to_zero(mode);
}

/* Sizes. */
static struct backward backward_of(const struct problem *p) {
    const strobe_attention *a = &p->a;
    struct backward f = {.p = p, .k_padded = up_to(a->dim, TILE_DEPTH), .v_padded = up_to(a->dim_v, TILE_DEPTH)};
    const int64_t heads = a->batch * a->heads_kv, keys = up_to(a->seq_k > 0 ? a->seq_k : 1, BLOCK_KEYS);
    f.range_keys = up_to((keys + MOST_RANGES - 1) / MOST_RANGES, BLOCK_KEYS);
    if (f.range_keys < LEAST_RANGE) f.range_keys = LEAST_RANGE;
    f.ranges = (keys + f.range_keys - 1) / f.range_keys;
    f.apart = f.ranges > 1 && heads < TASKS_A_WORKER * (int64_t)strobe__workers(a->parallel) &&
              strobe__workers(a->parallel) > 1;
    f.super_keys = SUPER_BYTES / (8 * f.k_padded + 6 * f.v_padded) / BLOCK_KEYS * BLOCK_KEYS;
    if (f.super_keys > f.range_keys) f.super_keys = f.range_keys;
    if (f.super_keys > keys) f.super_keys = keys;
    f.tiles = up_to(a->seq_q * p->group, TILE_ROWS) / TILE_ROWS;
    f.dq_floats = strobe__product(f.tiles * TILE_ROWS, f.k_padded);
    f.may_hide = a->mask || scores_have_holes(p);
    f.has_terms = scores_have_terms(p);
    f.has_more = a->softcap > 0 || a->dropout || p->g.dbias;
    if (a->dropout) f.place = strobe__dropout_place(p);
    return f;
}

/* Lays out what workers share, after their own memory. Returns bytes of the whole. */
static size_t lay_out_shared(struct backward *f, char *base) {
    struct scratch c;
    const strobe_attention *a = &f->p->a;
    const int64_t heads = a->batch * a->heads_kv;
    f->workspace = base;
    f->scratch_bytes = lay_out(&c, NULL, f);
    size_t bytes = (size_t)strobe__workers(a->parallel) * f->scratch_bytes, floats = 0;
    bytes += score_gradients_lay_out(&f->sums, base ? base + bytes : NULL, f->p);
    float *shared = base ? (float *)(void *)(base + bytes) : NULL;
    f->rows.lse2 = take(shared, &floats, strobe__product(heads, f->tiles * TILE_ROWS));
    f->rows.D = take(shared, &floats, strobe__product(heads, f->tiles * TILE_ROWS));
    f->dq = take(shared, &floats, f->apart ? strobe__product(heads * f->ranges, f->dq_floats) : 0);
    return bytes + floats * sizeof(float);
}

size_t LEVEL_KERNEL(backward_workspace)(const struct problem *p) {
    struct backward f = backward_of(p);
    return lay_out_shared(&f, NULL);
}

strobe_status LEVEL_KERNEL(backward)(const struct problem *p, const struct execution *execution) {
    struct backward f = backward_of(p);
    lay_out_shared(&f, execution->workspace);
    const strobe_attention *a = &p->a;
    const int64_t heads = a->batch * a->heads_kv;
    score_gradients_start(&f.sums);
    strobe__parallel_for(a->parallel, heads, statistics_task, &f);
    const int64_t groups = (f.sums.across_batch ? 1 : a->batch) * (f.sums.across_heads ? 1 : a->heads_kv);
    strobe__parallel_for(a->parallel, groups * (f.apart ? f.ranges : 1), keys_task, &f);
    if (f.apart) strobe__parallel_for(a->parallel, heads * ((f.tiles + BLOCK_TILES - 1) / BLOCK_TILES), queries_task, &f);
    score_gradients_finish(&f.sums);
    return STROBE_OK;
}
