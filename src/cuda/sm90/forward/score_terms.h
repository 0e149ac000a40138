/* SPDX-License-Identifier: BSD-3-Clause
 *
 * score_terms.h: what happens to scores between the products, in this order: scale, softcap, bias, ALiBi, mask; and
 * dropout to weights. Variants without TERMS have the band alone, and nothing at all for a block that every row sees whole;
 * those with TERMS 1 softcap and ALiBi, with TERMS 2 the rest too: code that only stands by costs 15 % there.
 *
 * Accumulator v of a thread belongs to row first + lane / 4 + 8 (v / 2 % 2) of the tile and to key 8 (v / 4) + 2 (lane % 4)
 * + v % 2 of the block. */
#ifndef STROBE_CUDA_SM90_FORWARD_TERMS_H
#define STROBE_CUDA_SM90_FORWARD_TERMS_H

#include "cuda/ptx/memory.h"
#include "cuda/sm90/forward/element.h"
#include "cuda/sm90/forward/params.h"
#include "cuda/sm90/forward/tile.h"
#include "math/exp2.h"

/* softcap tanh(s scale / softcap), by tanh x = 1 - 2 / (1 + e^2x): its absolute error is that of fp32, which is what counts
 * in an exponent. */
static __device__ __forceinline__ void cap(const struct sm90_forward_params *p, float (&s)[KEYS / 2]) {
    const float c = 2 * (float)LOG2_E * p->scale / p->softcap;
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v) s[v] = fmaf(-2 * p->softcap, reciprocal(1 + ex2(s[v] * c)), p->softcap);
}

static __device__ __forceinline__ void add_alibi(const struct sm90_forward_params *p, const struct tile *t,
                                                 float (&s)[KEYS / 2], int first, int key) {
    const int lane = threadIdx.x % 32;
    const float slope = p->alibi[t->batch * p->alibi_stride + t->head];
    const int distance = t->row + first + lane / 4 + p->start + t->keys - t->rows - key - 2 * (lane % 4);
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v) s[v] -= slope * fabsf((float)(distance + 8 * (v / 2 % 2) - 8 * (v / 4) - v % 2));
}

static __device__ __forceinline__ float bias_at(const void *bias, int dtype, int64_t at) {
    if (dtype == CUDA_FP32) return ((const float *)bias)[at];
    const uint16_t bits = ((const uint16_t *)bias)[at];
    return dtype == CUDA_BF16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

/* Bias and boolean mask are read for keys that the band shows: others may lie outside of their tensors. `low` and `high`
 * bound these for a row, `at` is the row's first element for this block, from the thread's first column on. */
struct shown {
    int low, high;
    int64_t at;
};

static __device__ __forceinline__ struct shown shown_of(const struct tile *t, const struct view *x, int row, int origin) {
    const struct shown shown = {first_key_of(t, row) - origin, row < t->rows ? end_key_of(t, row) - origin : 0,
                                t->batch * x->batch + t->head * x->head + row * x->row + origin};
    return shown;
}

#define SHOWS(shown, column) ((column) >= (shown).low && (column) < (shown).high)

/* fp32, or the element type. */
static __device__ __forceinline__ float bias_at(const struct view *bias, int64_t at) {
    return bias->dtype == CUDA_FP32 ? ((const float *)bias->data)[at] : unpack16(((const uint16_t *)bias->data)[at]);
}

/* A bias of -inf hides its key, and a NaN of its K. */
static __device__ __forceinline__ float biased(float score, float bias) {
    return bias == -INFINITY ? -INFINITY : score + bias;
}

/* For a block that all rows of the warp see whole, of an aligned tensor: the thread's two columns of each eight at once. */
static __device__ __forceinline__ void add_whole_bias(const struct sm90_forward_params *p, const struct tile *t,
                                                      float (&s)[KEYS / 2], int row, int origin, int i) {
    const int64_t at = t->batch * p->bias.batch + t->head * p->bias.head + row * p->bias.row + origin;
    if (p->bias.dtype == CUDA_FP32) {
        const float2 *bias = (const float2 *)((const float *)p->bias.data + at);
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n) {
            const float2 two = bias[4 * n];
            s[4 * n + 2 * i] = biased(s[4 * n + 2 * i], two.x), s[4 * n + 2 * i + 1] = biased(s[4 * n + 2 * i + 1], two.y);
        }
    } else {
        const uint32_t *bias = (const uint32_t *)((const uint16_t *)p->bias.data + at);
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n) {
            const uint32_t two = bias[4 * n];
            s[4 * n + 2 * i] = biased(s[4 * n + 2 * i], unpack16((uint16_t)two));
            s[4 * n + 2 * i + 1] = biased(s[4 * n + 2 * i + 1], unpack16((uint16_t)(two >> 16)));
        }
    }
}

