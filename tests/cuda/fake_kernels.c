/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fake_kernels.c: stand-ins for the kernels, from the lists that the build writes; see fake_runtime.h. */
#include "core/kernel.h"
#include "cuda/device/add.h"
#include "cuda/device/array_gradients.h"
#include "cuda/device/params.h"
#include "cuda/host/image.h"
#include "cuda/packed/model.h"
#include "fake_runtime.h"

/* The other backends are no part of this. */
const struct backend strobe__cpu_backend = {.device = STROBE_CPU};
const struct backend strobe__reference_backend = {.device = STROBE_CPU};

/* One image has all of them: PTX for any GPU, one byte, of which a stream of zeros is unpacked to a zero. */
static const unsigned char packed[4 + 4 * CODE_NUMBERS + 8] = {
    [0] = 1, [4] = (TEXT_CODE + 80) % 256, [5] = (TEXT_CODE + 80) / 256, [8] = 8, [12] = 1};
static struct cuda_image image = {.packed = {packed, sizeof packed}};

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
#define STAND_INS_backward(name)
#define STAND_INS_backward_pair(name) STAND_IN(name##_ordered)
#define VARIANT(name, dtype, gradients, dim, rows, keys, ctas, features, file, ...) \
    STAND_IN(name) STAND_IN(name##_prepare) STAND_IN(name##_finish) STAND_INS_##file(name)
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
STAND_IN(add)
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
STAND_IN(quantise_block_int8_64)
STAND_IN(quantise_block_96)
STAND_IN(quantise_block_int8_96)
STAND_IN(quantise_block_128)
STAND_IN(quantise_block_int8_128)
STAND_IN(quantise_block_192)
STAND_IN(quantise_block_int8_192)
STAND_IN(quantise_block_256)
STAND_IN(quantise_block_int8_256)
STAND_IN(quantise_scales)
STAND_IN(quantise_mean)
STAND_IN(append_copies)
STAND_IN(append_floats)
STAND_IN(append_bytes)
STAND_IN(append_all)
STAND_IN(append_run_64)
STAND_IN(append_run_128)
STAND_IN(append_run_256)

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
#define KERNELS_backward(name)
#define KERNELS_backward_pair(name) KERNEL(name##_ordered, 384, true)
#define VARIANT(name, dtype, gradients, dim, rows, keys, ctas, features, file, ...) \
    KERNEL(name, 384, true) KERNEL(name##_prepare, 256, true) KERNEL(name##_finish, 0, true) KERNELS_##file(name)
#include "sm90_backward_variants.h"
#undef VARIANT
    KERNEL(latent_sm90_bf16_merge, 256, true) KERNEL(latent_sm90_fp16_merge, 256, true) KERNEL(row_deltas, 256, false)
        KERNEL(sink_sums, SINK_THREADS, false) KERNEL(dq_round, 256, false) KERNEL(dbias_round, 256, false)
            KERNEL(add, 32 * ADD_WARPS, false) KERNEL(merge_two, 128, false) KERNEL(merge_few, 128, false)
                KERNEL(merge_most, 128, false) KERNEL(visible_units, 256, false) KERNEL(visible_function_units, 256, false)
                    KERNEL(visible_small_units, 256, false){.name = "array_gradients",
                                                            .function = &strobe__kernel_array_gradients,
                                                            .threads = ARRAY_GRADIENT_THREADS,
                                                            .with_functions = true},
    {0},
};
