/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode.c: few query rows on a long K and V, as in a step of generation: split-KV ("Flash-Decoding", Dao et al., 2023).
 *
 *   a task is a split, DEFAULT_SPLIT keys or what tuning.split_keys says, of one K/V head or of all that lie side by side:
 *     for each block of BLOCK_KEYS keys, for each head and query row of its group:
 *       s_j = q . k_j         dims across the lanes, 16 keys at a time, their 16 sums by one transpose
 *       m, l, P = 2^(s c - m c)
 *       o += P_j v_j          columns across the lanes
 *   then, for each K/V head, the splits' (m, l, o) are merged in the order of their index, by the identity of math/lse.h
 *
 * K and V are read once from memory and, by the group's other rows, again from L1: with one row this runs at the bandwidth
 * of memory. Keys that a row does not see are not read for it. Splits come from shapes alone, so results do not depend on
 * the number of threads; with split_keys given they depend on the key's position alone. AVX-512 only. */
#include "core/parallel.h"
#include "cpu/cpu_kernels.h"
#include "cpu/finish.h"
#include "cpu/scratch.h"

enum {
    DEFAULT_SPLIT = 1024,
    TASKS_A_WORKER = 2,          /* at least, or heads are tasks of their own */
    COLUMNS = 8 * LANES,         /* of o in registers */
    BYTES_WORTH_WAKING = 2 << 20 /* of K and V: below, waking threads costs more than it gains */
};

/* The state of one row in one split: l, m and o. */
struct part {
    float *o; /* [dim_v up to 16] */
    float m, l;
};

struct decode {
    const struct problem *p;
    char *workspace;
    size_t scratch_bytes;
    float *parts; /* [batch][heads_kv][splits][rows][part_floats] m, l, 14 unused, o */
    int64_t split, splits, heads_a_task, rows, q_padded, o_padded;
    strobe_parallel parallel;
};

static int64_t up_to(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

static __mmask16 lanes_left(int64_t n) { return n >= LANES ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1); }

/* 16 elements, or those of the mask, of any of the three dtypes. */
ALWAYS_INLINE vec load_some(const void *data, int32_t dtype, int64_t at, __mmask16 mask) {
    if (dtype == STROBE_FP32) return _mm512_maskz_loadu_ps(mask, (const float *)data + at);
    const __m256i x = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)data + at);
    if (dtype == STROBE_FP16) return _mm512_cvtph_ps(x);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

/* Asks for the lines of a row that is read soon: while K is multiplied V is on its way, and the other way round. */
ALWAYS_INLINE void fetch_row(const void *data, int32_t dtype, int64_t at, int64_t columns) {
    const int64_t bytes = dtype == STROBE_FP32 ? (int64_t)sizeof(float) : (int64_t)sizeof(uint16_t);
    const uintptr_t row = (uintptr_t)data + (uintptr_t)(at * bytes);
    for (int64_t x = 0; x < columns * bytes; x += 64) _mm_prefetch((const char *)(row + (uintptr_t)x), _MM_HINT_T0);
}

/* The sums of 16 vectors, as one vector. */
static inline vec sums_of(vec x[LANES]) {
    __m512i words[LANES];
    for (int i = 0; i < LANES; ++i) words[i] = _mm512_castps_si512(x[i]);
    v_transpose(words);
    for (int step = LANES / 2; step > 0; step /= 2)
        for (int i = 0; i < step; ++i)
            words[i] = _mm512_castps_si512(v_add(_mm512_castsi512_ps(words[i]), _mm512_castsi512_ps(words[i + step])));
    return _mm512_castsi512_ps(words[0]);
}

