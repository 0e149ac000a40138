/* SPDX-License-Identifier: BSD-3-Clause
 *
 * quantise_block.cu: strobe_quantise on a GPU where it is asked for most: rows of COLUMNS (64, 96, 128, 192 or 256) 16-bit
 * columns to e4m3 or int8 in one pass, with rotary embedding of all of a row's columns by halves, K's mean, signs and a
 * Hadamard transform as wanted. All else is quantise_rows.cu's; the bytes are the same.
 *
 * A CTA has the 128 rows of a head that share a scale, or that have several, and then those of the next heads: the tables of
 * rotary embedding are copied to shared memory once for all, and a head's rows while the one before is worked on. LANES
 * neighbouring lanes hold a row, each WIDTH columns of each of its parts, which are two, or three where COLUMNS is no power
 * of two:
 *
 *     columns      0 .. 31 | 32 .. 63 | 64 .. 95 | 96 .. 127        of 128
 *     lane            0         1          0          1
 *
 * So all steps of a transform but log2 LANES are in a thread's own registers; of two parts, so are the pairs of rotary
 * embedding, of three the other one of a pair is read again. Rows pass through shared memory, so that a warp reads
 * whole lines; it has its rows alone, and the warps of a CTA meet once a head, for the scale. The order of every operation
 * is that of math/quantise.h. */
#define PLAIN 1
#include "cuda/device/quantise_load.h"
#include "cuda/device/quantise_tile.h"
#include "cuda/device/stored_bytes.h"

#if defined(STORES_INT8)
enum { INT8 = 1 };
#else
enum { INT8 = 0 };
#endif
#define NAN_BITS   0x7fc00000u /* the scale of int8 rows of which a number is not finite */
#define LEAST_FOUR 0x81818181u /* -127 */

/* A thread's columns of a row, of each part of it. */
struct row {
    float x[PARTS][WIDTH];
};

/* Columns [column, column + WIDTH) of the tile's row. */
INLINE void widen(const uint4 *tile, bool is_bf16, int column, float (&x)[WIDTH]) {
    const uint4 *const units = &tile[place_in_row(column / 8)];
#pragma unroll
    for (int n = 0; n < WIDTH / 8; ++n) {
        const uint4 from = units[n];
        const uint32_t two[4] = {from.x, from.y, from.z, from.w};
        float *to = &x[8 * n];
        if (is_bf16) {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                to[2 * i] = __uint_as_float(two[i] << 16), to[2 * i + 1] = __uint_as_float(two[i] & 0xffff0000u);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                to[2 * i] = f16_to_float((uint16_t)two[i]), to[2 * i + 1] = f16_to_float((uint16_t)(two[i] >> 16));
        }
    }
}

INLINE void load_angles(const float4 *cos, const float4 *sin, int n, float (&c)[4], float (&s)[4]) {
    const float4 cos4 = cos[n], sin4 = sin[n];
    c[0] = cos4.x, c[1] = cos4.y, c[2] = cos4.z, c[3] = cos4.w;
    s[0] = sin4.x, s[1] = sin4.y, s[2] = sin4.z, s[3] = sin4.w;
}

/* Turns the thread's columns of the tile's row `index`. Pairs are columns COLUMNS / 2 apart. */
#if COLUMNS % 3 != 0
INLINE void rotate_row(const struct quantise_params *p, const struct quantise_shared *tile, const struct rows *rows,
                       int index, int lane, bool is_bf16, struct row *r) {
    const int pair = column_of(0, lane);
    const float4 *cos = table_of(p, tile, rows, 0, index, pair), *sin = table_of(p, tile, rows, 1, index, pair);
    (void)is_bf16;
#pragma unroll
    for (int n = 0; n < WIDTH / 4; ++n) {
        float c[4], s[4];
        load_angles(cos, sin, n, c, s);
#pragma unroll
        for (int i = 4 * n; i < 4 * n + 4; ++i) {
            const float first = r->x[0][i], second = r->x[1][i];
            r->x[0][i] = turned_first(first, second, c[i % 4], s[i % 4]);
            r->x[1][i] = turned_second(first, second, c[i % 4], s[i % 4]);
        }
    }
}
#else
/* The other halves of pairs come from the tile again. turned_first(x, other) is turned_second(other, x) with a sine of the
 * other sign, whose product has the same bits but for the sign. */
