/* SPDX-License-Identifier: BSD-3-Clause
 *
 * quantise_block.cu: strobe_quantise on a GPU where it is asked for most: rows of COLUMNS (64, 128 or 256) 16-bit columns to
 * e4m3 in one pass, with rotary embedding of all of a row's columns by halves, K's mean, signs and a Hadamard transform as
 * wanted. All else is quantise_rows.cu's; the bytes are the same.
 *
 * A CTA has the 128 rows of one head that share a scale, or that have several; with rotary embedding those of several heads,
 * one after the other, for which the tables are copied to shared memory once. LANES neighbouring lanes hold a row, each 32
 * columns of its first half and 32 of its second:
 *
 *     columns      0 .. 31 | 32 .. 63 | ... | COLUMNS / 2 .. | COLUMNS / 2 + 32 .. | ...
 *     lane            0         1                  0                   1
 *
 * So pairs of rotary embedding, and all steps of the transform but log2 LANES, are in a thread's own registers. Rows pass
 * through shared memory, on the way in and as bytes on the way out, so that a warp reads and writes whole lines; a warp has
 * its rows alone, and CTAs meet once a head, for the scale. The order of every operation is that of math/quantise.h. */
#define PLAIN 1
#include "cuda/device/quantise_load.h"
#include "cuda/device/quantise_tile.h"

enum { HALF = QUANTISE_LANE_COLUMNS / 2 };

/* A thread's columns of a row: of each half of it. */
struct row {
    float x[2][HALF];
};

INLINE void widen_row(const uint4 *tile, bool is_bf16, int lane, struct row *r) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int n = 0; n < HALF / 8; ++n) {
            const uint4 from = tile[padded(half * (COLUMNS / 16) + 4 * lane) + n];
            const uint32_t two[4] = {from.x, from.y, from.z, from.w};
            float *x = &r->x[half][8 * n];
            if (is_bf16) {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    x[2 * i] = __uint_as_float(two[i] << 16), x[2 * i + 1] = __uint_as_float(two[i] & 0xffff0000u);
            } else {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    x[2 * i] = f16_to_float((uint16_t)two[i]), x[2 * i + 1] = f16_to_float((uint16_t)(two[i] >> 16));
            }
        }
}

/* Pairs are columns COLUMNS / 2 apart. cos, sin: of the thread's pairs, in shared or in global memory. */
INLINE void rotate_row(const float4 *cos, const float4 *sin, struct row *r) {
#pragma unroll
    for (int n = 0; n < HALF / 4; ++n) {
        const float4 cos4 = cos[n], sin4 = sin[n];
        const float c[4] = {cos4.x, cos4.y, cos4.z, cos4.w}, s[4] = {sin4.x, sin4.y, sin4.z, sin4.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float first = r->x[0][4 * n + i], second = r->x[1][4 * n + i];
            r->x[0][4 * n + i] = turned_first(first, second, c[i], s[i]);
            r->x[1][4 * n + i] = turned_second(first, second, c[i], s[i]);
        }
    }
}

INLINE void subtract_mean(const float *mean, int lane, struct row *r) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int n = 0; n < HALF; ++n) r->x[half][n] -= mean[half * (COLUMNS / 2) + HALF * lane + n];
}

/* Random signs: words of one bit, the sign's, for each of the thread's columns. */
INLINE void change_signs(const uint4 *signs, struct row *r) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int n = 0; n < HALF / 4; ++n) {
            const uint4 sign = signs[half * (HALF / 4) + n];
            float *x = &r->x[half][4 * n];
            x[0] = __uint_as_float(__float_as_uint(x[0]) ^ sign.x), x[1] = __uint_as_float(__float_as_uint(x[1]) ^ sign.y);
            x[2] = __uint_as_float(__float_as_uint(x[2]) ^ sign.z), x[3] = __uint_as_float(__float_as_uint(x[3]) ^ sign.w);
        }
}

INLINE void butterfly(float *a, float *b) {
    const float sum = *a + *b, difference = *a - *b;
    *a = sum, *b = difference;
}

/* The butterflies from near columns to far ones, without the norm. */
INLINE void transform_row(int lane, struct row *r) {
#pragma unroll
    for (int step = 1; step < HALF; step *= 2)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int n = 0; n < HALF; ++n)
                if (!(n & step)) butterfly(&r->x[half][n], &r->x[half][n + step]);
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) {
        const float sign = lane & step ? -1 : 1; /* a product by it is exact: one rounding, as of a sum */
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int n = 0; n < HALF; ++n)
                r->x[half][n] = fmaf(sign, r->x[half][n], __shfl_xor_sync(0xffffffffu, r->x[half][n], step));
    }
#pragma unroll
    for (int n = 0; n < HALF; ++n) butterfly(&r->x[0][n], &r->x[1][n]);
}

INLINE void scale_row(float norm, struct row *r) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int n = 0; n < HALF; ++n) r->x[half][n] *= norm;
}

/* The bits of the largest magnitude of the thread's columns, an infinity's too; NaN does not count. */
INLINE uint32_t largest_of(const struct row *r) {
    float most[4] = {0, 0, 0, 0};
#pragma unroll
    for (int n = 0; n < HALF; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            most[2 * half + n % 2] = fmaxf(most[2 * half + n % 2], fabsf(r->x[half][n]));
    return __float_as_uint(fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3])));
}

