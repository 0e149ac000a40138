/* SPDX-License-Identifier: BSD-3-Clause
 *
 * table.c: the table of the CPU's kernels, best level first, and the CPU as a device. A record names all that its kernel
 * takes; what it does not name is refused (core/declare.c). Forward and backward at a level are one text each for all
 * levels, so that their records are made by a macro. */
#include "cpu/table.h"

#include "core/parallel.h"
#include "cpu/add.h"
#include "cpu/append.h"
#include "cpu/cpuid.h"
#include "cpu/merge.h"
#include "cpu/quantise.h"
#include "portable/posix.h"

static const char *lacks(int32_t level, int32_t index) {
    (void)index; /* there is one CPU */
    return strobe__cpu_lacks((enum cpu_level)level);
}

/* What all of them compute, and what is beside it. */
#define COMMON   (SHAPE_FEATURES | BAND_FEATURES | VARLEN_FEATURES | FEATURE(NEGATIVE_SCALE) | FEATURE(SINKS))
#define SCORES   (MASK_FEATURES | SCORE_FEATURES | FUNCTION_FEATURES | FEATURE(DROPOUT))
#define CACHE    (FEATURE(PAGED) | FEATURE(LEFTPAD_K))
#define BACKWARD (FEATURE(DSCORE) | FEATURE(DBIAS) | FEATURE(DSINKS) | FEATURE(DLSE) | FEATURE(DETERMINISTIC))

#define FLOATS (FP32 | FP16 | BF16)
#define STORED (FLOATS | FP64) /* one element at a time: outputs, biases */
#define LSES   (FP32 | FP64)

/* From how many query rows that share a K/V head, or up to how many, a kernel is faster than the next that would take them;
 * docs/kernels/cpu.md has the figures. */
enum {
    ROWS_BETTER_IN_TILES = 3,  /* for bf16 and int8 AMX tiles are, although they are not full */
    MOST_BETTER_IN_ROWS = 8,   /* decode.c is; from 9 on forward.c, queries across the lanes */
    ROWS_WORTH_SPLITTING = 49, /* fp16 and fp32 on tiles are: more than a tile of forward.c's. K and V are split into bf16
                                  for all of a head's rows at once */
};

#define ANY_LENGTH .seq_q = ANY_NUMBER, .seq_k = ANY_NUMBER
#define ANY_SIZE   ANY_LENGTH, .rows = ANY_NUMBER

/* K and V may be narrower than q, and scaled: a cache. */
#define FORWARD_LEVEL(level, LEVEL)                                                                                \
    {                                                                                                              \
        .name = "cpu_forward_" #level, .summary = "FlashAttention-2 forward, fp32 arithmetic, " #level " vectors", \
        .operation = STROBE_FORWARD, .needs = CPU_##LEVEL,                                                         \
        .features = COMMON | SCORES | CACHE | FEATURE(LSE) | FEATURE(SCALES) | FEATURE(SCALES_Q),                  \
        .dtypes = {.q = FLOATS | FP8 | INT8,                                                                       \
                   .kv = FLOATS | FP8 | INT8,                                                                      \
                   .out = STORED,                                                                                  \
                   .lse = LSES,                                                                                    \
                   .bias = STORED,                                                                                 \
                   .sinks = LSES},                                                                                 \
        .dim = DIM_LIMIT, .dim_v = DIM_V_LIMIT, ANY_SIZE, .workspace = strobe__cpu_forward_workspace_##level,      \
        .run = strobe__cpu_forward_##level,                                                                        \
    }
#define DECODE_LEVEL(level, LEVEL)                                                                                          \
    {                                                                                                                       \
        .name = "cpu_decode_" #level,                                                                                       \
        .summary = "split-KV decoding of few query rows, fp32 arithmetic, " #level " vectors", .operation = STROBE_FORWARD, \
        .needs = CPU_##LEVEL,                                                                                               \
        .features = COMMON | CACHE | FEATURE(BOOL_MASK) | FEATURE(LSE) | FEATURE(SCALES) | FEATURE(SPLIT_KEYS),             \
        .dtypes = {.q = FLOATS, .kv = FLOATS | FP8 | INT8, .out = STORED, .lse = LSES, .sinks = LSES}, .dim = DIM_LIMIT,    \
        .dim_v = DIM_V_LIMIT, ANY_LENGTH, .rows = {0, MOST_DECODE_ROWS}, .best_rows = {0, MOST_BETTER_IN_ROWS},             \
        .workspace = strobe__cpu_decode_workspace_##level, .run = strobe__cpu_decode_##level,                               \
    }
