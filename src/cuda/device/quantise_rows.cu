/* SPDX-License-Identifier: BSD-3-Clause
 *
 * quantise_rows.cu: strobe_quantise on a GPU. A CTA has 128 rows of one head; LANES neighbouring lanes hold a row, eight
 * columns each, and 32 such groups four rows each, so that a thread's loads are all under way at once. Per row:
 *
 *     x = row after rotary embedding, less the mean of K
 *     x = H (signs x)           butterflies in registers, then shuffles
 *     m = max |x|               over the row, then over the rows that share a scale, in shared memory
 *     scale = m / 448           and bytes = x / scale, of x that is still in registers
 *
 * The order of every operation is that of math/quantise.h, so that the bytes are the CPU's. A head dim that is no power of
 * two takes a second transform, which ends with the row; between the two it goes through shared memory, and columns of both
 * change signs again. */
#include "cuda/device/hadamard.h"
#include "cuda/device/quantise_load.h"

enum { THREADS = QUANTISE_GROUPS * LANES, ROWS = QUANTISE_CHUNK / QUANTISE_GROUPS, COLUMNS = 8 * LANES };

/* Rows of a thread in registers, or one after the other through local memory. */
#if PLAIN
#define UNROLL_ROWS _Pragma("unroll")
#else
#define UNROLL_ROWS _Pragma("unroll 1")
#endif

struct rows_memory {
    float row[QUANTISE_GROUPS][COLUMNS + COLUMNS / 8]; /* an unused float every eight: lanes then meet different banks */
    uint32_t magnitude[QUANTISE_CHUNK];
};

/* What a thread knows of one of its rows. */
struct place {
    struct quantise_row in_sequence;
    int64_t row;
    bool there;
};

INLINE int padded(int column) { return column + column / 8; }

/* The second transform: of the last `columns` columns of a row of dim. */
INLINE void transform_end(float *row, float (&x)[8], int lane, int columns, float norm, int dim) {
    const int first = dim - columns;
    float y[8];
#pragma unroll
    for (int n = 0; n < 8; ++n) row[padded(8 * lane + n)] = x[n];
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 8; ++n) y[n] = 8 * lane + n < columns ? row[padded(first + 8 * lane + n)] : 0;
    hadamard_lanes(y, lane, LANES, columns, norm);
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 8; ++n)
        if (8 * lane + n < columns) row[padded(first + 8 * lane + n)] = y[n];
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 8; ++n) x[n] = 8 * lane + n < dim ? row[padded(8 * lane + n)] : 0;
    __syncwarp();
}

/* Random signs, `signs` of the lane's eight columns, and one or two transforms. Columns past the end are 0. Lanes past those
 * of the first keep theirs. */
INLINE void incoherent(const struct quantise_params *p, float *row, float (&x)[8], int lane, uint32_t signs) {
    const int dim = (int)p->t.dim, columns = p->columns;
#pragma unroll
    for (int n = 0; n < 8; ++n) x[n] = __uint_as_float(__float_as_uint(x[n]) ^ (signs << (31 - n) & 0x80000000u));
    if (columns == dim) {
        hadamard_lanes(x, lane, LANES, columns, p->norm);
        return;
    }
    float y[8];
#pragma unroll
    for (int n = 0; n < 8; ++n) y[n] = 8 * lane + n < columns ? x[n] : 0;
    hadamard_lanes(y, lane, LANES, columns, p->norm);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        const int column = 8 * lane + n;
        const uint32_t sign = column >= dim - columns ? signs << (31 - n) & 0x80000000u : 0; /* both transforms have it */
        x[n] = column < columns ? __uint_as_float(__float_as_uint(y[n]) ^ sign) : x[n];
    }
    transform_end(row, x, lane, columns, p->norm, dim);
}

/* scale q . mean of K, from a row of q that has been turned. */
INLINE void store_shift(const struct quantise_tensor *t, const struct place *at, int64_t batch, int64_t head, int lane,
                        const float (&x)[8]) {
    const int64_t of_head = (at->in_sequence.sequence * (t->heads / t->group) + head / t->group) * t->dim;
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 8; ++n)
        if (at->there && t->key_mean && 8 * lane + n < t->dim) sum = fmaf(x[n], t->key_mean[of_head + 8 * lane + n], sum);
#pragma unroll
    for (int d = LANES / 2; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (at->there && lane == 0)
        t->lse_shift[batch * t->shift_stride[0] + at->row * t->shift_stride[1] + head * t->shift_stride[2]] =
            t->scale_of_scores * sum;
}

