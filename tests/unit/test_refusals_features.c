/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_refusals_features.c: bad optional structures, and sound problems that no kernel takes, each with the whole sentence.
 */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "refusal.h"
#include "test.h"

#define CU_Q          POINT(varlen.cu_seqlens_q, call.cu_q)
#define CU_K          POINT(varlen.cu_seqlens_k, call.cu_k)
#define USED_Q        POINT(varlen.used_q, call.used_q)
#define USED_K        POINT(varlen.used_k, call.used_k)
#define LEFTPAD_K     POINT(varlen.leftpad_k, call.used_k)
#define BOTH(feature) ATTACH(feature), ATTACH_D(d##feature)

static const struct refusal varlen[] = {
    {{ATTACH(varlen), INT(varlen.index_bits, 16)}, "varlen.index_bits is 16; 32 or 64 is accepted", 0},
    {{ATTACH(varlen), INT(varlen.index_bits, -64)}, "varlen.index_bits is -64; 32 or 64 is accepted", BACKWARD},
    {{ATTACH(varlen), INT(varlen.total_q, -1)}, "varlen.total_q is -1; 0 to 1099511627776 is accepted", 0},
    {{ATTACH(varlen), INT(varlen.total_k, INT64_MAX)},
     "varlen.total_k is 9223372036854775807; 0 to 1099511627776 is accepted",
     0},
    {{ATTACH(varlen), CU_Q, INT(cu_q[0], -1)}, "varlen.cu_seqlens_q[0] is -1; 0 or more is accepted", DATA},
    {{ATTACH(varlen), CU_K, INT(cu_k[0], -7)}, "varlen.cu_seqlens_k[0] is -7; 0 or more is accepted", DATA | BACKWARD},
    {{ATTACH(varlen), CU_Q, INT(cu_q[1], 5)},
     "varlen.cu_seqlens_q[1] is 5 after 0; a length of 0 to seq_q, 4, is accepted",
     DATA},
    {{ATTACH(varlen), CU_K, INT(cu_k[2], 4)},
     "varlen.cu_seqlens_k[2] is 4 after 5; a length of 0 to seq_k, 5, is accepted",
     DATA | BACKWARD},
    {{ATTACH(varlen), USED_Q, INT(used_q[1], -1)}, "varlen.used_q[1] is -1; 0 to 4 is accepted", DATA},
    {{ATTACH(varlen), USED_K, INT(used_k[0], 6)}, "varlen.used_k[0] is 6; 0 to 5 is accepted", DATA | BACKWARD},
    {{ATTACH(varlen), CU_K, USED_K, INT(used_k[1], 3)}, "varlen.used_k[1] is 3; 0 to 2 is accepted", DATA},
    {{ATTACH(varlen), LEFTPAD_K, INT(used_k[0], 6)},
     "varlen.leftpad_k[0] is 6; 0 to the sequence's length, 5, is accepted",
     DATA},
    {{ATTACH(varlen), LEFTPAD_K, INT(used_k[1], -1)},
     "varlen.leftpad_k[1] is -1; 0 to the sequence's length, 5, is accepted",
     DATA},
    {{ATTACH(varlen), LEFTPAD_K, CU_K, INT(used_k[1], 3)},
     "varlen.leftpad_k[1] is 3; 0 to the sequence's length, 2, is accepted",
     DATA},
    {{ATTACH(varlen), POINT(varlen.leftpad_k, (char *)input + 4)},
     "varlen.leftpad_k is %p; a multiple of its element's 8 bytes is accepted",
     0},
    {{ATTACH(varlen), CU_Q, INT(varlen.total_q, 5)}, "varlen.cu_seqlens_q ends at 6; at most total_q, 5, is accepted", DATA},
    {{ATTACH(varlen), CU_K, INT(varlen.total_k, 6)}, "varlen.cu_seqlens_k ends at 7; at most total_k, 6, is accepted", DATA},
    {{ATTACH(varlen), INT(varlen.index_bits, 32), POINT(varlen.used_q, (char *)input + 2)},
     "varlen.used_q is %p; a multiple of its element's 4 bytes is accepted",
     0},
    {{ATTACH(varlen), POINT(varlen.cu_seqlens_k, (char *)input + 4)},
     "varlen.cu_seqlens_k is %p; a multiple of its element's 8 bytes is accepted",
     0},
};

