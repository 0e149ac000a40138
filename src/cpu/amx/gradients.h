/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gradients.h: the tile products of the AMX backward and the vector work between them, for a block pair, which is a strip of
 * 32 keys and a tile of 32 query rows:
 *
 *     product                  C, fp32             A, 16 rows x 32 bf16        B, 16 pairs x 16 columns
 *     S^T    = K Q^T           [32 keys][32 rows]  K: 32 columns               Q^T: pairs of columns
 *     dP^T   = V dO^T          the same            V                           dO^T
 *     dV    += P^T dO          [32 keys][dim_v]    P^T of a tile: 32 rows      dO: pairs of rows
 *     dK    += dS^T Q          [32 keys][dim]      dS^T                        Q
 *     dQ^T  += K^T dS^T        [dim][32 rows]      K^T: 32 keys                dS^T: pairs of keys
 *
 * The vector work is P = exp(S - lse) and dS = P (dP - delta). The chain of dP^T starts from -delta, so delta takes no
 * vector instruction. P^T and dS^T are stored as operands A, a row for each key, and dS^T a second time as operand B, in
 * pairs of keys. Which two rows make a pair is free as long as A and B agree: here rows r and r + 16, so that v_pair makes a
 * row of A from the two vectors of a key.
 *
 * All operands are stored tile by tile, 1 KiB each. S^T, dP^T and dQ^T are stored in rows of TILE_ROWS floats.
 *
 * Every product is made of one step, 2 x 2 tiles: C in T0 to T3, A in T4 and T5, B in T6 and T7. A tile product takes 16
 * cycles; between the four of a step the vector units work on keys of another block pair. */
#ifndef STROBE_CPU_AMX_GRADIENTS_H
#define STROBE_CPU_AMX_GRADIENTS_H

#include <math.h>

#include "cpu/amx/operand.h"
#include "cpu/amx/sizes.h"
#include "cpu/vector/tile.h"

enum {
    PAIR_FLOATS = STRIP_KEYS * TILE_ROWS,     /* S^T or dP^T of a block pair */
    PART_ELEMENTS = 2 * TILE_ELEMENTS,        /* from one part of an operand's two tiles to the next */
    OPERAND_ELEMENTS = PARTS * PART_ELEMENTS, /* an operand of a step: two tiles, in parts */
    PART_WORDS = PART_ELEMENTS / 2,           /* the same in pairs of bf16 */
    OPERAND_WORDS = OPERAND_ELEMENTS / 2,     /* P^T or dS^T of a block pair */
    PACE_UNIT = 1 << 16,                      /* vector work of a pair of keys, or a step of packing */
};

/* P^T and dS^T of a block pair, in the layouts of operands. */
struct gradient_operands {
    uint32_t *p, *ds; /* A: [PARTS][32 keys][16 pairs of rows] */
    uint32_t *pairs;  /* B, dS^T: [PARTS][2][16 pairs of keys][16 rows] */
};

/* The vector work of a block pair: P and dS from S^T and dP^T, two keys at a time, rounded into the three operands. */
struct softmax_gradients {
    const float *s, *dp; /* of the next two keys */
    struct gradient_operands to;
    const float *slope, *z;     /* of the next two keys: softcap's slope, dropout's factors; NULL: there are none */
    const float *minus_delta;   /* with dropout: -delta of the rows, from which the chain of dP has not started then */
    float *ds_sums;             /* [2][TILE_ROWS] where the next two are to be added; NULL: not wanted */
    vec sum[VECTORS];           /* of dS before softcap's slope */
    vec weights[VECTORS];       /* the sum of P before dropout */
    vec factor, shift[VECTORS]; /* P = 2^(S factor + shift); in parts e^(S factor + shift) */
    lane_mask rows[VECTORS];    /* the rows that exist */
    int left;                   /* pairs of keys still to come */
    int due, pace;              /* of them to be done by now, and how many more with each chance; in PACE_UNITs */
    bool hidden;                /* a score may be -inf, or there is softcap or dropout */
    struct packing *packing;    /* PACKING_WORK: what to pack; pace counts its steps */
};

static void pack_step(struct packing *packing);

/* What the vector work looks after: a sum of these. */
enum care {
    PLAIN_WORK = 0,
    HIDDEN_WORK = 1, /* what `hidden` means */
    SUMMED_WORK = 2, /* dS and P are summed */
    PACKING_WORK = 4 /* instead of all that: a block of rows is packed */
};

