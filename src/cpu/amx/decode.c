/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode.c: decoding of up to 16 bf16 query rows that share a K/V head, as one tile, K and V multiplied as they lie in
 * memory. split_kv.h has the splits and how they are merged.
 *
 *   for each block of BLOCK_KEYS keys, for each head of the task:
 *     S^T = K Q^T                              tiles    16 keys at a time: T0..T3 += (T4, T5: K) (T6: Q^T)
 *     m' = max(m, S);  P^T = 2^(S^T c - m' c)  vectors  queries across the lanes; l and, where m moved, O follow
 *     P^T transposed                           vectors  16 keys at a time, in two forms
 *     O += P V                                 tiles    16 keys x 32 columns of V at a time
 *
 * A row of V is 32 columns where a tile wants pairs of neighbouring keys. Interleaving rows costs a load, a shuffle and a
 * store a line, and tile loads wait for the stores; instead the line is taken for 16 pairs of neighbouring columns of one
 * key, and P has a zero in every pair: (p, 0) gives O's even columns, (0, p) its odd ones. Half of the products are with
 * zeros; the tile unit has the time. With up to 8 rows both forms fit into one tile, eight rows each, and nothing is lost.
 * 0 times what is not finite is NaN: where O is not finite at the end of a split, the split is done again with care, each
 * such V left out and added to the rows and columns that it belongs to.
 *
 * K and V are streamed past L1. Memory of a worker, d = 128: S 4 KiB, P 8; a head's Q 8 and O 8.
 *
 * 4-core Xeon VM with AMX, one thread, 2026-11-21, d 128, 8192 keys, 32/4 and 32/8 heads: 145 and 71 GFLOP/s, 79 % of the
 * bandwidth of reading; from L2 280 GFLOP/s. docs/kernels/cpu.md has what was tried. */
#include "cpu/amx/decode.h"
#include "cpu/amx/pack.h"
#include "cpu/decode/split_kv.h"
#include "cpu/scratch.h"
#include "cpu/table.h"
#include "cpu/vector/nonfinite.h"

enum { FEW_ROWS = TILE_SIDE / 2 };

struct decode {
    struct split_kv split;
    char *workspace;
    size_t scratch_bytes;
    int64_t k_padded, v_padded;
    bool few; /* rows: half a tile holds them */
    bool far; /* K and V are not in L2 */
};

/* A head's queries and accumulators. */
struct head {
    uint16_t *q;  /* as pack_queries has it; its second half is not used */
    float *o;     /* [16][v_padded], or [2][8][v_padded / 2] for few rows: columns_at */
    float *m, *l; /* [16] */
};

/* One worker's memory. */
struct scratch {
    uint16_t *k; /* [64][k_padded] a block that cannot be read in place */
    float *s;    /* [64 keys][16 queries] */
    uint16_t *p; /* [even columns, odd columns][4][16 queries][16 keys] pairs of a weight and a zero */
    uint16_t *v; /* [64][v_padded] a block that cannot be read in place */
    struct head head[HEADS_A_TASK_ON_TILES];
};

/* The block at hand. */
struct block {
    const struct decode *f;
    struct split_task t;
    int64_t j0, keys;
    bool careful; /* V is looked through for what is not finite */
    struct scratch c;
};

static size_t lay_out(struct scratch *c, float *base, const struct decode *f, int64_t heads) {
    size_t used = 0;
    c->k = (uint16_t *)take(base, &used, BLOCK_KEYS * f->k_padded / 2);
    c->s = take(base, &used, BLOCK_KEYS * TILE_SIDE);
    c->p = (uint16_t *)take(base, &used, 2 * KEY_TILES * TILE_ELEMENTS / 2);
    c->v = (uint16_t *)take(base, &used, BLOCK_KEYS * f->v_padded / 2);
    for (int64_t h = 0; h < heads; ++h) {
        c->head[h].q = (uint16_t *)take(base, &used, TILE_ROWS * f->k_padded / 2);
        c->head[h].o = take(base, &used, TILE_SIDE * f->v_padded);
        c->head[h].m = take(base, &used, TILE_SIDE);
        c->head[h].l = take(base, &used, TILE_SIDE);
    }
    return used * sizeof(float);
}

