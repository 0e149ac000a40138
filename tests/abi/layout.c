/* SPDX-License-Identifier: BSD-3-Clause
 *
 * layout.c: the layout of every public structure on LP64, pinned. Compiling is the test. Fields are only ever appended, so a
 * line of this file never changes, but for the size of a structure with struct_size, which grows: GROWS has the present one,
 * so that no field is forgotten here. FIXED: one that stands inside others and may not. make_layout.py writes the file. */
#include "strobe/strobe_append.h"
#include "strobe/strobe_dist.h"
#include "strobe/strobe_mask_lists.h"
#include "strobe/strobe_quantise.h"
#include "strobe/strobe_score.h"

#define GROWS(type, bytes)                _Static_assert(sizeof(type) == (bytes), #type " has another size than here")
#define FIXED(type, bytes)                _Static_assert(sizeof(type) == (bytes), #type " has another size")
#define HERE(type, field, offset, bytes)  (offsetof(type, field) == (offset) && sizeof(((type *)0)->field) == (bytes))
#define FIELD(type, field, offset, bytes) _Static_assert(HERE(type, field, offset, bytes), #type "." #field " has moved")
#define VALUE(name, value)                _Static_assert((name) == (value), #name " has another value")

#if defined(__LP64__)

FIXED(strobe_tensor, 40);
FIELD(strobe_tensor, data, 0, 8);
FIELD(strobe_tensor, stride, 8, 24);
FIELD(strobe_tensor, dtype, 32, 4);
FIELD(strobe_tensor, reserved, 36, 4);

GROWS(strobe_varlen, 72);
FIELD(strobe_varlen, struct_size, 0, 8);
FIELD(strobe_varlen, cu_seqlens_q, 8, 8);
FIELD(strobe_varlen, cu_seqlens_k, 16, 8);
FIELD(strobe_varlen, used_q, 24, 8);
FIELD(strobe_varlen, used_k, 32, 8);
FIELD(strobe_varlen, total_q, 40, 8);
FIELD(strobe_varlen, total_k, 48, 8);
FIELD(strobe_varlen, index_bits, 56, 4);
FIELD(strobe_varlen, reserved, 60, 4);
FIELD(strobe_varlen, leftpad_k, 64, 8);

GROWS(strobe_paged, 40);
FIELD(strobe_paged, struct_size, 0, 8);
FIELD(strobe_paged, page_table, 8, 8);
FIELD(strobe_paged, table_stride, 16, 8);
FIELD(strobe_paged, page_size, 24, 8);
FIELD(strobe_paged, pages, 32, 8);

GROWS(strobe_bias, 48);
FIELD(strobe_bias, struct_size, 0, 8);
FIELD(strobe_bias, data, 8, 8);
FIELD(strobe_bias, stride, 16, 24);
FIELD(strobe_bias, dtype, 40, 4);
FIELD(strobe_bias, reserved, 44, 4);

GROWS(strobe_bool_mask, 40);
FIELD(strobe_bool_mask, struct_size, 0, 8);
FIELD(strobe_bool_mask, data, 8, 8);
FIELD(strobe_bool_mask, stride, 16, 24);

GROWS(strobe_block_mask, 56);
FIELD(strobe_block_mask, struct_size, 0, 8);
FIELD(strobe_block_mask, data, 8, 8);
FIELD(strobe_block_mask, block_q, 16, 8);
FIELD(strobe_block_mask, block_k, 24, 8);
FIELD(strobe_block_mask, stride, 32, 24);

GROWS(strobe_alibi, 24);
FIELD(strobe_alibi, struct_size, 0, 8);
FIELD(strobe_alibi, slopes, 8, 8);
FIELD(strobe_alibi, stride_batch, 16, 8);

GROWS(strobe_sinks, 24);
FIELD(strobe_sinks, struct_size, 0, 8);
FIELD(strobe_sinks, data, 8, 8);
FIELD(strobe_sinks, dtype, 16, 4);
FIELD(strobe_sinks, reserved, 20, 4);