static const struct refusal scores[] = {
    {{ATTACH(bias), INT(bias.data, 0)}, "bias is NULL; a pointer to its elements is accepted", DATA},
    {{ATTACH(bias), INT(bias.dtype, STROBE_INT8)}, "bias.dtype is int8; accepted are fp32, fp16, bf16, fp64", 0},
    {{ATTACH(bias), INT(bias.dtype, 77)}, "bias.dtype is 77; a strobe_dtype, 1 to 6, is accepted", BACKWARD},
    {{ATTACH(bias), INT(bias.reserved, 3)}, "bias.reserved is 3; 0 is accepted", 0},
    {{ATTACH(bias), POINT(bias.data, (char *)input + 2)},
     "bias is %p; a multiple of its element's 4 bytes is accepted",
     DATA},
    {{BOTH(bias), INT(dbias.data, 0)}, "dbias is NULL; a pointer to its elements is accepted", DATA | BACKWARD},
    {{BOTH(bias), INT(dbias.reserved, 1)}, "dbias.reserved is 1; 0 is accepted", BACKWARD},
    {{BOTH(bias), INT(dbias.dtype, STROBE_FP8_E4M3)},
     "dbias.dtype is fp8_e4m3; accepted are fp32, fp16, bf16, fp64",
     BACKWARD},
    {{ATTACH_D(dbias)}, "dbias is given without a bias; both or none is accepted", BACKWARD},
    {{BOTH(bias), INT(dbias.stride[0], 0)},
     "dbias.stride is 0 on the batch axis, where bias.stride is 80; both zero (broadcast, summed) or neither is accepted",
     BACKWARD},
    {{BOTH(bias), INT(bias.stride[1], 0)},
     "dbias.stride is 20 on the head axis, where bias.stride is 0; both zero (broadcast, summed) or neither is accepted",
     BACKWARD},
    {{BOTH(bias), INT(dbias.stride[2], 0)},
     "dbias.stride is 0 on the row axis, where bias.stride is 5; both zero (broadcast, summed) or neither is accepted",
     BACKWARD},
    {{BOTH(bias), INT(dbias.stride[1], 1)},
     "dbias.stride is {80, 1, 5}; strides that keep the elements of an output apart are accepted",
     BACKWARD},
    {{ATTACH(bias), INT(bias.stride[1], INT64_MAX)},
     "bias.stride is {80, 9223372036854775807, 5}; offsets within 2^61 bytes are accepted",
     0},
    {{ATTACH(bool_mask), INT(bool_mask.data, 0)}, "bool_mask is NULL; a pointer to its elements is accepted", DATA},
    {{ATTACH(block_mask), INT(block_mask.data, 0)}, "block_mask is NULL; a pointer to its elements is accepted", DATA},
    {{ATTACH(block_mask), INT(block_mask.block_q, 0)}, "block_mask.block_q is 0; 1 to 1099511627776 is accepted", 0},
    {{ATTACH(block_mask), INT(block_mask.block_k, -2)},
     "block_mask.block_k is -2; 1 to 1099511627776 is accepted",
     BACKWARD},
    {{ATTACH(block_mask), INT(block_mask.block_k, INT64_MAX)},
     "block_mask.block_k is 9223372036854775807; 1 to 1099511627776 is accepted",
     0},
};

#define LISTS ATTACH(bool_mask), ATTACH(mask_lists)

