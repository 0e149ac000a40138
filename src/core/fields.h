/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fields.h: every field of the structures with which a caller describes a problem, and what it is to the planner. A field
 * that is appended to one of them and has no line here does not compile (feature.c), so that nobody adds one without
 * deciding whether it is a feature, which kernels must have declared to be given it. tests/unit/test_features.c sets each
 * field and looks whether the feature that stands here is found. */
#ifndef STROBE_CORE_FIELDS_H
#define STROBE_CORE_FIELDS_H

#include "core/feature.h"

/* What a field is: the number of a feature's bit, ASKS(name), or one of these. */
enum field_role {
    IS_VERSION = 64, /* struct_size */
    IS_RESERVED,     /* zero, or refused */
    IS_SIZE,         /* extents, strides, totals: every kernel reads them; the bounds of one are in its record */
    IS_DATA,         /* where elements are */
    IS_TENSOR,       /* a strobe_tensor */
    IS_DTYPE,        /* the dtypes that a kernel takes are in its record */
    IS_DETAIL,       /* says how a feature is meant that another field asks for: who has the feature reads it */
    IS_ATTACHED,     /* leads to a structure whose own fields are features or none */
    IS_PLACE,        /* which device, which kernel, whose threads: no part of what is computed */
    IS_AROUND,       /* the library does it around any kernel: core/accumulate.h */
    IS_HELP,         /* what was worked out before, of what other fields say: a kernel may do without it */
};
#define ASKS(name) (int)BIT_##name

#define FIELDS_strobe_tensor(F)       \
    F(strobe_tensor, data, IS_DATA)   \
    F(strobe_tensor, stride, IS_SIZE) \
    F(strobe_tensor, dtype, IS_DTYPE) \
    F(strobe_tensor, reserved, IS_RESERVED)

#define FIELDS_strobe_varlen(F)                    \
    F(strobe_varlen, struct_size, IS_VERSION)      \
    F(strobe_varlen, cu_seqlens_q, ASKS(PACKED_Q)) \
    F(strobe_varlen, cu_seqlens_k, ASKS(PACKED_K)) \
    F(strobe_varlen, used_q, ASKS(USED_Q))         \
    F(strobe_varlen, used_k, ASKS(USED_K))         \
    F(strobe_varlen, total_q, IS_SIZE)             \
    F(strobe_varlen, total_k, IS_SIZE)             \
    F(strobe_varlen, index_bits, ASKS(INDEX64))    \
    F(strobe_varlen, reserved, IS_RESERVED)        \
    F(strobe_varlen, leftpad_k, ASKS(LEFTPAD_K))

#define FIELDS_strobe_paged(F)               \
    F(strobe_paged, struct_size, IS_VERSION) \
    F(strobe_paged, page_table, IS_DETAIL)   \
    F(strobe_paged, table_stride, IS_DETAIL) \
    F(strobe_paged, page_size, IS_DETAIL)    \
    F(strobe_paged, pages, IS_DETAIL)

#define FIELDS_strobe_bias(F)               \
    F(strobe_bias, struct_size, IS_VERSION) \
    F(strobe_bias, data, IS_DATA)           \
    F(strobe_bias, stride, IS_SIZE)         \
    F(strobe_bias, dtype, IS_DTYPE)         \
    F(strobe_bias, reserved, IS_RESERVED)

#define FIELDS_strobe_bool_mask(F)               \
    F(strobe_bool_mask, struct_size, IS_VERSION) \
    F(strobe_bool_mask, data, IS_DATA)           \
    F(strobe_bool_mask, stride, IS_SIZE)

#define FIELDS_strobe_block_mask(F)               \
    F(strobe_block_mask, struct_size, IS_VERSION) \
    F(strobe_block_mask, data, IS_DATA)           \
    F(strobe_block_mask, block_q, IS_DETAIL)      \
    F(strobe_block_mask, block_k, IS_DETAIL)      \
    F(strobe_block_mask, stride, IS_SIZE)

