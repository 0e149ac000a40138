/* SPDX-License-Identifier: BSD-3-Clause
 *
 * table.c: the table of the CPU's kernels, best level first, and the CPU as a device. */
#include "cpu/table.h"

#include <unistd.h>

#include "core/parallel.h"
#include "core/refusals.h"
#include "cpu/cpuid.h"
#include "cpu/merge.h"

static const char *reject(const struct problem *p) {
    const char *reason = strobe__refuse_fp64(p);
    return reason ? reason : strobe__refuse_what_no_kernel_has(p);
}

static const char *lacks_baseline(void) { return strobe__cpu_lacks(CPU_BASELINE); }
#if defined(__x86_64__)
static const char *lacks_avx2(void) { return strobe__cpu_lacks(CPU_AVX2); }
static const char *lacks_avx512(void) { return strobe__cpu_lacks(CPU_AVX512); }
static const char *lacks_amx(void) { return strobe__cpu_lacks(CPU_AMX); }
#endif

/* K and V may be narrower than q, and scaled. */
static const char *refuse_cache(const struct problem *p) {
    const char *reason = strobe__refuse_cache(p);
    if (!reason && p->a.k.dtype == STROBE_FP64) return "k and v are fp64; fp32, fp16, bf16 and int8 are taken";
    return reason;
}

static const char *reject_forward(const struct problem *p) {
    const char *reason = strobe__refuse_fp64(p);
    if (!reason) reason = strobe__refuse_split_keys(p);
    return reason ? reason : refuse_cache(p);
}

/* Query rows that share a K/V head, and numbers of them. */
static int64_t shared_rows(const struct problem *p) { return p->a.seq_q * p->group; }

enum {
    ROWS_BETTER_IN_TILES =
        3, /* from here on AMX tiles serve bf16 and int8 better than vectors, although they are not full */
    ROWS_BETTER_IN_LANES = 9,  /* from here on forward.c's way, queries across the lanes, is faster than decode.c's */
    ROWS_WORTH_SPLITTING = 49, /* from here on fp16 and fp32 on tiles are faster: more than a tile of forward.c's */
};

/* What all decode kernels refuse. */
static const char *reject_many_rows(const struct problem *p) {
    const strobe_attention *a = &p->a;
    const char *reason = strobe__refuse_fp64(p);
    if (reason) return reason;
    if (a->softcap > 0 || a->bias || a->alibi || a->bool_mask || a->block_mask || a->dropout)
        return "softcap, bias, ALiBi, a boolean or block mask, or dropout is given; mask kinds, varlen and sinks are taken";
    if (shared_rows(p) > MOST_DECODE_ROWS) return "more than 16 query rows share a K/V head; up to 16 are taken";
    return NULL;
}

static const char *reject_decode(const struct problem *p) {
    const char *reason = reject_many_rows(p);
    const bool free_choice = !p->tuning.kernel && !p->tuning.split_keys;
    if (reason) return reason;
    if (free_choice && shared_rows(p) >= ROWS_BETTER_IN_LANES)
        return "more than 8 query rows share a K/V head, and it was not asked for by name or split_keys";
    return refuse_cache(p);
}

#if defined(__x86_64__)
/* What every kernel on tiles refuses, after its own reasons: it asks the operating system for permission. */
static const char *refuse_tiles(const struct problem *p) {
    if (p->a.dim > 256 || p->a.dim_v > 256) return "dim or dim_v is above 256; 1 to 256 are taken";
    return strobe__cpu_refuses_tiles();
}

static const char *reject_few_rows(const struct problem *p) {
    if (p->tuning.kernel || shared_rows(p) >= ROWS_BETTER_IN_TILES) return reject_many_rows(p);
    return "fewer than 3 query rows share a K/V head, and it was not asked for by name";
}

static const char *reject_decode_amx(const struct problem *p) {
    const char *reason = reject_few_rows(p);
    if (!reason && p->a.q.dtype != STROBE_BF16) reason = "q is not bf16; bf16 is taken";
    if (!reason) reason = strobe__refuse_what_is_to_come(p);
    return reason ? reason : refuse_tiles(p);
}

static const char *reject_decode_int8(const struct problem *p) {
    const char *reason = reject_few_rows(p);
    if (!reason && p->a.k.dtype != STROBE_INT8) reason = "k is not int8; int8 is taken";
    if (!reason) reason = refuse_cache(p);
    return reason ? reason : refuse_tiles(p);
}

static const char *reject_tiles(const struct problem *p, int32_t dtype, const char *wrong_dtype) {
    const strobe_attention *a = &p->a;
    const char *reason = reject(p);
    if (reason) return reason;
    if (a->q.dtype != dtype || a->out.dtype != dtype) return wrong_dtype;
    return refuse_tiles(p);
}

static const char *reject_bf16_tiles(const struct problem *p) {
    return reject_tiles(p, STROBE_BF16, "q or out is not bf16; bf16 is taken");
}

/* K and V are split for all of a head's rows at once: for few, forward.c is done sooner. */
static const char *reject_split_tiles(const struct problem *p, int32_t dtype, const char *wrong_dtype) {
    if (!p->tuning.kernel && shared_rows(p) < ROWS_WORTH_SPLITTING)
        return "fewer than 49 query rows share a K/V head, and it was not asked for by name";
    return reject_tiles(p, dtype, wrong_dtype);
}

