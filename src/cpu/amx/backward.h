/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward.h: the memory of the AMX backward, the packing of its operands and the writing of dK and dV. K and V are packed
 * once a super-block, and a block of query rows once for each super-block of keys. */
#ifndef STROBE_CPU_AMX_BACKWARD_H
#define STROBE_CPU_AMX_BACKWARD_H

#include "cpu/amx/pack_gradients.h"
#include "cpu/vector/backward_tasks.h"

enum { STREAM_ABOVE = 1 << 19 }; /* bytes of gradients: beyond, they bypass the caches; as for the forward's output */

/* One worker's memory. */
struct scratch {
    uint16_t *k, *v;                /* of the super-block: [keys / 32][dim / 32] operands A */
    uint16_t *k_columns;            /* K^T, [keys / 64][dim / 32][2 strips] operands A */
    uint64_t *k_nonfinite;          /* [keys / 64] one bit a key: its K is not finite and left out of K^T */
    float *dk, *dv;                 /* [keys / 64] blocks */
    bool *summed;                   /* [keys / 32] dK and dV of the strip hold sums; false: they hold anything */
    uint16_t *q, *dout;             /* [BLOCK_TILES] operands B: pairs of columns */
    uint16_t *q_pairs, *dout_pairs; /* [BLOCK_TILES] operands B: pairs of rows */
    uint32_t *p, *ds;               /* [2 strips][BLOCK_TILES] operands A: P^T and dS^T */
    uint32_t *pairs;                /* [BATCH_STRIPS][BLOCK_TILES] operands B: dS^T in pairs of keys */
    struct block block;             /* S^T and dP^T of a block pair, and what features add */
    float *ds_sums;                 /* [BLOCK_TILES][2][TILE_ROWS] sums of dS and of P over a batch's keys; with dsinks */
    struct visible_block *visible;  /* [BATCH_STRIPS][BLOCK_TILES] what the tiles see of the strips */
    bool *packed;                   /* [keys / 64] K, V and K^T of the block are packed */
    struct score_memory score[BLOCK_TILES]; /* the user's function */
};

struct backward {
    struct gradient_tasks tasks; /* the first field: a pointer to it is a pointer to this */
    const struct problem *p;
    int64_t k_padded, v_padded; /* dim and dim_v up to whole tiles */
    int64_t block_tiles;        /* of a block of rows */
    bool streams;               /* gradients bypass the caches (non-temporal stores), as the forward's output does */
    bool some_hidden;           /* a key may be hidden from some row of its block */
    bool has_element_masks;     /* then tiles and keys are packed when some of them see each other */
    bool has_terms;             /* scores_have_terms() */
    bool delta_last; /* dropout, dbias or a score function: the chain of dP starts from 0, and delta is subtracted afterwards
                      */
    bool has_features; /* has_terms, delta_last, or a mask by element */
};

/* The keys that some row of a tile sees, [first, end), and those that every row sees. */
struct visible {
    int64_t first, end, all_first, all_end;
};

/* A block of query rows: `tiles` tiles from tile `first` of the head on. */
struct row_block {
    struct tile_rows tile[BLOCK_TILES];
    struct row_features features[BLOCK_TILES];
    struct visible visible[BLOCK_TILES];
    bool packed[BLOCK_TILES];
    int64_t first, tiles;
    uint32_t q_nonfinite[BLOCK_TILES], dout_nonfinite[BLOCK_TILES]; /* one bit a row: left out of the pairs of rows */
};