INLINE void rotate_row(const struct quantise_params *p, const struct quantise_shared *tile, const struct rows *rows,
                       int index, int lane, bool is_bf16, struct row *r) {
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        const int column = column_of(part, lane);
        const bool is_second = column >= COLUMNS / 2;
        const int pair = is_second ? column - COLUMNS / 2 : column;
        const float4 *cos = table_of(p, tile, rows, 0, index, pair), *sin = table_of(p, tile, rows, 1, index, pair);
        const float sign = is_second ? 1 : -1;
        float other[WIDTH];
        widen(tile->rows[index], is_bf16, is_second ? pair : column + COLUMNS / 2, other);
#pragma unroll
        for (int n = 0; n < WIDTH / 4; ++n) {
            float c[4], s[4];
            load_angles(cos, sin, n, c, s);
#pragma unroll
            for (int i = 4 * n; i < 4 * n + 4; ++i)
                r->x[part][i] = turned_second(other[i], r->x[part][i], c[i % 4], s[i % 4] * sign);
        }
    }
}
#endif

INLINE void subtract_mean(const float *mean, int lane, struct row *r) {
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int n = 0; n < WIDTH; ++n) r->x[part][n] -= mean[column_of(part, lane) + n];
}

/* A word's sign changes x's. */
INLINE void change_sign(float *x, uint32_t word) {
    *x = __uint_as_float(__float_as_uint(*x) ^ (PARTS == 3 ? word & 0x80000000u : word));
}

/* Random signs: a word for each of the thread's columns. */
INLINE void change_signs(const uint4 *signs, struct row *r) {
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int n = 0; n < WIDTH / 4; ++n) {
            const uint4 sign = signs[part * (WIDTH / 4) + n];
            float *x = &r->x[part][4 * n];
            change_sign(&x[0], sign.x), change_sign(&x[1], sign.y), change_sign(&x[2], sign.z), change_sign(&x[3], sign.w);
        }
}

INLINE void butterfly(float *a, float *b) {
    const float sum = *a + *b, difference = *a - *b;
    *a = sum, *b = difference;
}

/* The butterflies of two neighbouring parts, from near columns to far ones, without the norm. */
INLINE void transform_parts(int lane, float (&low)[WIDTH], float (&high)[WIDTH]) {
#pragma unroll
    for (int step = 1; step < WIDTH; step *= 2)
#pragma unroll
        for (int n = 0; n < WIDTH; ++n)
            if (!(n & step)) butterfly(&low[n], &low[n + step]), butterfly(&high[n], &high[n + step]);
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) {
        const float sign = lane & step ? -1 : 1; /* a product by it is exact: one rounding, as of a sum */
#pragma unroll
        for (int n = 0; n < WIDTH; ++n) {
            low[n] = fmaf(sign, low[n], __shfl_xor_sync(0xffffffffu, low[n], step));
            high[n] = fmaf(sign, high[n], __shfl_xor_sync(0xffffffffu, high[n], step));
        }
    }
#pragma unroll
    for (int n = 0; n < WIDTH; ++n) butterfly(&low[n], &high[n]);
}

INLINE void multiply(float norm, float (&x)[WIDTH]) {
#pragma unroll
    for (int n = 0; n < WIDTH; ++n) x[n] = rounded_product(x[n], norm); /* not fused with a sum that follows */
}