/* The bits of the largest magnitude of a row, of all lanes of its group, an infinity's too. */
INLINE uint32_t largest_of(const float (&x)[8]) {
    float most = 0;
#pragma unroll
    for (int n = 0; n < 8; ++n) most = fmaxf(most, fabsf(x[n]));
#pragma unroll
    for (int d = LANES / 2; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, d));
    return __float_as_uint(most);
}

/* The same among finite numbers; for int8 a NaN's bits where one is not. Few rows come here: those with an infinity, and all
 * of int8. */
INLINE uint32_t largest_finite(const float (&x)[8], bool int8) {
    uint32_t most = 0;
    bool finite = true;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        const uint32_t bits = float_bits(x[n]) & 0x7fffffffu;
        finite = finite && bits < 0x7f800000u;
        most = bits < 0x7f800000u && bits > most ? bits : most;
    }
    if (int8 && !finite) most = 0x7fc00000u;
#pragma unroll
    for (int d = LANES / 2; d > 0; d /= 2) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, most, d);
        most = other > most ? other : most;
    }
    return most;
}

/* all_finite: no infinity is among them; a NaN may be. */
INLINE uint32_t four_bytes(const float *x, float inverse, bool int8, bool all_finite) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    if (PLAIN && all_finite)
        return cvt_e4m3x2(rounded_product(x[0], inverse), rounded_product(x[1], inverse)) |
               (uint32_t)cvt_e4m3x2(rounded_product(x[2], inverse), rounded_product(x[3], inverse)) << 16;
#endif
    uint32_t four = 0;
#pragma unroll
    for (int n = 0; n < 4; ++n) four |= (uint32_t)quantised(x[n], inverse, int8) << 8 * n;
    return four;
}

INLINE void store_row(const struct quantise_params *p, const struct place *at, int64_t batch, int64_t head, int lane,
                      const float (&x)[8], float scale, bool all_finite) {
    const struct quantise_tensor *t = &p->t;
    const float inverse = 1 / scale;
    uint8_t *to = t->to + batch * t->to_stride[0] + at->row * t->to_stride[1] + head * t->to_stride[2] + 8 * lane;
    const uint2 eight = make_uint2(four_bytes(x, inverse, t->int8, all_finite),
                                   four_bytes(x + 4, inverse, t->int8, all_finite));
    if (!at->there || 8 * lane >= t->dim) return;
    if (PLAIN || p->to_aligned) {
        *(uint2 *)to = eight;
    } else {
#pragma unroll
        for (int n = 0; n < 8; ++n)
            if (8 * lane + n < t->dim) to[n] = (uint8_t)((n < 4 ? eight.x : eight.y) >> n % 4 * 8);
    }
}

/* Largest magnitudes of the CTA's rows go to the scales of theirs, in global memory: one for all where they share one. */
INLINE void gather(const struct quantise_tensor *t, struct rows_memory *m, const struct place (&at)[ROWS],
                   const uint32_t (&largest)[ROWS], int64_t batch, int64_t head, int lane) {
    const bool one = t->block == 0 && !t->cu_seqlens;
    UNROLL_ROWS
    for (int r = 0; r < ROWS; ++r) {
        if (lane > 0 || !at[r].there) continue;
        uint32_t *slot = (uint32_t *)quantise_scale_at(t, batch, at[r].in_sequence.sequence, at[r].row, head);
        atomicMax(one ? m->magnitude : slot, largest[r]);
    }
    __syncthreads();
    if (one && threadIdx.x == 0) atomicMax((uint32_t *)quantise_scale_at(t, batch, batch, 0, head), m->magnitude[0]);
}

/* The magnitudes of the CTA's rows go to those of their blocks: of blocks of 128 rows once a warp. */
INLINE void note_magnitudes(const struct quantise_params *p, struct rows_memory *m, const struct place (&at)[ROWS],
                            const uint32_t (&largest)[ROWS], int lane, int group) {
    if (p->t.block == QUANTISE_CHUNK) {
        uint32_t most = 0;
        UNROLL_ROWS
        for (int r = 0; r < ROWS; ++r) most = at[r].there && largest[r] > most ? largest[r] : most;
        most = __reduce_max_sync(0xffffffffu, most);
        if (threadIdx.x % 32 == 0) atomicMax(&m->magnitude[0], most);
        return;
    }
    UNROLL_ROWS
    for (int r = 0; r < ROWS; ++r)
        if (lane == 0 && at[r].there) atomicMax(&m->magnitude[(r * QUANTISE_GROUPS + group) >> p->block_shift], largest[r]);
}

