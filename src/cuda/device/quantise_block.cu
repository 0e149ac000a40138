/* SPDX-License-Identifier: BSD-3-Clause
 *
 * quantise_block.cu: strobe_quantise on a GPU where it is asked for most: rows of COLUMNS (64, 128 or 256) 16-bit columns to
 * e4m3 in one pass, with rotary embedding of all of a row's columns by halves, K's mean, signs and a Hadamard transform as
 * wanted. All else is quantise_rows.cu's; the bytes are the same.
 *
 * A CTA has the 128 rows of one head that share a scale, or that have several; with rotary embedding those of several heads,
 * one after the other, for which the tables come from L2 once. LANES neighbouring lanes hold a row, each four times eight
 * columns: 8 (lane + LANES j) + n, j = 0..3. So the pairs of rotary embedding, and five of the transform's steps, are in a
 * thread's own registers, and log2 LANES of them go through shuffles. The order of every operation is that of
 * math/quantise.h. */
#define PLAIN 1
#include "cuda/device/quantise_load.h"

enum { LANES = COLUMNS / 32, THREADS = QUANTISE_CHUNK * LANES };

struct row {
    float x[4][8];
};

INLINE void load_row(const struct quantise_params *p, int64_t at, int lane, struct row *r) {
    uint4 from[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) from[j] = *(const uint4 *)((const uint16_t *)p->t.from + at + 8 * (lane + LANES * j));
    const bool is_bf16 = p->t.from_dtype == CUDA_BF16;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const uint32_t two[4] = {from[j].x, from[j].y, from[j].z, from[j].w};
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            r->x[j][2 * n] = is_bf16 ? __uint_as_float(two[n] << 16) : f16_to_float((uint16_t)two[n]);
            r->x[j][2 * n + 1] = is_bf16 ? __uint_as_float(two[n] & 0xffff0000u) : f16_to_float((uint16_t)(two[n] >> 16));
        }
    }
}

/* Pairs are columns COLUMNS / 2 apart: eights j and j + 2. */
INLINE void rotate_row(const struct quantise_params *p, int64_t position, int lane, struct row *r) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const int64_t table = position * (COLUMNS / 2) + 8 * (lane + LANES * j);
        float cos[8], sin[8];
        load_table(p->c.cos + table, cos), load_table(p->c.sin + table, sin);
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            const float first = r->x[j][n], second = r->x[j + 2][n];
            r->x[j][n] = turned_first(first, second, cos[n], sin[n]);
            r->x[j + 2][n] = turned_second(first, second, cos[n], sin[n]);
        }
    }
}

INLINE void subtract_mean(const float *mean, int lane, struct row *r) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int n = 0; n < 8; ++n) r->x[j][n] -= mean[8 * (lane + LANES * j) + n];
}

/* Random signs, then the butterflies from near columns to far ones, then the norm. */
INLINE void transform_row(const struct quantise_params *p, int lane, struct row *r) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int first = 8 * (lane + LANES * j);
        const uint32_t signs = p->c.signs[first / 32] >> first % 32;
#pragma unroll
        for (int n = 0; n < 8; ++n)
            r->x[j][n] = __uint_as_float(__float_as_uint(r->x[j][n]) ^ (signs << (31 - n) & 0x80000000u));
    }
#pragma unroll
    for (int step = 1; step < 8; step *= 2)
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int n = 0; n < 8; ++n)
                if (!(n & step)) {
                    const float a = r->x[j][n], b = r->x[j][n + step];
                    r->x[j][n] = a + b, r->x[j][n + step] = a - b;
                }
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) {
        const float sign = lane & step ? -1 : 1; /* a product by it is exact: one rounding, as of a sum */
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int n = 0; n < 8; ++n) r->x[j][n] = fmaf(sign, r->x[j][n], __shfl_xor_sync(0xffffffffu, r->x[j][n], step));
    }
#pragma unroll
    for (int step = 1; step < 4; step *= 2)
#pragma unroll
        for (int j = 0; j < 4; ++j)
            if (!(j & step))
#pragma unroll
                for (int n = 0; n < 8; ++n) {
                    const float a = r->x[j][n], b = r->x[j + step][n];
                    r->x[j][n] = a + b, r->x[j + step][n] = a - b;
                }
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int n = 0; n < 8; ++n) r->x[j][n] *= p->norm;
}

/* The bits of the largest magnitude of the thread's columns, an infinity's too; NaN does not count. */
INLINE uint32_t largest_of(const struct row *r) {
    float most[4] = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int n = 0; n < 8; ++n) most[j] = fmaxf(most[j], fabsf(r->x[j][n]));
    return __float_as_uint(fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3])));
}