/* Raw scores of keys that a row does not see become -inf; keys past the block's too. */
static void hide(const struct block *b, const struct tile_rows *t, float *s) {
    int32_t first[LANES] = {0}, end[LANES] = {0};
    for (int64_t r = 0; r < t->n; ++r) {
        const int64_t low = band_first(&t->s.band, packed_row(t, r)) - b->j0;
        const int64_t high = band_end(&t->s.band, packed_row(t, r)) - b->j0;
        first[r] = (int32_t)(low < 0 ? 0 : low < b->keys ? low : b->keys);
        end[r] = (int32_t)(high < 0 ? 0 : high < b->keys ? high : b->keys);
    }
    const __m512i firsts = _mm512_loadu_si512(first), ends = _mm512_loadu_si512(end);
    for (int32_t j = 0; j < BLOCK_KEYS; ++j) {
        const __m512i key = _mm512_set1_epi32(j);
        const __mmask16 seen = _mm512_cmp_epi32_mask(key, firsts, _MM_CMPINT_NLT) &
                               _mm512_cmp_epi32_mask(key, ends, _MM_CMPINT_LT);
        v_store(s + j * LANES, _mm512_mask_blend_ps(seen, v_set(-INFINITY), v_load(s + j * LANES)));
    }
}

/* The weights of 16 keys, [16 queries][16 keys], bf16 in the upper half of each word, to the operands of values(). */
static inline void store_weights(uint16_t *p, const __m512i words[TILE_SIDE], bool few) {
    uint16_t *of_odd = few ? p + FEW_ROWS * TILE_DEPTH : p + KEY_TILES * TILE_ELEMENTS;
    for (int64_t i = 0; i < (few ? FEW_ROWS : TILE_SIDE); ++i) {
        _mm512_store_si512(p + i * TILE_DEPTH, _mm512_srli_epi32(words[i], 16));
        _mm512_store_si512(of_odd + i * TILE_DEPTH, _mm512_and_si512(words[i], _mm512_set1_epi32(-0x10000)));
    }
}

/* Scores become weights, bf16, in p; m and l move on, and O where m did. l sums the weights before they are rounded. */
static void online_softmax(struct head *h, const float *s, uint16_t *p, float factor, int64_t padded, bool few,
                           const struct ahead *ahead) {
    const vec c = v_set(factor), none = v_set(-INFINITY), before = v_load(h->m);
    vec high[4] = {before, before, before, before}, sum[2] = {v_set(0), v_set(0)};
    for (int64_t j = 0; j < BLOCK_KEYS; j += 4)
        for (int64_t i = 0; i < 4; ++i) high[i] = v_max(v_load(s + (j + i) * LANES), high[i]);
    const vec m = v_max(v_max(high[0], high[1]), v_max(high[2], high[3]));
    const vec shift = v_select_equal(m, none, v_set(0), v_mul(m, c));
    for (int64_t tile = 0; tile < KEY_TILES; ++tile, p += TILE_ELEMENTS) {
        ask_rows(ahead, OF_EXPONENTIALS, tile * TILE_SIDE / KEY_TILES, (tile + 1) * TILE_SIDE / KEY_TILES);
        __m512i words[TILE_SIDE];
        for (int64_t i = 0; i < TILE_SIDE; ++i, s += LANES) {
            const vec weight = v_exp2(_mm512_fmsub_ps(v_load(s), c, shift));
            sum[i % 2] = v_add(sum[i % 2], weight);
            words[i] = _mm512_add_epi32(_mm512_castps_si512(weight), _mm512_set1_epi32(0x8000)); /* to nearest */
        }
        v_transpose(words);
        store_weights(p, words, few);
    }
    const vec correction = v_select_equal(m, before, v_set(1), v_exp2(_mm512_fmsub_ps(before, c, shift)));
    v_store(h->m, m);
    v_store(h->l, v_fma(v_load(h->l), correction, v_add(sum[0], sum[1])));
    if (_mm512_cmp_ps_mask(m, before, _CMP_EQ_OQ) == 0xffff) return;
    float factors[LANES];
    v_store(factors, correction);
    const int64_t width = few ? padded / 2 : padded;
    for (int64_t r = 0; r < TILE_SIDE; ++r)
        for (int64_t x = 0; x < width; x += LANES) {
            float *o = h->o + r * width + x;
            v_store(o, v_mul(v_load(o), v_set(factors[few ? r % FEW_ROWS : r])));
        }
}

