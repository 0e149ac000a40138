/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode_int8.c (amx): split-KV decoding (Flash-Decoding, Dao et al., 2023) of up to 16 query rows that share an int8 K/V
 * head. K and V are multiplied as bytes on tiles, as they lie in memory, so that nothing is widened: widening to fp32 is
 * what bounds the vector kernel, cpu_decode_avx512, with four rows. amx/bytes.h has the products and layouts,
 * cpu/decode/split_kv.h the splits and their merge.
 *
 *   for each block of BLOCK_KEYS keys, for each head of the task, for each query tile of up to four rows:
 *     S = K Q^T                                              tiles    q as digits of one byte, exact
 *     S times the keys' scales;  m' = max(m, S)              vectors  4 keys x 4 rows
 *     P = 2^(S c - m' c);  l is rescaled and grows           vectors
 *     P times V's scales, as digits with one scale a row     vectors
 *     O is rescaled;  O += P V                               tiles, then vectors join the digits
 *
 * Fallback: numbers that are not finite or too small (LEAST_MAGNITUDE) have no digits. Where a query, a scale or P times a
 * scale is such a number, cpu_decode_avx512 computes the whole call again.
 *
 * docs/kernels/cpu.md has the versions and what was tried, docs/benchmarks.md the figures. */
#include <stdatomic.h>

#include "core/log.h"
#include "cpu/amx/bytes.h"
#include "cpu/decode/split_kv.h"
#include "cpu/scratch.h"
#include "cpu/table.h"
#include "cpu/vector/nonfinite.h"
#include "cpu/vector/visible.h"

enum { LARGEST_DIM = 256 };

/* A row, of q or of P, has digits if its maximum magnitude is at least this. The scale of the last digit is 2^-30 of the
 * maximum, and the row is multiplied by 2^30 over the maximum: both have to be normal numbers of fp32. */
#define LEAST_MAGNITUDE 0x1p-90f

struct decode {
    struct split_kv split;
    char *workspace;
    size_t scratch_bytes;
    int64_t k_padded, v_padded;  /* dim and dim_v up to whole cache lines */
    int64_t query_tiles;         /* of a head */
    bool prefetches;             /* K and V are too large for L2 */
    atomic_bool *needs_fallback; /* set by any task */
};

/* The queries and sums of a query tile. */
struct query_tile {
    uint8_t *q;         /* operands B */
    float *o;           /* [v_padded / 64][4 columns of a quad][QUERY_ROWS][16 quads] */
    float *m, *l;       /* [4][QUERY_ROWS]: m the same in all four, l to be summed over them */
    float *digit_scale; /* [4 digits][QUERY_ROWS] */
    int64_t rows;
};

/* One worker's memory. */
struct scratch {
    int8_t *k, *v;            /* [64 keys][padded] blocks that cannot be read in place */
    int32_t *words;           /* [4] tiles: the sums of a product, in digits */
    uint8_t *p;               /* [4 digits][KEY_TILES] tiles: P as operands A */
    float *s;                 /* [QUERY_SCORES] scores, then P */
    float *k_scale, *v_scale; /* [64 keys] */
    struct query_tile *tile;  /* [heads][query_tiles] */
};

/* The current block of keys. */
struct block {
    const struct decode *f;
    struct split_task t;
    int64_t j0, keys;
    uint64_t missing;                /* those of its keys that are in no page, as bits */
    uint64_t seen[MOST_DECODE_ROWS]; /* those that a row of the head sees */
    uint64_t read;                   /* those that some row of the head sees */
    struct scratch c;
};

static size_t lay_out(struct scratch *c, float *base, const struct decode *f, int64_t heads) {
    const int64_t query_tiles = heads * f->query_tiles;
    size_t used = 0;
    c->k = (int8_t *)take(base, &used, BLOCK_KEYS * f->k_padded / 4);
    c->v = (int8_t *)take(base, &used, BLOCK_KEYS * f->v_padded / 4);
    c->words = (int32_t *)take(base, &used, 4 * TILE_WORDS);
    c->p = (uint8_t *)take(base, &used, DIGITS * KEY_TILES * TILE_WORDS);
    c->s = take(base, &used, QUERY_SCORES);
    c->k_scale = take(base, &used, BLOCK_KEYS);
    c->v_scale = take(base, &used, BLOCK_KEYS);
    c->tile = (struct query_tile *)(void *)take(base, &used, (query_tiles * (int64_t)sizeof *c->tile + 3) / 4);
    for (int64_t n = 0; n < query_tiles; ++n) {
        struct query_tile tile = {.q = (uint8_t *)take(base, &used, f->k_padded * DIGITS * QUERY_ROWS / 4)};
        tile.o = take(base, &used, f->v_padded * QUERY_ROWS);
        tile.m = take(base, &used, LANES);
        tile.l = take(base, &used, LANES);
        tile.digit_scale = take(base, &used, LANES);
        if (base) c->tile[n] = tile;
    }
    return used * sizeof(float);
}

static void request_fallback(const struct decode *f) {
    atomic_store_explicit(f->needs_fallback, true, memory_order_relaxed);
}

/* ----------------------------------------------------------------------------------------------- a block of keys -- */

/* Reads the scales of keys [first, end) of the block. The other keys, which may have none, get 0, and so do those that no
 * row sees, whose scales may be anything. */
static void read_scales(float *to, const struct block *b, const float *scale, const int64_t stride[3], int64_t kv,
                        int64_t first, int64_t end) {
    const struct problem *p = b->f->split.p;
    memset(to, 0, BLOCK_KEYS * sizeof *to);
    const bool each = scale && p->scales.block_k == 1 && strobe__keys_in_place(&b->t.s, b->j0 + first, end - first);
    const float *at = each ? strobe__key_scale_at(p, scale, stride, &b->t.s, b->j0 + first, kv) : NULL;
    for (int64_t j = first; j < end; ++j)
        if (b->read >> j & 1)
            to[j] = each ? at[(j - first) * stride[1]] : strobe__key_scale(p, scale, stride, &b->t.s, b->j0 + j, kv);
}

/* Copies a block of K or V that cannot be read in place, padded with zeros. */
static void copy_rows(int8_t *to, const strobe_tensor *x, const struct block *b, int64_t kv, int64_t columns,
                      int64_t padded) {
    memset(to, 0, (size_t)(BLOCK_KEYS * padded));
    for (int64_t j = 0, count; j < b->keys; j += count) {
        count = strobe__keys_together(&b->t.s, b->j0 + j, b->keys - j);
        if (b->missing >> j & 1) continue;
        const int8_t *from = (const int8_t *)x->data + strobe__key_offset(x, &b->t.s, b->j0 + j, kv);
        for (int64_t i = 0; i < count; ++i) memcpy(to + (j + i) * padded, from + i * x->stride[1], (size_t)columns);
    }
}

/* Finds what the rows of a head see of the block. */
static void find_seen(struct block *b, const struct tile_rows *t, enum coverage coverage) {
    const bool masked = t->p->a.bool_mask;
    b->read = 0;
    for (int64_t r = 0; r < t->n; ++r) {
        struct block_keys band = {0, b->keys};
        if (coverage != BLOCK_FULL) band = keys_seen(&t->s.band, packed_row(t, r), b->j0, b->keys);
        uint64_t seen = bits_between(band.first, band.end) & ~b->missing;
        if (masked) seen &= bits_of_bytes(mask_of_row(t, r, b->j0), b->keys);
        b->seen[r] = seen;
        b->read |= seen;
    }
}

/* The keys of the block that the row of each lane sees, a bit each, and the key of the lane in vector 0 of 16 keys. */
struct seen {
    __m512i bits[BLOCK_KEYS / 32], key;
};

static struct seen what_is_seen(const struct block *b, int64_t first_row, int64_t rows) {
    uint32_t bits[BLOCK_KEYS / 32][LANES] = {{0}};
    int32_t key[LANES];
    for (int64_t lane = 0; lane < LANES; ++lane) {
        const int64_t r = lane % QUERY_ROWS;
        key[lane] = (int32_t)(lane / QUERY_ROWS * 4);
        if (r >= rows) continue;
        bits[0][lane] = (uint32_t)b->seen[first_row + r];
        bits[1][lane] = (uint32_t)(b->seen[first_row + r] >> 32);
    }
    return (struct seen){.bits = {_mm512_loadu_si512(bits[0]), _mm512_loadu_si512(bits[1])}, .key = _mm512_loadu_si512(key)};
}

/* -inf in the lanes whose row does not see its key, of vector i of the 16 keys from `key` on. */
static inline vec hide(vec score, const struct seen *seen, int64_t key, int32_t i) {
    const __m512i bit = _mm512_add_epi32(seen->key, _mm512_set1_epi32((int32_t)key % 32 + i));
    const __mmask16 sees = _mm512_test_epi32_mask(seen->bits[key / 32], _mm512_sllv_epi32(_mm512_set1_epi32(1), bit));
    return _mm512_mask_blend_ps(sees, v_set(-INFINITY), score);
}

/* Joins the digits of the scores and multiplies by the keys' scales, into s. Returns the maximum of each row and its m. */
static vec finish_scores(const struct block *b, const struct query_tile *tile, const struct seen *seen) {
    const vec digit_scale = v_load(tile->digit_scale);
    vec high = v_load(tile->m);
    for (int64_t n = 0; n < KEY_TILES; ++n)
        for (int32_t i = 0; i < 4; ++i) {
            vec score = join_digits(b->c.words + n * TILE_WORDS + i * LANES, digit_scale);
            score = v_mul(score, scales_at(b->c.k_scale + n * TILE_SIDE, i));
            if (seen) score = hide(score, seen, n * TILE_SIDE, i);
            v_store(b->c.s + (n * 4 + i) * LANES, score);
            high = v_max(score, high);
        }
    return rows_highest(high);
}

/* The online softmax of a block: s becomes P times V's scales, m becomes the argument m, and l is rescaled and grows.
 * Returns the greatest magnitude of s in each row; rescale gets exp(m_old - m_new), for O. */
static vec online_softmax(const struct block *b, struct query_tile *tile, vec m, float *rescale,
                          const struct prefetch *prefetch) {
    const vec c = v_set(exponent_factor(b->f->split.p)), before = v_load(tile->m);
    const vec shift = v_select_equal(m, v_set(-INFINITY), v_set(0), m);
    vec sum = v_set(0), greatest = v_set(0);
    __mmask16 nan = 0;
    for (int64_t n = 0; n < KEY_TILES; ++n)
        for (int32_t i = 0; i < 4; ++i) {
            float *s = b->c.s + (n * 4 + i) * LANES;
            vec p_ij = v_exp2(v_mul(v_sub(v_load(s), shift), c));
            sum = v_add(sum, p_ij);
            p_ij = v_mul(p_ij, scales_at(b->c.v_scale + n * TILE_SIDE, i));
            nan |= _mm512_cmp_ps_mask(p_ij, p_ij, _CMP_UNORD_Q);
            greatest = v_max(v_abs(p_ij), greatest);
            prefetch_rows(prefetch, SLOT_EXPONENTIALS, n * 4 + i, n * 4 + i + 1);
            v_store(s, p_ij);
        }
    const vec rescale_of_sums = v_select_equal(m, before, v_set(1), v_exp2(v_mul(v_sub(before, shift), c)));
    v_store(tile->m, m);
    v_store(tile->l, v_fma(v_load(tile->l), rescale_of_sums, sum));
    v_store(rescale, rescale_of_sums);
    if (nan) request_fallback(b->f);
    return rows_highest(greatest);
}

/* The factor that makes integers of a row of P times V's scales: `most` over its greatest magnitude. */
static inline vec integer_factor(const struct block *b, vec greatest, float most) {
    const vec zero = v_set(0);
    const __mmask16 small = _mm512_cmp_ps_mask(greatest, v_set(LEAST_MAGNITUDE), _CMP_LT_OQ) &
                            _mm512_cmp_ps_mask(greatest, zero, _CMP_NEQ_OQ);
    if (small || _mm512_cmp_ps_mask(greatest, v_set(INFINITY), _CMP_NLT_UQ)) request_fallback(b->f);
    return v_select_equal(greatest, zero, zero, v_div(v_set(most), greatest));
}

/* O = rescale O + P V. The digits of P of 16 keys are placed while tiles multiply the 16 keys before. */
ALWAYS_INLINE void values(const struct block *b, struct query_tile *tile, const int8_t *v, int64_t stride, vec greatest,
                          const float *rescale, const struct prefetch *prefetch, int digits) {
    const float most = digits == FEW_DIGITS ? 0x1p14f : 0x1p30f;
    const vec factor = integer_factor(b, greatest, most);
    const int64_t at_once = columns_at_once(digits);
    float p_scale[LANES];
    v_store(p_scale, v_mul(greatest, v_set(1 / most)));
    for (int64_t first = 0; first < b->f->v_padded; first += at_once) {
        const int64_t left = b->f->v_padded - first, columns = left < at_once ? left : at_once;
        values_start();
        for (int64_t n = 0; n < KEY_TILES; ++n) {
            __m512i x[4];
            for (int64_t i = 0; i < 4 && first == 0; ++i)
                x[i] = digits_of(_mm512_cvtps_epi32(v_mul(v_load(b->c.s + (n * 4 + i) * LANES), factor)));
            if (first == 0) place_digits(b->c.p + n * TILE_BYTES, x, tile->rows, digits);
            for (int64_t c = 0; c < columns; c += LINE) prefetch_line(prefetch, SLOT_VALUES + n, first + c);
            tile_barrier();
            values_step(b->c.p + n * TILE_BYTES, v + n * TILE_SIDE * stride + first, stride, columns, digits);
        }
        values_end(b->c.words);
        tile_barrier();
        for (int64_t c = 0; c < columns; c += LINE)
            add_digits(tile->o + (first + c) * QUERY_ROWS, b->c.words + c / LINE * digits * TILE_WORDS, rescale, p_scale,
                       tile->rows, digits);
    }
}

/* A query tile attends to the current block. seen: NULL where every row sees every key. */
static void attend_tile(const struct block *b, struct query_tile *tile, const int8_t *k, int64_t k_stride, const int8_t *v,
                        int64_t v_stride, const struct seen *seen, const struct prefetch *prefetch) {
    const struct decode *f = b->f;
    float rescale[LANES];
    tile_barrier();
    score_bytes(b->c.words, k, k_stride, tile->q, f->k_padded, prefetch);
    tile_barrier();
    const vec m = finish_scores(b, tile, seen);
    const vec greatest = online_softmax(b, tile, m, rescale, prefetch);
    const int32_t dtype = f->split.p->a.out.dtype;
    if (dtype == STROBE_FP16 || dtype == STROBE_BF16)
        values(b, tile, v, v_stride, greatest, rescale, prefetch, FEW_DIGITS);
    else
        values(b, tile, v, v_stride, greatest, rescale, prefetch, DIGITS);
}

/* The query tiles of one head attend to the current block of keys. */
static void attend_block(struct block *b, int64_t h) {
    static const struct prefetch no_prefetch;
    const struct decode *f = b->f;
    const struct problem *p = f->split.p;
    const strobe_attention *a = &p->a;
    const int64_t kv = b->t.first_head + h;
    const struct tile_rows t = decode_rows(p, &b->t.s, kv);
    const enum coverage coverage = tile_covers(&t, b->j0, b->j0 + b->keys);
    if (coverage == BLOCK_SKIPPED) return;
    const bool together = strobe__keys_in_place(&b->t.s, b->j0, b->keys);
    const int8_t *k = together ? (const int8_t *)a->k.data + strobe__key_offset(&a->k, &b->t.s, b->j0, kv) : NULL;
    const int8_t *v = together ? (const int8_t *)a->v.data + strobe__key_offset(&a->v, &b->t.s, b->j0, kv) : NULL;
    struct prefetch prefetch = no_prefetch;
    if (f->prefetches && together) prefetch = plan_prefetch(a, k, v, h, b->t.heads);
    b->missing = strobe__keys_missing(&b->t.s, b->j0, b->keys);
    find_seen(b, &t, coverage);
    if (!b->read) return;
    int64_t first = tile_first_key(&t) - b->j0, end = tile_end_key(&t) - b->j0;
    if (first < 0) first = 0;
    if (end > b->keys) end = b->keys;
    read_scales(b->c.k_scale, b, p->scales.k, p->scales.stride_k, kv, first, end);
    read_scales(b->c.v_scale, b, p->scales.v, p->scales.stride_v, kv, first, end);
    const bool some_hidden = coverage != BLOCK_FULL || b->keys < BLOCK_KEYS || b->missing || a->bool_mask;
    const bool k_in_place = together && b->keys == BLOCK_KEYS && f->k_padded == a->dim;
    const bool v_in_place = together && b->keys == BLOCK_KEYS && f->v_padded == a->dim_v;
    if (!k_in_place) copy_rows(b->c.k, &a->k, b, kv, a->dim, f->k_padded);
    if (!v_in_place) copy_rows(b->c.v, &a->v, b, kv, a->dim_v, f->v_padded);
    for (int64_t n = 0; n < f->query_tiles; ++n) {
        struct query_tile *tile = &b->c.tile[h * f->query_tiles + n];
        const struct seen seen = some_hidden ? what_is_seen(b, n * QUERY_ROWS, tile->rows) : (struct seen){.key = {0}};
        attend_tile(b, tile, k_in_place ? k : b->c.k, k_in_place ? a->k.stride[1] : f->k_padded, v_in_place ? v : b->c.v,
                    v_in_place ? a->v.stride[1] : f->v_padded, some_hidden ? &seen : NULL,
                    n == 0 ? &prefetch : &no_prefetch);
    }
}

/* ------------------------------------------------------------------------------------------------------- the task -- */

static void start_tile(const struct decode *f, struct query_tile *tile, const struct tile_rows *t, int64_t first) {
    const strobe_attention *a = &f->split.p->a;
    float row[LARGEST_DIM] = {0};
    tile->rows = t->n - first < QUERY_ROWS ? t->n - first : QUERY_ROWS;
    memset(tile->q, 0, (size_t)(f->k_padded * DIGITS * QUERY_ROWS));
    memset(tile->o, 0, (size_t)(f->v_padded * QUERY_ROWS) * sizeof *tile->o);
    for (int64_t lane = 0; lane < LANES; ++lane) {
        tile->m[lane] = -INFINITY;
        tile->l[lane] = 0;
        tile->digit_scale[lane] = 0;
    }
    for (int64_t r = 0; r < tile->rows; ++r) {
        widen_row(row, a->q.data, a->q.dtype, tile_offset(t, &a->q, first + r), a->dim);
        for (int64_t c = 0; c < a->dim; ++c) row[c] *= query_factor(f->split.p);
        const float high = pack_digits(tile->q, r, row, f->k_padded);
        if (!row_is_finite(row, a->dim) || (high > 0 && high < LEAST_MAGNITUDE)) request_fallback(f);
        for (int64_t g = 0; g < DIGITS; ++g) tile->digit_scale[g * QUERY_ROWS + r] = ldexpf(high, (int)(8 * g - 30));
    }
}

/* Writes the partial results of a query tile's rows. */
static void finish_tile(const struct decode *f, const struct query_tile *tile, const struct split_task *t, int64_t kv,
                        int64_t first) {
    const int64_t dim = f->split.p->a.dim_v;
    float l[LANES], row[LARGEST_DIM];
    v_store(l, rows_sum(v_load(tile->l)));
    for (int64_t r = 0; r < tile->rows; ++r) {
        const struct partial partial = partial_at(&f->split, t->s.b * f->split.p->a.heads_kv + kv, t->split, first + r);
        *partial.m = tile->m[r];
        *partial.l = l[r];
        for (int64_t x = 0; x < dim; ++x)
            row[x] = tile->o[x / LINE * LINE * QUERY_ROWS + (x % QUAD * QUERY_ROWS + r) * LANES + x % LINE / QUAD];
        to_lane_order(partial.o, row, STROBE_INT8, dim, 1);
        if (!(l[r] < INFINITY) || !row_is_finite(row, dim)) request_fallback(f);
    }
}

static void decode_task(void *context, int64_t index, int32_t worker) {
    const struct decode *f = context;
    struct block b = {.f = f, .t = split_task_at(&f->split, index)};
    const struct split_task *t = &b.t;
    if (t->heads == 0) return;
    const float_mode mode = enter_flush_to_zero();
    tiles_enter();
    lay_out(&b.c, worker_memory(f->workspace, f->scratch_bytes, worker), f, f->split.heads_a_task);
    memset(b.c.p, 0, DIGITS * KEY_TILES * TILE_BYTES);
    for (int64_t n = 0; n < t->heads * f->query_tiles; ++n) {
        const struct tile_rows rows = decode_rows(f->split.p, &t->s, t->first_head + n / f->query_tiles);
        start_tile(f, &b.c.tile[n], &rows, n % f->query_tiles * QUERY_ROWS);
    }
    for (b.j0 = t->first; b.j0 < t->end; b.j0 += BLOCK_KEYS) {
        b.keys = t->end - b.j0 < BLOCK_KEYS ? t->end - b.j0 : BLOCK_KEYS;
        for (int64_t h = 0; h < t->heads; ++h) attend_block(&b, h);
    }
    for (int64_t n = 0; n < t->heads * f->query_tiles; ++n)
        finish_tile(f, &b.c.tile[n], t, t->first_head + n / f->query_tiles, n % f->query_tiles * QUERY_ROWS);
    tiles_leave();
    leave_flush_to_zero(mode);
}

static struct decode decode_of(const struct problem *p, int64_t longest) {
    return (struct decode){.split = split_kv_of(p, longest, HEADS_A_TASK_ON_TILES),
                           .prefetches = worth_prefetching(&p->a, longest),
                           .query_tiles = (p->a.seq_q * p->group + QUERY_ROWS - 1) / QUERY_ROWS,
                           .k_padded = (p->a.dim + LINE - 1) / LINE * LINE,
                           .v_padded = (p->a.dim_v + LINE - 1) / LINE * LINE};
}

/* The greater of its own and of what the vector kernel needs, which may have to compute the call again. */
size_t LEVEL_KERNEL(decode_workspace_int8)(const struct plan *plan) {
    const struct problem *p = plan->problem;
    struct scratch c;
    const struct decode f = decode_of(p, p->a.seq_k);
    const size_t bytes = (size_t)strobe__workers(p->a.parallel) *
                             lay_out(&c, NULL, &f, heads_side_by_side(&p->a, HEADS_A_TASK_ON_TILES)) +
                         partials_bytes(p);
    const size_t by_vectors = strobe__cpu_decode_workspace_avx512(plan);
    return bytes > by_vectors ? bytes : by_vectors;
}

strobe_status LEVEL_KERNEL(decode_int8)(const struct plan *plan, const struct execution *execution) {
    const struct problem *p = plan->problem;
    struct scratch c;
    atomic_bool needs_fallback = false;
    struct decode f = decode_of(p, longest_sequence(p));
    f.needs_fallback = &needs_fallback;
    f.workspace = execution->workspace;
    f.scratch_bytes = lay_out(&c, NULL, &f, f.split.heads_a_task);
    f.split.partials = worker_memory(f.workspace, f.scratch_bytes, strobe__workers(p->a.parallel));
    run_splits(&f.split, decode_task, &f);
    if (!atomic_load(&needs_fallback)) return STROBE_OK;
    strobe__log_handed_over("cpu_decode_int8_amx", "cpu_decode_avx512", "which takes numbers that are not finite");
    return strobe__cpu_decode_avx512(plan, execution);
}
