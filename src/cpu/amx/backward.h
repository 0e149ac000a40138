/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward.h: the memory of the AMX backward, the packing of its operands, what is left out of them as not finite, and the
 * writing of dK and dV. K and V are packed once a super-block, and a block of query rows once for each super-block of
 * keys. */
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
    struct block block;             /* S^T and dP^T of two block pairs, and what features add */
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
    int64_t begin, end;                                             /* the keys of the super-block that its tiles see */
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
    t->block.p = take(base, &used, 2 * PAIR_FLOATS);
    t->block.ds = take(base, &used, 2 * PAIR_FLOATS);
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

/* The packing of tiles of a block of rows from `tile` on, in steps. Q and dO of a tile are packed one after the other. */
struct packing {
    const struct backward *f;
    const struct scratch *c;
    struct row_block *rows; /* NULL: nothing is to be packed */
    int64_t tile;
    bool started, of_dout; /* `now` is under way; it packs dO */
    struct row_packing now;
};

static void start_packing(struct packing *w) {
    const struct backward *f = w->f;
    const strobe_attention *a = &f->p->a;
    struct row_block *rows = w->rows;
    const int64_t n = w->tile, columns = w->of_dout ? f->v_padded : f->k_padded, at = n * TILE_ROWS * columns * PARTS;
    const strobe_tensor *x = w->of_dout ? &f->p->g.dout : &a->q;
    w->now.dim = w->of_dout ? a->dim_v : a->dim;
    w->now.left_out = f->some_hidden ? rows_not_finite(&rows->tile[n], x, w->now.dim) : 0;
    *(w->of_dout ? &rows->dout_nonfinite[n] : &rows->q_nonfinite[n]) = w->now.left_out;
    w->now.columns = (w->of_dout ? w->c->dout : w->c->q) + at;
    w->now.pairs = (w->of_dout ? w->c->dout_pairs : w->c->q_pairs) + at;
    w->now.flip = !w->of_dout && !f->has_terms && a->scale < 0;
    start_packing_rows(&w->now, &rows->tile[n], x);
    w->started = true;
}

static __attribute__((noinline)) void pack_step(struct packing *w) {
    if (!w->rows || w->tile >= w->rows->tiles) return;
    if (!w->started) start_packing(w);
    pack_rows_step(&w->now);
    if (w->now.c < w->now.dim) return;
    w->started = false;
    w->rows->packed[w->tile] = w->of_dout;
    w->tile += w->of_dout;
    w->of_dout = !w->of_dout;
}

/* Packs tile n of a block of rows. */
static void pack_tile(const struct backward *f, const struct scratch *c, struct row_block *rows, int64_t n) {
    struct packing w = {.f = f, .c = c, .rows = rows, .tile = n};
    while (!rows->packed[n]) pack_step(&w);
}

/* Finds the first block of rows from tile `first` on, some of which see some of the keys. Returns whether there is one. */
static bool find_row_block(const struct backward *f, const struct scratch *c, struct row_block *rows, const struct keys *k,
                           int64_t first) {
    const int64_t tiles = up_to(packed_rows(f->p, &k->s), TILE_ROWS) / TILE_ROWS;
    for (rows->first = first; rows->first < tiles; rows->first += f->block_tiles) {
        const int64_t last = rows->first + f->block_tiles < tiles ? rows->first + f->block_tiles - 1 : tiles - 1;
        const struct tile_rows top = tile_rows_at(f->p, &k->s, k->kv, rows->first * TILE_ROWS);
        const struct tile_rows bottom = tile_rows_at(f->p, &k->s, k->kv, last * TILE_ROWS);
        rows->tiles = last + 1 - rows->first;
        rows->begin = tile_first_key(&top) / STRIP_KEYS * STRIP_KEYS;
        rows->end = tile_end_key(&bottom);
        if (rows->begin < k->first) rows->begin = k->first;
        if (rows->end > k->end) rows->end = k->end;
        if (rows->begin < rows->end) break;
    }
    if (rows->first >= tiles) return false;
    for (int64_t n = 0; n < rows->tiles; ++n) {
        rows->tile[n] = tile_rows_at(f->p, &k->s, k->kv, (rows->first + n) * TILE_ROWS);
        const struct tile_rows *t = &rows->tile[n];
        rows->visible[n] = (struct visible){tile_first_key(t), tile_end_key(t),
                                            band_first(&t->s.band, packed_row(t, t->n - 1)),
                                            band_end(&t->s.band, packed_row(t, 0))};
        rows->features[n].score = c->score[n];
        find_row_features(&rows->features[n], t);
        rows->packed[n] = false;
    }
    return true;
}

