/* SPDX-License-Identifier: BSD-3-Clause
 *
 * feature.h: what a problem asks for beyond sizes, as a set of features, a bit each, worked out once when the descriptor is
 * read. A kernel's record declares the set that it takes (kernel.h), the planner refuses all else: a feature that a kernel's
 * author never heard of is refused, it cannot be ignored.
 *
 * A new feature is one line of STROBE__FEATURES; a new field of the public structures is one line of core/fields.h, which
 * says what the field is, or nothing compiles. */
#ifndef STROBE_CORE_FEATURE_H
#define STROBE_CORE_FEATURE_H

#include <stdbool.h>
#include <stdint.h>

#include "strobe/strobe_mask_lists.h"

struct problem;

/* F(name, words for tables, the sentence with which a kernel without it refuses, whether problem p asks for it). */
#define STROBE__FEATURES(F)                                                                                                \
    F(GROUPS, "grouped heads (GQA, MQA)", "heads_kv is less than heads_q; as many are taken",                              \
      p->a.heads_kv != p->a.heads_q)                                                                                       \
    F(DIM_V, "dim_v other than dim", "dim_v is not dim; the same is taken", p->a.dim_v != p->a.dim)                        \
    F(CAUSAL_BOTTOM_RIGHT, "causal, bottom-right", "mask is STROBE_MASK_CAUSAL_BOTTOM_RIGHT; STROBE_MASK_NONE is taken",   \
      p->a.mask == STROBE_MASK_CAUSAL_BOTTOM_RIGHT)                                                                        \
    F(CAUSAL_TOP_LEFT, "causal, top-left", "mask is STROBE_MASK_CAUSAL_TOP_LEFT; STROBE_MASK_NONE is taken",               \
      p->a.mask == STROBE_MASK_CAUSAL_TOP_LEFT)                                                                            \
    F(WINDOW_BOTTOM_RIGHT, "sliding window, bottom-right",                                                                 \
      "mask is STROBE_MASK_WINDOW_BOTTOM_RIGHT; STROBE_MASK_NONE is taken", p->a.mask == STROBE_MASK_WINDOW_BOTTOM_RIGHT)  \
    F(WINDOW_TOP_LEFT, "sliding window, top-left", "mask is STROBE_MASK_WINDOW_TOP_LEFT; STROBE_MASK_NONE is taken",       \
      p->a.mask == STROBE_MASK_WINDOW_TOP_LEFT)                                                                            \
    F(STARTS, "q_start, k_start", "q_start or k_start is given; 0 is taken", p->a.q_start != 0 || p->a.k_start != 0)       \
    F(BOOL_MASK, "boolean mask", "bool_mask is given; NULL is taken", p->a.bool_mask)                                      \
    F(BLOCK_MASK, "block mask", "block_mask is given; NULL is taken", p->a.block_mask)                                     \
    F(NEGATIVE_SCALE, "negative scale", "scale is negative; a positive number is taken", p->a.scale < 0)                   \
    F(SOFTCAP, "softcap", "softcap is given; 0 (none) is taken", p->a.softcap > 0)                                         \
    F(BIAS, "additive bias, any broadcast", "bias is given; NULL is taken", p->a.bias)                                     \
    F(DBIAS, "gradient of the bias", "dbias is given; NULL is taken", p->g.dbias)                                          \
    F(ALIBI, "ALiBi", "alibi is given; NULL is taken", p->a.alibi)                                                         \
    F(SINKS, "attention sinks", "sinks are given; NULL is taken", p->a.sinks)                                              \
    F(DSINKS, "gradient of the sinks", "dsinks are given; NULL is taken", p->g.dsinks)                                     \
    F(SCORE, "score function", "score.function changes scores; NULL is taken",                                             \
      p->a.score && p->score_call.function->has_score)                                                                     \
    F(VISIBLE, "visible function", "score.function says who sees whom; NULL is taken",                                     \
      p->a.score && p->score_call.function->has_visible && !p->visible_is_band)                                            \
    F(DSCORE, "gradients of a score function's arrays", "dscore is given; NULL is taken", p->g.dscore)                     \
    F(DROPOUT, "dropout", "dropout is given; NULL is taken", p->a.dropout)                                                 \
    F(LSE, "lse written", "lse is given; NULL is taken", p->operation == STROBE_FORWARD && p->a.lse.data)                  \
    F(DLSE, "gradient through lse", "dlse is given; NULL is taken", p->g.dlse.data)                                        \
    F(DETERMINISTIC, "deterministic", "flags has STROBE_DETERMINISTIC; 0 is taken",                                        \
      p->operation == STROBE_BACKWARD && (p->a.flags & STROBE_DETERMINISTIC))                                              \
    F(PACKED_Q, "packed q (cu_seqlens_q)", "varlen.cu_seqlens_q is given; NULL is taken",                                  \
      p->a.varlen && p->varlen.cu_seqlens_q)                                                                               \
    F(PACKED_K, "packed k and v (cu_seqlens_k)", "varlen.cu_seqlens_k is given; NULL is taken",                            \
      p->a.varlen && p->varlen.cu_seqlens_k)                                                                               \
    F(USED_Q, "lengths of padded q (used_q)", "varlen.used_q is given; NULL is taken", p->a.varlen && p->varlen.used_q)    \
    F(USED_K, "lengths of padded k and v (used_k)", "varlen.used_k is given; NULL is taken",                               \
      p->a.varlen && p->varlen.used_k)                                                                                     \
    F(LEFTPAD_K, "left padding of k and v (leftpad_k)", "varlen.leftpad_k is given; NULL is taken",                        \
      p->a.varlen && p->varlen.leftpad_k)                                                                                  \
    F(INDEX64, "64-bit lengths", "varlen.index_bits is 64; 32 is taken", p->a.varlen && p->varlen.index_bits == 64)        \
    F(PAGED, "paged k and v", "paged K and V are given; contiguous or varlen K and V are taken", p->a.paged)               \
    F(SCALES, "scales of quantised tensors", "scales are given; NULL is taken", p->a.scales)                               \
    F(SCALES_Q, "scales of quantised q", "scales.q is given; NULL is taken", p->a.scales && p->scales.q)                   \
    F(SPLIT_KEYS, "split_keys", "tuning.split_keys is set; 0 is taken, keys are not split", p->tuning.split_keys != 0)     \
    F(KEY_SUMS, "dk and dv in fp32 beside dq in another dtype",                                                            \
      "dk and dv are fp32 and dq is not; one dtype for all is taken", strobe__gradients_differ(p) && strobe__sums_keys(p)) \
    F(GRADIENT_DTYPES, "dq, dk and dv of other differing dtypes",                                                          \
      "dq, dk and dv differ in dtype; one dtype for all, or fp32 for dk and dv alone, is taken",                           \
      strobe__gradients_differ(p) && !strobe__sums_keys(p))