GROWS(strobe_dropout, 88);
FIELD(strobe_dropout, struct_size, 0, 8);
FIELD(strobe_dropout, p, 8, 8);
FIELD(strobe_dropout, seed, 16, 8);
FIELD(strobe_dropout, offset, 24, 8);
FIELD(strobe_dropout, heads, 32, 8);
FIELD(strobe_dropout, rows, 40, 8);
FIELD(strobe_dropout, keys, 48, 8);
FIELD(strobe_dropout, batch_start, 56, 8);
FIELD(strobe_dropout, head_start, 64, 8);
FIELD(strobe_dropout, row_start, 72, 8);
FIELD(strobe_dropout, key_start, 80, 8);

GROWS(strobe_scales, 120);
FIELD(strobe_scales, struct_size, 0, 8);
FIELD(strobe_scales, q, 8, 8);
FIELD(strobe_scales, k, 16, 8);
FIELD(strobe_scales, v, 24, 8);
FIELD(strobe_scales, stride_q, 32, 24);
FIELD(strobe_scales, stride_k, 56, 24);
FIELD(strobe_scales, stride_v, 80, 24);
FIELD(strobe_scales, block_q, 104, 8);
FIELD(strobe_scales, block_k, 112, 8);

GROWS(strobe_parallel, 32);
FIELD(strobe_parallel, struct_size, 0, 8);
FIELD(strobe_parallel, threads, 8, 4);
FIELD(strobe_parallel, reserved, 12, 4);
FIELD(strobe_parallel, run, 16, 8);
FIELD(strobe_parallel, self, 24, 8);

GROWS(strobe_tuning, 24);
FIELD(strobe_tuning, struct_size, 0, 8);
FIELD(strobe_tuning, kernel, 8, 8);
FIELD(strobe_tuning, split_keys, 16, 8);

GROWS(strobe_attention, 440);
FIELD(strobe_attention, struct_size, 0, 8);
FIELD(strobe_attention, batch, 8, 8);
FIELD(strobe_attention, seq_q, 16, 8);
FIELD(strobe_attention, seq_k, 24, 8);
FIELD(strobe_attention, heads_q, 32, 8);
FIELD(strobe_attention, heads_kv, 40, 8);
FIELD(strobe_attention, dim, 48, 8);
FIELD(strobe_attention, dim_v, 56, 8);
FIELD(strobe_attention, q, 64, 40);
FIELD(strobe_attention, k, 104, 40);
FIELD(strobe_attention, v, 144, 40);
FIELD(strobe_attention, out, 184, 40);
FIELD(strobe_attention, lse, 224, 40);
FIELD(strobe_attention, dtype, 264, 4);
FIELD(strobe_attention, device, 268, 4);
FIELD(strobe_attention, device_index, 272, 4);
FIELD(strobe_attention, mask, 276, 4);
FIELD(strobe_attention, flags, 280, 8);
FIELD(strobe_attention, scale, 288, 8);
FIELD(strobe_attention, softcap, 296, 8);
FIELD(strobe_attention, window_left, 304, 8);
FIELD(strobe_attention, window_right, 312, 8);
FIELD(strobe_attention, q_start, 320, 8);
FIELD(strobe_attention, k_start, 328, 8);
FIELD(strobe_attention, varlen, 336, 8);
FIELD(strobe_attention, paged, 344, 8);
FIELD(strobe_attention, bias, 352, 8);
FIELD(strobe_attention, bool_mask, 360, 8);
FIELD(strobe_attention, block_mask, 368, 8);
FIELD(strobe_attention, alibi, 376, 8);
FIELD(strobe_attention, sinks, 384, 8);
FIELD(strobe_attention, dropout, 392, 8);
FIELD(strobe_attention, scales, 400, 8);
FIELD(strobe_attention, parallel, 408, 8);
FIELD(strobe_attention, tuning, 416, 8);
FIELD(strobe_attention, score, 424, 8);
FIELD(strobe_attention, mask_lists, 432, 8);

GROWS(strobe_gradients, 240);
FIELD(strobe_gradients, struct_size, 0, 8);
FIELD(strobe_gradients, dout, 8, 40);
FIELD(strobe_gradients, dlse, 48, 40);
FIELD(strobe_gradients, dq, 88, 40);
FIELD(strobe_gradients, dk, 128, 40);
FIELD(strobe_gradients, dv, 168, 40);
FIELD(strobe_gradients, dbias, 208, 8);
FIELD(strobe_gradients, dsinks, 216, 8);
FIELD(strobe_gradients, dscore, 224, 8);
FIELD(strobe_gradients, accumulate, 232, 4);
FIELD(strobe_gradients, reserved, 236, 4);