/* dP becomes Z dP - delta. */
ALWAYS_INLINE void drop_gradients(const struct softmax_gradients *work, vec dp[2][VECTORS]) {
    for (int j = 0; j < 2; ++j)
        for (int n = 0; n < VECTORS; ++n)
            dp[j][n] = v_fma(dp[j][n], v_load(work->z + j * TILE_ROWS + n * LANES), v_load(work->minus_delta + n * LANES));
}

/* x is multiplied by two keys of `by`. */
ALWAYS_INLINE void multiply_two_keys(vec x[2][VECTORS], const float *by) {
    for (int j = 0; j < 2; ++j)
        for (int n = 0; n < VECTORS; ++n) x[j][n] = v_mul(x[j][n], v_load(by + j * TILE_ROWS + n * LANES));
}

/* Adds two keys' x to the rows' sums of it. */
ALWAYS_INLINE void sum_two_keys(vec sum[VECTORS], const struct softmax_gradients *work, vec score[2][VECTORS],
                                vec x[2][VECTORS], bool hidden) {
    for (int n = 0; n < VECTORS; ++n) {
        const vec first = hidden ? v_keep_visible(work->rows[n], score[0][n], x[0][n]) : x[0][n],
                  second = hidden ? v_keep_visible(work->rows[n], score[1][n], x[1][n]) : x[1][n];
        sum[n] = v_add(sum[n], v_add(first, second));
    }
}

ALWAYS_INLINE void store_sums(const struct softmax_gradients *work) {
    for (int n = 0; n < VECTORS; ++n) {
        float *const of_ds = work->ds_sums + n * LANES, *const of_p = of_ds + TILE_ROWS;
        v_store(of_ds, v_add(v_load(of_ds), work->sum[n])), v_store(of_p, v_add(v_load(of_p), work->weights[n]));
    }
}

/* P of a score. In parts the difference of S and lse, which may be large, is taken before it is rounded again. Sums of dS
 * are not rounded to 16 bits, and a coarse exponential would be most of their error. */
ALWAYS_INLINE vec weight(const struct softmax_gradients *work, vec score, int n, enum care care) {
    const vec exponent = v_fma(score, work->factor, work->shift[n]);
    if (PARTS > 1) return v_exp2(v_mul(exponent, v_set((float)LOG2_E)));
    return care & SUMMED_WORK ? v_exp2(exponent) : v_exp2_coarse(exponent);
}

/* Takes the next part of x. The last one is all that is left, not rounded yet. */
ALWAYS_INLINE vec next_part(vec *x, int part) {
    if (part == PARTS - 1) return *x;
    return v_of_words(part == 0 ? round_part(x) : cut_part(x));
}

/* Two vectors of a part as pairs of bf16. The third part of fp32 has all bits that are left, 8 at most. */
ALWAYS_INLINE vec_words pair_part(vec even, vec odd, int part) {
    return part == PARTS - 1 && PARTS < 3 ? v_pair(even, odd) : v_pair_cut(v_words(even), v_words(odd));
}

/* Stores P and dS of two keys as operands, in parts. */
ALWAYS_INLINE void store_operands(struct gradient_operands to, vec p[2][VECTORS], vec ds[2][VECTORS]) {
    for (int part = 0; part < PARTS; ++part, to.p += PART_WORDS, to.ds += PART_WORDS, to.pairs += PART_WORDS) {
        vec p_part[2][VECTORS], ds_part[2][VECTORS];
        for (int j = 0; j < 2; ++j)
            for (int n = 0; n < VECTORS; ++n) {
                p_part[j][n] = next_part(&p[j][n], part);
                ds_part[j][n] = next_part(&ds[j][n], part);
            }
        for (int j = 0; j < 2; ++j) {
            w_store(to.p + j * LANES, pair_part(p_part[j][0], p_part[j][1], part));
            w_store(to.ds + j * LANES, pair_part(ds_part[j][0], ds_part[j][1], part));
        }
        for (int n = 0; n < VECTORS; ++n)
            w_store(to.pairs + n * TILE_SIDE * LANES, pair_part(ds_part[0][n], ds_part[1][n], part));
    }
}

/* The vector work of the next two keys. Where it is hidden, P and dS are 0 where a score is -inf, whatever dP and delta are,
 * and in rows that do not exist, where a key's NaN is not masked. `ready`: s and dp hold P and dS already. */