/* Lays out a worker's memory; with base NULL only counts. Returns floats. */
static size_t lay_out(struct scratch *t, float *base, const struct backward *f) {
    const int64_t k = f->k_padded, v = f->v_padded, rows = BLOCK_TILES * TILE_ROWS;
    const int64_t keys = f->tasks.super_keys;
    size_t used = 0;
    t->k = (uint16_t *)take(base, &used, keys * k * PARTS / 2);
    t->v = (uint16_t *)take(base, &used, keys * v * PARTS / 2);
    t->k_columns = (uint16_t *)take(base, &used, keys * k * PARTS / 2);
    t->k_nonfinite = (uint64_t *)(void *)take(base, &used, keys / BLOCK_KEYS * 2);
    t->dk = take(base, &used, keys * k);
    t->dv = take(base, &used, keys * v);
    t->summed = (bool *)(void *)take(base, &used, keys / STRIP_KEYS);
    t->q = (uint16_t *)take(base, &used, rows * k * PARTS / 2);
    t->dout = (uint16_t *)take(base, &used, rows * v * PARTS / 2);
    t->q_pairs = (uint16_t *)take(base, &used, rows * k * PARTS / 2);
    t->dout_pairs = (uint16_t *)take(base, &used, rows * v * PARTS / 2);
    t->p = (uint32_t *)take(base, &used, 2 * BLOCK_TILES * OPERAND_WORDS);
    t->ds = (uint32_t *)take(base, &used, 2 * BLOCK_TILES * OPERAND_WORDS);
    t->pairs = (uint32_t *)take(base, &used, BATCH_STRIPS * BLOCK_TILES * OPERAND_WORDS);
    t->block.p = take(base, &used, PAIR_FLOATS);
    t->block.ds = take(base, &used, PAIR_FLOATS);
    t->block.z = take(base, &used, PAIR_FLOATS);
    t->block.slope = take(base, &used, PAIR_FLOATS);
    t->block.row_sums = NULL;
    t->ds_sums = take(base, &used, f->tasks.ds_sums ? 2 * BLOCK_TILES * TILE_ROWS : 0);
    t->visible = (struct visible_block *)(void *)take(
        base, &used, BATCH_STRIPS * BLOCK_TILES * (int64_t)(sizeof *t->visible / sizeof(float)));
    t->packed = (bool *)(void *)take(base, &used, (keys / BLOCK_KEYS + 3) / 4);
    const struct score_memory score = take_score_memory(base, &used, f->p);
    for (int n = 0; n < BLOCK_TILES; ++n) t->score[n] = take_tile_memory(&score, base, &used, f->p);
    return used;
}

/* Packs tile n of a block of rows. */
static void pack_tile(const struct backward *f, const struct scratch *c, struct row_block *rows, int64_t n) {
    const strobe_attention *a = &f->p->a;
    const struct tile_rows *t = &rows->tile[n];
    const bool flip = !f->has_terms && a->scale < 0;
    const int64_t k_at = n * TILE_ROWS * f->k_padded * PARTS, v_at = n * TILE_ROWS * f->v_padded * PARTS;
    rows->q_nonfinite[n] = f->some_hidden ? rows_not_finite(t, &a->q, a->dim) : 0;
    rows->dout_nonfinite[n] = f->some_hidden ? rows_not_finite(t, &f->p->g.dout, a->dim_v) : 0;
    pack_queries(c->q + k_at, t, &a->q, a->dim, flip);
    pack_queries(c->dout + v_at, t, &f->p->g.dout, a->dim_v, false);
    pack_row_pairs(c->q_pairs + k_at, t, &a->q, a->dim, f->k_padded, rows->q_nonfinite[n]);
    pack_row_pairs(c->dout_pairs + v_at, t, &f->p->g.dout, a->dim_v, f->v_padded, rows->dout_nonfinite[n]);
    rows->packed[n] = true;
}

/* Starts a block of rows: packs it, or where some tiles may see nothing, nothing yet. */
static void start_rows(const struct backward *f, const struct scratch *c, struct row_block *rows, const struct keys *k) {
    const int64_t all = packed_rows(f->p, &k->s);
    for (rows->tiles = 0; rows->tiles < f->block_tiles && (rows->first + rows->tiles) * TILE_ROWS < all; ++rows->tiles) {
        const int64_t n = rows->tiles;
        rows->tile[n] = tile_rows_at(f->p, &k->s, k->kv, (rows->first + n) * TILE_ROWS);
        const struct tile_rows *t = &rows->tile[n];
        rows->visible[n] = (struct visible){tile_first_key(t), tile_end_key(t),
                                            band_first(&t->s.band, packed_row(t, t->n - 1)),
                                            band_end(&t->s.band, packed_row(t, 0))};
        rows->features[n].score = c->score[n];
        find_row_features(&rows->features[n], t);
        rows->packed[n] = false;
        if (!f->has_element_masks) pack_tile(f, c, rows, n);
    }
}

