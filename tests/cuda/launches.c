/* SPDX-License-Identifier: BSD-3-Clause
 *
 * launches.c: on each architecture every problem finds kernels whose launches fit its shared memory, threads and
 * instructions, on the device that is named whatever is current. The library's core and the CUDA backend's host side run
 * over a runtime that checks launches and has no GPU (fake_runtime.c). Exit code 0 passed, 1 failed. */
#include <stdio.h>
#include <string.h>

#include "core/kernel.h"
#include "cuda/device/params.h"
#include "cuda/host/image.h"
#include "fake_runtime.h"
#include "strobe/strobe_score.h"

/* The other backends are no part of this. */
const struct backend strobe__cpu_backend = {.device = STROBE_CPU};
const struct backend strobe__reference_backend = {.device = STROBE_CPU};

/* ---- stand-ins for the kernels, from the lists that the build writes */

/* One image has all of them. */
static struct cuda_image image = {.code = &image};

#define STAND_IN(kernel) \
    CUDA_KERNEL(kernel); \
    struct cuda_kernel strobe__kernel_##kernel = {.name = #kernel, .image = &image};
#define VARIANT(name, ...) STAND_IN(name)
#include "cuda_backward_dbias_variants.h"
#include "cuda_backward_fused_variants.h"
#include "cuda_decode_bytes_variants.h"
#include "cuda_decode_cluster_bytes_variants.h"
#include "cuda_decode_cluster_variants.h"
#include "cuda_decode_variants.h"
#include "cuda_forward_variants.h"
#include "sm90_forward_variants.h"
#undef VARIANT
#define VARIANT(kind, name, ...) STAND_IN(name)
#include "cuda_backward_variants.h"
#undef VARIANT
#define VARIANT(name, ...) STAND_IN(name) STAND_IN(name##_prepare) STAND_IN(name##_finish)
#include "sm90_backward_variants.h"
#undef VARIANT
#define VARIANT(name, ...) STAND_IN(name)
#include "sm90_latent_variants.h"
#undef VARIANT
STAND_IN(latent_sm90_bf16_merge)
STAND_IN(latent_sm90_fp16_merge)
STAND_IN(row_deltas)
STAND_IN(sink_sums)
STAND_IN(dq_round)
STAND_IN(dbias_round)
STAND_IN(merge_two)
STAND_IN(merge_few)
STAND_IN(merge_most)
STAND_IN(visible_units)
STAND_IN(visible_function_units)
STAND_IN(visible_small_units)
STAND_IN(array_gradients)

/* Linked and not launched by the problems below: the FP8 forward, the quantiser and strobe_append. */
#define VARIANT(name, ...) STAND_IN(name)
#include "sm90_fp8_variants.h"
#undef VARIANT
STAND_IN(quantise_rows_64_plain)
STAND_IN(quantise_rows_128_plain)
STAND_IN(quantise_rows_256_plain)
STAND_IN(quantise_rows_64_general)
STAND_IN(quantise_rows_128_general)
STAND_IN(quantise_rows_256_general)
STAND_IN(quantise_block_64)
STAND_IN(quantise_block_96)
STAND_IN(quantise_block_128)
STAND_IN(quantise_block_192)
STAND_IN(quantise_block_256)
STAND_IN(quantise_scales)
STAND_IN(quantise_mean)
STAND_IN(append_copies)
STAND_IN(append_floats)
STAND_IN(append_bytes)
STAND_IN(append_all)