/* Where 16 even (odd = 0) or odd columns of row r lie in O: of the 32 columns from x on. */
static int64_t columns_at(const struct decode *f, int64_t r, int64_t x, int64_t odd) {
    return f->few ? (odd * FEW_ROWS + r) * (f->v_padded / 2) + x / 2 : r * f->v_padded + x + odd * TILE_SIDE;
}

/* O += P V for the keys that were left out of V, to the rows that give them a weight. */
static void add_held_keys(const struct block *b, struct head *h, const struct tile_rows *t, const uint16_t *v,
                          uint64_t held) {
    const strobe_tensor *tensor = &b->f->split.p->a.v;
    for (int64_t j = 0; held; ++j, held >>= 1, v += tensor->stride[1])
        for (int64_t r = 0; r < t->n && held & 1; ++r) {
            const uint16_t *p = b->c.p + j / TILE_SIDE * TILE_ELEMENTS + r * TILE_DEPTH + j % TILE_SIDE * 2;
            const float weight = bf16_to_float(*p);
            for (int64_t x = 0; x < b->f->split.p->a.dim_v && weight != 0; ++x) {
                const int64_t group = x - x % TILE_DEPTH;
                h->o[columns_at(b->f, r, group, x % 2) + x % TILE_DEPTH / 2] += weight * bf16_to_float(v[x]);
            }
        }
}

static void head_meets_keys(const struct block *b, struct head *h, int64_t kv) {
    const struct decode *f = b->f;
    const strobe_attention *a = &f->split.p->a;
    const struct tile_rows t = decode_rows(f->split.p, &b->t.s, kv);
    const enum coverage coverage = tile_covers(&t, b->j0, b->j0 + b->keys);
    if (coverage == BLOCK_SKIPPED) return;
    const uint16_t *k = (const uint16_t *)a->k.data + strobe__key_offset(&a->k, &b->t.s, b->j0, kv);
    const uint16_t *v = (const uint16_t *)a->v.data + strobe__key_offset(&a->v, &b->t.s, b->j0, kv);
    const bool partial = coverage != BLOCK_FULL || b->keys < BLOCK_KEYS;
    const bool k_in_place = b->keys == BLOCK_KEYS && f->k_padded == a->dim;
    if (!k_in_place) pack_keys(b->c.k, k, a->k.stride[1], b->keys, a->dim, f->k_padded);
    struct ahead ahead = {.bytes = 0};
    if (f->far) ahead = look_ahead(a, k, v, h - b->c.head, b->t.heads);
    tile_barrier();
    scores(b->c.s, k_in_place ? k : b->c.k, k_in_place ? a->k.stride[1] : f->k_padded, h->q, f->k_padded, &ahead);
    tile_barrier();
    if (partial) hide(b, &t, b->c.s);
    online_softmax(h, b->c.s, b->c.p, exponent_factor(f->split.p), f->v_padded, f->few, &ahead);
    const uint64_t held = partial || b->careful ? keys_not_finite(v, a->v.stride[1], b->keys, a->dim_v) : 0;
    const bool v_in_place = b->keys == BLOCK_KEYS && f->v_padded == a->dim_v && !held;
    if (!v_in_place) pack_keys(b->c.v, v, a->v.stride[1], b->keys, a->dim_v, f->v_padded);
    for (int64_t j = 0; j < BLOCK_KEYS; ++j)
        if (held >> j & 1) memset(b->c.v + j * f->v_padded, 0, (size_t)f->v_padded * sizeof *v);
    tile_barrier();
    (f->few ? values_of_few : values)(h->o, f->v_padded, b->c.p, v_in_place ? v : b->c.v,
                                      v_in_place ? a->v.stride[1] : f->v_padded, &ahead);
    tile_barrier();
    if (held) add_held_keys(b, h, &t, v, held);
}

static void start_head(const struct decode *f, struct head *h, const struct tile_rows *t) {
    const strobe_attention *a = &f->split.p->a;
    pack_queries(h->q, t, &a->q, a->dim, a->scale < 0);
    memset(h->o, 0, (size_t)(TILE_SIDE * f->v_padded) * sizeof *h->o);
    for (int r = 0; r < TILE_SIDE; ++r) h->m[r] = -INFINITY, h->l[r] = 0;
}