static __device__ __forceinline__ void add_bias(const struct sm90_forward_params *p, const struct tile *t,
                                                float (&s)[KEYS / 2], int row, int origin, int i) {
    const struct shown shown = shown_of(t, &p->bias, row, origin);
    if (p->bias.dtype == CUDA_FP32) {
        const float *bias = (const float *)p->bias.data + shown.at;
#pragma unroll
        for (int v = 2 * i; v < KEYS / 2; v += v % 2 ? 3 : 1) {
            const int column = 8 * (v / 4) + v % 2;
            s[v] = biased(s[v], SHOWS(shown, column) ? bias[column] : 0);
        }
    } else {
        const uint16_t *bias = (const uint16_t *)p->bias.data + shown.at;
#pragma unroll
        for (int v = 2 * i; v < KEYS / 2; v += v % 2 ? 3 : 1) {
            const int column = 8 * (v / 4) + v % 2;
            s[v] = biased(s[v], unpack16(SHOWS(shown, column) ? bias[column] : 0));
        }
    }
}

static __device__ __forceinline__ void hide_masked(const struct sm90_forward_params *p, const struct tile *t,
                                                   float (&s)[KEYS / 2], int row, int origin, int i) {
    const struct shown shown = shown_of(t, &p->mask, row, origin);
    const uint8_t *mask = (const uint8_t *)p->mask.data + shown.at;
#pragma unroll
    for (int v = 2 * i; v < KEYS / 2; v += v % 2 ? 3 : 1) {
        const int column = 8 * (v / 4) + v % 2;
        const uint8_t seen = SHOWS(shown, column) ? mask[column] : 1;
        s[v] = seen ? s[v] : -INFINITY;
    }
}

/* Of four bytes, which are not zero: four bits. */
static __device__ __forceinline__ uint32_t nonzero_bytes(uint32_t x) {
    const uint32_t high = (((x & 0x7f7f7f7f) + 0x7f7f7f7f) | x) & 0x80808080;
    return (high >> 7) * 0x01020408 >> 24;
}

/* For a block that all rows of the warp see whole, of an aligned mask: of each 64 bytes a lane of the quad reads sixteen,
 * and tells the others which are not zero. */
static __device__ __forceinline__ void hide_whole_masked(const struct sm90_forward_params *p, const struct tile *t,
                                                         float (&s)[KEYS / 2], int row, int key, int i) {
    const int quad_lane = threadIdx.x % 4;
    const uint4 *mask = (const uint4 *)((const uint8_t *)p->mask.data + t->batch * p->mask.batch + t->head * p->mask.head +
                                        row * p->mask.row + key);
#pragma unroll
    for (int m = 0; m < KEYS / 64; ++m) {
        const uint4 own = mask[4 * m + quad_lane];
        const uint32_t bits = nonzero_bytes(own.x) | nonzero_bytes(own.y) << 4 | nonzero_bytes(own.z) << 8 |
                              nonzero_bytes(own.w) << 12;
        const uint32_t other = __shfl_xor_sync(0xffffffffu, bits, 1);
        const uint32_t half = quad_lane % 2 ? other | bits << 16 : bits | other << 16;
        const uint32_t other_half = __shfl_xor_sync(0xffffffffu, half, 2);
        const uint32_t seen[2] = {(quad_lane < 2 ? half : other_half) >> 2 * quad_lane,
                                  (quad_lane < 2 ? other_half : half) >> 2 * quad_lane};
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            float *score = &s[32 * m + 4 * n + 2 * i];
            score[0] = seen[n / 4] >> 8 * (n % 4) & 1 ? score[0] : -INFINITY;
            score[1] = seen[n / 4] >> (8 * (n % 4) + 1) & 1 ? score[1] : -INFINITY;
        }
    }
}

/* Blocks of keys are whole eights: the thread's two columns of each eight share one. */
static __device__ __forceinline__ void hide_blocks(const struct sm90_forward_params *p, const struct tile *t,
                                                   float (&s)[KEYS / 2], int row, int key, int i) {
    const int inside = row < t->rows ? row : t->rows - 1;
    const uint8_t *mask = (const uint8_t *)p->blocks.data + t->batch * p->blocks.batch + t->head * p->blocks.head +
                          inside / p->block_q * p->blocks.row;
    int block = key / p->block_k, left = p->block_k - key % p->block_k;
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n) {
        const bool seen = key + 8 * n >= t->keys || mask[block];
        s[4 * n + 2 * i] = seen ? s[4 * n + 2 * i] : -INFINITY;
        s[4 * n + 2 * i + 1] = seen ? s[4 * n + 2 * i + 1] : -INFINITY;
        left -= 8;
        if (left == 0) ++block, left = p->block_k;
    }
}