#define FIELDS_strobe_alibi(F)               \
    F(strobe_alibi, struct_size, IS_VERSION) \
    F(strobe_alibi, slopes, IS_DATA)         \
    F(strobe_alibi, stride_batch, IS_SIZE)

#define FIELDS_strobe_sinks(F)               \
    F(strobe_sinks, struct_size, IS_VERSION) \
    F(strobe_sinks, data, IS_DATA)           \
    F(strobe_sinks, dtype, IS_DTYPE)         \
    F(strobe_sinks, reserved, IS_RESERVED)

#define FIELDS_strobe_dropout(F)               \
    F(strobe_dropout, struct_size, IS_VERSION) \
    F(strobe_dropout, p, ASKS(DROPOUT))        \
    F(strobe_dropout, seed, IS_DETAIL)         \
    F(strobe_dropout, offset, IS_DETAIL)       \
    F(strobe_dropout, heads, IS_DETAIL)        \
    F(strobe_dropout, rows, IS_DETAIL)         \
    F(strobe_dropout, keys, IS_DETAIL)         \
    F(strobe_dropout, batch_start, IS_DETAIL)  \
    F(strobe_dropout, head_start, IS_DETAIL)   \
    F(strobe_dropout, row_start, IS_DETAIL)    \
    F(strobe_dropout, key_start, IS_DETAIL)

#define FIELDS_strobe_scales(F)               \
    F(strobe_scales, struct_size, IS_VERSION) \
    F(strobe_scales, q, ASKS(SCALES_Q))       \
    F(strobe_scales, k, IS_DATA)              \
    F(strobe_scales, v, IS_DATA)              \
    F(strobe_scales, stride_q, IS_SIZE)       \
    F(strobe_scales, stride_k, IS_SIZE)       \
    F(strobe_scales, stride_v, IS_SIZE)       \
    F(strobe_scales, block_q, IS_DETAIL)      \
    F(strobe_scales, block_k, IS_DETAIL)

#define FIELDS_strobe_parallel(F)               \
    F(strobe_parallel, struct_size, IS_VERSION) \
    F(strobe_parallel, threads, IS_PLACE)       \
    F(strobe_parallel, reserved, IS_RESERVED)   \
    F(strobe_parallel, run, IS_PLACE)           \
    F(strobe_parallel, self, IS_PLACE)

#define FIELDS_strobe_tuning(F)               \
    F(strobe_tuning, struct_size, IS_VERSION) \
    F(strobe_tuning, kernel, IS_PLACE)        \
    F(strobe_tuning, split_keys, ASKS(SPLIT_KEYS))

#define FIELDS_strobe_score_arguments(F)               \
    F(strobe_score_arguments, struct_size, IS_VERSION) \
    F(strobe_score_arguments, function, ASKS(SCORE))   \
    F(strobe_score_arguments, scalars, IS_DETAIL)      \
    F(strobe_score_arguments, arrays, IS_DETAIL)       \
    F(strobe_score_arguments, scalar_count, IS_DETAIL) \
    F(strobe_score_arguments, array_count, IS_DETAIL)

#define FIELDS_strobe_score_gradients(F)               \
    F(strobe_score_gradients, struct_size, IS_VERSION) \
    F(strobe_score_gradients, arrays, IS_DATA)         \
    F(strobe_score_gradients, array_count, IS_DETAIL)  \
    F(strobe_score_gradients, reserved, IS_RESERVED)