/* s[j] = q . k_j for the keys [0, keys) from element `at` on; q is padded with zeros. */
ALWAYS_INLINE void dots(float *s, const float *q, const strobe_tensor *k, int32_t dtype, int64_t at, int64_t keys,
                        int64_t dim, const strobe_tensor *v, int64_t v_at, int64_t v_dim) {
    const int64_t stride = k->stride[1];
    for (int64_t j = 0; j < keys; j += LANES) {
        vec sum[LANES];
        for (int i = 0; i < LANES; ++i) sum[i] = v_set(0);
        for (int64_t i = j; i < keys && i < j + LANES; ++i) fetch_row(v->data, dtype, v_at + i * v->stride[1], v_dim);
        for (int64_t x = 0; x < dim; x += LANES) {
            const __mmask16 mask = lanes_left(dim - x);
            const vec row = v_load(q + x);
            for (int i = 0; i < LANES; ++i) { /* past the end the last key is read again, and not used */
                const int64_t key = j + i < keys ? j + i : keys - 1;
                sum[i] = v_fma(load_some(k->data, dtype, at + key * stride + x, mask), row, sum[i]);
            }
        }
        v_store(s + j, sums_of(sum));
    }
}

/* o = a o + sum over j of p[j] v_j. */
ALWAYS_INLINE void weighted_sum(float *o, float a, const float *p, const strobe_tensor *v, int32_t dtype, int64_t at,
                                int64_t keys, int64_t dim, const strobe_tensor *k, int64_t k_next, int64_t k_dim) {
    const int64_t stride = v->stride[1];
    for (int64_t x0 = 0; x0 < dim; x0 += COLUMNS) {
        vec sum[COLUMNS / LANES];
        const int n = (int)(up_to(dim - x0 < COLUMNS ? dim - x0 : COLUMNS, LANES) / LANES);
        if (dim - x0 >= COLUMNS) { /* constant bounds: registers */
            for (int i = 0; i < COLUMNS / LANES; ++i) sum[i] = v_mul(v_load(o + x0 + i * LANES), v_set(a));
            for (int64_t j = 0; j < keys; ++j) {
                if (x0 == 0) fetch_row(k->data, dtype, k_next + j * k->stride[1], k_dim);
                for (int i = 0; i < COLUMNS / LANES; ++i)
                    sum[i] = v_fma(load_some(v->data, dtype, at + j * stride + x0 + i * LANES, 0xffff), v_set(p[j]), sum[i]);
            }
            for (int i = 0; i < COLUMNS / LANES; ++i) v_store(o + x0 + i * LANES, sum[i]);
            continue;
        }
        for (int i = 0; i < n; i += 4) {
            const int64_t x = x0 + i * LANES;
            for (int c = 0; c < 4; ++c) sum[c] = i + c < n ? v_mul(v_load(o + x + c * LANES), v_set(a)) : v_set(0);
            for (int64_t j = 0; j < keys; ++j)
                for (int c = 0; c < 4; ++c)
                    sum[c] = v_fma(
                        load_some(v->data, dtype, at + j * stride + x + c * LANES, lanes_left(dim - x - c * LANES)),
                        v_set(p[j]), sum[c]);
            for (int c = 0; c < 4 && i + c < n; ++c) v_store(o + x + c * LANES, sum[c]);
        }
    }
}

/* Scores of a block become weights, m and l of the row move on; returns what o has to be multiplied by. */
static float online_softmax(struct part *part, float *s, int64_t keys, float factor) {
    vec high = v_set(part->m), sum = v_set(0);
    for (int64_t j = 0; j < keys; j += LANES) {
        const vec x = _mm512_mask_blend_ps(lanes_left(keys - j), v_set(-INFINITY), v_load(s + j));
        v_store(s + j, x);
        high = v_max(x, high);
    }
    const float m = _mm512_reduce_max_ps(high), shift = m == -INFINITY ? 0 : m * factor;
    for (int64_t j = 0; j < keys; j += LANES) {
        const vec weight = v_exp2(v_sub(v_mul(v_load(s + j), v_set(factor)), v_set(shift)));
        sum = v_add(sum, weight);
        v_store(s + j, weight);
    }
    float moved[LANES];
    v_store(moved, v_exp2(v_sub(v_mul(v_set(part->m), v_set(factor)), v_set(shift))));
    const float a = m == part->m ? 1 : moved[0];
    part->m = m;
    part->l = part->l * a + _mm512_reduce_add_ps(sum);
    return a;
}