#define KERNEL(kernel, its_threads, hopper) \
    {.name = #kernel, .function = &strobe__kernel_##kernel, .threads = its_threads, .is_hopper = hopper},

const struct fake_kernel fake_kernels[] = {
#define VARIANT(name, dtype, stored, dim, n, warps_m, warps_n, ...) KERNEL(name, 32 * (warps_m) * (warps_n), false)
#include "cuda_decode_bytes_variants.h"
#include "cuda_decode_variants.h"
#undef VARIANT
#define VARIANT(name, dtype, stored, dim, n, warps_m, warps_n, ...) KERNEL(name, 32 * (warps_m) * (warps_n), true)
#include "cuda_decode_cluster_bytes_variants.h"
#include "cuda_decode_cluster_variants.h"
#undef VARIANT
#define VARIANT(name, dtype, dim, dim_v, m, n, warps_m, warps_n, ...) KERNEL(name, 32 * (warps_m) * (warps_n), false)
#include "cuda_forward_variants.h"
#undef VARIANT
#define VARIANT(kind, name, dtype, dim, slice, tiles, warps, ...) KERNEL(name, 32 * (warps), false)
#include "cuda_backward_variants.h"
#undef VARIANT
#define VARIANT(name, dtype, dim, keys, rows, warps, ...) KERNEL(name, 32 * (warps), false)
#include "cuda_backward_fused_variants.h"
#undef VARIANT
#define VARIANT(name, dtype) KERNEL(name, 128, false)
#include "cuda_backward_dbias_variants.h"
#undef VARIANT
#define VARIANT(name, dtype, out, terms, dim, keys, groups, ...) KERNEL(name, 128 * ((groups) + 1), true)
#include "sm90_forward_variants.h"
#undef VARIANT
#define VARIANT(name, ...) KERNEL(name, 512, true)
#include "sm90_latent_variants.h"
#undef VARIANT
#define VARIANT(name, ...) KERNEL(name, 384, true) KERNEL(name##_prepare, 256, true) KERNEL(name##_finish, 0, true)
#include "sm90_backward_variants.h"
#undef VARIANT
    KERNEL(latent_sm90_bf16_merge, 256, true) KERNEL(latent_sm90_fp16_merge, 256, true) KERNEL(row_deltas, 256, false)
        KERNEL(sink_sums, SINK_THREADS, false) KERNEL(dq_round, 256, false) KERNEL(dbias_round, 256, false)
            KERNEL(merge_two, 128, false) KERNEL(merge_few, 128, false) KERNEL(merge_most, 128, false)
                KERNEL(visible_units, 256, false) KERNEL(visible_function_units, 256, false)
                    KERNEL(visible_small_units, 256, false){0},
};

/* No kernel is compiled here. */
const char strobe__cuda_sources[1] = "", strobe__cuda_sources_end[1] = "";

/* ---- the problems */

enum {
    BIAS = 1,
    BOOL = 2,
    BLOCK = 4,
    ALIBI = 8,
    DROPOUT = 16,
    SINKS = 32,
    SOFTCAP = 64,
    PACKED = 128,
    USED = 256,
    NEGATIVE = 512,
    ODD = 1024,
    FIXED_ORDER = 2048,
    SPLIT = 4096,
    WIDE = 8192,
    CAUSAL = 16384,
    BROADCAST = 32768,
    VISIBLE = 65536,
    PAGED = 1 << 17, /* of the forward alone, as the others that follow */
    INT8_CACHE = 1 << 18,
    FP8_CACHE = 1 << 19,
    V_IN_K = 1 << 20,
    TF32_PARTS = 1 << 21,
    CACHES = PAGED | INT8_CACHE | FP8_CACHE | V_IN_K
};

static const unsigned features[] = {0,
                                    CAUSAL,
                                    BIAS,
                                    BIAS | BROADCAST | FIXED_ORDER,
                                    BOOL,
                                    BLOCK,
                                    ALIBI,
                                    DROPOUT,
                                    SINKS,
                                    SOFTCAP,
                                    SOFTCAP | ALIBI,
                                    PACKED,
                                    USED,
                                    NEGATIVE,
                                    ODD,
                                    FIXED_ORDER,
                                    SPLIT,
                                    WIDE,
                                    WIDE | BIAS | ALIBI | SOFTCAP,
                                    CAUSAL | PACKED | FIXED_ORDER,
                                    BIAS | BOOL | BLOCK | ALIBI | DROPOUT | SINKS | SOFTCAP | USED | CAUSAL,
                                    VISIBLE,
                                    VISIBLE | BOOL | BROADCAST,
                                    VISIBLE | BLOCK | USED,
                                    VISIBLE | FIXED_ORDER | SOFTCAP,
                                    BIAS | SINKS | ODD | FIXED_ORDER | NEGATIVE,
                                    TF32_PARTS,
                                    TF32_PARTS | CAUSAL | FIXED_ORDER,
                                    TF32_PARTS | BIAS | DROPOUT | PACKED,
                                    PAGED,
                                    PAGED | CAUSAL | ODD,
                                    INT8_CACHE,
                                    INT8_CACHE | SPLIT,
                                    FP8_CACHE,
                                    FP8_CACHE | PAGED | USED | SINKS,
                                    V_IN_K,
                                    V_IN_K | PAGED | USED | CAUSAL,
                                    V_IN_K | SOFTCAP | ALIBI | SPLIT,
                                    V_IN_K | INT8_CACHE,
                                    V_IN_K | FP8_CACHE | PAGED | USED};
static const int64_t dims[][2] = {{1, 1},     {32, 32},   {40, 24},   {64, 64},   {65, 65},   {96, 96},
                                  {128, 128}, {160, 160}, {192, 128}, {192, 192}, {256, 256}, {257, 257},
                                  {512, 512}, {64, 512},  {512, 1},   {576, 512}};
static const int64_t sizes[][4] = {/* batch, seq_q, seq_k, group */
                                   {1, 1, 1, 1},      {2, 1, 4096, 8},     {1, 16, 300, 1}, {3, 64, 64, 2},
                                   {1, 1000, 700, 1}, {16, 4096, 4096, 1}, {2, 0, 5, 2},    {2, 5, 0, 2},
                                   {2, 4, 2000, 8},   {2, 8, 2000, 8},     {1, 16, 300, 8}, {1, 1, 4096, 8},
                                   {10, 1, 4096, 8},  {1, 64, 4096, 2},    {3, 1, 300, 1},  {10, 1, 300, 1}};
static const int32_t dtypes[] = {STROBE_FP32, STROBE_FP16, STROBE_BF16};

struct call {
    strobe_attention a;
    strobe_gradients g;
    strobe_varlen varlen;
    strobe_paged paged;
    strobe_scales scales;
    strobe_bias bias, dbias;
    strobe_bool_mask bool_mask;
    strobe_block_mask block_mask;
    strobe_alibi alibi;
    strobe_sinks sinks, dsinks;
    strobe_dropout dropout;
    strobe_tuning tuning;
    strobe_score_arguments score;
    strobe_score_elements array;
};

static uintptr_t next_offset;

static void *place(int device) { return fake_memory(device, next_offset += (uintptr_t)1 << 40); }

static strobe_tensor tensor(int device, unsigned with, int32_t dtype) {
    char *data = place(device);
    return (strobe_tensor){.data = with & ODD ? data + 4 : data, .dtype = with & WIDE ? STROBE_FP32 : dtype};
}

static void add_scores(struct call *c, int device, unsigned with) {
    const int64_t row = c->a.seq_k, head = row * c->a.seq_q, batch = head * c->a.heads_q;
    const int64_t full[3] = {batch, head, row}, shared[3] = {0, 0, row}, *stride = with & BROADCAST ? shared : full;
    c->bias = (strobe_bias){.struct_size = sizeof c->bias, .data = place(device)};
    c->bool_mask = (strobe_bool_mask){.struct_size = sizeof c->bool_mask, .data = place(device)};
    c->block_mask = (strobe_block_mask){.struct_size = sizeof c->block_mask, .data = place(device)};
    c->block_mask.block_q = c->block_mask.block_k = 64;
    memcpy(c->bias.stride, stride, sizeof full), memcpy(c->bool_mask.stride, stride, sizeof full);
    c->dbias = c->bias, c->dbias.data = place(device);
    if (with & BIAS) c->a.bias = &c->bias, c->g.dbias = with == BIAS ? NULL : &c->dbias;
    if (with & BOOL) c->a.bool_mask = &c->bool_mask;
    if (with & BLOCK) c->a.block_mask = &c->block_mask;
}

static void add_lengths(struct call *c, int device, unsigned with) {
    c->varlen = (strobe_varlen){.struct_size = sizeof c->varlen};
    if (with & PACKED) {
        c->varlen.cu_seqlens_q = place(device), c->varlen.cu_seqlens_k = place(device);
        c->varlen.total_q = c->a.batch * c->a.seq_q, c->varlen.total_k = c->a.batch * c->a.seq_k;
    }
    if (with & USED) c->varlen.used_q = place(device), c->varlen.used_k = place(device);
    if (with & (PACKED | USED)) c->a.varlen = &c->varlen;
}

/* K and V in pages, or in a byte a number. */
static void add_cache(struct call *c, int device, unsigned with) {
    c->paged = (strobe_paged){.struct_size = sizeof c->paged, .page_table = place(device), .page_size = 16, .pages = 9999};
    c->scales = (strobe_scales){.struct_size = sizeof c->scales, .k = place(device), .v = place(device), .block_k = 1};
    c->scales.stride_k[1] = c->scales.stride_v[1] = 1;
    if (with & V_IN_K) c->scales.v = c->scales.k;
    if (with & PAGED) c->a.paged = &c->paged;
    if (!(with & (INT8_CACHE | FP8_CACHE))) return;
    c->a.scales = &c->scales;
    c->a.k.dtype = c->a.v.dtype = with & INT8_CACHE ? STROBE_INT8 : STROBE_FP8_E4M3;
}

/* A function of who sees whom, with an array that is read at rows and keys: a small one, or one of many steps. */
static void add_function(struct call *c, int device, bool is_small) {
#define OR_SAME_DOCUMENT(n) " || doc[min(i, " #n ")] == doc[min(j, " #n ")]"
    static const char *const texts[2] = {"i < j" OR_SAME_DOCUMENT(95) OR_SAME_DOCUMENT(96) OR_SAME_DOCUMENT(97)
                                             OR_SAME_DOCUMENT(98) OR_SAME_DOCUMENT(99),
                                         "j <= i + 100 && doc[min(i, 99)] == doc[min(j, 99)]"};
    static strobe_score *functions[2];
    const strobe_score_array array = {.name = "doc", .rank = 1, .dtype = STROBE_INT32};
    const strobe_score_source source = {
        .struct_size = sizeof source, .visible = texts[is_small], .arrays = &array, .array_count = 1};
    strobe_score **function = &functions[is_small];
    if (!*function && strobe_score_create(&source, function)) fprintf(stderr, "%s\n", strobe_last_error());
    c->array = (strobe_score_elements){.data = place(device), .extent = {100}};
    c->score = (strobe_score_arguments){.struct_size = sizeof c->score, .function = *function};
    c->score.arrays = &c->array, c->score.array_count = 1;
    c->a.score = &c->score;
}

/* V as the first columns of K, as latent attention has it. */
static void put_v_in_k(strobe_attention *a, int64_t rows) {
    const int64_t row = a->heads_kv * a->dim, stride[3] = {rows * row, row, a->dim};
    memcpy(a->k.stride, stride, sizeof stride);
    a->v = a->k;
}

static void make(struct call *c, int device, int32_t dtype, const int64_t dim[2], const int64_t size[4], unsigned with) {
    memset(c, 0, sizeof *c), next_offset = 0;
    c->a = (strobe_attention){.struct_size = sizeof c->a, .batch = size[0], .seq_q = size[1], .seq_k = size[2]};
    c->a.heads_q = 8, c->a.heads_kv = 8 / size[3], c->a.dim = dim[0], c->a.dim_v = dim[1], c->a.dtype = dtype;
    c->a.device = STROBE_CUDA, c->a.device_index = device;
    c->a.q = tensor(device, with & ODD, dtype), c->a.k = tensor(device, 0, dtype), c->a.v = tensor(device, 0, dtype);
    c->a.out = tensor(device, with, dtype), c->a.lse = tensor(device, 0, STROBE_FP32);
    c->g = (strobe_gradients){.struct_size = sizeof c->g, .dout = tensor(device, 0, dtype)};
    c->g.dq = tensor(device, with, dtype), c->g.dk = tensor(device, with, dtype), c->g.dv = tensor(device, with, dtype);
    c->alibi = (strobe_alibi){.struct_size = sizeof c->alibi, .slopes = place(device)};
    c->sinks = (strobe_sinks){.struct_size = sizeof c->sinks, .data = place(device)};
    c->dsinks = c->sinks, c->dsinks.data = place(device);
    c->dropout = (strobe_dropout){.struct_size = sizeof c->dropout, .p = 0.1};
    c->tuning = (strobe_tuning){.struct_size = sizeof c->tuning, .split_keys = 256};
    if (with & V_IN_K) put_v_in_k(&c->a, with & PAGED ? 16 : c->a.seq_k);
    add_scores(c, device, with), add_lengths(c, device, with), add_cache(c, device, with);
    if (with & ALIBI) c->a.alibi = &c->alibi;
    if (with & SINKS) c->a.sinks = &c->sinks, c->g.dsinks = &c->dsinks;
    if (with & DROPOUT) c->a.dropout = &c->dropout;
    if (with & SOFTCAP) c->a.softcap = with == SOFTCAP ? 30 : 20;
    if (with & NEGATIVE) c->a.scale = -0.25;
    if (with & CAUSAL) c->a.mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT;
    if (with & FIXED_ORDER) c->a.flags = STROBE_DETERMINISTIC;
    if (with & TF32_PARTS) c->a.flags |= STROBE_TF32X3;
    if (with & SPLIT) c->a.tuning = &c->tuning;
    if (with & VISIBLE) add_function(c, device, with == VISIBLE);
}

/* ---- the runs */

static int failures, calls;

static void fail(const struct call *c, bool backward, const char *sentence) {
    if (++failures > 20) return;
    fprintf(stderr, "FAILED: %s %s d %d/%d, sq %d, sk %d, dtype %d: %s\n", fake_gpus[c->a.device_index].name,
            backward ? "bwd" : "fwd", (int)c->a.dim, (int)c->a.dim_v, (int)c->a.seq_q, (int)c->a.seq_k, c->a.dtype,
            sentence);
}

/* before: the device that is current, -1 none. Afterwards it is the same, or what the runtime would have chosen. */
static void run(struct call *c, bool backward, int before) {
    const int device = c->a.device_index;
    size_t bytes = 0;
    void *workspace = fake_memory(device, (uintptr_t)1 << 46);
    fake_thread = (struct fake_thread){.current = before, .chosen = before < 0 ? 0 : before, .below = {-1, -1, -1, -1}};
    fake_launches.device = device, fake_launches.refusal[0] = 0;
    const int64_t launches = fake_launches.count;
    strobe_status status = strobe_workspace(&c->a, backward ? &c->g : NULL, &bytes);
    if (!status)
        status = backward ? strobe_backward(&c->a, &c->g, workspace, bytes, NULL)
                          : strobe_forward(&c->a, workspace, bytes, NULL);
    ++calls;
    if (status || fake_launches.refusal[0]) fail(c, backward, status ? strobe_last_error() : fake_launches.refusal);
    if (!backward && c->a.seq_q == 0) return;
    if (fake_launches.count == launches && !status) fail(c, backward, "no launch");
    const bool same = fake_thread.current == before || (before < 0 && device == 0 && fake_thread.current == 0);
    if (!same || fake_thread.chosen != (before < 0 ? 0 : before) || fake_thread.held)
        fail(c, backward, "another device is current than before");
}

/* strobe_merge: few parts and many, by kernels of their own. */
static void run_merge(int device, int64_t count, int before) {
    strobe_partial parts[40];
    for (int64_t n = 0; n < count; ++n)
        parts[n] = (strobe_partial){.out = {.data = fake_memory(device, 4096)}, .lse = {.data = fake_memory(device, 8192)}};
    strobe_partials m = {.struct_size = sizeof m, .batch = 2, .seq_q = 70, .heads_q = 3, .dim_v = 80, .count = count};
    m.parts = parts, m.device = STROBE_CUDA, m.device_index = device;
    m.out.data = fake_memory(device, 1 << 20), m.lse.data = fake_memory(device, 2 << 20);
    fake_thread = (struct fake_thread){.current = before, .chosen = before < 0 ? 0 : before, .below = {-1, -1, -1, -1}};
    fake_launches.device = device, fake_launches.refusal[0] = 0;
    ++calls;
    if (strobe_merge(&m, NULL) || fake_launches.refusal[0]) {
        fprintf(stderr, "FAILED: %s, a merge: %s\n", fake_gpus[device].name, strobe_last_error());
        ++failures;
    }
}

static void run_all(int device) {
    struct call c;
    for (size_t t = 0; t < sizeof dtypes / sizeof dtypes[0]; ++t)
        for (size_t d = 0; d < sizeof dims / sizeof dims[0]; ++d)
            for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; ++s)
                for (size_t f = 0; f < sizeof features / sizeof features[0]; ++f)
                    for (int backward = 0; backward < 2; ++backward) {
                        if (backward && (features[f] & (SPLIT | CACHES) || dims[d][0] > 512)) continue;
                        make(&c, device, dtypes[t], dims[d], sizes[s], features[f]);
                        if (f == 0) run(&c, backward, device), run(&c, backward, (device + 1) % FAKE_GPUS);
                        run(&c, backward, -1);
                        if (!backward || !(features[f] & WIDE)) continue;
                        c.a.out.dtype = dtypes[t]; /* gradients alone are fp32 */
                        run(&c, backward, -1);
                    }
}