static const struct refusal lists[] = {
    {{LISTS, INT(mask_lists.uses, 4)}, "mask_lists.uses is 4; 0 to 3 is accepted", 0},
    {{LISTS, INT(mask_lists.reserved, 1)}, "mask_lists.reserved is 1; 0 is accepted", BACKWARD},
    {{LISTS, INT(mask_lists.made, 0)},
     "mask_lists.made is 0; lists that strobe_mask_lists_make has made for this operation, with bit 1, are accepted",
     0},
    {{LISTS, INT(mask_lists.made, STROBE_LISTS_FORWARD)},
     "mask_lists.made is 1; lists that strobe_mask_lists_make has made for this operation, with bit 2, are accepted",
     BACKWARD},
    {{LISTS, INT(mask_lists.made, 7)},
     "mask_lists.made is 7; lists that strobe_mask_lists_make has made for this operation, with bit 1, are accepted",
     0},
    {{LISTS, INT(mask_lists.device, 1)}, "mask_lists.device is 1; 0, that of this call's masks, is accepted", 0},
    {{LISTS, INT(mask_lists.device_index, 2)}, "mask_lists.device_index is 2; 0, that of this call's masks, is accepted", 0},
    {{LISTS, INT(mask_lists.batch, 1)}, "mask_lists.batch is 1; 2, that of this call's masks, is accepted", 0},
    {{LISTS, INT(mask_lists.heads_q, 8)}, "mask_lists.heads_q is 8; 4, that of this call's masks, is accepted", BACKWARD},
    {{LISTS, INT(a.seq_q, 3)}, "mask_lists.seq_q is 4; 3, that of this call's masks, is accepted", 0},
    {{LISTS, INT(a.seq_k, 4)}, "mask_lists.seq_k is 5; 4, that of this call's masks, is accepted", 0},
    {{LISTS, INT(mask_lists.block_q, 128)}, "mask_lists.block_q is 128; 0, that of this call's masks, is accepted", 0},
    {{LISTS, INT(bool_mask.stride[1], 0)}, "mask_lists.axes is 15; 11, that of this call's masks, is accepted", 0},
    {{LISTS, ATTACH(block_mask)}, "mask_lists.block_q is 0; 2, that of this call's masks, is accepted", 0},
    {{ATTACH(mask_lists)}, "mask_lists.axes is 15; 0, that of this call's masks, is accepted", 0},
    {{LISTS, POINT(mask_lists.data, (char *)input + 8)}, "mask_lists.data is %p; a multiple of 64 bytes is accepted", DATA},
};

