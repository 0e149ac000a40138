/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward_host.c: chooses among the compiled variants of sm80/forward.cu, splits the keys where there are too few blocks
 * of threads to fill the device, and launches; the parts of a split meet in device/merge.cu. All of it depends on sizes and
 * features alone: a call can be captured in a graph, and gives the same bits every time. */
#include "cuda/sm80/forward_host.h"

#include "cuda/host/compiled.h"
#include "cuda/host/device.h"
#include "cuda/host/launch.h"
#include "cuda/host/merge.h"
#include "cuda/host/visible.h"
#include "cuda/sm80/key_rows.h"

#define VARIANT(name, dtype, dim, dim_v, m, n, warps_m, warps_n, stages, blocks, features, cache, small) CUDA_KERNEL(name);
#include "cuda_forward_variants.h"
#undef VARIANT

/* A compiled form of forward.cu; the build writes the list. */
struct forward_variant {
    struct variant base;
    int32_t dtype, dim, dim_v;
    bool tf32x3;        /* products of fp32 are made of tf32 parts */
    int32_t features;   /* 0: takes problems with nothing but a band */
    int32_t cache;      /* CACHE of cache.h: for caches in pages, with scales, of another dtype; 0 not, 1 for nothing else,
                           3 for those in pages alone, of one layout, whose columns fill the tile */
    int32_t few_rows;   /* for 16 packed rows at most */
    int32_t small;      /* beside it there is one of larger tiles, better for long sequences */
    int32_t rows, keys; /* of a block of threads */
    int32_t threads, shared_bytes;
    struct cuda_kernel *symbol;
    struct compiled_text text; /* with a user's function */
};