/* Many rows over K and V in pages, by the Hopper forward. */
static void run_prefill(int device) {
    static const int64_t columns[][2] = {{64, 64}, {96, 96}, {128, 128}, {192, 128}, {192, 192}, {256, 256}},
                         size[4] = {2, 512, 4096, 4};
    strobe_paged paged = {.struct_size = sizeof paged, .page_table = place(device), .page_size = 16, .pages = 9999};
    struct call c;
    for (size_t d = 0; d < sizeof columns / sizeof columns[0]; ++d)
        for (int n = 0; n < 4; ++n) {
            make(&c, device, n % 2 ? STROBE_BF16 : STROBE_FP16, columns[d], size, n < 2 ? CAUSAL : SOFTCAP | ALIBI);
            c.a.paged = &paged;
            run(&c, false, -1);
        }
}

int main(void) {
    int kernels = 0, unused = 0;
    for (int device = 0; device < FAKE_GPUS; ++device) {
        run_all(device);
        if (fake_gpus[device].major == 9) run_prefill(device);
        for (int before = -1; before < FAKE_GPUS; ++before) run_merge(device, 2, before), run_merge(device, 40, before);
    }
    for (const struct fake_kernel *k = fake_kernels; k->name; ++k, ++kernels)
        if (!fake_launches.used[k - fake_kernels] && ++unused) printf("never launched: %s\n", k->name);
    for (int device = 0; device < FAKE_GPUS; ++device) {
        int used = 0;
        for (int k = 0; k < kernels; ++k) used += (fake_launches.used[k] >> device & 1) != 0;
        printf("%s: %d kernels\n", fake_gpus[device].name, used);
    }
    printf("%d calls, %lld launches of %d kernels, %d never; %d failed\n", calls, (long long)fake_launches.count, kernels,
           unused, failures);
    return failures > 0 || unused > 0;
}