/* By norms with signs, whose products have the bits of the norm's but for the sign. */
INLINE void multiply_signed(const uint4 *norms, float (&x)[WIDTH]) {
#pragma unroll
    for (int n = 0; n < WIDTH / 4; ++n) {
        const uint4 norm = norms[n];
        x[4 * n] = rounded_product(x[4 * n], __uint_as_float(norm.x));
        x[4 * n + 1] = rounded_product(x[4 * n + 1], __uint_as_float(norm.y));
        x[4 * n + 2] = rounded_product(x[4 * n + 2], __uint_as_float(norm.z));
        x[4 * n + 3] = rounded_product(x[4 * n + 3], __uint_as_float(norm.w));
    }
}

/* Signs, one transform of two parts or two of three, and the norm, or what of it is left: a power of two waits until the
 * product with the scale's inverse, since it rounds nothing. */
INLINE float transform_row(const struct quantise_params *p, const uint4 *signs, int lane, struct row *r) {
    change_signs(signs, r);
    transform_parts(lane, r->x[0], r->x[1]);
    if (COLUMNS == 64 || COLUMNS == 256) return p->norm;
    multiply(p->norm, r->x[0]);
    if (PARTS == 2) {
        multiply(p->norm, r->x[1]);
    } else {
        multiply_signed(signs + WIDTH / 4, r->x[1]); /* both transforms have these */
        transform_parts(lane, r->x[1], r->x[PARTS - 1]);
        multiply(p->norm, r->x[1]), multiply(p->norm, r->x[PARTS - 1]);
    }
    return 1;
}

/* The bits of the largest magnitude of the thread's columns, an infinity's too; NaN does not count, but for int8. */
INLINE uint32_t largest_of(const struct row *r) {
    float most[4] = {0, 0, 0, 0}, none[4] = {0, 0, 0, 0};
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int n = 0; n < WIDTH; ++n) most[n % 4] = fmaxf(most[n % 4], fabsf(r->x[part][n]));
    const uint32_t largest = __float_as_uint(fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3])));
    if (!INT8) return largest;
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int n = 0; n < WIDTH; ++n) none[n % 4] = fmaf(r->x[part][n], 0, none[n % 4]);
    const float sum = (none[0] + none[1]) + (none[2] + none[3]); /* of zeros, or of a NaN */
    return sum == 0 ? largest : NAN_BITS;
}

/* The same among finite numbers, for the few rows that have others, of which infinities become NaN. */
INLINE uint32_t largest_finite(struct row *r) {
    float most = 0;
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int n = 0; n < WIDTH; ++n) {
            const bool finite = is_finite_float(r->x[part][n]);
            most = finite ? fmaxf(most, fabsf(r->x[part][n])) : most;
            r->x[part][n] = finite ? r->x[part][n] : NAN;
        }
    return __float_as_uint(most);
}

/* Eight of the row's bytes. Of int8, where the scale is NaN, the least number, as everywhere. */
INLINE uint2 eight_bytes(const float *x, float inverse) {
    if (!INT8) return make_uint2(four_e4m3(x, inverse), four_e4m3(x + 4, inverse));
    if (inverse != inverse) return make_uint2(LEAST_FOUR, LEAST_FOUR);
    return make_uint2(four_int8(x, inverse), four_int8(x + 4, inverse));
}

INLINE void store_row(uint8_t *to, int lane, const struct row *r, float inverse) {
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        uint8_t *at = to + column_of(part, lane);
        const uint2 low = eight_bytes(r->x[part], inverse), high = eight_bytes(&r->x[part][WIDTH - 8], inverse);
        if (WIDTH == 16) *(uint4 *)at = make_uint4(low.x, low.y, high.x, high.y);
        if (WIDTH == 8) *(uint2 *)at = low;
    }
}