static const struct refusal others[] = {
    {{ATTACH(alibi), INT(alibi.slopes, 0)}, "alibi.slopes is NULL; a pointer to its elements is accepted", DATA},
    {{ATTACH(alibi), POINT(alibi.slopes, (char *)input + 1)},
     "alibi.slopes is %p; a multiple of its element's 4 bytes is accepted",
     DATA | BACKWARD},
    {{ATTACH(sinks), INT(sinks.data, 0)}, "sinks is NULL; a pointer to its elements is accepted", DATA},
    {{ATTACH(sinks), INT(sinks.dtype, STROBE_BF16)}, "sinks.dtype is bf16; accepted are fp32, fp64", 0},
    {{ATTACH(sinks), INT(sinks.reserved, -1)}, "sinks.reserved is -1; 0 is accepted", BACKWARD},
    {{INT(g.accumulate, 8)}, "gradients.accumulate is 8; bits 1 (dq), 2 (dk), 4 (dv) are accepted", BACKWARD},
    {{INT(g.reserved, 1)}, "gradients.reserved is 1; 0 is accepted", BACKWARD},
    {{INT(g.accumulate, STROBE_ADD_TO_DK), INT(g.dk.dtype, STROBE_FP16)},
     "gradients.accumulate has dk, whose dtype is fp16; fp32 is accepted",
     BACKWARD},
    {{INT(g.accumulate, STROBE_ADD_TO_DQ), ATTACH(varlen), POINT(varlen.cu_seqlens_q, call.cu_q)},
     "gradients.accumulate has dq, which is packed, and varlen.total_q is 0; the rows of the packed tensor are accepted",
     BACKWARD},
    {{ATTACH_D(dsinks)}, "dsinks is given without sinks; both or none is accepted", BACKWARD},
    {{BOTH(sinks), INT(dsinks.data, 0)}, "dsinks is NULL; a pointer to its elements is accepted", DATA | BACKWARD},
    {{BOTH(sinks), INT(dsinks.dtype, STROBE_FP16)}, "dsinks.dtype is fp16; accepted are fp32, fp64", BACKWARD},
    {{ATTACH(dropout), REAL(dropout.p, 1)}, "dropout.p is 1; at least 0 and below 1 is accepted", 0},
    {{ATTACH(dropout), REAL(dropout.p, -0.25)}, "dropout.p is -0.25; at least 0 and below 1 is accepted", BACKWARD},
    {{ATTACH(dropout), REAL(dropout.p, (double)NAN)}, "dropout.p is nan; at least 0 and below 1 is accepted", 0},
    {{ATTACH(dropout), INT(dropout.heads, -1)}, "dropout.heads is -1; 0 to 1099511627776 is accepted", 0},
    {{ATTACH(dropout), INT(dropout.rows, -2)}, "dropout.rows is -2; 0 to 1099511627776 is accepted", 0},
    {{ATTACH(dropout), INT(dropout.keys, INT64_MAX)},
     "dropout.keys is 9223372036854775807; 0 to 1099511627776 is accepted",
     0},
    {{ATTACH(dropout), INT(dropout.batch_start, -1)}, "dropout.batch_start is -1; 0 to 1099511627776 is accepted", 0},
    {{ATTACH(dropout), INT(dropout.head_start, -1)}, "dropout.head_start is -1; 0 to 1099511627776 is accepted", 0},
    {{ATTACH(dropout), INT(dropout.row_start, -1)}, "dropout.row_start is -1; 0 to 1099511627776 is accepted", 0},
    {{ATTACH(dropout), INT(dropout.key_start, -1)}, "dropout.key_start is -1; 0 to 1099511627776 is accepted", BACKWARD},
    {{ATTACH(dropout), INT(dropout.heads, 3)},
     "dropout.heads is 3; 4, for head_start of 0 and heads_q of 4, or more is accepted",
     0},
    {{ATTACH(dropout), INT(dropout.head_start, 2)},
     "dropout.heads is 4; 6, for head_start of 2 and heads_q of 4, or more is accepted",
     BACKWARD},
    {{ATTACH(dropout), INT(dropout.rows, 8), INT(dropout.row_start, 5)},
     "dropout.rows is 8; 9, for row_start of 5 and seq_q of 4, or more is accepted",
     0},
    {{ATTACH(dropout), INT(dropout.keys, 4)},
     "dropout.keys is 4; 5, for key_start of 0 and seq_k of 5, or more is accepted",
     BACKWARD},
    {{ATTACH(varlen), CU_Q, ATTACH(dropout), INT(dropout.heads, 2)},
     "dropout.heads is 2; 4, for head_start of 0 and heads_q of 4, or more is accepted",
     0},
    {{ATTACH(paged), INT(paged.page_table, 0)}, "paged.page_table is NULL; a pointer to its elements is accepted", DATA},
    {{ATTACH(paged), INT(paged.page_size, 0)}, "paged.page_size is 0; 1 to 1099511627776 is accepted", 0},
    {{ATTACH(paged), INT(paged.page_size, -2)}, "paged.page_size is -2; 1 to 1099511627776 is accepted", 0},
    {{ATTACH(paged), INT(paged.pages, -1)}, "paged.pages is -1; 0 to 2147483647 is accepted", BACKWARD},
    {{ATTACH(paged), INT(paged.table_stride, 2)},
     "paged.table_stride is 2; 3, for seq_k of 5 in pages of 2, or more is accepted",
     0},
    {{ATTACH(paged), ATTACH(varlen), POINT(varlen.cu_seqlens_k, call.cu_k)},
     "varlen.cu_seqlens_k is given beside paged; used_k, for the lengths, is accepted",
     0},
    {{ATTACH(paged), ATTACH(scales), INT(scales.block_k, 2), POINT(scales.k, input)},
     "scales.block_k is 2 beside paged; 0 or 1 is accepted",
     0},
    {{ATTACH(paged), INT(a.k.stride[0], INT64_MAX), INT(a.k.stride[1], 16), INT(a.k.stride[2], 8)},
     "k.stride is {9223372036854775807, 16, 8}; offsets within 2^61 bytes are accepted",
     0},
    {{ATTACH(scales), INT(scales.block_k, -1)}, "scales.block_k is -1; 0 to 1099511627776 is accepted", 0},
    {{ATTACH(scales), INT(scales.block_q, -3)}, "scales.block_q is -3; 0 to 1099511627776 is accepted", 0},
    {{ATTACH(scales), POINT(scales.k, (char *)input + 2)},
     "scales.k is %p; a multiple of its element's 4 bytes is accepted",
     DATA},
    {{ATTACH(scales), POINT(scales.v, input), INT(scales.stride_v[2], INT64_MAX)},
     "scales.v.stride is {0, 0, 9223372036854775807}; offsets within 2^61 bytes are accepted",
     0},
    {{INT(a.k.dtype, STROBE_INT8), INT(a.v.dtype, STROBE_INT8)},
     "scales.k is NULL and k.dtype is int8; int8 with its scales is accepted",
     DATA},
    {{INT(a.q.dtype, STROBE_FP8_E4M3)},
     "scales.q is NULL and q.dtype is fp8_e4m3; fp8_e4m3 with its scales is accepted",
     DATA},
    {{INT(a.k.dtype, STROBE_FP8_E4M3), INT(a.v.dtype, STROBE_FP8_E4M3)},
     "scales.k is NULL and k.dtype is fp8_e4m3; fp8_e4m3 with its scales is accepted",
     DATA},
    {{INT(a.q.dtype, STROBE_FP8_E4M3), ATTACH(scales), POINT(scales.q, input)},
     "scales.q of batch entry 0 and head 0 is 0; a positive finite number is accepted",
     DATA},
    {{INT(a.k.dtype, STROBE_INT8), INT(a.v.dtype, STROBE_INT8), ATTACH(scales), POINT(scales.k, input)},
     "scales.v is NULL and v.dtype is int8; int8 with its scales is accepted",
     DATA},
    {{ATTACH(parallel), INT(parallel.reserved, 1)}, "parallel.reserved is 1; 0 is accepted", 0},
    {{ATTACH(parallel), INT(parallel.threads, -1)}, "parallel.threads is -1; 0 to 65536 is accepted", 0},
    {{ATTACH(parallel), INT(parallel.threads, 65537)}, "parallel.threads is 65537; 0 to 65536 is accepted", BACKWARD},
    {{ATTACH(parallel), POINT(parallel.run, input)}, "parallel.threads is 0; 1 to 65536 is accepted", 0},
    {{ATTACH(tuning), INT(tuning.split_keys, -1)}, "tuning.split_keys is -1; 0 to 1099511627776 is accepted", 0},
    {{ATTACH(tuning), POINT(tuning.kernel, "fastest")},
     "tuning.kernel is \"fastest\"; the name of a kernel of this operation and device is accepted (strobe_kernel_at lists "
     "them)",
     0},
    {{ATTACH(tuning), POINT(tuning.kernel, "reference_forward")},
     "tuning.kernel is \"reference_forward\"; the name of a kernel of this operation and device is accepted "
     "(strobe_kernel_at lists them)",
     BACKWARD},
    {{ATTACH(tuning), POINT(tuning.kernel, "")},
     "tuning.kernel is \"\"; the name of a kernel of this operation and device is accepted (strobe_kernel_at lists them)",
     0},
};