/* The same among finite numbers, for the few rows that have others, of which infinities become NaN. */
INLINE uint32_t largest_finite(struct row *r) {
    float most = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int n = 0; n < HALF; ++n) {
            const bool finite = is_finite_float(r->x[half][n]);
            most = finite ? fmaxf(most, fabsf(r->x[half][n])) : most;
            r->x[half][n] = finite ? r->x[half][n] : NAN;
        }
    return __float_as_uint(most);
}

/* Bytes of numbers of which none is an infinity. */
INLINE uint32_t four_bytes(const float *x, float inverse) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    return cvt_e4m3x4(rounded_product(x[0], inverse), rounded_product(x[1], inverse), rounded_product(x[2], inverse),
                      rounded_product(x[3], inverse));
#else
    return float_to_e4m3(rounded_product(x[0], inverse)) | float_to_e4m3(rounded_product(x[1], inverse)) << 8 |
           float_to_e4m3(rounded_product(x[2], inverse)) << 16 |
           (uint32_t)float_to_e4m3(rounded_product(x[3], inverse)) << 24;
#endif
}

/* The row's bytes, to the tile. */
INLINE void store_row(uint4 *tile, int lane, const struct row *r, float inverse) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int n = 0; n < HALF / 16; ++n) {
            const float *x = &r->x[half][16 * n];
            tile[half * (COLUMNS / 32) + 2 * lane + n] =
                make_uint4(four_bytes(x, inverse), four_bytes(x + 4, inverse), four_bytes(x + 8, inverse),
                           four_bytes(x + 12, inverse));
        }
}

/* The scale of the thread's row, whose largest magnitude is `largest`, over its block. */
INLINE float scale_of_block(const struct quantise_params *p, uint32_t largest, int index, uint32_t *magnitude) {
    const int block = index >> p->block_shift;
    if (p->block_shift >= 5) { /* a warp's rows have one scale */
        largest = __reduce_max_sync(0xffffffffu, largest);
        if (threadIdx.x % 32 == 0) atomicMax(&magnitude[block], largest);
    } else {
        atomicMax(&magnitude[block], largest);
    }
    __syncthreads();
    return scale_of_largest(__uint_as_float(magnitude[block]), 0);
}

/* A head of the CTA's rows, of which this thread has `index`, from memory to memory. */
INLINE void quantise_head(const struct quantise_params *p, struct quantise_shared *s, const struct rows *rows, int64_t head,
                          int n) {
    const struct quantise_tensor *t = &p->t;
    const int lane = threadIdx.x % LANES, index = threadIdx.x / LANES;
    const bool there = index < rows->count;
    uint4 *const tile = s->rows[index];
    struct row r;
    load_rows(s, rows, head);
    widen_row(tile, t->from_dtype == CUDA_BF16, lane, &r);
    if (t->rotary) rotate_row(table_of(p, s, rows, 0, index, lane), table_of(p, s, rows, 1, index, lane), &r);
    if (t->mean) subtract_mean(t->mean + (rows->batch * t->heads + head) * t->dim, lane, &r);
    float norm = 1; /* a power of two waits until the product with the scale's inverse: it rounds nothing */
    if (t->hadamard) {
        change_signs(s->signs[lane], &r);
        transform_row(lane, &r);
        if (COLUMNS == 128) scale_row(p->norm, &r);
        if (COLUMNS != 128) norm = p->norm;
    }
    uint32_t largest = there ? largest_of(&r) : 0;
    if (__any_sync(0xffffffffu, largest >= 0x7f800000u)) largest = largest_finite(&r);
    largest = __float_as_uint(__uint_as_float(largest) * norm);
    if (threadIdx.x < QUANTISE_CHUNK) s->magnitude[(n + 1) % 3][threadIdx.x] = 0; /* all have read the one of two heads ago */
    const float scale = scale_of_block(p, largest, index, s->magnitude[n % 3]);
    if (rows->first + index < t->rows && index % (1 << p->block_shift) == 0 && lane == 0) /* unused ones too */
        *quantise_scale_at(t, rows->batch, 0, rows->first + index, head) = scale;
    if (there) store_row(tile, lane, &r, 1 / scale * norm);
    store_rows(s, rows, head);
}

extern "C" __global__ void __launch_bounds__(THREADS, 512 / THREADS)
    KERNEL(const __grid_constant__ struct quantise_together all) {
    extern __shared__ __align__(16) unsigned char memory[];
    struct quantise_shared *s = (struct quantise_shared *)memory;
    const int which = (all.count > 1 && blockIdx.x >= all.first[1]) + (all.count > 2 && blockIdx.x >= all.first[2]);
    const struct quantise_params *p = &all.tensor[which];
    const int heads = all.heads[which];
    const uint32_t cta = blockIdx.x - (uint32_t)all.first[which], parts = (uint32_t)p->t.heads / (uint32_t)heads;
    const struct rows rows = rows_of(p, cta / parts);
    if (threadIdx.x < QUANTISE_CHUNK) s->magnitude[0][threadIdx.x] = 0;
    if (p->t.hadamard) spread_signs(p, s);
    if (p->t.rotary && p->tables_staged) load_tables(p, s, &rows);
    __syncthreads();
#pragma unroll 1
    for (int n = 0; n < heads; ++n) quantise_head(p, s, &rows, (int64_t)(cta % parts) * heads + n, n);
}