#define FIELDS_strobe_mask_lists(F)               \
    F(strobe_mask_lists, struct_size, IS_VERSION) \
    F(strobe_mask_lists, data, IS_HELP)           \
    F(strobe_mask_lists, bytes, IS_HELP)          \
    F(strobe_mask_lists, uses, IS_HELP)           \
    F(strobe_mask_lists, made, IS_HELP)           \
    F(strobe_mask_lists, device, IS_HELP)         \
    F(strobe_mask_lists, device_index, IS_HELP)   \
    F(strobe_mask_lists, batch, IS_HELP)          \
    F(strobe_mask_lists, heads_q, IS_HELP)        \
    F(strobe_mask_lists, seq_q, IS_HELP)          \
    F(strobe_mask_lists, seq_k, IS_HELP)          \
    F(strobe_mask_lists, block_q, IS_HELP)        \
    F(strobe_mask_lists, block_k, IS_HELP)        \
    F(strobe_mask_lists, axes, IS_HELP)           \
    F(strobe_mask_lists, reserved, IS_RESERVED)

#define FIELDS_strobe_attention(F)                    \
    F(strobe_attention, struct_size, IS_VERSION)      \
    F(strobe_attention, batch, IS_SIZE)               \
    F(strobe_attention, seq_q, IS_SIZE)               \
    F(strobe_attention, seq_k, IS_SIZE)               \
    F(strobe_attention, heads_q, IS_SIZE)             \
    F(strobe_attention, heads_kv, ASKS(GROUPS))       \
    F(strobe_attention, dim, IS_SIZE)                 \
    F(strobe_attention, dim_v, ASKS(DIM_V))           \
    F(strobe_attention, q, IS_TENSOR)                 \
    F(strobe_attention, k, IS_TENSOR)                 \
    F(strobe_attention, v, IS_TENSOR)                 \
    F(strobe_attention, out, IS_TENSOR)               \
    F(strobe_attention, lse, ASKS(LSE))               \
    F(strobe_attention, dtype, IS_DTYPE)              \
    F(strobe_attention, device, IS_PLACE)             \
    F(strobe_attention, device_index, IS_PLACE)       \
    F(strobe_attention, mask, ASKS(CAUSAL_TOP_LEFT))  \
    F(strobe_attention, flags, ASKS(DETERMINISTIC))   \
    F(strobe_attention, scale, ASKS(NEGATIVE_SCALE))  \
    F(strobe_attention, softcap, ASKS(SOFTCAP))       \
    F(strobe_attention, window_left, IS_DETAIL)       \
    F(strobe_attention, window_right, IS_DETAIL)      \
    F(strobe_attention, q_start, ASKS(STARTS))        \
    F(strobe_attention, k_start, ASKS(STARTS))        \
    F(strobe_attention, varlen, IS_ATTACHED)          \
    F(strobe_attention, paged, ASKS(PAGED))           \
    F(strobe_attention, bias, ASKS(BIAS))             \
    F(strobe_attention, bool_mask, ASKS(BOOL_MASK))   \
    F(strobe_attention, block_mask, ASKS(BLOCK_MASK)) \
    F(strobe_attention, alibi, ASKS(ALIBI))           \
    F(strobe_attention, sinks, ASKS(SINKS))           \
    F(strobe_attention, dropout, IS_ATTACHED)         \
    F(strobe_attention, scales, ASKS(SCALES))         \
    F(strobe_attention, parallel, IS_ATTACHED)        \
    F(strobe_attention, tuning, IS_ATTACHED)          \
    F(strobe_attention, score, IS_ATTACHED)           \
    F(strobe_attention, mask_lists, IS_ATTACHED)

#define FIELDS_strobe_gradients(F)               \
    F(strobe_gradients, struct_size, IS_VERSION) \
    F(strobe_gradients, dout, IS_TENSOR)         \
    F(strobe_gradients, dlse, ASKS(DLSE))        \
    F(strobe_gradients, dq, IS_TENSOR)           \
    F(strobe_gradients, dk, IS_TENSOR)           \
    F(strobe_gradients, dv, IS_TENSOR)           \
    F(strobe_gradients, dbias, ASKS(DBIAS))      \
    F(strobe_gradients, dsinks, ASKS(DSINKS))    \
    F(strobe_gradients, dscore, ASKS(DSCORE))    \
    F(strobe_gradients, accumulate, IS_AROUND)   \
    F(strobe_gradients, reserved, IS_RESERVED)

#endif