FIXED(strobe_partial, 80);
FIELD(strobe_partial, out, 0, 40);
FIELD(strobe_partial, lse, 40, 40);

GROWS(strobe_partials, 160);
FIELD(strobe_partials, struct_size, 0, 8);
FIELD(strobe_partials, batch, 8, 8);
FIELD(strobe_partials, seq_q, 16, 8);
FIELD(strobe_partials, heads_q, 24, 8);
FIELD(strobe_partials, dim_v, 32, 8);
FIELD(strobe_partials, count, 40, 8);
FIELD(strobe_partials, parts, 48, 8);
FIELD(strobe_partials, out, 56, 40);
FIELD(strobe_partials, lse, 96, 40);
FIELD(strobe_partials, dtype, 136, 4);
FIELD(strobe_partials, device, 140, 4);
FIELD(strobe_partials, device_index, 144, 4);
FIELD(strobe_partials, reserved, 148, 4);
FIELD(strobe_partials, parallel, 152, 8);

GROWS(strobe_kernel_info, 168);
FIELD(strobe_kernel_info, struct_size, 0, 8);
FIELD(strobe_kernel_info, name, 8, 8);
FIELD(strobe_kernel_info, summary, 16, 8);
FIELD(strobe_kernel_info, unavailable, 24, 8);
FIELD(strobe_kernel_info, operation, 32, 4);
FIELD(strobe_kernel_info, device, 36, 4);
FIELD(strobe_kernel_info, chosen_by_name, 40, 4);
FIELD(strobe_kernel_info, reserved, 44, 4);
FIELD(strobe_kernel_info, features, 48, 8);
FIELD(strobe_kernel_info, dtypes, 56, 18);
FIELD(strobe_kernel_info, reserved2, 74, 2);
FIELD(strobe_kernel_info, dim, 76, 4);
FIELD(strobe_kernel_info, dim_v, 80, 4);
FIELD(strobe_kernel_info, scale_block, 84, 4);
FIELD(strobe_kernel_info, seq_q, 88, 16);
FIELD(strobe_kernel_info, seq_k, 104, 16);
FIELD(strobe_kernel_info, rows, 120, 16);
FIELD(strobe_kernel_info, best_rows, 136, 16);
FIELD(strobe_kernel_info, limits, 152, 8);
FIELD(strobe_kernel_info, variants, 160, 8);

GROWS(strobe_device_info, 40);
FIELD(strobe_device_info, struct_size, 0, 8);
FIELD(strobe_device_info, name, 8, 8);
FIELD(strobe_device_info, level, 16, 8);
FIELD(strobe_device_info, threads, 24, 4);
FIELD(strobe_device_info, reserved, 28, 4);
FIELD(strobe_device_info, memory_bytes, 32, 8);

GROWS(strobe_rotary, 56);
FIELD(strobe_rotary, struct_size, 0, 8);
FIELD(strobe_rotary, cos, 8, 8);
FIELD(strobe_rotary, sin, 16, 8);
FIELD(strobe_rotary, positions, 24, 8);
FIELD(strobe_rotary, dim, 32, 8);
FIELD(strobe_rotary, interleaved, 40, 4);
FIELD(strobe_rotary, reserved, 44, 4);
FIELD(strobe_rotary, base, 48, 8);

GROWS(strobe_quantiser, 200);
FIELD(strobe_quantiser, struct_size, 0, 8);
FIELD(strobe_quantiser, q, 8, 40);
FIELD(strobe_quantiser, k, 48, 40);
FIELD(strobe_quantiser, v, 88, 40);
FIELD(strobe_quantiser, dtype, 128, 4);
FIELD(strobe_quantiser, hadamard, 132, 4);
FIELD(strobe_quantiser, seed, 136, 8);
FIELD(strobe_quantiser, rotary, 144, 8);
FIELD(strobe_quantiser, k_mean, 152, 8);
FIELD(strobe_quantiser, lse_shift, 160, 40);