#define NAMED(name) ATTACH(tuning), POINT(tuning.kernel, name)
#define NO_KERNEL   "no kernel takes this problem; "

/* Sound, and of features that are laid down for what is coming: refused, never ignored. */
static const struct refusal to_come[] = {
    {{ATTACH(paged)},
     NO_KERNEL "reference_backward: paged K and V are given; contiguous or varlen K and V are taken",
     UNSUPPORTED | BACKWARD},
    {{ATTACH(scales), POINT(scales.q, (const float *)input), NAMED("cpu_decode_baseline")},
     NO_KERNEL "cpu_decode_baseline: scales.q is given; NULL is taken",
     UNSUPPORTED},
    {{ATTACH(scales)}, NO_KERNEL "reference_backward: scales are given; NULL is taken", UNSUPPORTED | BACKWARD},
    {{ATTACH(tuning), INT(tuning.split_keys, 256), INT(a.seq_q, 100)},
     NO_KERNEL "cpu_decode_baseline: seq_q times heads_q / heads_kv is 200; 0 to 16 is taken",
     UNSUPPORTED},
    {{ATTACH(tuning), INT(tuning.split_keys, 256)},
     NO_KERNEL "reference_backward: tuning.split_keys is set; 0 is taken, keys are not split",
     UNSUPPORTED | BACKWARD},
    {{INT(a.v.dtype, STROBE_BF16), ATTACH(tuning), POINT(tuning.kernel, "cpu_forward_baseline")},
     NO_KERNEL "cpu_forward_baseline: k and v differ in dtype; one dtype for both is taken",
     UNSUPPORTED},
    {{INT(a.k.dtype, STROBE_FP64), INT(a.v.dtype, STROBE_FP64), ATTACH(tuning), POINT(tuning.kernel, "cpu_decode_baseline")},
     NO_KERNEL "cpu_decode_baseline: k is fp64; fp32, fp16, bf16, fp8_e4m3 and int8 are taken",
     UNSUPPORTED},
    {{INT(a.v.dtype, STROBE_BF16)}, NO_KERNEL "reference_backward: v is bf16; q's dtype is taken", UNSUPPORTED | BACKWARD},
    {{INT(a.dtype, STROBE_FP64), ATTACH(tuning), POINT(tuning.kernel, "cpu_forward_baseline")},
     NO_KERNEL "cpu_forward_baseline: q is fp64; fp32, fp16, bf16, fp8_e4m3 and int8 are taken",
     UNSUPPORTED},
    {{INT(a.dtype, STROBE_FP64), ATTACH(tuning), POINT(tuning.kernel, "standard_backward")},
     NO_KERNEL "standard_backward: q is fp64; fp32, fp16 and bf16 are taken",
     UNSUPPORTED | BACKWARD},
    {{ATTACH(paged), ATTACH(tuning), POINT(tuning.kernel, "cpu_backward_baseline")},
     NO_KERNEL "cpu_backward_baseline: paged K and V are given; contiguous or varlen K and V are taken",
     UNSUPPORTED | BACKWARD},
};