/* The warp's sixteen rows of a block, from key `key` on, are sent for, half a row a lane: the block comes next. */
static __device__ __forceinline__ void prefetch_scores(const struct view *x, int bytes, const struct tile *t, int first,
                                                       int key) {
    const int lane = threadIdx.x % 32, row = t->row + first + lane / 2, half = KEYS / 2 * bytes;
    if (row >= t->rows || key < 0) return;
    const char *line = (const char *)x->data + (t->batch * x->batch + t->head * x->head + row * x->row + key) * bytes +
                       lane % 2 * half;
    for (int at = 0; at < half; at += 128) prefetch_line(line + at);
}

static __device__ __forceinline__ void add_tensors(const struct sm90_forward_params *p, const struct tile *t,
                                                   struct keys shown, float (&s)[KEYS / 2], int first, int key) {
    const int lane = threadIdx.x % 32, origin = key + 2 * (lane % 4);
    const bool whole = key + KEYS <= shown.end && key >= shown.begin && t->row + first + 16 <= t->rows;
    if (p->bias.data) prefetch_scores(&p->bias, p->bias.dtype == CUDA_FP32 ? 4 : 2, t, first, key - KEYS);
    if (p->mask.data) prefetch_scores(&p->mask, 1, t, first, key - KEYS);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = t->row + first + lane / 4 + 8 * i;
        if (p->bias.data && whole && p->bias.aligned)
            add_whole_bias(p, t, s, row, origin, i);
        else if (p->bias.data)
            add_bias(p, t, s, row, origin, i);
        if (p->mask.data && whole && p->mask.aligned)
            hide_whole_masked(p, t, s, row, key, i);
        else if (p->mask.data)
            hide_masked(p, t, s, row, origin, i);
        if (p->blocks.data) hide_blocks(p, t, s, row, key, i);
    }
}

/* Between the products. */
static __device__ __forceinline__ void finish_scores(const struct sm90_forward_params *p, const struct tile *t,
                                                     struct keys shown, float (&s)[KEYS / 2], int first, int key) {
    if (TERMS && p->softcap > 0) {
        cap(p, s);
    } else if (TERMS) {
#pragma unroll
        for (int v = 0; v < KEYS / 2; ++v) s[v] *= p->scale;
    }
    if (TERMS == 2) add_tensors(p, t, shown, s, first, key);
    if (TERMS && p->alibi) add_alibi(p, t, s, first, key);
    hide(t, shown, s, first, key);
}

/* Two bits for each eight keys: which of the thread's weights in row i of its two are kept. One call of Philox serves four
 * keys of a row, a thread has two of them: of two neighbours each makes one row's words for both. */
static __device__ __forceinline__ void kept_bits(const struct sm90_forward_params *p, const struct tile *t, int first,
                                                 int key, uint32_t (&kept)[2]) {
    const int lane = threadIdx.x % 32, odd = lane % 2;
    const uint64_t row = dropout_row(&p->place, t->batch, t->head, t->row + first + lane / 4 + 8 * odd);
    const uint64_t quad = row + (uint64_t)(p->place.key_start + key + 4 * (lane % 4 / 2)) / 4;
    uint32_t own = 0, other = 0;
#pragma unroll 4 /* calls that do not wait for each other */
    for (int n = 0; n < KEYS / 8; ++n) {
        const struct philox_words words = philox4x32_10(p->place.seed, p->place.offset, quad + 2 * n);
        const uint32_t low = (words.word[0] >= p->place.threshold) | (uint32_t)(words.word[1] >= p->place.threshold) << 1;
        const uint32_t high = (words.word[2] >= p->place.threshold) | (uint32_t)(words.word[3] >= p->place.threshold) << 1;
        own |= (odd ? high : low) << (2 * n), other |= (odd ? low : high) << (2 * n);
    }
    other = __shfl_xor_sync(0xffffffffu, other, 1);
    kept[0] = odd ? other : own, kept[1] = odd ? own : other;
}

/* Dropout; the factor 1 / (1 - p) is part of the last division, and l is the sum without it. */
static __device__ __forceinline__ void drop(const struct sm90_forward_params *p, const struct tile *t, float (&s)[KEYS / 2],
                                            int first, int key) {
    uint32_t kept[2];
    kept_bits(p, t, first, key, kept);
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v) s[v] = kept[v / 2 % 2] >> (2 * (v / 4) + v % 2) & 1 ? s[v] : 0;
}

#endif
