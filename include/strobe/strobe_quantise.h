/* SPDX-License-Identifier: BSD-3-Clause
 *
 * strobe_quantise.h: quantisation of q, k and v before attention, to FP8 (e4m3) or int8 with scales, and what may be done on
 * the way: rotary embedding, incoherent processing (random signs and a Hadamard transform), subtraction of K's mean. */
#ifndef STROBE_QUANTISE_H
#define STROBE_QUANTISE_H

#include "strobe/strobe.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rotary position embedding. cos, sin: fp32 [positions][dim / 2], contiguous. Row i of a sequence of q stands at position
 * q_start + i and key j at k_start + j, all of them in [0, positions). Column c < dim / 2 is turned with column c + dim / 2;
 * interleaved: column 2 c with 2 c + 1. Without tables pair c is turned by the angle position * base^(-2 c / dim), of any
 * position, to 2e-7 in its cosine and sine whatever the position, with the same bits everywhere; on the CPU. */
typedef struct strobe_rotary {
    size_t struct_size;
    const float *cos, *sin;
    int64_t positions;
    int64_t dim; /* columns that are turned, the first ones, an even number; default: all */
    int32_t interleaved;
    int32_t reserved;
    double base; /* without tables, which are NULL and positions 0: at least 1, such as 10000; with tables 0 */
} strobe_rotary;

/* What strobe_quantise reads, and what it does on the way, in this order: rotary embedding of q and k, subtraction of K's
 * mean, random signs and a Hadamard transform of q and k. */
typedef struct strobe_quantiser {
    size_t struct_size;
    strobe_tensor q, k, v; /* read; fp32, fp16 or bf16; data NULL: this tensor and its scales are left as they are */
    int32_t dtype;         /* default dtype of the three; default fp32 */
    int32_t hadamard;      /* STROBE_HADAMARD: incoherent processing of q and of k, which scores do not feel */
    uint64_t seed;         /* of the signs: the same for q and for k, also where they are quantised by two calls */
    const strobe_rotary *rotary;
    float *k_mean;           /* NULL: not subtracted; [batch][heads_kv][dim]: written with k, read without */
    strobe_tensor lse_shift; /* written with q unless data is NULL: [batch, heads_q, seq_q] as lse, fp32, see below */
} strobe_quantiser;

enum { STROBE_HADAMARD = 1 };

/* Quantises q, k and v. attention describes what is written, as strobe_forward will read it: q, k, v of dtype e4m3 or int8
 * and their scales, which are written here although the structure points to const floats. Sizes, strides, varlen, starts and
 * device are its own; of the rest nothing is read. A scale is the largest magnitude of its rows, and at least 2^-40, over
 * 448, for int8 over 127; a sequence without rows has the least one, and a mean of 0. Blocks of 1 to 128 rows that divide
 * 128 take one pass over the data, others two. What is not finite becomes e4m3's NaN, and for int8 makes its scale a NaN.
 * The CPU and a GPU store the same bytes. It takes head dims up to 256 with a Hadamard transform and on a GPU, up to 576
 * otherwise.
 * Subtracting K's mean over its sequence (k_mean) takes the same number from all scores of a row, and so leaves out as it
 * is, unless there are softcap or sinks; lse becomes lower by lse_shift = scale q . mean, which the caller adds to it.
 *     strobe_scales s = {.struct_size = sizeof s};                   // a scale for each block of 128 rows and head
 *     s.q = qs, s.k = ks, s.v = vs, s.block_q = s.block_k = 128;     // with strides as in strobe_scales
 *     a.dtype = STROBE_FP8_E4M3, a.q.data = q8, a.k.data = k8, a.v.data = v8, a.scales = &s;
 *     strobe_quantiser z = {.struct_size = sizeof z, .dtype = STROBE_BF16, .hadamard = STROBE_HADAMARD};
 *     z.q.data = q, z.k.data = k, z.v.data = v;
 *     if (strobe_quantise(&a, &z, stream) == STROBE_OK) strobe_forward(&a, work, bytes, stream);
 * Returns INVALID_ARGUMENT, UNSUPPORTED, DEVICE_ERROR. */
STROBE_API strobe_status strobe_quantise(const strobe_attention *attention, const strobe_quantiser *quantiser, void *stream);

#ifdef __cplusplus
}
#endif

#endif