/* What kernels for some machines refuse, each in its own words; looked at where the machine has the kernel. */
static const struct refusal particular[] = {
    {{INT(a.dtype, STROBE_FP64), NAMED("cpu_decode_avx512")},
     NO_KERNEL "cpu_decode_avx512: q is fp64; fp32, fp16 and bf16 are taken",
     UNSUPPORTED},
    {{REAL(a.softcap, 2), NAMED("cpu_decode_avx512")},
     NO_KERNEL "cpu_decode_avx512: softcap is given; 0 (none) is taken",
     UNSUPPORTED},
    {{INT(a.seq_q, 9), NAMED("cpu_decode_avx512")},
     NO_KERNEL "cpu_decode_avx512: seq_q times heads_q / heads_kv is 18; 0 to 16 is taken",
     UNSUPPORTED},
    {{INT(a.dtype, STROBE_FP16), NAMED("cpu_decode_amx")},
     NO_KERNEL "cpu_decode_amx: q is fp16; bf16 is taken",
     UNSUPPORTED},
    {{INT(a.dtype, STROBE_BF16), INT(a.dim_v, 257), NAMED("cpu_decode_amx")},
     NO_KERNEL "cpu_decode_amx: dim_v is 257; 1 to 256 is taken",
     UNSUPPORTED},
    {{NAMED("cpu_decode_int8_amx")}, NO_KERNEL "cpu_decode_int8_amx: k is fp32; int8 is taken", UNSUPPORTED},
    {{INT(a.dtype, STROBE_FP16), NAMED("cpu_forward_amx")},
     NO_KERNEL "cpu_forward_amx: q is fp16; bf16 is taken",
     UNSUPPORTED},
    {{INT(a.dtype, STROBE_BF16), NAMED("cpu_forward_fp32_amx")},
     NO_KERNEL "cpu_forward_fp32_amx: q is bf16; fp32 is taken",
     UNSUPPORTED},
    {{INT(a.dtype, STROBE_FP16), INT(a.dim, 257), NAMED("cpu_forward_fp16_amx")},
     NO_KERNEL "cpu_forward_fp16_amx: dim is 257; 1 to 256 is taken",
     UNSUPPORTED},
};

static const struct refusal other_device[] = {
    {{INT(a.device, STROBE_CUDA)},
     "device is 1 (CUDA), for which this build has no kernel; 0 (the CPU) is accepted",
     UNSUPPORTED},
    {{INT(a.device, STROBE_CUDA), INT(a.device_index, 3)},
     "device is 1 (CUDA), for which this build has no kernel; 0 (the CPU) is accepted",
     UNSUPPORTED | BACKWARD},
    {{INT(a.device, STROBE_CUDA), ATTACH(tuning), POINT(tuning.kernel, "cpu_forward_baseline")},
     "tuning.kernel is \"cpu_forward_baseline\"; the name of a kernel of this operation and device is accepted "
     "(strobe_kernel_at lists them)",
     0},
};