ALWAYS_INLINE void row_meets_keys(const struct decode *f, const struct tile_rows *t, int64_t r, const float *q,
                                  struct part *part, int64_t j0, int64_t keys, int32_t dtype) {
    const strobe_attention *a = &f->p->a;
    float s[BLOCK_KEYS];
    int64_t first = band_first(&t->s.band, packed_row(t, r)), end = band_end(&t->s.band, packed_row(t, r));
    if (first < j0) first = j0;
    if (end > j0 + keys) end = j0 + keys;
    if (first >= end) return;
    dots(s, q, &a->k, dtype, strobe__key_offset(&a->k, &t->s, first, t->kv), end - first, a->dim, &a->v,
         strobe__key_offset(&a->v, &t->s, first, t->kv), a->dim_v);
    const float correction = online_softmax(part, s, end - first, exponent_factor(f->p));
    weighted_sum(part->o, correction, s, &a->v, dtype, strobe__key_offset(&a->v, &t->s, first, t->kv), end - first, a->dim_v,
                 &a->k, strobe__key_offset(&a->k, &t->s, j0 + keys, t->kv), a->dim);
}

static float *part_at(const struct decode *f, int64_t head, int64_t split, int64_t r) {
    return f->parts + ((head * f->splits + split) * f->rows + r) * (LANES + f->o_padded);
}

/* The rows of a K/V head meet a block of keys. */
static void head_meets_keys(const struct decode *f, const struct tile_rows *t, int64_t split, float *q, int64_t j0,
                            int64_t keys) {
    const strobe_attention *a = &f->p->a;
    for (int64_t r = 0; r < t->n; ++r) {
        float *state = part_at(f, t->s.b * a->heads_kv + t->kv, split, r);
        struct part part = {.o = state + LANES, .m = state[0], .l = state[1]};
        widen_row(q, a->q.data, a->q.dtype, tile_offset(t, &a->q, r), a->dim);
        for (int64_t x = 0; x < a->dim; ++x) q[x] *= query_factor(f->p);
        if (a->k.dtype == STROBE_BF16)
            row_meets_keys(f, t, r, q, &part, j0, keys, STROBE_BF16);
        else if (a->k.dtype == STROBE_FP16)
            row_meets_keys(f, t, r, q, &part, j0, keys, STROBE_FP16);
        else
            row_meets_keys(f, t, r, q, &part, j0, keys, STROBE_FP32);
        state[0] = part.m, state[1] = part.l;
    }
}

/* A batch entry, some heads, a split. */
static void decode_task(void *context, int64_t index, int32_t worker) {
    const struct decode *f = context;
    const int64_t split = index % f->splits, groups = f->p->a.heads_kv / f->heads_a_task;
    const int64_t first_head = index / f->splits % groups * f->heads_a_task, last_head = first_head + f->heads_a_task;
    const struct sequence s = strobe__sequence(f->p, index / f->splits / groups);
    if (s.rows == 0) return;
    const float_mode mode = enter_flush_to_zero();
    float *q = (float *)(void *)(f->workspace + (size_t)worker * f->scratch_bytes);
    memset(q, 0, f->scratch_bytes);
    for (int64_t kv = first_head; kv < last_head; ++kv)
        for (int64_t r = 0; r < f->rows; ++r) {
            float *state = part_at(f, s.b * f->p->a.heads_kv + kv, split, r);
            memset(state, 0, (size_t)(LANES + f->o_padded) * sizeof *state);
            state[0] = -INFINITY;
        }
    const int64_t last = split * f->split + f->split, end = last < s.keys ? last : s.keys;
    for (int64_t j0 = split * f->split; j0 < end; j0 += BLOCK_KEYS)
        for (int64_t kv = first_head; kv < last_head; ++kv) {
            const struct tile_rows t = tile_rows_at(f->p, &s, kv, 0);
            head_meets_keys(f, &t, split, q, j0, end - j0 < BLOCK_KEYS ? end - j0 : BLOCK_KEYS);
        }
    leave_flush_to_zero(mode);
}

