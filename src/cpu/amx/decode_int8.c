/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode_int8.c: decoding of up to 16 query rows on int8 K and V that share a K/V head, with K and V multiplied as bytes
 * on tiles, as they lie in memory. amx/bytes.h has the products, split_kv.h the splits and how they are merged.
 *
 *   for each block of BLOCK_KEYS keys, each head of the task, each team of up to four rows:
 *     S = K Q^T                                     tiles    digits of q as bytes, exact
 *     S times the keys' scales; m' = max(m, S);  P = 2^(S c - m' c);  l follows          vectors, 4 keys x 4 rows each
 *     P times V's scales, as digits of one unit a row and block                          vectors
 *     O += P V                                      tiles, then digits are joined
 *
 * Widening int8 to fp32 binds the vector kernel, cpu_decode_avx512, at 33 % of the bandwidth of reading with four rows; here
 * it costs nothing. 4-core Xeon VM with AMX, one thread, 2026-11-21, 32/8 heads, 8192 keys, d 128, bf16 queries: 125
 * GFLOP/s, 63 % of the bandwidth, 1.9 times the vector kernel; docs/kernels/cpu.md.
 *
 * What is not finite, or too small for a unit, has no digits: where a query or a scale is such a number the whole call is
 * done again by cpu_decode_avx512. */
#include <stdatomic.h>

#include "cpu/amx/bytes.h"
#include "cpu/decode/split_kv.h"
#include "cpu/scratch.h"
#include "cpu/table.h"
#include "cpu/vector/nonfinite.h"

enum { LARGEST_DIM = 256 };
#define LEAST 0x1p-90f /* of the greatest magnitude of a row, or its unit, or one over it, is none */

struct decode {
    struct split_kv split;
    char *workspace;
    size_t scratch_bytes;
    int64_t k_padded, v_padded, teams; /* columns up to lines; teams of a head */
    bool far;
    atomic_bool *given_up;
};

/* A team's queries and sums. */
struct team {
    uint8_t *q;
    float *o;     /* [v_padded / 64][4 columns of a quad][TEAM][16 quads] */
    float *m, *l; /* [4][TEAM]: m the same in all four, l to be summed over them */
    float *unit;  /* [4 digits][TEAM] */
    int64_t rows;
};

/* One worker's memory. */
struct scratch {
    int8_t *k, *v;            /* [64][padded]: blocks that cannot be read in place */
    int32_t *words;           /* [4] tiles: what products leave */
    uint8_t *p;               /* [4 digits][KEY_TILES] tiles */
    float *s;                 /* [TEAM_SCORES] */
    float *k_scale, *v_scale; /* [64] */
    struct team *team;        /* [heads][teams] */
};

/* The block at hand. */
struct block {
    const struct decode *f;
    struct split_task t;
    int64_t j0, keys;
    struct scratch c;
};

static size_t lay_out(struct scratch *c, float *base, const struct decode *f, int64_t heads) {
    const int64_t teams = heads * f->teams;
    size_t used = 0;
    c->k = (int8_t *)take(base, &used, BLOCK_KEYS * f->k_padded / 4);
    c->v = (int8_t *)take(base, &used, BLOCK_KEYS * f->v_padded / 4);
    c->words = (int32_t *)take(base, &used, 4 * TILE_WORDS);
    c->p = (uint8_t *)take(base, &used, DIGITS * KEY_TILES * TILE_WORDS);
    c->s = take(base, &used, TEAM_SCORES);
    c->k_scale = take(base, &used, BLOCK_KEYS);
    c->v_scale = take(base, &used, BLOCK_KEYS);
    c->team = (struct team *)(void *)take(base, &used, (teams * (int64_t)sizeof *c->team + 3) / 4);
    for (int64_t n = 0; n < teams; ++n) {
        struct team team = {.q = (uint8_t *)take(base, &used, f->k_padded * DIGITS * TEAM / 4)};
        team.o = take(base, &used, f->v_padded * TEAM);
        team.m = take(base, &used, LANES);
        team.l = take(base, &used, LANES);
        team.unit = take(base, &used, LANES);
        if (base) c->team[n] = team;
    }
    return used * sizeof(float);
}

static void give_up(const struct decode *f) { atomic_store_explicit(f->given_up, true, memory_order_relaxed); }

/* ----------------------------------------------------------------------------------------------- a block of keys -- */

/* The scales of keys [first, end) of the block, 0 for the others, which may have none. */
static void read_scales(float *to, const struct block *b, const float *scale, const int64_t stride[3], int64_t kv,
                        int64_t first, int64_t end) {
    const struct problem *p = b->f->split.p;
    memset(to, 0, BLOCK_KEYS * sizeof *to);
    const bool each = scale && p->scales.block_k == 1;
    const float *at = each ? strobe__key_scale_at(p, scale, stride, &b->t.s, b->j0 + first, kv) : NULL;
    for (int64_t j = first; j < end; ++j)
        to[j] = each ? at[(j - first) * stride[1]] : strobe__key_scale(p, scale, stride, &b->t.s, b->j0 + j, kv);
}

static void copy_rows(int8_t *to, const int8_t *from, int64_t stride, int64_t keys, int64_t columns, int64_t padded) {
    memset(to, 0, (size_t)(BLOCK_KEYS * padded));
    for (int64_t j = 0; j < keys; ++j) memcpy(to + j * padded, from + j * stride, (size_t)columns);
}

/* The lanes of a vector of scores whose row sees its key, i + 4 lane / 4. */
struct seen {
    __m512i first, end, key;
};

static struct seen what_is_seen(const struct block *b, const struct tile_rows *t, int64_t first_row, int64_t rows) {
    int32_t first[LANES] = {0}, end[LANES] = {0}, key[LANES];
    for (int64_t lane = 0; lane < LANES; ++lane) {
        const int64_t r = lane % TEAM;
        key[lane] = (int32_t)(lane / TEAM * 4);
        if (r >= rows) continue;
        const int64_t low = band_first(&t->s.band, packed_row(t, first_row + r)) - b->j0;
        const int64_t high = band_end(&t->s.band, packed_row(t, first_row + r)) - b->j0;
        first[lane] = (int32_t)(low < 0 ? 0 : low < b->keys ? low : b->keys);
        end[lane] = (int32_t)(high < 0 ? 0 : high < b->keys ? high : b->keys);
    }
    return (struct seen){_mm512_loadu_si512(first), _mm512_loadu_si512(end), _mm512_loadu_si512(key)};
}

static inline vec hide(vec score, const struct seen *seen, int64_t key) {
    const __m512i j = _mm512_add_epi32(seen->key, _mm512_set1_epi32((int32_t)key));
    const __mmask16 sees = _mm512_cmp_epi32_mask(j, seen->first, _MM_CMPINT_NLT) &
                           _mm512_cmp_epi32_mask(j, seen->end, _MM_CMPINT_LT);
    return _mm512_mask_blend_ps(sees, v_set(-INFINITY), score);
}

/* Scores out of their digits, scaled, in s; returns the greatest of each row, and of m. */
static vec finish_scores(const struct block *b, const struct team *team, const struct seen *seen) {
    const vec unit = v_load(team->unit);
    vec high = v_load(team->m);
    for (int64_t n = 0; n < KEY_TILES; ++n)
        for (int32_t i = 0; i < 4; ++i) {
            vec score = join_digits(b->c.words + n * TILE_WORDS + i * LANES, unit);
            score = v_mul(score, scales_at(b->c.k_scale + n * TILE_SIDE, i));
            if (seen) score = hide(score, seen, n * TILE_SIDE + i);
            v_store(b->c.s + (n * 4 + i) * LANES, score);
            high = v_max(score, high);
        }
    return rows_highest(high);
}

/* Scores in s become weights times V's scales, m and l move on. Returns the greatest magnitude of each row; correction:
 * what the sums before are multiplied by. */
static vec online_softmax(const struct block *b, struct team *team, vec m, float *correction, const struct ahead *ahead) {
    const vec c = v_set(exponent_factor(b->f->split.p)), before = v_load(team->m);
    const vec shift = v_select_equal(m, v_set(-INFINITY), v_set(0), v_mul(m, c));
    vec sum = v_set(0), greatest = v_set(0);
    __mmask16 nan = 0;
    for (int64_t n = 0; n < KEY_TILES; ++n)
        for (int32_t i = 0; i < 4; ++i) {
            float *s = b->c.s + (n * 4 + i) * LANES;
            vec weight = v_exp2(_mm512_fmsub_ps(v_load(s), c, shift));
            sum = v_add(sum, weight);
            weight = v_mul(weight, scales_at(b->c.v_scale + n * TILE_SIDE, i));
            nan |= _mm512_cmp_ps_mask(weight, weight, _CMP_UNORD_Q);
            greatest = v_max(v_abs(weight), greatest);
            ask_rows(ahead, OF_EXPONENTIALS, n * 4 + i, n * 4 + i + 1);
            v_store(s, weight);
        }
    const vec moved = v_select_equal(m, before, v_set(1), v_exp2(_mm512_fmsub_ps(before, c, shift)));
    v_store(team->m, m);
    v_store(team->l, v_fma(v_load(team->l), moved, sum));
    v_store(correction, moved);
    if (nan) give_up(b->f);
    return rows_highest(greatest);
}

/* What a row's weights are multiplied by to be integers: `most`, of which digits are made, over the greatest. */
static inline vec integer_factor(const struct block *b, vec greatest, float most) {
    const vec zero = v_set(0);
    const __mmask16 small = _mm512_cmp_ps_mask(greatest, v_set(LEAST), _CMP_LT_OQ) &
                            _mm512_cmp_ps_mask(greatest, zero, _CMP_NEQ_OQ);
    if (small || _mm512_cmp_ps_mask(greatest, v_set(INFINITY), _CMP_NLT_UQ)) give_up(b->f);
    return v_select_equal(greatest, zero, zero, v_div(v_set(most), greatest));
}

/* O = correction O + P V. Digits of 16 keys' weights are placed while tiles multiply those before. */
ALWAYS_INLINE void values(const struct block *b, struct team *team, const int8_t *v, int64_t stride, vec greatest,
                          const float *correction, const struct ahead *ahead, int digits) {
    const float most = digits == FEW_DIGITS ? 0x1p14f : 0x1p30f;
    const vec factor = integer_factor(b, greatest, most);
    const int64_t at_once = columns_at_once(digits);
    float unit[LANES];
    v_store(unit, v_mul(greatest, v_set(1 / most)));
    for (int64_t first = 0; first < b->f->v_padded; first += at_once) {
        const int64_t left = b->f->v_padded - first, columns = left < at_once ? left : at_once;
        values_start();
        for (int64_t n = 0; n < KEY_TILES; ++n) {
            __m512i x[4];
            for (int64_t i = 0; i < 4 && first == 0; ++i)
                x[i] = digits_of(_mm512_cvtps_epi32(v_mul(v_load(b->c.s + (n * 4 + i) * LANES), factor)));
            if (first == 0) place_digits(b->c.p + n * TILE_BYTES, x, team->rows, digits);
            for (int64_t c = 0; c < columns; c += LINE) ask_line(ahead, OF_VALUES + n, first + c);
            tile_barrier();
            values_step(b->c.p + n * TILE_BYTES, v + n * TILE_SIDE * stride + first, stride, columns, digits);
        }
        values_end(b->c.words);
        tile_barrier();
        for (int64_t c = 0; c < columns; c += LINE)
            add_digits(team->o + (first + c) * TEAM, b->c.words + c / LINE * digits * TILE_WORDS, correction, unit,
                       team->rows, digits);
    }
}

static void team_meets_keys(const struct block *b, struct team *team, const int8_t *k, int64_t k_stride, const int8_t *v,
                            int64_t v_stride, const struct seen *seen, const struct ahead *ahead) {
    const struct decode *f = b->f;
    float correction[LANES];
    tile_barrier();
    score_bytes(b->c.words, k, k_stride, team->q, f->k_padded, ahead);
    tile_barrier();
    const vec m = finish_scores(b, team, seen);
    const vec greatest = online_softmax(b, team, m, correction, ahead);
    if (f->split.p->a.out.dtype == STROBE_FP32)
        values(b, team, v, v_stride, greatest, correction, ahead, DIGITS);
    else
        values(b, team, v, v_stride, greatest, correction, ahead, FEW_DIGITS);
}

static void head_meets_keys(const struct block *b, int64_t h) {
    static const struct ahead nothing;
    const struct decode *f = b->f;
    const struct problem *p = f->split.p;
    const strobe_attention *a = &p->a;
    const int64_t kv = b->t.first_head + h;
    const struct tile_rows t = decode_rows(p, &b->t.s, kv);
    const enum coverage coverage = tile_covers(&t, b->j0, b->j0 + b->keys);
    if (coverage == BLOCK_SKIPPED) return;
    const int8_t *k = (const int8_t *)a->k.data + strobe__key_offset(&a->k, &b->t.s, b->j0, kv);
    const int8_t *v = (const int8_t *)a->v.data + strobe__key_offset(&a->v, &b->t.s, b->j0, kv);
    struct ahead ahead = nothing;
    if (f->far) ahead = look_ahead(a, k, v, h, b->t.heads);
    int64_t first = tile_first_key(&t) - b->j0, end = tile_end_key(&t) - b->j0;
    if (first < 0) first = 0;
    if (end > b->keys) end = b->keys;
    read_scales(b->c.k_scale, b, p->scales.k, p->scales.stride_k, kv, first, end);
    read_scales(b->c.v_scale, b, p->scales.v, p->scales.stride_v, kv, first, end);
    const bool partial = coverage != BLOCK_FULL || b->keys < BLOCK_KEYS;
    const bool k_in_place = b->keys == BLOCK_KEYS && f->k_padded == a->dim;
    const bool v_in_place = b->keys == BLOCK_KEYS && f->v_padded == a->dim_v;
    if (!k_in_place) copy_rows(b->c.k, k, a->k.stride[1], b->keys, a->dim, f->k_padded);
    if (!v_in_place) copy_rows(b->c.v, v, a->v.stride[1], b->keys, a->dim_v, f->v_padded);
    for (int64_t n = 0; n < f->teams; ++n) {
        struct team *team = &b->c.team[h * f->teams + n];
        const struct seen seen = partial ? what_is_seen(b, &t, n * TEAM, team->rows) : (struct seen){.key = {0}};
        team_meets_keys(b, team, k_in_place ? k : b->c.k, k_in_place ? a->k.stride[1] : f->k_padded, v_in_place ? v : b->c.v,
                        v_in_place ? a->v.stride[1] : f->v_padded, partial ? &seen : NULL, n == 0 ? &ahead : &nothing);
    }
}

/* ------------------------------------------------------------------------------------------------------- the task -- */

static void start_team(const struct decode *f, struct team *team, const struct tile_rows *t, int64_t first) {
    const strobe_attention *a = &f->split.p->a;
    float row[LARGEST_DIM] = {0};
    team->rows = t->n - first < TEAM ? t->n - first : TEAM;
    memset(team->q, 0, (size_t)(f->k_padded * DIGITS * TEAM));
    memset(team->o, 0, (size_t)(f->v_padded * TEAM) * sizeof *team->o);
    for (int64_t lane = 0; lane < LANES; ++lane) team->m[lane] = -INFINITY, team->l[lane] = 0, team->unit[lane] = 0;
    for (int64_t r = 0; r < team->rows; ++r) {
        widen_row(row, a->q.data, a->q.dtype, tile_offset(t, &a->q, first + r), a->dim);
        for (int64_t c = 0; c < a->dim; ++c) row[c] *= query_factor(f->split.p);
        const float high = pack_digits(team->q, r, row, f->k_padded);
        if (!row_is_finite(row, a->dim) || (high > 0 && high < LEAST)) give_up(f);
        for (int64_t g = 0; g < DIGITS; ++g) team->unit[g * TEAM + r] = ldexpf(high, (int)(8 * g - 30));
    }
}

/* A team's sums become the parts of its rows. */
static void finish_team(const struct decode *f, const struct team *team, const struct split_task *t, int64_t kv,
                        int64_t first) {
    const int64_t dim = f->split.p->a.dim_v;
    float l[LANES], row[LARGEST_DIM];
    v_store(l, rows_sum(v_load(team->l)));
    for (int64_t r = 0; r < team->rows; ++r) {
        const struct part part = part_at(&f->split, t->s.b * f->split.p->a.heads_kv + kv, t->split, first + r);
        *part.m = team->m[r], *part.l = l[r];
        for (int64_t x = 0; x < dim; ++x)
            row[x] = team->o[x / LINE * LINE * TEAM + (x % QUAD * TEAM + r) * LANES + x % LINE / QUAD];
        to_places(part.o, row, STROBE_INT8, dim, 1);
        if (!(l[r] < INFINITY) || !row_is_finite(row, dim)) give_up(f);
    }
}

static void decode_task(void *context, int64_t index, int32_t worker) {
    const struct decode *f = context;
    struct block b = {.f = f, .t = split_task_at(&f->split, index)};
    const struct split_task *t = &b.t;
    if (t->heads == 0) return;
    const float_mode mode = enter_flush_to_zero();
    tiles_enter();
    lay_out(&b.c, (float *)(void *)(f->workspace + (size_t)worker * f->scratch_bytes), f, f->split.heads_a_task);
    memset(b.c.p, 0, DIGITS * KEY_TILES * TILE_BYTES);
    for (int64_t n = 0; n < t->heads * f->teams; ++n) {
        const struct tile_rows rows = decode_rows(f->split.p, &t->s, t->first_head + n / f->teams);
        start_team(f, &b.c.team[n], &rows, n % f->teams * TEAM);
    }
    for (b.j0 = t->first; b.j0 < t->end; b.j0 += BLOCK_KEYS) {
        b.keys = t->end - b.j0 < BLOCK_KEYS ? t->end - b.j0 : BLOCK_KEYS;
        for (int64_t h = 0; h < t->heads; ++h) head_meets_keys(&b, h);
    }
    for (int64_t n = 0; n < t->heads * f->teams; ++n)
        finish_team(f, &b.c.team[n], t, t->first_head + n / f->teams, n % f->teams * TEAM);
    tiles_leave();
    leave_flush_to_zero(mode);
}

static struct decode decode_of(const struct problem *p, int64_t longest) {
    return (struct decode){.split = split_kv_of(p, longest, HEADS_A_TASK_ON_TILES),
                           .far = worth_asking(&p->a, longest),
                           .teams = (p->a.seq_q * p->group + TEAM - 1) / TEAM,
                           .k_padded = (p->a.dim + LINE - 1) / LINE * LINE,
                           .v_padded = (p->a.dim_v + LINE - 1) / LINE * LINE};
}

/* Its own, or what the vector kernel needs where digits do not do. */
size_t LEVEL_KERNEL(decode_workspace_int8)(const struct problem *p) {
    struct scratch c;
    const struct decode f = decode_of(p, p->a.seq_k);
    const size_t bytes = (size_t)strobe__workers(p->a.parallel) *
                             lay_out(&c, NULL, &f, heads_side_by_side(&p->a, HEADS_A_TASK_ON_TILES)) +
                         parts_bytes(p);
    const size_t by_vectors = strobe__cpu_decode_workspace_avx512(p);
    return bytes > by_vectors ? bytes : by_vectors;
}

strobe_status LEVEL_KERNEL(decode_int8)(const struct problem *p, const struct execution *execution) {
    struct scratch c;
    atomic_bool given_up = false;
    struct decode f = decode_of(p, longest_sequence(p));
    f.given_up = &given_up;
    f.workspace = execution->workspace;
    f.scratch_bytes = lay_out(&c, NULL, &f, f.split.heads_a_task);
    f.split.parts = (float *)(void *)(f.workspace + (size_t)strobe__workers(p->a.parallel) * f.scratch_bytes);
    run_splits(&f.split, decode_task, &f);
    return atomic_load(&given_up) ? strobe__cpu_decode_avx512(p, execution) : STROBE_OK;
}