static void test_varlen(void **state) { (void)state, check_refusals(varlen, COUNT(varlen)); }
static void test_scores(void **state) { (void)state, check_refusals(scores, COUNT(scores)); }
static void test_lists(void **state) { (void)state, check_refusals(lists, COUNT(lists)); }
static void test_others(void **state) { (void)state, check_refusals(others, COUNT(others)); }
static void test_to_come(void **state) { (void)state, check_refusals(to_come, COUNT(to_come)); }

/* The kernel that the row's tuning names is here. */
static bool is_available(const struct refusal *row) {
    strobe_kernel_info info = {.struct_size = sizeof info};
    const char *name = NULL;
    for (size_t n = 0; n < COUNT(row->poke); ++n)
        if (row->poke[n].at == offsetof(struct call, tuning.kernel)) name = row->poke[n].pointer;
    for (int32_t k = 0; name && strobe_kernel_at(k, &info) == STROBE_OK; ++k)
        if (strcmp(info.name, name) == 0) return !info.unavailable;
    return false;
}

static void test_particular(void **state) {
    (void)state;
    int available = 0;
    for (size_t n = 0; n < COUNT(particular); ++n)
        if (is_available(&particular[n])) check_refusals(&particular[n], 1), ++available;
    if (available == 0) skip();
}

static void test_other_device(void **state) {
    (void)state;
    strobe_kernel_info info = {.struct_size = sizeof info};
    for (int32_t k = 0; strobe_kernel_at(k, &info) == STROBE_OK; ++k)
        if (info.device == STROBE_CUDA) skip(); /* this build has kernels for it, which refuse in their own words */
    check_refusals(other_device, COUNT(other_device));
}

/* Offsets are not read before what says where they end, and how they lie, has been checked. */
static void test_checked_before_read(void **state) {
    (void)state;
    static const struct refusal rows[] = {
        {{ATTACH(varlen), POINT(varlen.cu_seqlens_q, (char *)input + 4)},
         "varlen.cu_seqlens_q is %p; a multiple of its element's 8 bytes is accepted",
         0},
        {{ATTACH(varlen), CU_Q, INT(a.batch, (int64_t)1 << 50)},
         "batch is 1125899906842624; 0 to 1099511627776 is accepted",
         0},
        {{ATTACH(varlen), CU_Q, INT(a.batch, INT64_MAX)},
         "batch is 9223372036854775807; 0 to 1099511627776 is accepted",
         BACKWARD},
    };
    check_refusals(rows, COUNT(rows));
}

/* Offsets on another device are no memory of this one. */
static void test_offsets_elsewhere(void **state) {
    (void)state;
    reset_call();
    call.tuning.kernel = "none"; /* so that no kernel of that device runs */
    call.a.device = STROBE_CUDA, call.a.varlen = &call.varlen, call.a.tuning = &call.tuning;
    call.varlen.cu_seqlens_q = (const void *)(uintptr_t)4096;
    assert_int_equal(strobe_forward(&call.a, NULL, 0, NULL), STROBE_INVALID_ARGUMENT);
    assert_non_null(strstr(strobe_last_error(), "tuning.kernel is \"none\""));
}

/* seq_q is an upper bound: of a packed tensor with fewer rows than that, nothing overlaps. */
static void test_bound_above_packed_rows(void **state) {
    (void)state;
    reset_call();
    call.varlen.cu_seqlens_q = call.cu_q, call.varlen.cu_seqlens_k = call.cu_k;
    call.a.varlen = &call.varlen;
    call.a.seq_q = 100, call.a.seq_k = 100;
    for (int total = 0; total < 2; ++total) {
        call.varlen.total_q = total ? 6 : 0;
        if (strobe_forward(&call.a, NULL, 0, NULL)) fail_msg("%s", strobe_last_error());
        if (strobe_backward(&call.a, &call.g, NULL, 0, NULL)) fail_msg("%s", strobe_last_error());
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_varlen),
        cmocka_unit_test(test_scores),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_others),
        cmocka_unit_test(test_to_come),
        cmocka_unit_test(test_particular),
        cmocka_unit_test(test_other_device),
        cmocka_unit_test(test_checked_before_read),
        cmocka_unit_test(test_offsets_elsewhere),
        cmocka_unit_test(test_bound_above_packed_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