/* Bytes of shared memory as sm80/forward.cu lays it out: Q, and stages of K and V. */
#define SHARED(bytes, dim, dim_v, rows, keys, stages) ((bytes) * ((rows) * (dim) + (stages) * (keys) * ((dim) + (dim_v))))
#define VARIANT(name, dtype_, dim_, dim_v_, m, n, warps_m, warps_n, stages, blocks, features_, cache_, small_)             \
    {.base = {#name},                                                                                                      \
     .dtype = DTYPE_##dtype_,                                                                                              \
     .tf32x3 = IS_TF32X3_##dtype_,                                                                                         \
     .dim = dim_,                                                                                                          \
     .dim_v = dim_v_,                                                                                                      \
     .features = features_,                                                                                                \
     .few_rows = (warps_n) > 1,                                                                                            \
     .cache = cache_,                                                                                                      \
     .small = small_,                                                                                                      \
     .rows = 16 * (m) * (warps_m),                                                                                         \
     .keys = 8 * (n) * (warps_n),                                                                                          \
     .threads = 32 * (warps_m) * (warps_n),                                                                                \
     .shared_bytes = SHARED(BYTES_##dtype_, dim_, dim_v_, 16 * (m) * (warps_m), 8 * (n) * (warps_n), stages),              \
     .symbol = &strobe__kernel_##name,                                                                                     \
     .text = {.source = "cuda/sm80/forward.cu",                                                                            \
              .options = {"KERNEL=strobe__score", ELEMENT_OPTIONS_##dtype_, "DIM=" #dim_, "DIM_V=" #dim_v_, "M_TILES=" #m, \
                          "N_TILES=" #n, "WARPS_M=" #warps_m, "WARPS_N=" #warps_n, "STAGES=" #stages, "BLOCKS=" #blocks,   \
                          "FEATURES=" #features_, "CACHE=" #cache_},                                                       \
              .names = {"strobe__score"}}},

static const struct forward_variant variants[] = {
#include "cuda_forward_variants.h"
    {.symbol = NULL},
};
#undef VARIANT

#define NAME_BF16(name) " " #name
#define NAME_FP16(name) " " #name
#define NAME_FP32(name)
#define NAME_TF32X3(name)
#define VARIANT(name, dtype, ...) NAME_##dtype(name)
const char strobe__sm80_forward_variants[] =
#include "cuda_forward_variants.h"
    "";
#undef NAME_BF16
#undef NAME_FP16
#undef NAME_FP32
#define NAME_BF16(name)
#define NAME_FP16(name)
#define NAME_FP32(name) " " #name
const char strobe__sm80_forward_variants_fp32[] =
#include "cuda_forward_variants.h"
    "";
#undef NAME_FP32
#undef NAME_TF32X3
#define NAME_FP32(name)
#define NAME_TF32X3(name) " " #name
const char strobe__sm80_forward_variants_tf32x3[] =
#include "cuda_forward_variants.h"
    "";
#undef VARIANT

enum { OWN_SHARED_BYTES = 1024 }; /* of a kernel's variables, beside what a launch asks for */

static bool is_cache(const struct problem *p) {
    return p->features & (FEATURE(PAGED) | FEATURE(SCALES)) || p->a.k.dtype != p->a.q.dtype;
}

/* Whether K and V have one layout, in which 32 bits count the units of 16 bytes to every row. */
static bool rows_have_32_bits(const struct problem *p) {
    const strobe_attention *a = &p->a;
    const int64_t unit = 16 / (int64_t)strobe__dtype_bytes(a->k.dtype);
    const int64_t most[3] = {p->paged.pages, p->paged.page_size, a->heads_kv};
    int64_t last = 0;
    for (int n = 0; n < 3; ++n) {
        const int64_t stride = a->k.stride[n];
        if (stride != a->v.stride[n] || stride < 0 || stride % unit != 0) return false;
        const int64_t units = strobe__product(stride / unit, most[n]);
        last = units < INT32_MAX - last ? last + units : INT32_MAX;
    }
    return last < INT32_MAX;
}

/* Whether the variant is for K and V such as the problem's. */
static bool takes_keys(const struct forward_variant *v, const struct problem *p) {
    const strobe_attention *a = &p->a;
    if (v->cache != 3) return is_cache(p) ? v->cache != 0 : v->cache != 1;
    return p->features & FEATURE(PAGED) && !(p->features & FEATURE(SCALES)) && a->k.dtype == a->q.dtype &&
           v->dim == a->dim && v->dim_v == a->dim_v && rows_have_32_bits(p);
}

/* Shared memory of a launch: over a cache also for where keys lie (sm80/cache.h). */
static int32_t shared_bytes_for(const struct problem *p, const struct forward_variant *v) {
    if (v->cache == 3) return v->shared_bytes + KEY_ROWS_32_SLOTS * KEY_ROWS_32_BYTES(v->keys);
    return v->shared_bytes + (is_cache(p) ? KEY_ROWS_SLOTS * KEY_ROWS_BYTES(v->keys) : 0);
}

/* Whether small tiles are better than large ones, which read shared memory less: the mask's edge, of which whole blocks are
 * multiplied, is a large part of short sequences, and few rows leave multiprocessors without a tile. With a fixed size of
 * splits the batch has no say. */
static bool wants_small(const struct problem *p) {
    const strobe_attention *a = &p->a;
    if (a->mask != STROBE_MASK_NONE && a->seq_k <= 1024) return true;
    return p->tuning.split_keys == 0 && ceil_div(a->seq_q * p->group, 128) * a->batch * a->heads_kv <
                                            strobe__cuda_limits(a->device_index).multiprocessors;
}

static const struct forward_variant *variant_of(const struct plan *plan) {
    return (const struct forward_variant *)plan->variant;
}

/* Whole blocks of nearly every variant; one of larger blocks is passed over where they do not fit a part. */
enum { SPLIT_UNIT = 64, LEAST_SPLIT = 128, MOST_SPLITS = 1024 };

struct grid {
    int64_t tiles, slices, heads, split_keys, splits;
};

/* Few rows wait for memory: splits such that waves of blocks on the device are nearly full. Many rows: only as long as
 * multiprocessors idle. The least number within 5 % of the best is taken. */
static int64_t splits_for(int64_t blocks, const strobe_attention *a, const struct forward_variant *v) {
    const struct cuda_limits limits = strobe__cuda_limits(a->device_index);
    const int64_t a_multiprocessor = v->few_rows ? 3 : 1, slots = limits.multiprocessors * a_multiprocessor;
    int64_t most = a->seq_k / LEAST_SPLIT;
    if (most > MOST_SPLITS) most = MOST_SPLITS;
    if (blocks == 0 || blocks >= 4 * slots || (!v->few_rows && 2 * blocks > slots)) return 1;
    double best = 0, efficiency[2] = {0};
    for (int pass = 0; pass < 2; ++pass)
        for (int64_t s = 1; s <= most && blocks * s <= 8 * slots; ++s) {
            const double waves = (double)(blocks * s) / (double)slots;
            efficiency[pass] = waves / (double)ceil_div(blocks * s, slots);
            if (pass == 1 && efficiency[1] >= 0.95 * best) return s;
            if (efficiency[pass] > best) best = efficiency[pass];
        }
    return 1;
}

static int64_t whole_blocks(int64_t keys) { return ceil_div(keys, SPLIT_UNIT) * SPLIT_UNIT; }

static struct grid grid_of(const struct plan *plan) {
    const struct problem *p = plan->problem;
    const struct forward_variant *variant = variant_of(plan);
    const strobe_attention *a = &p->a;
    struct grid grid = {.tiles = ceil_div(a->seq_q * p->group, variant->rows),
                        .slices = ceil_div(a->dim_v, variant->dim_v),
                        .heads = a->batch * a->heads_kv,
                        .split_keys = p->tuning.split_keys,
                        .splits = 1};
    /* Whatever the variant, so that the number of splits does not depend on where data lie. */
    const int64_t tiles = variant->few_rows ? grid.tiles : ceil_div(a->seq_q * p->group, 64);
    if (grid.split_keys == 0) {
        const int64_t splits = splits_for(tiles * grid.slices * grid.heads, a, variant);
        if (splits == 1) return grid;
        grid.split_keys = ceil_div(a->seq_k, splits);
    }
    grid.split_keys = whole_blocks(grid.split_keys);
    grid.splits = ceil_div(a->seq_k, grid.split_keys);
    if (grid.splits < 1) grid.splits = 1;
    return grid;
}

/* Whether parts of split keys are whole blocks of the chosen variant: keys behind a part's end would be counted twice. */
static bool splits_into_blocks(const struct plan *plan) {
    const struct grid grid = grid_of(plan);
    return grid.splits == 1 || grid.split_keys % variant_of(plan)->keys == 0;
}

/* The first that takes the problem and fits the GPU: they stand from few columns to many, then from few rows to many, then
 * from no features to all. Value columns beyond a variant's are slices of their own. */
bool strobe__sm80_forward_choose(struct plan *plan) {
    const struct problem *p = plan->problem;
    const strobe_attention *a = &p->a;
    const int32_t shared_bytes = strobe__cuda_limits(a->device_index).shared_bytes;
    const bool features = strobe__cuda_needs_features(p), many_rows = a->seq_q * p->group > 16, small = wants_small(p);
    for (const struct forward_variant *v = variants; v->symbol; ++v) {
        if (v->dtype != a->q.dtype || v->tf32x3 != strobe__is_tf32x3(plan->kernel)) continue;
        if (v->dim < a->dim || (v->dim_v < a->dim_v && v->dim_v < 256)) continue;
        if (!takes_keys(v, p) || (is_cache(p) && small && !v->features)) continue;
        if ((features && !v->features) || (many_rows && v->few_rows) || (v->small && !small) ||
            shared_bytes_for(p, v) + OWN_SHARED_BYTES > shared_bytes)
            continue;
        plan->variant = &v->base;
        if (!splits_into_blocks(plan)) continue;
        if (strobe__cuda_asks_what_is_visible(p)) strobe__cuda_visible_choose(plan);
        return true;
    }
    plan->variant = NULL;
    return false;
}

const char *strobe__sm80_forward_reject(const struct problem *p) {
    if (p->tuning.split_keys > 0 && ceil_div(p->a.seq_k, whole_blocks(p->tuning.split_keys)) > MOST_SPLITS)
        return "tuning.split_keys makes more than 1024 splits; larger ones are taken";
    return strobe__cuda_reject(p);
}

/* Where what visible.cu writes begins, behind the parts. */
static size_t visible_at(const struct problem *p, const struct grid *grid) {
    if (grid->splits == 1) return 0;
    return strobe__cuda_parts_bytes(p, grid->splits);
}

size_t strobe__sm80_forward_workspace(const struct plan *plan) {
    const struct problem *p = plan->problem;
    const struct grid grid = grid_of(plan);
    return visible_at(p, &grid) +
           (plan->more[VISIBLE_PASS] ? strobe__cuda_visible_bytes(p, OWNERS_ARE_ROWS) : strobe__cuda_function_bytes(p));
}

strobe_status strobe__sm80_forward_prepare(const struct plan *plan) {
    return strobe__compiled_prepare(plan->problem, (const struct compiled_text *const[]){&variant_of(plan)->text, NULL});
}

static strobe_status launch(const struct plan *plan, const struct params *params, int64_t blocks, void *stream) {
    const struct forward_variant *v = variant_of(plan);
    const int32_t shared_bytes = shared_bytes_for(plan->problem, v);
    if (plan->problem->features & FEATURE(SCORE)) {
        const struct score_values values = strobe__score_values(plan->problem);
        compiled_kernel kernels[MOST_COMPILED_KERNELS];
        const strobe_status status = strobe__compiled(plan->problem, &v->text, stream, kernels);
        return status ? status
                      : strobe__compiled_launch(kernels[0], blocks, v->threads, shared_bytes, params, sizeof *params,
                                                &values, stream, false);
    }
    return strobe__cuda_launch(v->symbol, blocks, v->threads, shared_bytes, params, stream);
}

static strobe_status visible_by_rows(const struct problem *p, void *memory, struct visible *visible, void *stream) {
    return strobe__cuda_visible(p, OWNERS_ARE_ROWS, memory, visible, stream);
}

strobe_status strobe__sm80_forward(const struct plan *plan, const struct execution *execution) {
    const struct problem *p = plan->problem;
    const struct grid grid = grid_of(plan);
    struct params params = strobe__cuda_params(p);
    const struct params whole = params;
    params.tiles = (int32_t)grid.tiles, params.slices = (int32_t)grid.slices;
    if (grid.splits > 1) {
        params.split_keys = (int32_t)grid.split_keys;
        strobe__cuda_into_parts(&params, p, grid.splits, execution->workspace);
    }
    struct cuda_visit visit;
    strobe_status status = strobe__cuda_enter(p->a.device_index, &visit);
    if (!status) status = strobe__cuda_check_pointers(p, execution);
    if (!status)
        status = (plan->more[VISIBLE_PASS] ? visible_by_rows : strobe__cuda_function)(
            p, (char *)execution->workspace + visible_at(p, &grid), &params.visible, execution->stream);
    if (!status) status = launch(plan, &params, grid.tiles * grid.slices * grid.heads * grid.splits, execution->stream);
    if (!status && grid.splits > 1) status = strobe__cuda_merge_splits(&whole, &params, false, execution->stream);
    strobe__cuda_leave(&visit);
    return status;
}