/* The same among finite numbers, for the few rows that have others. */
INLINE uint32_t largest_finite(const struct row *r) {
    float most = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int n = 0; n < 8; ++n) most = is_finite_float(r->x[j][n]) ? fmaxf(most, fabsf(r->x[j][n])) : most;
    return __float_as_uint(most);
}

/* all_finite: no infinity is among the warp's; a NaN may be. */
INLINE void store_row(const struct quantise_params *p, uint8_t *to, int lane, const struct row *r, float inverse,
                      bool all_finite) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        uint32_t four[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float *x = &r->x[j][4 * i];
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
            if (all_finite)
                four[i] = cvt_e4m3x4(rounded_product(x[0], inverse), rounded_product(x[1], inverse),
                                     rounded_product(x[2], inverse), rounded_product(x[3], inverse));
            else
#endif
                four[i] = quantised(x[0], inverse, 0) | quantised(x[1], inverse, 0) << 8 |
                          quantised(x[2], inverse, 0) << 16 | (uint32_t)quantised(x[3], inverse, 0) << 24;
        }
        *(uint2 *)(to + 8 * (lane + LANES * j)) = make_uint2(four[0], four[1]);
    }
}

/* A row of one head, from memory to memory. `magnitude`: 0, of the rows that share a scale. */
INLINE void quantise_row(const struct quantise_params *p, int64_t batch, int64_t row, int64_t head, int index, bool there,
                         uint32_t *magnitude) {
    const struct quantise_tensor *t = &p->t;
    const int lane = threadIdx.x % LANES, block = index >> p->block_shift;
    struct row r;
    if (there) {
        load_row(p, source_at(t, batch, row, head), lane, &r);
        if (t->rotary) rotate_row(p, t->start + row, lane, &r);
        if (t->mean) subtract_mean(t->mean + (batch * t->heads + head) * t->dim, lane, &r);
    } else {
#pragma unroll
        for (int n = 0; n < 32; ++n) r.x[n / 8][n % 8] = 0;
    }
    if (t->hadamard) transform_row(p, lane, &r);
    __syncthreads();

    uint32_t largest = largest_of(&r);
    const bool all_finite = __all_sync(0xffffffffu, largest < 0x7f800000u);
    if (!all_finite) largest = largest_finite(&r);
    if (p->block_shift >= 5) { /* a warp's rows have one scale */
        largest = __reduce_max_sync(0xffffffffu, largest);
        if (threadIdx.x % 32 == 0) atomicMax(&magnitude[block], largest);
    } else {
        atomicMax(&magnitude[block], largest);
    }
    __syncthreads();
    const float scale = scale_of_largest(__uint_as_float(magnitude[block]), 0);
    const bool is_first = index % (1 << p->block_shift) == 0 && lane == 0;
    if (is_first && row < t->rows) *quantise_scale_at(t, batch, 0, row, head) = scale;
    if (there)
        store_row(p, t->to + batch * t->to_stride[0] + row * t->to_stride[1] + head * t->to_stride[2], lane, &r, 1 / scale,
                  all_finite);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    KERNEL(const __grid_constant__ struct quantise_together all) {
    __shared__ uint32_t magnitude[2][QUANTISE_CHUNK];
    const int which = (all.count > 1 && blockIdx.x >= all.first[1]) + (all.count > 2 && blockIdx.x >= all.first[2]);
    const struct quantise_params *p = &all.tensor[which];
    const struct quantise_tensor *t = &p->t;
    const int index = threadIdx.x / LANES, heads = all.heads[which];
    const uint32_t cta = blockIdx.x - (uint32_t)all.first[which], parts = (uint32_t)t->heads / (uint32_t)heads;
    const int64_t first = cta % parts * heads, rest = cta / parts;
    const int64_t batch = rest / p->chunks, row = rest % p->chunks * QUANTISE_CHUNK + index;
    const int64_t used = t->used ? quantise_entry(t, t->used, batch) : t->rows, rows = used < t->rows ? used : t->rows;
#pragma unroll 1
    for (int n = 0; n < heads; ++n) { /* the other row of magnitudes has been read before the first barrier */
        if (threadIdx.x < QUANTISE_CHUNK) magnitude[n % 2][threadIdx.x] = 0;
        quantise_row(p, batch, row, first + n, index, row < rows, magnitude[n % 2]);
    }
}