#define BACKWARD_LEVEL(level, LEVEL)                                                                                 \
    {                                                                                                                \
        .name = "cpu_backward_" #level, .summary = "FlashAttention-2 backward, fp32 arithmetic, " #level " vectors", \
        .operation = STROBE_BACKWARD, .needs = CPU_##LEVEL, .features = COMMON | SCORES | BACKWARD | DTYPE_FEATURES, \
        .dtypes = {.q = FLOATS,                                                                                      \
                   .kv = SAME,                                                                                       \
                   .out = STORED,                                                                                    \
                   .lse = LSES,                                                                                      \
                   .bias = STORED,                                                                                   \
                   .sinks = LSES,                                                                                    \
                   .dout = STORED,                                                                                   \
                   .gradients = STORED,                                                                              \
                   .dbias = STORED},                                                                                 \
        .dim = 512, .dim_v = 512, ANY_SIZE, .workspace = strobe__cpu_backward_workspace_##level,                     \
        .run = strobe__cpu_backward_##level,                                                                         \
    }

#define BF16_FORWARD \
    { .q = BF16, .kv = SAME, .out = STORED, .lse = LSES, .bias = STORED, .sinks = LSES }
#define TILES_BACKWARD(type)                                                                          \
    {                                                                                                 \
        .q = type, .kv = SAME, .out = SAME, .lse = LSES, .bias = STORED, .sinks = LSES, .dout = SAME, \
        .gradients = SAME | FP32, .dbias = STORED,                                                    \
    }

/* The texts of tiles where vectors multiply bf16. */
#define FORWARD_PRODUCTS(level, LEVEL, words)                                                                               \
    {                                                                                                                       \
        .name = "cpu_forward_" #level, .summary = "FlashAttention-2 forward, " words, .operation = STROBE_FORWARD,          \
        .needs = CPU_##LEVEL, .features = COMMON | SCORES | CACHE | FEATURE(LSE), .dtypes = BF16_FORWARD, .dim = DIM_LIMIT, \
        .dim_v = DIM_V_LIMIT, ANY_SIZE, .workspace = strobe__cpu_forward_workspace_##level,                                 \
        .run = strobe__cpu_forward_##level,                                                                                 \
    }
#define BACKWARD_PRODUCTS(level, LEVEL, words)                                                                         \
    {                                                                                                                  \
        .name = "cpu_backward_" #level, .summary = "FlashAttention-2 backward, " words, .operation = STROBE_BACKWARD,  \
        .needs = CPU_##LEVEL, .features = COMMON | SCORES | BACKWARD | DTYPE_FEATURES, .dtypes = TILES_BACKWARD(BF16), \
        .dim = 256, .dim_v = 256, ANY_SIZE, .workspace = strobe__cpu_backward_workspace_##level,                       \
        .run = strobe__cpu_backward_##level,                                                                           \
    }

#define BACKWARD_IN_PARTS(dtype, DTYPE, parts, mixtures)                                                                   \
    {                                                                                                                      \
        .name = "cpu_backward_" #dtype "_amx", .summary = "the same in " #dtype ", each number the sum of " parts " bf16", \
        .operation = STROBE_BACKWARD, .needs = CPU_AMX, .features = COMMON | SCORES | BACKWARD | (mixtures),               \
        .dtypes = TILES_BACKWARD(DTYPE), .dim = 256, .dim_v = 256, ANY_SIZE,                                               \
        .best_rows = {ROWS_WORTH_SPLITTING, INT64_MAX}, .denied = strobe__cpu_refuses_tiles,                               \
        .workspace = strobe__cpu_backward_workspace_##dtype##_amx, .run = strobe__cpu_backward_##dtype##_amx,              \
    }

