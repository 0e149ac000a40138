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

/* A head's rows, of which this thread has `index`, from memory to memory; those of the next head come meanwhile. slot: the
 * number of the CTA's head, modulo 3. */
INLINE void quantise_head(const struct quantise_together *all, struct quantise_shared *s, const struct rows *rows, int slot,
                          bool last, int64_t batch, int64_t first) {
    const struct quantise_params *p = &all->tensor[rows->tensor];
    const struct quantise_tensor *t = &p->t;
    const int lane = threadIdx.x % LANES, index = threadIdx.x / LANES;
    const bool there = index < rows->count;
    const struct lane_signs *const signs = t->hadamard ? &s->signs[lane] : NULL;
    struct row r;
    wait_for_rows();
    load_row(s, signs, t->from_dtype == CUDA_BF16, index, lane, &r);
    __syncwarp();
    if (!last) load_rows(all, s, rows + 1); /* while this head is worked on */
    if (t->rotary) {
        if (p->tables_staged) {
            rotate_row(s, index, lane, &r);
        } else {
            const int64_t at = (t->start + first + (there ? index : 0)) * (COLUMNS / 2);
            rotate_far(p->c.cos + at, p->c.sin + at, signs, lane, &r);
        }
    }
    if (t->mean) subtract_mean(t->mean + (batch * t->heads + rows->head) * t->dim, signs, lane, &r);
    const float norm = t->hadamard ? transform_row(p->norm, signs, lane, &r) : 1;
    uint32_t largest = there ? largest_of(&r) : 0;
    if (!INT8 && __any_sync(0xffffffffu, largest >= 0x7f800000u)) largest = there ? largest_finite(&r) : 0;
    if (!INT8 || largest != NAN_BITS) largest = __float_as_uint(__uint_as_float(largest) * norm);
    if (threadIdx.x < QUANTISE_CHUNK)
        s->magnitude[slot == 2 ? 0 : slot + 1][threadIdx.x] = 0; /* all have read the one of two heads ago */
    const float scale = scale_of_block(p, largest, index, s->magnitude[slot]);
    const int row_of_block = index & ((1 << p->block_shift) - 1);
    if (row_of_block == 0 && lane == 0 && index < rows->scaled)
        rows->scale[(index >> p->block_shift) * t->scale_stride[1]] = scale;
    store_row(rows->to + index * t->to_stride[1], there, lane, &r, 1 / scale * norm, t->hadamard);
}

/* The tensor of those that turn by tables in shared memory which has the most rows there, -1 where none does; of a CTA with
 * one head that one's. */
INLINE int turning(const struct quantise_together *all, const struct quantise_shared *s, int here, int64_t batch,
                   int64_t first) {
    int found = -1, most = 0;
#pragma unroll 1
    for (int n = 0; n < all->count; ++n) {
        const struct quantise_params *p = &all->tensor[n];
        if (!p->t.rotary || !p->tables_staged || (here == 1 && n != s->head[0].tensor)) continue;
        const int rows = rows_there(&p->t, batch, first);
        if (found < 0 || rows > most) found = n, most = rows;
    }
    return found;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    KERNEL(const __grid_constant__ struct quantise_together all) {
    extern __shared__ __align__(16) unsigned char memory[];
    struct quantise_shared *s = (struct quantise_shared *)memory;
    const uint32_t parts = ((uint32_t)all.heads + (uint32_t)all.each - 1) / (uint32_t)all.each;
    const uint32_t chunk = blockIdx.x / parts, of_batch = (uint32_t)all.tensor[0].chunks;
    const int64_t batch = chunk / of_batch, first = (int64_t)(chunk % of_batch) * QUANTISE_CHUNK;
    const uint32_t from = blockIdx.x % parts * (uint32_t)all.each, left = (uint32_t)all.heads - from;
    const int here = left < (uint32_t)all.each ? (int)left : all.each;
#pragma unroll 1
    for (int n = (int)threadIdx.x; n < here; n += THREADS) /* neighbours begin elsewhere: not all work on q, say, at once */
        s->head[n] = rows_of(&all, from + ((uint32_t)n + blockIdx.x) % (uint32_t)here, batch, first);
    if (threadIdx.x < QUANTISE_CHUNK) s->magnitude[0][threadIdx.x] = 0;
    spread_signs(&all.tensor[0].c, all.tensor[0].norm, s);
    __syncthreads();
    const int turned = turning(&all, s, here, batch, first);
    if (turned >= 0) {
        const struct quantise_tensor *t = &all.tensor[turned].t;
        load_tables(&all.tensor[turned].c, s, t->start + first, rows_there(t, batch, first));
    }
    load_rows(&all, s, &s->head[0]);
    if (turned >= 0 && all.tensor[turned].t.hadamard) {
        wait_for_rows();
        sign_sines(s, &s->signs[threadIdx.x % LANES], (int)threadIdx.x / LANES, (int)threadIdx.x % LANES); /* its own ones */
    }
#pragma unroll 1
    for (int n = 0, slot = 0; n < here; ++n, slot = slot == 2 ? 0 : slot + 1)
        quantise_head(&all, s, &s->head[n], slot, n == here - 1, batch, first);
}