/* The splits of one row, in order, into the first one. */
static struct part merge_row(const struct decode *f, int64_t head, int64_t r) {
    struct part whole = {.o = part_at(f, head, 0, r) + LANES, .m = -INFINITY};
    const float factor = exponent_factor(f->p);
    for (int64_t n = 0; n < f->splits; ++n) {
        const float m = part_at(f, head, n, r)[0];
        if (m > whole.m || isnan(m)) whole.m = m;
    }
    for (int64_t n = 0; n < f->splits; ++n) {
        const float *from = part_at(f, head, n, r);
        const float weight = from[0] == whole.m ? 1 : exp2f((from[0] - whole.m) * factor);
        if (from[0] == -INFINITY && from[1] == 0) { /* it saw no key */
            if (n == 0) memset(whole.o, 0, (size_t)f->o_padded * sizeof *whole.o);
            continue;
        }
        whole.l += weight * from[1];
        for (int64_t x = 0; x < f->o_padded; x += LANES) {
            const vec before = n == 0 ? v_set(0) : v_load(whole.o + x);
            v_store(whole.o + x, v_fma(v_set(weight), v_load(from + LANES + x), before));
        }
    }
    return whole;
}

static void merge_task(void *context, int64_t head, int32_t worker) {
    const struct decode *f = context;
    const strobe_attention *a = &f->p->a;
    (void)worker;
    const struct sequence s = strobe__sequence(f->p, head / a->heads_kv);
    if (s.rows == 0) return;
    const struct tile_rows t = tile_rows_at(f->p, &s, head % a->heads_kv, 0);
    float m[TILE_ROWS], l[TILE_ROWS], factor[TILE_ROWS];
    for (int64_t r = 0; r < t.n; ++r) {
        const struct part whole = merge_row(f, head, r);
        m[r] = whole.m, l[r] = whole.l;
    }
    finish_rows(&t, m, l, factor);
    for (int64_t r = 0; r < t.n; ++r) {
        const float *o = part_at(f, head, 0, r) + LANES;
        const int64_t at = tile_offset(&t, &a->out, r);
        for (int64_t x = 0; x < a->dim_v; ++x) element_store(a->out.data, a->out.dtype, at + x, (double)(o[x] * factor[r]));
    }
}

static struct decode decode_of(const struct problem *p) {
    const strobe_attention *a = &p->a;
    struct decode f = {.p = p, .rows = a->seq_q * p->group, .q_padded = up_to(a->dim, LANES)};
    f.o_padded = up_to(a->dim_v, LANES);
    f.split = p->tuning.split_keys ? p->tuning.split_keys : DEFAULT_SPLIT;
    f.splits = a->seq_k > f.split ? (a->seq_k + f.split - 1) / f.split : 1;
    f.scratch_bytes = (size_t)up_to(f.q_padded, LANES) * sizeof(float);
    /* Heads that lie side by side in memory are walked side by side, or each page is visited once a head. */
    const bool side_by_side = a->k.stride[2] < a->k.stride[1] && a->k.stride[2] >= 0;
    f.heads_a_task = side_by_side && a->batch * f.splits >= TASKS_A_WORKER * (int64_t)strobe__workers(a->parallel)
                         ? a->heads_kv
                         : 1;
    return f;
}

size_t LEVEL_KERNEL(decode_workspace)(const struct problem *p) {
    const struct decode f = decode_of(p);
    const int64_t parts = strobe__product(p->a.batch * p->a.heads_kv * f.rows, f.splits);
    return (size_t)strobe__workers(p->a.parallel) * f.scratch_bytes + (size_t)(parts * (LANES + f.o_padded)) * sizeof(float);
}

strobe_status LEVEL_KERNEL(decode)(const struct problem *p, const struct execution *execution) {
    const strobe_attention *a = &p->a;
    struct decode f = decode_of(p);
    f.workspace = execution->workspace;
    f.parts = (float *)(void *)(f.workspace + (size_t)strobe__workers(a->parallel) * f.scratch_bytes);
    f.parallel = (strobe_parallel){.struct_size = sizeof f.parallel, .threads = 1};
    const int64_t heads = a->batch * a->heads_kv;
    const double bytes = (double)(heads * a->seq_k) * (double)(a->dim + a->dim_v) * (double)strobe__dtype_bytes(a->k.dtype);
    const strobe_parallel *parallel = bytes < BYTES_WORTH_WAKING ? &f.parallel : a->parallel;
    strobe__parallel_for(parallel, heads / f.heads_a_task * f.splits, decode_task, &f);
    strobe__parallel_for(parallel, heads, merge_task, &f);
    return STROBE_OK;
}