ALWAYS_INLINE void softmax_gradients_variant(struct softmax_gradients *work, enum care care, bool ready) {
    vec score[2][VECTORS], p[2][VECTORS], ds[2][VECTORS];
    const bool hidden = care & HIDDEN_WORK, drops = hidden && !ready && work->z;
    for (int j = 0; j < 2; ++j)
        for (int n = 0; n < VECTORS; ++n) {
            score[j][n] = v_load(work->s + j * TILE_ROWS + n * LANES);
            ds[j][n] = v_load(work->dp + j * TILE_ROWS + n * LANES);
            p[j][n] = ready ? score[j][n] : weight(work, score[j][n], n, care);
            if (!ready && !hidden) ds[j][n] = v_mul(p[j][n], ds[j][n]);
        }
    if (drops) drop_gradients(work, ds);
    for (int j = 0; j < 2 && !ready && hidden; ++j)
        for (int n = 0; n < VECTORS; ++n) ds[j][n] = v_mul(p[j][n], ds[j][n]);
    if (care & SUMMED_WORK && !ready)
        sum_two_keys(work->sum, work, score, ds, hidden), sum_two_keys(work->weights, work, score, p, hidden);
    if (drops) multiply_two_keys(p, work->z);
    if (hidden && !ready && work->slope) multiply_two_keys(ds, work->slope);
    for (int j = 0; j < 2 && hidden; ++j)
        for (int n = 0; n < VECTORS; ++n) {
            p[j][n] = v_keep_visible(work->rows[n], score[j][n], p[j][n]);
            ds[j][n] = v_keep_visible(work->rows[n], score[j][n], ds[j][n]);
        }
    store_operands(work->to, p, ds);
    work->s += 2 * TILE_ROWS;
    work->dp += 2 * TILE_ROWS;
    if (drops) work->z += 2 * TILE_ROWS;
    if (hidden && work->slope) work->slope += 2 * TILE_ROWS;
    work->to.p += 2 * LANES;
    work->to.ds += 2 * LANES;
    work->to.pairs += LANES;
    --work->left;
}

/* All of the vector work that is left. */
ALWAYS_INLINE void finish_softmax_gradients(struct softmax_gradients *work, enum care care) {
    while (work->left > 0) softmax_gradients_variant(work, care, false);
}

/* The vector work of up to `pairs` pairs of keys. */
ALWAYS_INLINE void softmax_gradients_step(struct softmax_gradients *work, int pairs, enum care care) {
    for (; pairs > 0 && work->left > 0; --pairs) softmax_gradients_variant(work, care, false);
}

/* As much vector work as is due. */
ALWAYS_INLINE void paced_step(struct softmax_gradients *work, enum care care) {
    for (work->due += work->pace; work->due >= PACE_UNIT; work->due -= PACE_UNIT)
        if (care & PACKING_WORK)
            pack_step(work->packing);
        else
            softmax_gradients_variant(work, care, false);
}

/* Spreads `units` of vector work, which are due from now on, over so many steps of products. */
ALWAYS_INLINE void spread_over(struct softmax_gradients *work, int64_t units, int64_t steps) {
    work->due = 0;
    work->pace = (int)((units * PACE_UNIT + steps - 1) / steps);
}

/* P or dS of key j and row r, from an operand A. */
static inline float operand_element(const uint32_t *operand, int64_t j, int64_t r) {
    float sum = 0;
    for (int part = PARTS - 1; part >= 0; --part) {
        const uint32_t word = operand[part * PART_WORDS + j * LANES + r % LANES];
        sum += bf16_to_float((uint16_t)(r < LANES ? word : word >> 16));
    }
    return sum;
}

/* Four tiles of C in memory. */
struct tiles_2x2 {
    float *at;            /* NULL: none */
    int64_t right, below; /* floats to the next tile */
    size_t row;           /* bytes to the next row of a tile */
};

ALWAYS_INLINE float *tile_at(const struct tiles_2x2 *c, int64_t x, int64_t y) { return c->at + x * c->right + y * c->below; }