/* The scale of the thread's row, whose largest magnitude is `largest`, over its block; NaN where a magnitude is. */
INLINE float scale_of_block(const struct quantise_params *p, uint32_t largest, int index, uint32_t *magnitude) {
    const int block = index >> p->block_shift;
    if (p->block_shift >= 5) { /* a warp's rows have one scale */
        largest = __reduce_max_sync(0xffffffffu, largest);
        if (threadIdx.x % 32 == 0) atomicMax(&magnitude[block], largest);
    } else {
        atomicMax(&magnitude[block], largest);
    }
    __syncthreads();
    largest = magnitude[block];
    return INT8 && largest == NAN_BITS ? __uint_as_float(NAN_BITS) : scale_of_largest(__uint_as_float(largest), INT8);
}

/* A head of the CTA's rows, of which this thread has `index`, from memory to memory. */
INLINE void quantise_head(const struct quantise_params *p, struct quantise_shared *s, const struct rows *rows, int64_t head,
                          int n, bool last) {
    const struct quantise_tensor *t = &p->t;
    const int lane = threadIdx.x % LANES, index = threadIdx.x / LANES;
    const bool there = index < rows->count, is_bf16 = t->from_dtype == CUDA_BF16;
    struct row r;
    wait_for_rows();
#pragma unroll
    for (int part = 0; part < PARTS; ++part) widen(s->rows[index], is_bf16, column_of(part, lane), r.x[part]);
    if (t->rotary) rotate_row(p, s, rows, index, lane, is_bf16, &r);
    __syncwarp();
    if (!last) load_rows(t, s, rows, head + 1); /* comes while this head is worked on */
    if (t->mean) subtract_mean(t->mean + (rows->batch * t->heads + head) * t->dim, lane, &r);
    const float norm = t->hadamard ? transform_row(p, s->signs[lane], lane, &r) : 1;
    uint32_t largest = there ? largest_of(&r) : 0;
    if (!INT8 && __any_sync(0xffffffffu, largest >= 0x7f800000u)) largest = there ? largest_finite(&r) : 0;
    if (!INT8 || largest != NAN_BITS) largest = __float_as_uint(__uint_as_float(largest) * norm);
    if (threadIdx.x < QUANTISE_CHUNK)
        s->magnitude[(n + 1) % 3][threadIdx.x] = 0; /* all have read the one of two heads ago */
    const float scale = scale_of_block(p, largest, index, s->magnitude[n % 3]);
    if (rows->first + index < t->rows && index % (1 << p->block_shift) == 0 && lane == 0) /* unused ones too */
        *quantise_scale_at(t, rows->batch, 0, rows->first + index, head) = scale;
    if (there) store_row(rows->to + head * t->to_stride[2] + index * t->to_stride[1], lane, &r, 1 / scale * norm);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    KERNEL(const __grid_constant__ struct quantise_together all) {
    extern __shared__ __align__(16) unsigned char memory[];
    struct quantise_shared *s = (struct quantise_shared *)memory;
    const int which = (all.count > 1 && blockIdx.x >= all.first[1]) + (all.count > 2 && blockIdx.x >= all.first[2]);
    const struct quantise_params *p = &all.tensor[which];
    const int heads = all.heads[which];
    const uint32_t cta = blockIdx.x - (uint32_t)all.first[which];
    const uint32_t parts = ((uint32_t)p->t.heads + (uint32_t)heads - 1) / (uint32_t)heads;
    const struct rows rows = rows_of(p, cta / parts);
    const int64_t head = (int64_t)(cta % parts) * heads;
    const int here = p->t.heads - head < heads ? (int)(p->t.heads - head) : heads;
    if (p->t.rotary && p->tables_staged) load_tables(p, s, &rows);
    load_rows(&p->t, s, &rows, head);
    if (threadIdx.x < QUANTISE_CHUNK) s->magnitude[0][threadIdx.x] = 0;
    if (p->t.hadamard) spread_signs(p, s);
    __syncthreads();
#pragma unroll 1
    for (int n = 0; n < here; ++n) quantise_head(p, s, &rows, head + n, n, n == here - 1);
}