/* The levels above the baseline. On Windows GCC's macros for tiles cast strides to long, which has 32 bits there, and the
 * assembler refuses them. */
#if defined(__x86_64__) && !defined(STROBE_BASELINE_ONLY)
#define AVX2_LEVEL 1
#if !defined(STROBE_NO_AVX512)
#define AVX512_LEVELS 1
#if !defined(_WIN32)
#define TILE_LEVEL 1
#endif
#endif
#elif defined(__aarch64__) && !defined(STROBE_BASELINE_ONLY)
#define ARM_LEVELS 1
#endif

static const struct kernel kernels[] = {
#if defined(TILE_LEVEL)
    {
        .name = "cpu_decode_amx",
        .summary = "split-KV decoding of few bf16 query rows on AMX tiles",
        .operation = STROBE_FORWARD,
        .needs = CPU_AMX,
        .features = COMMON | CACHE | FEATURE(BOOL_MASK) | FEATURE(LSE) | FEATURE(SPLIT_KEYS),
        .dtypes = {.q = BF16, .kv = SAME, .out = STORED, .lse = LSES, .sinks = LSES},
        .dim = 256,
        .dim_v = 256,
        ANY_LENGTH,
        .rows = {0, MOST_DECODE_ROWS},
        .best_rows = {ROWS_BETTER_IN_TILES, MOST_DECODE_ROWS},
        .denied = strobe__cpu_refuses_tiles,
        .workspace = strobe__cpu_decode_workspace_amx,
        .run = strobe__cpu_decode_amx,
    },
    {
        .name = "cpu_decode_int8_amx",
        .summary = "split-KV decoding of few query rows on int8 K and V, as bytes on AMX tiles",
        .operation = STROBE_FORWARD,
        .needs = CPU_AMX,
        .features = COMMON | CACHE | FEATURE(BOOL_MASK) | FEATURE(LSE) | FEATURE(SCALES) | FEATURE(SPLIT_KEYS),
        .dtypes = {.q = FLOATS, .kv = INT8, .out = STORED, .lse = LSES, .sinks = LSES},
        .dim = 256,
        .dim_v = 256,
        ANY_LENGTH,
        .rows = {0, MOST_DECODE_ROWS},
        .best_rows = {ROWS_BETTER_IN_TILES, MOST_DECODE_ROWS},
        .denied = strobe__cpu_refuses_tiles,
        .workspace = strobe__cpu_decode_workspace_int8_amx,
        .run = strobe__cpu_decode_int8_amx,
    },
#endif
#if defined(AVX512_LEVELS)
    DECODE_LEVEL(avx512, AVX512),
#endif
#if defined(TILE_LEVEL)
    {
        .name = "cpu_forward_amx",
        .summary = "FlashAttention-2 forward, bf16 products on AMX tiles under the softmax",
        .operation = STROBE_FORWARD,
        .needs = CPU_AMX,
        .features = COMMON | SCORES | CACHE | FEATURE(LSE),
        .dtypes = BF16_FORWARD,
        .dim = DIM_LIMIT,
        .dim_v = DIM_V_LIMIT,
        ANY_SIZE,
        .denied = strobe__cpu_refuses_tiles,
        .workspace = strobe__cpu_forward_workspace_amx,
        .run = strobe__cpu_forward_amx,
    },
    {
        .name = "cpu_forward_fp16_amx",
        .summary = "the same in fp16, each number the sum of two bf16",
        .operation = STROBE_FORWARD,
        .needs = CPU_AMX,
        .features = COMMON | SCORES | CACHE | FEATURE(LSE),
        .dtypes = {.q = FP16, .kv = SAME, .out = STORED, .lse = LSES, .bias = STORED, .sinks = LSES},
        .dim = 256,
        .dim_v = 256,
        ANY_SIZE,
        .best_rows = {ROWS_WORTH_SPLITTING, INT64_MAX},
        .denied = strobe__cpu_refuses_tiles,
        .workspace = strobe__cpu_forward_workspace_fp16_amx,
        .run = strobe__cpu_forward_fp16_amx,
    },
    {
        .name = "cpu_forward_fp32_amx",
        .summary = "the same in fp32, each number the sum of three bf16",
        .operation = STROBE_FORWARD,
        .needs = CPU_AMX,
        .features = COMMON | SCORES | CACHE | FEATURE(LSE),
        .dtypes = {.q = FP32, .kv = SAME, .out = STORED, .lse = LSES, .bias = STORED, .sinks = LSES},
        .dim = 256,
        .dim_v = 256,
        ANY_SIZE,
        .best_rows = {ROWS_WORTH_SPLITTING, INT64_MAX},
        .denied = strobe__cpu_refuses_tiles,
        .workspace = strobe__cpu_forward_workspace_fp32_amx,
        .run = strobe__cpu_forward_fp32_amx,
    },
#endif
#if defined(AVX512_LEVELS)
    FORWARD_PRODUCTS(avx512bf16, AVX512BF16, "products of bf16 pairs on AVX-512 vectors"),
    FORWARD_LEVEL(avx512, AVX512),
#endif
#if defined(AVX2_LEVEL)
    DECODE_LEVEL(avx2, AVX2),
    FORWARD_LEVEL(avx2, AVX2),
#elif defined(ARM_LEVELS)
    {
        .name = "cpu_decode_int8_neon",
        .summary = "split-KV decoding over an int8 cache, products of bytes on NEON vectors",
        .operation = STROBE_FORWARD,
        .needs = CPU_NEON,
        .features = COMMON | CACHE | FEATURE(BOOL_MASK) | FEATURE(LSE) | FEATURE(SCALES) | FEATURE(SPLIT_KEYS),
        .dtypes = {.q = FLOATS, .kv = INT8, .out = STORED, .lse = LSES, .sinks = LSES},
        .dim = DIM_LIMIT,
        .dim_v = DIM_V_LIMIT,
        ANY_LENGTH,
        .rows = {0, MOST_DECODE_ROWS},
        .best_rows = {0, MOST_BETTER_IN_ROWS},
        .denied = strobe__cpu_lacks_byte_products,
        .workspace = strobe__cpu_decode_workspace_int8_neon,
        .run = strobe__cpu_decode_int8_neon,
    },
    DECODE_LEVEL(neon, NEON),
    FORWARD_PRODUCTS(neonbf16, NEONBF16, "products of bf16 matrices on NEON vectors"),
    FORWARD_LEVEL(neon, NEON),
#endif
    DECODE_LEVEL(baseline, BASELINE),
    FORWARD_LEVEL(baseline, BASELINE),
#if defined(TILE_LEVEL)
    {
        .name = "cpu_backward_amx",
        .summary = "FlashAttention-2 backward, bf16 products on AMX tiles",
        .operation = STROBE_BACKWARD,
        .needs = CPU_AMX,
        .features = COMMON | SCORES | BACKWARD | DTYPE_FEATURES,
        .dtypes = TILES_BACKWARD(BF16),
        .dim = 256,
        .dim_v = 256,
        ANY_SIZE,
        .denied = strobe__cpu_refuses_tiles,
        .workspace = strobe__cpu_backward_workspace_amx,
        .run = strobe__cpu_backward_amx,
    },
    BACKWARD_IN_PARTS(fp16, FP16, "two", DTYPE_FEATURES),
    BACKWARD_IN_PARTS(fp32, FP32, "three", 0),
#endif
#if defined(AVX512_LEVELS)
    BACKWARD_PRODUCTS(avx512bf16, AVX512BF16, "products of bf16 pairs on AVX-512 vectors"),
    BACKWARD_LEVEL(avx512, AVX512),
#endif
#if defined(AVX2_LEVEL)
    BACKWARD_LEVEL(avx2, AVX2),
#elif defined(ARM_LEVELS)
    BACKWARD_PRODUCTS(neonbf16, NEONBF16, "products of bf16 matrices on NEON vectors"),
    BACKWARD_LEVEL(neon, NEON),
#endif
    BACKWARD_LEVEL(baseline, BASELINE),
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
    .lacks = lacks,
    .describe = describe,
    .merge = strobe__cpu_merge,
    .add = strobe__cpu_add,
    .quantise = strobe__cpu_quantise,
    .append = strobe__cpu_append,
};
