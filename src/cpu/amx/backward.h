/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward.h: the memory of the AMX backward, and its operands into and out of it: a block of query rows is packed when
 * it meets a super-block of keys, the keys once a super-block. */
#ifndef STROBE_CPU_AMX_BACKWARD_H
#define STROBE_CPU_AMX_BACKWARD_H

#include "cpu/amx/pack_gradients.h"
#include "cpu/vector/backward_tasks.h"

/* One worker's memory. */
struct scratch {
    uint16_t *k, *v;                /* super-block: [keys / 64] blocks of operands A */
    uint16_t *k_columns;            /* K^T, [keys / 64][dim / 16][2] tiles */
    uint64_t *held;                 /* a block each: keys whose K is not finite, left out of K^T */
    float *dk, *dv;                 /* [keys / 64] blocks */
    bool *summed;                   /* a strip of dK and dV each: something was; before, they are not even zero */
    uint16_t *q, *dout;             /* [BLOCK_TILES] operands B: pairs of columns */
    uint16_t *q_pairs, *dout_pairs; /* [BLOCK_TILES] operands B: pairs of rows */
    uint32_t *p, *ds;               /* [2 strips][BLOCK_TILES] operands A */
    uint32_t *pairs;                /* [BATCH_STRIPS][BLOCK_TILES] operands B */
    struct block block;             /* S^T and dP^T of a unit, and their features */
};

struct backward {
    struct gradient_tasks tasks; /* first: what the tasks are given leads here */
    const struct problem *p;
    int64_t k_padded, v_padded;
    bool streams;                                     /* gradients are written past the caches, as the forward's output is */
    bool may_hide, has_terms, has_more, has_features; /* has_more: what block_gradients() is needed for */
};

/* The keys that some row of a tile sees, [first, end), and those that every row sees. */
struct sight {
    int64_t first, end, all_first, all_end;
};

/* Rows that meet keys together. */
struct row_block {
    struct tile_rows tile[BLOCK_TILES];
    struct sight sight[BLOCK_TILES];
    int64_t first, tiles; /* number of the first tile */
    uint32_t q_held[BLOCK_TILES], dout_held[BLOCK_TILES];
};

/* The floats of a worker. */
static size_t lay_out(struct scratch *t, float *base, const struct backward *f) {
    const int64_t k = f->k_padded, v = f->v_padded, rows = BLOCK_TILES * TILE_ROWS;
    const int64_t keys = f->tasks.super_keys;
    size_t used = 0;
    t->k = (uint16_t *)take(base, &used, keys * k / 2);
    t->v = (uint16_t *)take(base, &used, keys * v / 2);
    t->k_columns = (uint16_t *)take(base, &used, keys * k / 2);
    t->held = (uint64_t *)(void *)take(base, &used, keys / BLOCK_KEYS * 2);
    t->dk = take(base, &used, keys * k);
    t->dv = take(base, &used, keys * v);
    t->summed = (bool *)(void *)take(base, &used, keys / STRIP_KEYS);
    t->q = (uint16_t *)take(base, &used, rows * k / 2);
    t->dout = (uint16_t *)take(base, &used, rows * v / 2);
    t->q_pairs = (uint16_t *)take(base, &used, rows * k / 2);
    t->dout_pairs = (uint16_t *)take(base, &used, rows * v / 2);
    t->p = (uint32_t *)take(base, &used, 2 * BLOCK_TILES * FORM_WORDS);
    t->ds = (uint32_t *)take(base, &used, 2 * BLOCK_TILES * FORM_WORDS);
    t->pairs = (uint32_t *)take(base, &used, BATCH_STRIPS * BLOCK_TILES * FORM_WORDS);
    t->block.p = take(base, &used, UNIT_FLOATS);
    t->block.ds = take(base, &used, UNIT_FLOATS);
    t->block.z = take(base, &used, UNIT_FLOATS);
    t->block.slope = take(base, &used, UNIT_FLOATS);
    return used;
}

/* Packs the rows of a block of tiles. */
static void start_rows(const struct backward *f, const struct scratch *c, struct row_block *rows, const struct keys *k) {
    const strobe_attention *a = &f->p->a;
    const bool flip = !f->has_terms && a->scale < 0;
    const int64_t all = packed_rows(f->p, &k->s);
    for (rows->tiles = 0; rows->tiles < BLOCK_TILES && (rows->first + rows->tiles) * TILE_ROWS < all; ++rows->tiles) {
        const int64_t n = rows->tiles, k_at = n * TILE_ROWS * f->k_padded, v_at = n * TILE_ROWS * f->v_padded;
        rows->tile[n] = tile_rows_at(f->p, &k->s, k->kv, (rows->first + n) * TILE_ROWS);
        const struct tile_rows *t = &rows->tile[n];
        rows->sight[n] = (struct sight){tile_first_key(t), tile_end_key(t), band_first(&t->s.band, packed_row(t, t->n - 1)),
                                        band_end(&t->s.band, packed_row(t, 0))};
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
    memset(c->summed, 0, (size_t)(up_to(k->end - k->first, BLOCK_KEYS) / STRIP_KEYS));
}

/* dK and dV of the strip that is `at` keys into the super-block have something to add to. */
static void start_sums(const struct backward *f, const struct scratch *c, int64_t at) {
    if (c->summed[at / STRIP_KEYS]) return;
    memset(c->dk + at * f->k_padded, 0, (size_t)(STRIP_KEYS * f->k_padded) * sizeof *c->dk);
    memset(c->dv + at * f->v_padded, 0, (size_t)(STRIP_KEYS * f->v_padded) * sizeof *c->dv);
    c->summed[at / STRIP_KEYS] = true;
}

static bool streams_gradients(const struct problem *p) {
    const strobe_attention *a = &p->a;
    const int64_t queries = a->batch * a->seq_q * a->heads_q * a->dim;
    const int64_t keys = a->batch * a->seq_k * a->heads_kv * (a->dim + a->dim_v);
    return (queries + keys) * (int64_t)sizeof(uint16_t) > SUPER_BYTES / 2;
}

static void finish_keys(const struct backward *f, const struct scratch *c, const struct keys *k) {
    const strobe_tensor *dk = &f->p->g.dk, *dv = &f->p->g.dv;
    for (int64_t j0 = k->first; j0 < k->end; j0 += BLOCK_KEYS) {
        const int64_t left = k->s.keys - j0, n = left < BLOCK_KEYS ? left : BLOCK_KEYS, at = j0 - k->first;
        for (int64_t strip = 0; strip < BLOCK_KEYS; strip += STRIP_KEYS) start_sums(f, c, at + strip);
        unpack_key_tiles((uint16_t *)dk->data + strobe__key_offset(dk, &k->s, j0, k->kv), dk->stride[1],
                         c->dk + at * f->k_padded, n, f->p->a.dim, f->k_padded, (float)f->p->a.scale, f->streams);
        unpack_key_tiles((uint16_t *)dv->data + strobe__key_offset(dv, &k->s, j0, k->kv), dv->stride[1],
                         c->dv + at * f->v_padded, n, f->p->a.dim_v, f->v_padded, 1, f->streams);
    }
}

#endif