static const char *reject_fp16_tiles(const struct problem *p) {
    return reject_split_tiles(p, STROBE_FP16, "q or out is not fp16; fp16 is taken");
}

static const char *reject_fp32_tiles(const struct problem *p) {
    return reject_split_tiles(p, STROBE_FP32, "q or out is not fp32; fp32 is taken");
}

static const char *reject_backward_amx(const struct problem *p) {
    const strobe_attention *a = &p->a;
    const strobe_gradients *g = &p->g;
    const strobe_tensor *const tensors[] = {&a->q, &a->out, &g->dout, &g->dq, &g->dk, &g->dv};
    const char *reason = reject(p);
    if (reason) return reason;
    for (size_t n = 0; n < sizeof tensors / sizeof tensors[0]; ++n)
        if (tensors[n]->dtype != STROBE_BF16) return "q, out, dout, dq, dk or dv is not bf16; bf16 is taken";
    return refuse_tiles(p);
}
#endif

#define FORWARD(level)                                                                                             \
    {                                                                                                              \
        .name = "cpu_forward_" #level, .summary = "FlashAttention-2 forward, fp32 arithmetic, " #level " vectors", \
        .operation = STROBE_FORWARD, .unavailable = lacks_##level, .reject = reject_forward,                       \
        .workspace = strobe__cpu_forward_workspace_##level, .run = strobe__cpu_forward_##level                     \
    }
#define DECODE(level)                                                                                                       \
    {                                                                                                                       \
        .name = "cpu_decode_" #level,                                                                                       \
        .summary = "split-KV decoding of few query rows, fp32 arithmetic, " #level " vectors", .operation = STROBE_FORWARD, \
        .unavailable = lacks_##level, .reject = reject_decode, .workspace = strobe__cpu_decode_workspace_##level,           \
        .run = strobe__cpu_decode_##level                                                                                   \
    }
#define BACKWARD(level)                                                                                              \
    {                                                                                                                \
        .name = "cpu_backward_" #level, .summary = "FlashAttention-2 backward, fp32 arithmetic, " #level " vectors", \
        .operation = STROBE_BACKWARD, .unavailable = lacks_##level, .reject = reject,                                \
        .workspace = strobe__cpu_backward_workspace_##level, .run = strobe__cpu_backward_##level                     \
    }

static const struct kernel kernels[] = {
#if defined(__x86_64__)
    {
        .name = "cpu_decode_amx",
        .summary = "split-KV decoding of few bf16 query rows on AMX tiles",
        .operation = STROBE_FORWARD,
        .unavailable = lacks_amx,
        .reject = reject_decode_amx,
        .workspace = strobe__cpu_decode_workspace_amx,
        .run = strobe__cpu_decode_amx,
    },
    {
        .name = "cpu_decode_int8_amx",
        .summary = "split-KV decoding of few query rows on int8 K and V, as bytes on AMX tiles",
        .operation = STROBE_FORWARD,
        .unavailable = lacks_amx,
        .reject = reject_decode_int8,
        .workspace = strobe__cpu_decode_workspace_int8_amx,
        .run = strobe__cpu_decode_int8_amx,
    },
    DECODE(avx512),
    {
        .name = "cpu_forward_amx",
        .summary = "FlashAttention-2 forward, bf16 products on AMX tiles under the softmax",
        .operation = STROBE_FORWARD,
        .unavailable = lacks_amx,
        .reject = reject_bf16_tiles,
        .workspace = strobe__cpu_forward_workspace_amx,
        .run = strobe__cpu_forward_amx,
    },
    {
        .name = "cpu_forward_fp16_amx",
        .summary = "the same in fp16, each number the sum of two bf16",
        .operation = STROBE_FORWARD,
        .unavailable = lacks_amx,
        .reject = reject_fp16_tiles,
        .workspace = strobe__cpu_forward_workspace_fp16_amx,
        .run = strobe__cpu_forward_fp16_amx,
    },
    {
        .name = "cpu_forward_fp32_amx",
        .summary = "the same in fp32, each number the sum of three bf16",
        .operation = STROBE_FORWARD,
        .unavailable = lacks_amx,
        .reject = reject_fp32_tiles,
        .workspace = strobe__cpu_forward_workspace_fp32_amx,
        .run = strobe__cpu_forward_fp32_amx,
    },
    FORWARD(avx512),
    DECODE(avx2),
    FORWARD(avx2),
#endif
    DECODE(baseline),
    FORWARD(baseline),
#if defined(__x86_64__)
    {
        .name = "cpu_backward_amx",
        .summary = "FlashAttention-2 backward, bf16 products on AMX tiles",
        .operation = STROBE_BACKWARD,
        .unavailable = lacks_amx,
        .reject = reject_backward_amx,
        .workspace = strobe__cpu_backward_workspace_amx,
        .run = strobe__cpu_backward_amx,
    },
    BACKWARD(avx512),
    BACKWARD(avx2),
#endif
    BACKWARD(baseline),
};

static bool describe(int32_t device, int32_t index, strobe_device_info *info) {
    if (device != STROBE_CPU || index != 0) return false;
    info->name = strobe__cpu_name();
    info->level = strobe__cpu_level_names[strobe__cpu_level()];
    info->threads = strobe__workers(NULL);
    info->memory_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    return true;
}

const struct backend strobe__cpu_backend = {
    .kernels = kernels,
    .count = sizeof kernels / sizeof kernels[0],
    .device = STROBE_CPU,
    .describe = describe,
    .merge = strobe__cpu_merge,
};
