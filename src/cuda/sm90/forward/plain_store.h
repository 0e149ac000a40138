/* SPDX-License-Identifier: BSD-3-Clause
 *
 * plain_store.h: store.h's end of a tile in two parts. What does not need O, sums of rows, lse and addresses, is a chain of
 * instructions that wait for each other; it comes before the tile's last P V has ended. Results are the same, bit for bit.
 * Included by plain.cu, and by forward.cu with FINISHES_EARLY, after the -D constants. */
#ifndef STROBE_CUDA_SM90_FORWARD_PLAIN_STORE_H
#define STROBE_CUDA_SM90_FORWARD_PLAIN_STORE_H

#include "cuda/ptx/fma_x2.h"
#include "cuda/sm90/forward/store.h"

/* What a thread needs to store O. */
struct tile_end {
    float factor[2]; /* of its two rows */
    uint16_t *out;   /* its first columns of the first row */
    int columns[2];  /* of both rows, from there on */
};

/* 1 / l without a branch: l is 0 where a row sees no key, which gives 0, and else at least about 1, or not finite. */
INLINE float reciprocal_of_sum(float l) {
    const float estimate = reciprocal(l);
    const float refined = fmaf(estimate, fmaf(-l, estimate, 1), estimate);
    return l == 0 || l == INFINITY ? 0 : refined;
}

/* end_of_row(), without a branch where there is no sink. */
INLINE struct row_end end_of_plain_row(const struct sm90_forward_params *p, const struct tile *t, float shift, float l) {
    if (p->sinks) return end_of_row(shift, 0, p->to_natural, l, p->sinks + t->head);
    struct row_end end;
    end.lse = l == 0 ? -INFINITY : fmaf(shift, p->to_natural.high, fmaf(shift, p->to_natural.low, logf(l)));
    end.factor = reciprocal_of_sum(l);
    return end;
}

/* All that does not need O: rows l / 4 and l / 4 + 8 of the warp; of two neighbouring lanes each finishes one for both. */
INLINE struct tile_end finish_tile(const struct sm90_forward_params *p, const struct tile *t, const struct rows *r,
                                   int first) {
    const int lane = threadIdx.x % 32, odd = lane % 2, row = t->row + first + lane / 4;
    const int batch = p->cu_seqlens_q ? 0 : t->batch;
    float sum[2] = {r->sum[0], r->sum[1]};
    struct tile_end end;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 1);
        sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 2);
    }
    const struct row_end own = end_of_plain_row(p, t, odd ? r->shift[1] : r->shift[0], odd ? sum[1] : sum[0]);
    const float other = __shfl_xor_sync(0xffffffffu, own.factor, 1);
    end.factor[0] = odd ? other : own.factor, end.factor[1] = odd ? own.factor : other;
    const int64_t position = t->first_row + row;
    const int column = 8 * odd + 4 * (lane % 4 / 2);
    end.out = (uint16_t *)p->out + batch * p->out_stride[0] + position * p->out_stride[1] + t->head * p->out_stride[2] +
              column;
#pragma unroll
    for (int i = 0; i < 2; ++i) end.columns[i] = row + 8 * i < t->rows ? p->dim_v - column : 0;
    if (p->lse && lane % 4 < 2 && row + 8 * odd < t->rows)
        p->lse[batch * p->lse_stride[0] + (position + 8 * odd) * p->lse_stride[1] + t->head * p->lse_stride[2]] = own.lse;
    return end;
}

/* Adds 0 to the sums of two elements where two others are finite, and NaN where not. */
INLINE void add_nothing(uint32_t two, uint32_t *sums) {
#if defined(ELEMENT_BF16)
    *sums = fma_bf16x2(two, 0, *sums);
#else
    *sums = fma_f16x2(two, 0, *sums);
#endif
}

/* Stores O / l. Returns whether the warp's O was finite; true, unasked, where no loaded key can be hidden. What is asked are
 * the rounded elements, two at a time. */
INLINE bool store_output(const struct sm90_forward_params *p, const struct tile *t, const float (&o)[HEAD_DIM / 2],
                         const struct tile_end *end, int first) {
    uint32_t sums[2][2] = {{0, 0}, {0, 0}}; /* of both rows, two each, which do not wait for each other */
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        uint16_t *to = end->out + 8 * i * p->out_stride[1];
        if (p->out_is_aligned) {
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 16; ++n) {
                const uint2 four = four_columns(o, end->factor[i], i, n);
                add_nothing(four.x, &sums[i][0]), add_nothing(four.y, &sums[i][1]);
                if (16 * n < end->columns[i]) *(uint2 *)(to + 16 * n) = four;
            }
        } else {
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 16; ++n) {
                const uint2 four = four_columns(o, end->factor[i], i, n);
                add_nothing(four.x, &sums[i][0]), add_nothing(four.y, &sums[i][1]);
                store_few(to + 16 * n, four, end->columns[i] - 16 * n);
            }
        }
    }
    if (!p->may_hide) return true;
    const uint32_t signs = 0x80008000; /* of zeros */
    const float nothing[4] = {(sums[0][0] | sums[0][1]) & ~signs ? 1.f : 0, 0, (sums[1][0] | sums[1][1]) & ~signs ? 1.f : 0,
                              0};
    return are_finite(t, first, nothing);
}

#endif