/* Stores T0 to T3 to `pending`, where their sums are not stored yet. */
ALWAYS_INLINE void store_pending(struct tiles_2x2 *pending) {
    if (!pending->at) return;
    _tile_stored(0, tile_at(pending, 0, 0), pending->row);
    _tile_stored(1, tile_at(pending, 1, 0), pending->row);
    _tile_stored(2, tile_at(pending, 0, 1), pending->row);
    _tile_stored(3, tile_at(pending, 1, 1), pending->row);
    pending->at = NULL;
}

/* Tile rotation between two chains of steps: the sums of the old chain are stored to `pending`, those of the new one start
 * from `from`, or from zero where it is NULL. Each tile is stored and loaded just before its first product of the new chain.
 * A store waits for the last product into its tile; directly behind that product it would hold up all instructions that
 * follow. */
struct tile_rotation {
    const struct tiles_2x2 *pending, *from;
};

#define ROTATE_TILE(tile, rotation, x, y)                                                                              \
    do {                                                                                                               \
        if ((rotation)->pending->at) _tile_stored(tile, tile_at((rotation)->pending, x, y), (rotation)->pending->row); \
        if ((rotation)->from)                                                                                          \
            _tile_loadd(tile, tile_at((rotation)->from, x, y), (rotation)->from->row);                                 \
        else                                                                                                           \
            _tile_zero(tile);                                                                                          \
    } while (0)

/* Which operands of a step are streamed past L1, since they are not read again soon. In parts K and V of a strip are so
 * large that they would only push S, dP and what is made of them out of it. */
enum streamed { STREAM_B = 1, STREAM_A = 2, STREAM_BOTH = 3, STREAM_SCORES = PARTS == 1 ? STREAM_B : STREAM_BOTH };

/* Pairs of keys of vector work, at most, after each tile product of a step in bf16. */
struct work_rate {
    int after[4];
};

static const struct work_rate no_work = {{0, 0, 0, 0}};

/* The vector work behind the n-th product of a step. In parts it is paced, with one chance a step. */
ALWAYS_INLINE void work_behind(int n, struct softmax_gradients *work, struct work_rate rate, enum care care) {
    if (PARTS == 1)
        softmax_gradients_step(work, rate.after[n], care);
    else if (n == 1)
        paced_step(work, care);
}

#define LOAD_OPERAND(tile, at, stream)        \
    do {                                      \
        if (stream)                           \
            _tile_stream_loadd(tile, at, 64); \
        else                                  \
            _tile_loadd(tile, at, 64);        \
    } while (0)

/* C += A B over 32 of the inner dimension, of one part of each operand. rotation: NULL within a chain. `fresh`: the part is
 * not in its tiles yet. */
ALWAYS_INLINE void multiply_2x2(const uint16_t *a, bool fresh_a, const uint16_t *b, bool fresh_b, enum streamed streamed,
                                const struct tile_rotation *rotation, struct softmax_gradients *work, struct work_rate rate,
                                enum care care) {
    if (fresh_a) LOAD_OPERAND(4, a, streamed & STREAM_A);
    if (fresh_b) LOAD_OPERAND(6, b, streamed & STREAM_B);
    if (rotation) ROTATE_TILE(0, rotation, 0, 0);
    _tile_dpbf16ps(0, 4, 6);
    work_behind(0, work, rate, care);
    if (fresh_b) LOAD_OPERAND(7, b + TILE_ELEMENTS, streamed & STREAM_B);
    if (rotation) ROTATE_TILE(1, rotation, 1, 0);
    _tile_dpbf16ps(1, 4, 7);
    work_behind(1, work, rate, care);
    if (fresh_a) LOAD_OPERAND(5, a + TILE_ELEMENTS, streamed & STREAM_A);
    if (rotation) ROTATE_TILE(2, rotation, 0, 1);
    _tile_dpbf16ps(2, 5, 6);
    work_behind(2, work, rate, care);
    if (rotation) ROTATE_TILE(3, rotation, 1, 1);
    _tile_dpbf16ps(3, 5, 7);
    work_behind(3, work, rate, care);
}

/* The same of all parts whose product counts, which are those from products[start] on. */
ALWAYS_INLINE void multiply_parts(const uint16_t *a, const uint16_t *b, int start, enum streamed streamed,
                                  const struct tile_rotation *rotation, struct softmax_gradients *work,
                                  struct work_rate rate, enum care care) {
    for (int n = start; n < PRODUCTS; ++n) {
        const bool first = n == start;
        multiply_2x2(a + products[n].a * PART_ELEMENTS, first || products[n].fresh_a, b + products[n].b * PART_ELEMENTS,
                     first || products[n].fresh_b, streamed, first ? rotation : NULL, work, rate, care);
    }
}