/* Packs the block of keys from j0 on. */
static void pack_block(const struct backward *f, const struct scratch *c, const struct keys *k, int64_t j0) {
    const strobe_attention *a = &f->p->a;
    const int64_t left = k->s.keys - j0, n = left < BLOCK_KEYS ? left : BLOCK_KEYS, at = j0 - k->first;
    const number *key = (const number *)a->k.data + strobe__key_offset(&a->k, &k->s, j0, k->kv);
    const number *value = (const number *)a->v.data + strobe__key_offset(&a->v, &k->s, j0, k->kv);
    const uint64_t k_nonfinite = f->some_hidden ? keys_not_finite(key, a->k.stride[1], n, a->dim) : 0;
    c->k_nonfinite[at / BLOCK_KEYS] = k_nonfinite;
    pack_keys_twice(c->k + at * f->k_padded * PARTS, c->k_columns + at * f->k_padded * PARTS, key, a->k.stride[1], n, a->dim,
                    f->k_padded, k_nonfinite);
    pack_key_tiles(c->v + at * f->v_padded * PARTS, value, a->v.stride[1], n, a->dim_v, f->v_padded);
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

/* G[j] += P[j][r] Y_r for the rows of a tile that are not finite, where P[j][r] is not 0. They were left out of the operand
 * made of Y, since 0 * NaN would reach keys that such a row does not see. `operand` is P^T or dS^T. */
static void add_nonfinite_rows(float *g, const struct tile_rows *t, const uint32_t *operand, const strobe_tensor *y,
                               uint32_t nonfinite, int64_t columns, int64_t padded) {
    for (int64_t r = 0; nonfinite; ++r, nonfinite >>= 1) {
        if (!(nonfinite & 1)) continue;
        const number *row = (const number *)y->data + tile_offset(t, y, r);
        for (int64_t j = 0; j < STRIP_KEYS; ++j) {
            const float element = operand_element(operand, j, r);
            float *to = g + j / TILE_SIDE * TILE_SIDE * padded + j % TILE_SIDE * TILE_SIDE;
            for (int64_t x = 0; element != 0 && x < columns; ++x)
                to[x / TILE_SIDE * TILE_SIDE * TILE_SIDE + x % TILE_SIDE] += element * to_float(row[x]);
        }
    }
}

/* dQ += dS K for the keys of a strip that were left out of K^T as not finite, in rows where their dS is not 0. */
static void add_nonfinite_keys(const struct backward *f, float *dq, const struct tile_rows *t, const uint32_t *operand,
                               int64_t j0, uint32_t nonfinite) {
    const strobe_tensor *k = &f->p->a.k;
    for (int64_t j = 0; nonfinite; ++j, nonfinite >>= 1) {
        if (!(nonfinite & 1)) continue;
        const number *row = (const number *)k->data + strobe__key_offset(k, &t->s, j0 + j, t->kv);
        for (int64_t r = 0; r < t->n; ++r) {
            const float element = operand_element(operand, j, r);
            for (int64_t x = 0; element != 0 && x < f->p->a.dim; ++x) dq[x * TILE_ROWS + r] += element * to_float(row[x]);
        }
    }
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