/* Packs the block of keys from j0 on. */
static void pack_block(const struct backward *f, const struct scratch *c, const struct keys *k, int64_t j0) {
    const strobe_attention *a = &f->p->a;
    const int64_t left = k->s.keys - j0, n = left < BLOCK_KEYS ? left : BLOCK_KEYS, at = j0 - k->first;
    const number *key = (const number *)a->k.data + strobe__key_offset(&a->k, &k->s, j0, k->kv);
    const number *value = (const number *)a->v.data + strobe__key_offset(&a->v, &k->s, j0, k->kv);
    const uint64_t k_nonfinite = f->some_hidden ? keys_not_finite(key, a->k.stride[1], n, a->dim) : 0;
    c->k_nonfinite[at / BLOCK_KEYS] = k_nonfinite;
    pack_key_tiles(c->k + at * f->k_padded * PARTS, key, a->k.stride[1], n, a->dim, f->k_padded);
    pack_key_tiles(c->v + at * f->v_padded * PARTS, value, a->v.stride[1], n, a->dim_v, f->v_padded);
    pack_key_columns(c->k_columns + at * f->k_padded * PARTS, key, a->k.stride[1], n, a->dim, f->k_padded, k_nonfinite);
    c->packed[at / BLOCK_KEYS] = true;
}

/* Starts a super-block of keys: packs it, or where some blocks may be seen by nobody, nothing yet. */
static void start_keys(const struct backward *f, const struct scratch *c, const struct keys *k) {
    for (int64_t j0 = k->first; j0 < k->end; j0 += BLOCK_KEYS) {
        c->packed[(j0 - k->first) / BLOCK_KEYS] = false;
        if (!f->has_element_masks) pack_block(f, c, k, j0);
    }
    memset(c->summed, 0, (size_t)(up_to(k->end - k->first, BLOCK_KEYS) / STRIP_KEYS));
}

/* Clears dK and dV of the strip that is `at` keys into the super-block, unless they hold sums. */
static void start_sums(const struct backward *f, const struct scratch *c, int64_t at) {
    if (c->summed[at / STRIP_KEYS]) return;
    memset(c->dk + at * f->k_padded, 0, (size_t)(STRIP_KEYS * f->k_padded) * sizeof *c->dk);
    memset(c->dv + at * f->v_padded, 0, (size_t)(STRIP_KEYS * f->v_padded) * sizeof *c->dv);
    c->summed[at / STRIP_KEYS] = true;
}

#define FAR_LSE 8192.0f

/* Whether the lse of some row is so far from zero that lse log2 e, rounded, is off by more than bf16 tells apart in P, or by
 * so much that P is 0 or infinite: as in rows whose biases all are -1e9 or finfo.min. -inf, of a row that sees no key, is
 * not. */
static inline bool some_lse_is_far(const struct row_statistics *rows) {
    const vec zero = v_set(0), infinite = v_set(INFINITY);
    uint32_t far = 0;
    for (int at = 0; at < TILE_ROWS; at += LANES) {
        const vec x = v_abs(v_load(rows->minus_lse + at)), finite = v_select_equal(x, infinite, zero, x);
        far |= v_equal_bits(v_select_less(v_set(FAR_LSE), finite, infinite, zero), infinite);
    }
    return far != 0;
}

/* Whether gradients are too large to stay in L2 beside the operands. */
static bool streams_gradients(const struct problem *p) {
    const strobe_attention *a = &p->a;
    const int64_t queries = a->batch * a->seq_q * a->heads_q * a->dim;
    const int64_t keys = a->batch * a->seq_k * a->heads_kv * (a->dim + a->dim_v);
    return (queries + keys) * (int64_t)sizeof(number) > STREAM_ABOVE;
}

/* Writes dK, times the scale, and dV of a super-block. */
static void finish_keys(const struct backward *f, const struct scratch *c, const struct keys *k) {
    const strobe_tensor *dk = &f->p->g.dk, *dv = &f->p->g.dv;
    for (int64_t j0 = k->first; j0 < k->end; j0 += BLOCK_KEYS) {
        const int64_t left = k->s.keys - j0, n = left < BLOCK_KEYS ? left : BLOCK_KEYS, at = j0 - k->first;
        for (int64_t strip = 0; strip < BLOCK_KEYS; strip += STRIP_KEYS) start_sums(f, c, at + strip);
        unpack_key_tiles(dk, strobe__key_offset(dk, &k->s, j0, k->kv), c->dk + at * f->k_padded, n, f->p->a.dim, f->k_padded,
                         (float)f->p->a.scale, f->streams);
        unpack_key_tiles(dv, strobe__key_offset(dv, &k->s, j0, k->kv), c->dv + at * f->v_padded, n, f->p->a.dim_v,
                         f->v_padded, 1, f->streams);
    }
}

#endif
