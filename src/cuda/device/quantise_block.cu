/* SPDX-License-Identifier: BSD-3-Clause
 *
 * quantise_block.cu: strobe_quantise on a GPU where it is asked for most: rows of COLUMNS (64, 96, 128, 192 or 256) 16-bit
 * columns to e4m3 or int8 in one pass, with rotary embedding of all of a row's columns by halves, K's mean, signs and a
 * Hadamard transform as wanted. All else is quantise_rows.cu's; the bytes are the same.
 *
 * A CTA has the 128 rows of a head that share a scale, or that have several, and then those of the next heads: the tables of
 * rotary embedding are copied to shared memory once for all, and a head's rows while the one before is worked on. LANES
 * neighbouring lanes hold a row, in parts such that both of a pair of rotary embedding are in one lane, and that a
 * transform's far steps are (quantise_halves.h, quantise_thirds.h). Rows pass through shared memory, so that a warp reads
 * whole lines; it has its rows alone, and the warps of a CTA meet once a head, for the scale.
 *
 *     rows of 16 bits     signs change, two columns at a time
 *     fp32                pairs turn, by sines with the signs; less the mean; transform; largest magnitude; scale
 *     bytes
 *
 * Signs change first since that takes half the instructions there, and not one of those behind is another for it: sums and
 * products of numbers with other signs have the same bits. The order of every operation else is that of math/quantise.h. */
#define PLAIN 1
#include "cuda/device/quantise_load.h"
#include "cuda/device/quantise_tile.h"

/* The bits of the largest magnitude of the thread's columns, an infinity's too; NaN does not count, but for int8. */
INLINE uint32_t largest_of(const struct row *r) {
    const float *x = r->x[0];
    float most[4] = {0, 0, 0, 0}, none[4] = {0, 0, 0, 0};
#pragma unroll
    for (int n = 0; n < HELD; ++n) most[n % 4] = fmaxf(most[n % 4], fabsf(x[n]));
    const uint32_t largest = __float_as_uint(fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3])));
    if (!INT8) return largest;
#pragma unroll
    for (int n = 0; n < HELD; ++n) none[n % 4] = fmaf(x[n], 0, none[n % 4]);
    const float sum = (none[0] + none[1]) + (none[2] + none[3]); /* of zeros, or of a NaN */
    return sum == 0 ? largest : NAN_BITS;
}

/* The same among finite numbers, for the few rows that have others, of which infinities become NaN. */
INLINE uint32_t largest_finite(struct row *r) {
    float *x = r->x[0], most = 0;
#pragma unroll
    for (int n = 0; n < HELD; ++n) {
        const bool finite = is_finite_float(x[n]);
        most = finite ? fmaxf(most, fabsf(x[n])) : most;
        x[n] = finite ? x[n] : NAN;
    }
    return __float_as_uint(most);
}

/* scale_of_largest(), by a product with the inverse of a constant and a correction, whose bits are the division's. */
INLINE float quick_scale(float largest) {
    const float most = INT8 ? 127 : E4M3_LARGEST, numerator = fmaxf(largest, 9.094947017729282e-13f);
    const float near = rounded_product(numerator, 1 / most);
    return fmaf(fmaf(-near, most, numerator), 1 / most, near);
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
    return INT8 && largest == NAN_BITS ? __uint_as_float(NAN_BITS) : quick_scale(__uint_as_float(largest));
}

/* A head of the CTA's rows, of which this thread has `index`, from memory to memory. */
INLINE void quantise_head(const struct quantise_params *p, struct quantise_shared *s, struct rows *rows, int64_t head, int n,
                          bool last) {
    const struct quantise_tensor *t = &p->t;
    const int lane = threadIdx.x % LANES, index = threadIdx.x / LANES;
    const bool there = index < rows->count;
    const struct lane_signs *const signs = t->hadamard ? &s->signs[lane] : NULL;
    struct row r;
    wait_for_rows();
    load_row(s, signs, t->from_dtype == CUDA_BF16, index, lane, &r);
    __syncwarp();
    if (!last) load_rows(t, s, rows); /* comes while this head is worked on */
    if (t->rotary) {
        if (p->tables_staged) {
            if (n == 0 && signs) sign_sines(s, signs, index, lane); /* the thread's own ones */
            rotate_row(s, index, lane, &r);
        } else {
            const int64_t at = (t->start + rows->first + (there ? index : 0)) * (COLUMNS / 2);
            rotate_far(p->c.cos + at, p->c.sin + at, signs, lane, &r);
        }
    }
    if (t->mean) subtract_mean(t->mean + (rows->batch * t->heads + head) * t->dim, signs, lane, &r);
    const float norm = t->hadamard ? transform_row(p->norm, signs, lane, &r) : 1;
    uint32_t largest = there ? largest_of(&r) : 0;
    if (!INT8 && __any_sync(0xffffffffu, largest >= 0x7f800000u)) largest = there ? largest_finite(&r) : 0;
    if (!INT8 || largest != NAN_BITS) largest = __float_as_uint(__uint_as_float(largest) * norm);
    if (threadIdx.x < QUANTISE_CHUNK)
        s->magnitude[(n + 1) % 3][threadIdx.x] = 0; /* all have read the one of two heads ago */
    const float scale = scale_of_block(p, largest, index, s->magnitude[n % 3]);
    const int row_of_block = index & (1 << p->block_shift) - 1;
    if (row_of_block == 0 && lane == 0 && rows->first + index < t->rows) /* unused ones too */
        rows->scale[(index >> p->block_shift) * t->scale_stride[1]] = scale;
    store_row(rows->to + index * t->to_stride[1], there, lane, &r, 1 / scale * norm, t->hadamard);
    rows->to += t->to_stride[2], rows->scale += t->scale_stride[2];
}

/* CTAs before `cta` that are of a tensor with so large a share. */
INLINE uint32_t before(uint32_t cta, uint32_t share) { return __umulhi(cta, share); }

/* Which tensor a CTA is of; *cta becomes its number among those. */
INLINE int tensor_of(const struct quantise_together *all, uint32_t *cta) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        if (all->count == n + 1) return n;
        const uint32_t of_this = before(*cta, all->share[n]);
        if (before(*cta + 1, all->share[n]) > of_this) {
            *cta = of_this;
            return n;
        }
        *cta -= of_this;
    }
    return 2;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    KERNEL(const __grid_constant__ struct quantise_together all) {
    extern __shared__ __align__(16) unsigned char memory[];
    struct quantise_shared *s = (struct quantise_shared *)memory;
    uint32_t cta = blockIdx.x;
    const int which = tensor_of(&all, &cta), heads = all.heads[which];
    const struct quantise_params *p = &all.tensor[which];
    const uint32_t parts = ((uint32_t)p->t.heads + (uint32_t)heads - 1) / (uint32_t)heads;
    const int64_t head = (int64_t)(cta % parts) * heads;
    struct rows rows = rows_of(p, cta / parts, head);
    const int here = p->t.heads - head < heads ? (int)(p->t.heads - head) : heads;
    if (p->t.rotary && p->tables_staged) load_tables(p, s, &rows);
    load_rows(&p->t, s, &rows);
    if (threadIdx.x < QUANTISE_CHUNK) s->magnitude[0][threadIdx.x] = 0;
    if (p->t.hadamard) spread_signs(&p->c, p->norm, s);
    __syncthreads();
#pragma unroll 1
    for (int n = 0; n < here; ++n) quantise_head(p, s, &rows, head + n, n, n == here - 1);
}