GROWS(strobe_appender, 216);
FIELD(strobe_appender, struct_size, 0, 8);
FIELD(strobe_appender, q, 8, 40);
FIELD(strobe_appender, k, 48, 40);
FIELD(strobe_appender, v, 88, 40);
FIELD(strobe_appender, dtype, 128, 4);
FIELD(strobe_appender, hadamard, 132, 4);
FIELD(strobe_appender, seed, 136, 8);
FIELD(strobe_appender, seq_new, 144, 8);
FIELD(strobe_appender, total_new, 152, 8);
FIELD(strobe_appender, cu_seqlens_new, 160, 8);
FIELD(strobe_appender, used_new, 168, 8);
FIELD(strobe_appender, lengths, 176, 8);
FIELD(strobe_appender, positions, 184, 8);
FIELD(strobe_appender, slots, 192, 8);
FIELD(strobe_appender, rotary, 200, 8);
FIELD(strobe_appender, index_bits, 208, 4);
FIELD(strobe_appender, flags, 212, 4);

FIXED(strobe_score_scalar, 24);
FIELD(strobe_score_scalar, name, 0, 8);
FIELD(strobe_score_scalar, value, 8, 8);
FIELD(strobe_score_scalar, integer, 16, 4);
FIELD(strobe_score_scalar, reserved, 20, 4);

FIXED(strobe_score_array, 16);
FIELD(strobe_score_array, name, 0, 8);
FIELD(strobe_score_array, rank, 8, 4);
FIELD(strobe_score_array, dtype, 12, 4);

GROWS(strobe_score_source, 48);
FIELD(strobe_score_source, struct_size, 0, 8);
FIELD(strobe_score_source, score, 8, 8);
FIELD(strobe_score_source, visible, 16, 8);
FIELD(strobe_score_source, scalars, 24, 8);
FIELD(strobe_score_source, arrays, 32, 8);
FIELD(strobe_score_source, scalar_count, 40, 4);
FIELD(strobe_score_source, array_count, 44, 4);

FIXED(strobe_score_elements, 80);
FIELD(strobe_score_elements, data, 0, 8);
FIELD(strobe_score_elements, extent, 8, 32);
FIELD(strobe_score_elements, stride, 40, 32);
FIELD(strobe_score_elements, dtype, 72, 4);
FIELD(strobe_score_elements, reserved, 76, 4);

GROWS(strobe_score_arguments, 40);
FIELD(strobe_score_arguments, struct_size, 0, 8);
FIELD(strobe_score_arguments, function, 8, 8);
FIELD(strobe_score_arguments, scalars, 16, 8);
FIELD(strobe_score_arguments, arrays, 24, 8);
FIELD(strobe_score_arguments, scalar_count, 32, 4);
FIELD(strobe_score_arguments, array_count, 36, 4);

GROWS(strobe_score_gradients, 24);
FIELD(strobe_score_gradients, struct_size, 0, 8);
FIELD(strobe_score_gradients, arrays, 8, 8);
FIELD(strobe_score_gradients, array_count, 16, 4);
FIELD(strobe_score_gradients, reserved, 20, 4);

GROWS(strobe_mask_lists, 96);
FIELD(strobe_mask_lists, struct_size, 0, 8);
FIELD(strobe_mask_lists, data, 8, 8);
FIELD(strobe_mask_lists, bytes, 16, 8);
FIELD(strobe_mask_lists, uses, 24, 4);
FIELD(strobe_mask_lists, made, 28, 4);
FIELD(strobe_mask_lists, device, 32, 4);
FIELD(strobe_mask_lists, device_index, 36, 4);
FIELD(strobe_mask_lists, batch, 40, 8);
FIELD(strobe_mask_lists, heads_q, 48, 8);
FIELD(strobe_mask_lists, seq_q, 56, 8);
FIELD(strobe_mask_lists, seq_k, 64, 8);
FIELD(strobe_mask_lists, block_q, 72, 8);
FIELD(strobe_mask_lists, block_k, 80, 8);
FIELD(strobe_mask_lists, axes, 88, 4);
FIELD(strobe_mask_lists, reserved, 92, 4);

FIXED(strobe_message, 24);
FIELD(strobe_message, data, 0, 8);
FIELD(strobe_message, bytes, 8, 8);
FIELD(strobe_message, peer, 16, 4);
FIELD(strobe_message, reserved, 20, 4);