/* S^T of a block pair, or dP^T, which starts from a row of -delta: k and q [chunks] operands. All products of parts are
 * taken: P is e to the power of S, and dP - delta may be a small difference. In bf16 all vector work that is left is done
 * with S^T, before S^T is stored over what it reads; with dP^T there is none. The first step of the chain still has to store
 * the dP^T that this work reads, so the work begins when two tiles, the first 16 keys, are stored. */
ALWAYS_INLINE void product_scores(struct tiles_2x2 *pending, float *s, float *start, const uint16_t *k, const uint16_t *q,
                                  int64_t chunks, struct softmax_gradients *work, enum care care) {
    const struct tiles_2x2 rows = {start, LANES, 0, 0};
    const struct tile_rotation rotation = {pending, start ? &rows : NULL};
    struct work_rate first = no_work, rate = no_work;
    if (PARTS == 1 && work->left > 0) {
        const int slots = (int)(4 * chunks - 1), pairs = (work->left + slots - 1) / slots;
        first = (struct work_rate){{0, pairs, pairs, pairs}};
        rate = (struct work_rate){{pairs, pairs, pairs, pairs}};
        if (chunks == 1) store_pending(pending); /* else the one step would have time for 8 pairs at most */
    }
    if (PARTS > 1 || work->left > 0) {
        multiply_parts(k, q, 0, STREAM_SCORES, &rotation, work, first, care);
        for (int64_t n = 1; n < chunks; ++n)
            multiply_parts(k + n * OPERAND_ELEMENTS, q + n * OPERAND_ELEMENTS, 0, STREAM_SCORES, NULL, work, rate, care);
    } else {
        multiply_parts(k, q, 0, STREAM_SCORES, &rotation, work, no_work, PLAIN_WORK);
        for (int64_t n = 1; n < chunks; ++n)
            multiply_parts(k + n * OPERAND_ELEMENTS, q + n * OPERAND_ELEMENTS, 0, STREAM_SCORES, NULL, work, no_work,
                           PLAIN_WORK);
    }
    *pending = (struct tiles_2x2){s, LANES, TILE_SIDE * TILE_ROWS, TILE_ROWS * sizeof *s};
}

/* multiply_parts() with both operands streamed, and with vector work as long as any is left. */
ALWAYS_INLINE void multiply_with_work(const uint16_t *a, const uint16_t *b, const struct tile_rotation *rotation,
                                      struct softmax_gradients *work, enum care care) {
    const struct work_rate some = {{0, 1, 0, 1}};
    if (PARTS > 1 || work->left > 0)
        multiply_parts(a, b, SCORE_PRODUCTS, STREAM_BOTH, rotation, work, some, care);
    else
        multiply_parts(a, b, SCORE_PRODUCTS, STREAM_BOTH, rotation, work, no_work, PLAIN_WORK);
}

/* Columns [32 n, 32 n + 32) of dV += P^T dO or dK += dS^T Q over those of `depth` tiles of rows that see the strip, one bit
 * each in `seen`, the first among them: g [2][2 groups] tiles, p [depth] operands, y [depth][groups] operands. summed: g
 * holds sums; false: it holds anything and counts as zero. */
ALWAYS_INLINE void product_dkdv(struct tiles_2x2 *pending, float *g, const uint32_t *p, const uint16_t *y, int64_t n,
                                int64_t groups, int64_t depth, uint32_t seen, bool summed, struct softmax_gradients *work,
                                enum care care) {
    const int64_t tile = TILE_SIDE * TILE_SIDE;
    const struct tiles_2x2 c = {g + 2 * n * tile, tile, 2 * groups * tile, TILE_SIDE * sizeof *g};
    const struct tile_rotation rotation = {pending, summed ? &c : NULL};
    const uint16_t *a = (const uint16_t *)p;
    y += n * OPERAND_ELEMENTS;
    multiply_with_work(a, y, &rotation, work, care);
    for (int64_t t = 1; t < depth; ++t)
        if (seen >> t & 1) multiply_with_work(a + t * OPERAND_ELEMENTS, y + t * groups * OPERAND_ELEMENTS, NULL, work, care);
    *pending = c;
}

#endif