/* A head's accumulators become the part of its rows. */
static void finish_head(const struct decode *f, const struct head *h, const struct split_task *t, int64_t kv) {
    const int64_t dim = f->split.p->a.dim_v;
    for (int64_t r = 0; r < f->split.rows; ++r) {
        const struct part part = part_at(&f->split, t->s.b * f->split.p->a.heads_kv + kv, t->split, r);
        *part.m = h->m[r], *part.l = h->l[r];
        float places[256], row[256];
        float *to = dim == f->v_padded ? part.o : places;
        for (int64_t x = 0; x < f->v_padded; x += TILE_DEPTH)
            for (int64_t odd = 0; odd < 2; ++odd)
                memcpy(to + x + odd * TILE_SIDE, h->o + columns_at(f, r, x, odd), TILE_SIDE * sizeof *to);
        if (dim == f->v_padded) continue;
        from_places(row, places, STROBE_BF16, f->v_padded, 1); /* the last pair of a part overlaps the one before */
        to_places(part.o, row, STROBE_BF16, dim, 1);
    }
}

/* Heads [first, end) of the task meet its keys, block by block. */
static void heads_meet_keys(struct block *b, int64_t first, int64_t end, bool careful) {
    const struct split_task *t = &b->t;
    b->careful = careful;
    for (int64_t h = first; h < end; ++h) {
        const struct tile_rows rows = decode_rows(b->f->split.p, &t->s, t->first_head + h);
        start_head(b->f, &b->c.head[h], &rows);
    }
    for (b->j0 = t->first; b->j0 < t->end; b->j0 += BLOCK_KEYS) {
        b->keys = t->end - b->j0 < BLOCK_KEYS ? t->end - b->j0 : BLOCK_KEYS;
        for (int64_t h = first; h < end; ++h) head_meets_keys(b, &b->c.head[h], t->first_head + h);
    }
}

static void decode_task(void *context, int64_t index, int32_t worker) {
    const struct decode *f = context;
    struct block b = {.f = f, .t = split_task_at(&f->split, index)};
    if (b.t.heads == 0) return;
    const float_mode mode = enter_flush_to_zero();
    tiles_enter();
    lay_out(&b.c, (float *)(void *)(f->workspace + (size_t)worker * f->scratch_bytes), f, f->split.heads_a_task);
    heads_meet_keys(&b, 0, b.t.heads, false);
    for (int64_t h = 0; h < b.t.heads; ++h) {
        if (!row_is_finite(b.c.head[h].o, (f->few ? FEW_ROWS : TILE_SIDE) * f->v_padded))
            heads_meet_keys(&b, h, h + 1, true);
        finish_head(f, &b.c.head[h], &b.t, b.t.first_head + h);
    }
    tiles_leave();
    leave_flush_to_zero(mode);
}

static struct decode decode_of(const struct problem *p, int64_t longest) {
    return (struct decode){.split = split_kv_of(p, longest, HEADS_A_TASK_ON_TILES),
                           .far = worth_asking(&p->a, longest),
                           .few = p->a.seq_q * p->group <= FEW_ROWS,
                           .k_padded = up_to(p->a.dim, TILE_DEPTH),
                           .v_padded = up_to(p->a.dim_v, TILE_DEPTH)};
}

size_t LEVEL_KERNEL(decode_workspace)(const struct problem *p) {
    struct scratch c;
    const struct decode f = decode_of(p, p->a.seq_k);
    return (size_t)strobe__workers(p->a.parallel) * lay_out(&c, NULL, &f, heads_side_by_side(&p->a, HEADS_A_TASK_ON_TILES)) +
           parts_bytes(p);
}

strobe_status LEVEL_KERNEL(decode)(const struct problem *p, const struct execution *execution) {
    struct scratch c;
    struct decode f = decode_of(p, longest_sequence(p));
    f.workspace = execution->workspace;
    f.scratch_bytes = lay_out(&c, NULL, &f, f.split.heads_a_task);
    f.split.parts = (float *)(void *)(f.workspace + (size_t)strobe__workers(p->a.parallel) * f.scratch_bytes);
    run_splits(&f.split, decode_task, &f);
    return STROBE_OK;
}
