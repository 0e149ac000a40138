/* SPDX-License-Identifier: BSD-3-Clause
 *
 * host.c: the host side of latent attention's decoding: what it takes, its tensors described, its two launches. The grid and
 * the workspace follow from bounds alone; who attends to what is decided on the device, by lengths that lie there. */
#include "cuda/sm90/latent/host.h"

#include <cuda_runtime_api.h>
#include <string.h>

#include "cuda/host/device.h"
#include "cuda/host/launch.h"
#include "cuda/host/tensor_map.h"
#include "cuda/sm90/latent/params.h"
#include "math/exp2.h"

/* The build writes the list: latent.cu for a dtype, and what merges its parts. */
#define VARIANT(name, dtype, stored, has_terms, merge) \
    CUDA_KERNEL(name);                                 \
    CUDA_KERNEL(merge);
#include "sm90_latent_variants.h"
#undef VARIANT

struct latent_variant {
    struct variant base;
    int32_t dtype, stored, has_terms; /* of q, and of k and v; has_terms: takes those of scores too */
    struct cuda_kernel *symbol, *merge;
};

#define VARIANT(name, dtype, stored, has_terms, merge) \
    {{#name}, STROBE_##dtype, STROBE_##stored, has_terms, &strobe__kernel_##name, &strobe__kernel_##merge},
static const struct latent_variant variants[] = {
#include "sm90_latent_variants.h"
    {.symbol = NULL},
};
#undef VARIANT

#define VARIANT(name, ...) " " #name
const char strobe__sm90_latent_variants[] =
#include "sm90_latent_variants.h"
    "";
#undef VARIANT

enum {
    EIGHT = 8,
    LEAST_BLOCKS = 4,   /* of a share; not measured yet */
    SEGMENT_BLOCKS = 8, /* that take as long as the end of a segment and the begin of another */
    MOST_START = 1 << 28,
};

/* Blocks of a part of a fixed size, and parts of an item of the most keys; 0 and 1 without. */
static int64_t part_blocks(const struct problem *p) {
    const int64_t size = ceil_div(p->tuning.split_keys, LATENT_KEYS), most = ceil_div(p->a.seq_k, LATENT_KEYS);
    return size < most ? size : most;
}
static int64_t item_slots(const struct problem *p) {
    return part_blocks(p) ? ceil_div(ceil_div(p->a.seq_k, LATENT_KEYS), part_blocks(p)) : 1;
}

/* Whether scores have terms or parts a fixed size, for which there are variants. */
static int32_t wants_terms(const struct problem *p) {
    return p->a.softcap > 0 || p->a.alibi || p->a.scale < 0 || p->tuning.split_keys > 0;
}

/* Query heads that are copied at a time: those of a tile, or as many as divide the group. */
static int32_t heads_of_piece(const struct problem *p) {
    int32_t heads = LATENT_ROWS;
    while (p->group % heads != 0) heads /= 2;
    return heads;
}

const char *strobe__sm90_latent_reject(const struct problem *p) {
    const strobe_attention *a = &p->a;
    if (a->paged && (p->paged.page_size % EIGHT != 0 || p->paged.page_size > 1 << 28 || p->paged.pages == 0))
        return "paged.page_size is no multiple of 8 up to 2^28, or paged.pages is 0; multiples and 1 page or more are taken";
    if (a->paged && p->features & FEATURE(LEFTPAD_K))
        return "varlen.leftpad_k is given with paged K and V; it is taken with contiguous or packed ones";
    if (p->varlen.cu_seqlens_k && p->varlen.total_k == 0)
        return "varlen.total_k is 0; the keys of the packed tensors are taken";
    if (p->varlen.total_q > INT32_MAX || p->varlen.total_k > INT32_MAX || (a->paged && p->paged.pages > INT32_MAX))
        return "varlen.total_q, varlen.total_k or paged.pages is above 2^31; less is taken";
    const int64_t batch_q = p->varlen.cu_seqlens_q ? 1 : a->batch;
    const int64_t batch_k = a->paged ? p->paged.pages : p->varlen.cu_seqlens_k ? 1 : a->batch;
    if (!strobe__can_be_copied(&a->q, batch_q, a->heads_q) || !strobe__can_be_copied(&a->k, batch_k, a->heads_kv) ||
        !strobe__rows_are_aligned(&a->out))
        return "rows of q, k or out do not start at ascending multiples of 16 bytes; rows that do are taken";
    if (strobe__product(a->batch * a->heads_kv, ceil_div(a->seq_k, LATENT_KEYS)) > INT32_MAX)
        return "the blocks of all keys are above 2^31; less is taken";
    if (a->k.dtype != a->q.dtype && a->q.dtype != STROBE_BF16)
        return "k and v are int8 or fp8 e4m3 beside an fp16 q; a bf16 q is taken";
    if (item_slots(p) > LATENT_MOST_SHARES) return "tuning.split_keys makes more than 160 splits; larger ones are taken";
    const int64_t start = a->q_start - a->k_start;
    if (a->alibi && (start > MOST_START || start < -MOST_START))
        return "q_start and k_start are further apart than 2^28, with ALiBi; up to that is taken";
    return strobe__cuda_reject(p);
}

static int64_t row_tiles(const struct problem *p) { return ceil_div(p->a.seq_q * p->group, LATENT_ROWS); }

bool strobe__sm90_latent_choose(struct plan *plan) {
    const strobe_attention *a = &plan->problem->a;
    if (strobe__cuda_limits(a->device_index).shared_bytes < LATENT_SHARED_BYTES) return false;
    plan->variant = NULL;
    for (const struct latent_variant *v = variants; v->symbol; ++v)
        if (!plan->variant && v->dtype == a->q.dtype && v->stored == a->k.dtype &&
            v->has_terms >= wants_terms(plan->problem))
            plan->variant = &v->base;
    return plan->variant;
}

/* As many as stay on the GPU together, a CTA on each multiprocessor, and no more than there can be blocks of keys. */
static int64_t shares_of(const struct problem *p) {
    const int64_t blocks = p->a.batch * p->a.heads_kv * ceil_div(p->a.seq_k, LATENT_KEYS);
    int64_t most = strobe__cuda_limits(p->a.device_index).multiprocessors / row_tiles(p);
    if (most < 1) most = 1;
    if (most > LATENT_MOST_SHARES) most = LATENT_MOST_SHARES;
    return blocks < most ? blocks : most;
}

/* Whether a key below a sequence's length may be hidden from a row: by any mask but the causal one of a last row. */
static bool may_hide(const struct problem *p) {
    const strobe_attention *a = &p->a;
    const bool last_row = a->mask == STROBE_MASK_CAUSAL_BOTTOM_RIGHT && a->seq_q == 1 && a->q_start == a->k_start;
    return a->mask != STROBE_MASK_NONE && !last_row;
}

/* Of the table of items that are to be merged. */
static int64_t entries_of(const struct problem *p) {
    const int64_t items = p->a.batch * p->a.heads_kv, shares = shares_of(p);
    return items < shares || part_blocks(p) ? items : shares;
}

static size_t parts_bytes(const struct problem *p) {
    const int64_t slots = part_blocks(p) ? p->a.batch * p->a.heads_kv * item_slots(p) : 2 * shares_of(p);
    return (size_t)(slots * row_tiles(p)) * LATENT_PART_FLOATS * sizeof(float);
}

static size_t marks_bytes(const struct problem *p) {
    return may_hide(p) ? (size_t)(p->a.batch * p->a.heads_kv * row_tiles(p)) * sizeof(int32_t) : 0;
}

size_t strobe__sm90_latent_workspace(const struct plan *plan) {
    const struct problem *p = plan->problem;
    return parts_bytes(p) + (size_t)entries_of(p) * sizeof(struct crossing) + marks_bytes(p);
}

/* q with its heads as rows, so that a box is of heads; k in eights of slots. */
static bool encode_maps(struct latent_params *to, const struct problem *p) {
    const strobe_attention *a = &p->a;
    const strobe_varlen *v = &p->varlen;
    strobe_tensor heads = a->q;
    heads.stride[1] = a->q.stride[2], heads.stride[2] = a->q.stride[1];
    const int64_t rows = v->cu_seqlens_q ? v->total_q : a->seq_q, batch = v->cu_seqlens_q ? 1 : a->batch;
    const int64_t slots = a->paged ? p->paged.page_size : v->cu_seqlens_k ? v->total_k : a->seq_k;
    const int64_t outer = a->paged ? p->paged.pages : v->cu_seqlens_k ? 1 : a->batch;
    return strobe__encode_map(&to->q, &heads, a->dim, a->heads_q, rows, batch, to->q_piece) &&
           strobe__encode_slabs_map(&to->k, &a->k, a->dim, slots, a->heads_kv, outer, EIGHT);
}

static void fill(struct latent_params *to, const struct problem *p, void *workspace) {
    const int64_t keys = p->tuning.split_keys ? p->tuning.split_keys : p->a.seq_k; /* with a fixed split seq_k has no say */
    to->p = strobe__cuda_params(p);
    to->shares = (int32_t)shares_of(p), to->row_tiles = (int32_t)row_tiles(p);
    to->tiles_factor = (uint32_t)(65536 / to->row_tiles + 1);
    to->part_blocks = (int32_t)part_blocks(p), to->item_slots = (int32_t)item_slots(p);
    to->least_units = to->part_blocks ? 1 : LEAST_BLOCKS, to->segment_units = to->part_blocks ? 0 : SEGMENT_BLOCKS;
    to->softcap_rate = p->a.softcap > 0 ? (float)(2 * LOG2_E * p->a.scale / p->a.softcap) : 0;
    to->q_piece = heads_of_piece(p), to->may_hide = may_hide(p);
    to->lag_unit = to->p.exponent == 0 ? 0 : 1 / to->p.exponent, to->least_lag = keys >= 4096 ? 2.75f : 0;
    to->parts = workspace;
    to->crossings = (struct crossing *)((char *)workspace + parts_bytes(p));
    to->entries = (int32_t)entries_of(p), to->by_item = p->a.batch * p->a.heads_kv == to->entries;
    to->row_warps = 4 * to->entries > to->shares ? 1 : 4;
    to->marks = (int32_t *)(to->crossings + to->entries);
}

static strobe_status launch(const struct plan *plan, const struct latent_params *params, void *stream) {
    const struct latent_variant *v = (const struct latent_variant *)plan->variant;
    const int64_t ctas = (int64_t)params->shares * params->row_tiles;
    strobe_status status = STROBE_OK;
    if (params->may_hide)
        status = strobe__cuda_check(cudaMemsetAsync(params->marks, 0, marks_bytes(plan->problem), stream),
                                    "cudaMemsetAsync");
    if (!status) status = strobe__cuda_launch(v->symbol, ctas, LATENT_THREADS, LATENT_SHARED_BYTES, params, stream);
    const int64_t warps = (int64_t)params->entries * params->row_tiles * LATENT_ROWS * params->row_warps;
    return status ? status
                  : strobe__cuda_launch_early(v->merge, warps / (LATENT_MERGE_THREADS / 32), LATENT_MERGE_THREADS, 0, params,
                                              stream);
}

strobe_status strobe__sm90_latent(const struct plan *plan, const struct execution *execution) {
    const struct problem *p = plan->problem;
    struct latent_params params;
    memset(&params, 0, sizeof params);
    fill(&params, p, execution->workspace);
    struct cuda_visit visit;
    strobe_status status = strobe__cuda_enter(p->a.device_index, &visit);
    if (!status) status = strobe__cuda_check_pointers(p, execution);
    if (!status && !encode_maps(&params, p))
        status = strobe__fail(STROBE_DEVICE_ERROR, "q or k could not be described to the tensor copy engine");
    if (!status) status = launch(plan, &params, execution->stream);
    strobe__cuda_leave(&visit);
    return status;
}