GROWS(strobe_transport, 72);
FIELD(strobe_transport, struct_size, 0, 8);
FIELD(strobe_transport, rank, 8, 4);
FIELD(strobe_transport, size, 12, 4);
FIELD(strobe_transport, self, 16, 8);
FIELD(strobe_transport, start, 24, 8);
FIELD(strobe_transport, wait, 32, 8);
FIELD(strobe_transport, error, 40, 8);
FIELD(strobe_transport, device, 48, 4);
FIELD(strobe_transport, flags, 52, 4);
FIELD(strobe_transport, records, 56, 8);
FIELD(strobe_transport, move, 64, 8);

GROWS(strobe_dist_rates, 56);
FIELD(strobe_dist_rates, struct_size, 0, 8);
FIELD(strobe_dist_rates, flops, 8, 8);
FIELD(strobe_dist_rates, bandwidth, 16, 8);
FIELD(strobe_dist_rates, latency, 24, 8);
FIELD(strobe_dist_rates, call, 32, 8);
FIELD(strobe_dist_rates, memory, 40, 8);
FIELD(strobe_dist_rates, launch, 48, 8);

GROWS(strobe_dist, 72);
FIELD(strobe_dist, struct_size, 0, 8);
FIELD(strobe_dist, attention, 8, 8);
FIELD(strobe_dist, transport, 16, 8);
FIELD(strobe_dist, rows_q, 24, 8);
FIELD(strobe_dist, rows_k, 32, 8);
FIELD(strobe_dist, layout, 40, 4);
FIELD(strobe_dist, scheme, 44, 4);
FIELD(strobe_dist, group, 48, 4);
FIELD(strobe_dist, reserved, 52, 4);
FIELD(strobe_dist, flags, 56, 8);
FIELD(strobe_dist, rates, 64, 8);

VALUE(STROBE_OK, 0);
VALUE(STROBE_INVALID_ARGUMENT, 1);
VALUE(STROBE_UNSUPPORTED, 2);
VALUE(STROBE_OUT_OF_MEMORY, 3);
VALUE(STROBE_WORKSPACE_TOO_SMALL, 4);
VALUE(STROBE_DEVICE_ERROR, 5);
VALUE(STROBE_DTYPE_DEFAULT, 0);
VALUE(STROBE_FP32, 1);
VALUE(STROBE_FP16, 2);
VALUE(STROBE_BF16, 3);
VALUE(STROBE_FP64, 4);
VALUE(STROBE_FP8_E4M3, 5);
VALUE(STROBE_INT8, 6);
VALUE(STROBE_CPU, 0);
VALUE(STROBE_CUDA, 1);
VALUE(STROBE_FORWARD, 0);
VALUE(STROBE_BACKWARD, 1);
VALUE(STROBE_MASK_NONE, 0);
VALUE(STROBE_MASK_CAUSAL_TOP_LEFT, 1);
VALUE(STROBE_MASK_CAUSAL_BOTTOM_RIGHT, 2);
VALUE(STROBE_MASK_WINDOW_TOP_LEFT, 3);
VALUE(STROBE_MASK_WINDOW_BOTTOM_RIGHT, 4);
VALUE(STROBE_DETERMINISTIC, 1);
VALUE(STROBE_TF32X3, 2);
VALUE(STROBE_HADAMARD, 1);
VALUE(STROBE_Q_AT_LENGTH, 1);
VALUE(STROBE_INT32, 32);
VALUE(STROBE_UINT8, 33);
VALUE(STROBE_LISTS_FORWARD, 1);
VALUE(STROBE_LISTS_BACKWARD, 2);
VALUE(STROBE_DIST_CONTIGUOUS, 0);
VALUE(STROBE_DIST_ZIGZAG, 1);
VALUE(STROBE_DIST_STRIPED, 2);
VALUE(STROBE_DIST_AUTOMATIC, 0);
VALUE(STROBE_DIST_RING, 1);
VALUE(STROBE_DIST_ALL_GATHER, 2);
VALUE(STROBE_DIST_ULYSSES, 3);
VALUE(STROBE_DIST_TWO_LEVELS, 4);
VALUE(STROBE_DIST_UNCOMPARED, 1);

#endif

int main(void) { return 0; }