/* The scales of the CTA's rows, whose magnitudes are complete: into shared memory, and to where they are wanted. */
INLINE void conclude(const struct quantise_tensor *t, struct rows_memory *m, int64_t batch, int64_t first, int64_t head) {
    const int block = (int)t->block, slot = threadIdx.x;
    __syncthreads();
    if (slot < QUANTISE_CHUNK / block && first + (int64_t)slot * block < t->rows) {
        const float largest = __uint_as_float(m->magnitude[slot]);
        const float scale = largest != largest ? largest : scale_of_largest(largest, t->int8);
        m->magnitude[slot] = __float_as_uint(scale);
        *quantise_scale_at(t, batch, 0, first + (int64_t)slot * block, head) = scale;
    }
    __syncthreads();
}

/* Reads the thread's rows and brings them to what is to be quantised. */
INLINE void prepare(const struct quantise_params *p, struct rows_memory *m, struct place (&at)[ROWS], float (&x)[ROWS][8],
                    int64_t batch, int64_t first, int64_t head) {
    const struct quantise_tensor *t = &p->t;
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    const uint32_t signs = p->c.signs[lane / 4] >> lane % 4 * 8;
    const int64_t used = t->used ? quantise_entry(t, t->used, batch) : t->rows, rows = used < t->rows ? used : t->rows;
    UNROLL_ROWS
    for (int r = 0; r < ROWS; ++r) {
        at[r].row = first + r * QUANTISE_GROUPS + group;
        if (PLAIN) {
            at[r].there = at[r].row < rows, at[r].in_sequence.sequence = batch, at[r].in_sequence.row = at[r].row;
        } else {
            at[r].there = at[r].row < t->rows && quantise_find(t, batch, at[r].row, &at[r].in_sequence);
        }
#pragma unroll
        for (int n = 0; n < 8; ++n) x[r][n] = 0;
        if (at[r].there) load_eight(p, source_at(t, batch, at[r].row, head), 8 * lane, x[r]);
    }
    UNROLL_ROWS
    for (int r = 0; r < ROWS; ++r) {
        if (at[r].there)
            rotate_eight(p, source_at(t, batch, at[r].row, head), t->start + at[r].in_sequence.row, 8 * lane, x[r]);
        if (t->lse_shift && p->phase != QUANTISE_GATHER) store_shift(t, &at[r], batch, head, lane, x[r]);
        if (t->mean && at[r].there) {
            const float *mean = t->mean + (at[r].in_sequence.sequence * t->heads + head) * t->dim;
#pragma unroll
            for (int n = 0; n < 8; ++n)
                if (8 * lane + n < t->dim) x[r][n] -= mean[8 * lane + n];
        }
        if (t->hadamard) incoherent(p, m->row[group], x[r], lane, signs);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    KERNEL(const __grid_constant__ struct quantise_params p) {
    __shared__ struct rows_memory memory;
    const struct quantise_tensor *t = &p.t;
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    const int64_t head = blockIdx.x % (uint32_t)t->heads, rest = blockIdx.x / (uint32_t)t->heads;
    const int64_t batch = rest / p.chunks, first = rest % p.chunks * QUANTISE_CHUNK;
    struct place at[ROWS];
    float x[ROWS][8];
    uint32_t largest[ROWS];
    for (int n = threadIdx.x; n < QUANTISE_CHUNK; n += THREADS) memory.magnitude[n] = 0;
    prepare(&p, &memory, at, x, batch, first, head);
    __syncthreads();
    bool all_finite = true;
    UNROLL_ROWS
    for (int r = 0; r < ROWS; ++r) {
        largest[r] = largest_of(x[r]);
        all_finite = all_finite && largest[r] < 0x7f800000u;
    }
    all_finite = __all_sync(0xffffffffu, all_finite && !t->int8);
    if (!all_finite) {
        UNROLL_ROWS
        for (int r = 0; r < ROWS; ++r) largest[r] = largest_finite(x[r], t->int8);
    }
    if (p.phase == QUANTISE_GATHER) {
        gather(t, &memory, at, largest, batch, head, lane);
        return;
    }
    if (p.phase == QUANTISE_AT_ONCE) {
        note_magnitudes(&p, &memory, at, largest, lane, group);
        conclude(t, &memory, batch, first, head);
    }
    UNROLL_ROWS
    for (int r = 0; r < ROWS; ++r) {
        float scale = 1;
        if (p.phase == QUANTISE_AT_ONCE)
            scale = __uint_as_float(memory.magnitude[(r * QUANTISE_GROUPS + group) >> p.block_shift]);
        else if (at[r].there)
            scale = *quantise_scale_at(t, batch, at[r].in_sequence.sequence, at[r].row, head);
        store_row(&p, &at[r], batch, head, lane, x[r], scale, all_finite);
    }
}