/* The number of a feature's bit. */
#define FEATURE_ENUMERATOR(name, ...) BIT_##name,
enum feature_bit { STROBE__FEATURES(FEATURE_ENUMERATOR) FEATURE_COUNT };
#undef FEATURE_ENUMERATOR

typedef uint64_t feature_set;
#define FEATURE(name) ((feature_set)1 << BIT_##name)

/* Sets that records are made of. Each names its members: what is new belongs to none of them by itself. */
#define SHAPE_FEATURES (FEATURE(GROUPS) | FEATURE(DIM_V))
#define BAND_FEATURES                                                                                                    \
    (FEATURE(CAUSAL_BOTTOM_RIGHT) | FEATURE(CAUSAL_TOP_LEFT) | FEATURE(WINDOW_BOTTOM_RIGHT) | FEATURE(WINDOW_TOP_LEFT) | \
     FEATURE(STARTS))
#define MASK_FEATURES     (FEATURE(BOOL_MASK) | FEATURE(BLOCK_MASK))
#define SCORE_FEATURES    (FEATURE(NEGATIVE_SCALE) | FEATURE(SOFTCAP) | FEATURE(BIAS) | FEATURE(ALIBI))
#define FUNCTION_FEATURES (FEATURE(SCORE) | FEATURE(VISIBLE))
#define DTYPE_FEATURES    (FEATURE(KEY_SUMS) | FEATURE(GRADIENT_DTYPES))
#define VARLEN_FEATURES   (FEATURE(PACKED_Q) | FEATURE(PACKED_K) | FEATURE(USED_Q) | FEATURE(USED_K) | FEATURE(INDEX64))

/* What problem p asks for; its defaults are filled in. */
feature_set strobe__features_of(const struct problem *problem);

/* Of the feature with this bit: words for tables, and the sentence of a refusal. */
const char *strobe__feature_title(int bit);
const char *strobe__feature_refusal(int bit);

/* Sets of dtypes, a bit each; SAME is q's, whatever that is. */
enum dtype_bit {
    SAME = 1 << STROBE_DTYPE_DEFAULT,
    FP32 = 1 << STROBE_FP32,
    FP16 = 1 << STROBE_FP16,
    BF16 = 1 << STROBE_BF16,
    FP64 = 1 << STROBE_FP64,
    FP8 = 1 << STROBE_FP8_E4M3,
    INT8 = 1 << STROBE_INT8,
};

/* The dtypes of a problem's tensors, or those that a kernel takes; 0: there is none. */
struct dtypes {
    uint16_t q, kv, out, lse, bias, sinks; /* lse: dlse too; sinks: dsinks too */
    uint16_t dout, gradients, dbias;       /* gradients: dq, dk, dv */
};

struct dtypes strobe__dtypes_of(const struct problem *problem);

#endif
