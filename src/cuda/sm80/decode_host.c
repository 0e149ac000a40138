/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode_host.c: chooses among the compiled variants of sm80/decode.cu and sm80/decode_cluster.cu and launches. The grid and
 * the workspace follow from bounds alone; who attends to what is decided on the device, by lengths that lie there. */
#include "cuda/sm80/decode_host.h"

#include "cuda/device/decode.h"
#include "cuda/host/device.h"
#include "cuda/host/launch.h"
#include "math/mask.h"

#define VARIANT(name, ...) CUDA_KERNEL(name);
#include "cuda_decode_bytes_variants.h"
#include "cuda_decode_cluster_bytes_variants.h"
#include "cuda_decode_cluster_variants.h"
#include "cuda_decode_variants.h"
#undef VARIANT

/* A compiled form of decode.cu; the build writes the list. */
struct decode_variant {
    struct variant base;
    int32_t stored, dim; /* dtype of k and v; q has the same, or is of 16 bits */
    int32_t rows, keys;  /* of a CTA, and of a block */
    int32_t threads, shared_bytes, ctas;
    int32_t cluster; /* CTAs of a cluster, or 1 */
    int32_t plain;   /* it has nothing but what is_plain() asks for */
    struct cuda_kernel *symbol;
};

/* Bytes of shared memory of a block of `keys` keys: of K and V, with numbers of a byte also of their scales. */
#define STAGE_BYTES(stored, dim, keys) \
    (2 * (keys) * ((stored) == STROBE_INT8 || (stored) == STROBE_FP8_E4M3 ? (dim) + (int32_t)sizeof(float) : 2 * (dim)))

#define VARIANT(name, dtype_, stored_, dim_, n, warps_m, warps_n, stages, ctas_, cluster_, turned, plain_)          \
    {.base = {#name},                                                                                               \
     .stored = STROBE_##stored_,                                                                                    \
     .dim = dim_,                                                                                                   \
     .rows = (turned) ? 8 : 16 * (warps_m),                                                                         \
     .keys = 8 * (n) * (warps_n),                                                                                   \
     .threads = 32 * (warps_m) * (warps_n),                                                                         \
     .shared_bytes = 2 * (dim_)*16 * (warps_m) + (stages)*STAGE_BYTES(STROBE_##stored_, dim_, 8 * (n) * (warps_n)), \
     .ctas = ctas_,                                                                                                 \
     .cluster = cluster_,                                                                                           \
     .plain = plain_,                                                                                               \
     .symbol = &strobe__kernel_##name},

static const struct decode_variant variants[] = {
#include "cuda_decode_bytes_variants.h"
#include "cuda_decode_variants.h"
    {.symbol = NULL},
};
static const struct decode_variant cluster_variants[] = {
#include "cuda_decode_cluster_bytes_variants.h"
#include "cuda_decode_cluster_variants.h"
    {.symbol = NULL},
};
#undef VARIANT

#define VARIANT(name, ...) " " #name
const char strobe__sm80_decode_variants[] =
#include "cuda_decode_variants.h"
    "";
const char strobe__sm80_decode_bytes_variants[] =
#include "cuda_decode_bytes_variants.h"
    "";
const char strobe__sm80_decode_cluster_variants[] =
#include "cuda_decode_cluster_variants.h"
    "";
const char strobe__sm80_decode_cluster_bytes_variants[] =
#include "cuda_decode_cluster_bytes_variants.h"
    "";
#undef VARIANT

static const struct decode_variant *variant_of(const struct plan *plan) {
    return (const struct decode_variant *)plan->variant;
}

enum { MOST_SPLITS = 1024 };

/* Contiguous elements of q's type, in rows of `dim` columns that begin at multiples of 16 bytes, one length for all, and
 * scores that are nothing but products. A window, or causal rows, may hide some. */
static bool is_plain(const struct problem *p, int32_t dim) {
    const strobe_attention *a = &p->a;
    const struct params x = strobe__cuda_params(p);
    return a->dim == dim && a->dim_v == dim && a->k.dtype == a->q.dtype && a->out.dtype == a->q.dtype && !a->varlen &&
           !a->paged && !x.cache.leftpad && !x.bool_mask.data && !x.slopes && !x.sinks && !x.scaled && !(x.softcap > 0) &&
           x.q.aligned && x.k.aligned && x.v.aligned && x.out.aligned;
}

/* Where the forward is faster, on Hopper: with a fourth tile of 16 rows the products of this kernel, which are made for few
 * rows, take longer than K and V do, and at 64 and 256 columns everywhere; at 128 with CTAs of the forward for two rounds of
 * the GPU, or with so few that both kernels split keys, but not in between (docs/kernels/cuda.md). By name it is taken. */
static const char *reject_many_rows(const struct problem *p) {
    enum { MOST_ROWS_OF_DECODE = 48, HOPPER = 9 };
    const strobe_attention *a = &p->a;
    const struct cuda_limits limits = strobe__cuda_limits(a->device_index);
    const int64_t items = a->batch * a->heads_kv;
    if (p->tuning.kernel || p->tuning.split_keys > 0 || a->seq_q * p->group <= MOST_ROWS_OF_DECODE ||
        limits.major < HOPPER || (a->dim != 64 && a->dim != 128 && a->dim != 256) || !is_plain(p, (int32_t)a->dim))
        return NULL;
    if (a->dim == 128 && items < 2 * limits.multiprocessors && items > limits.multiprocessors / 16) return NULL;
    return "seq_q times heads_q / heads_kv is above 48, of one length and with no feature; up to 48 is taken, with dim of "
           "128 more where batch times heads_kv is between a sixteenth of the multiprocessors and twice their number";
}

static const char *decode_reject(const struct problem *p) {
    const strobe_attention *a = &p->a;
    const struct params params = strobe__cuda_params(p);
    if (!params.k.aligned || !params.v.aligned)
        return "k or v has rows that do not begin at multiples of 16 bytes; others are taken";
    if (a->batch * a->heads_kv > INT32_MAX / (a->seq_k / 16 + 1))
        return "the blocks of all keys are above 2^31; less is taken";
    if (p->tuning.split_keys > 0 && ceil_div(a->seq_k, p->tuning.split_keys) > MOST_SPLITS)
        return "tuning.split_keys makes more than 1024 splits; larger ones are taken";
    return strobe__cuda_reject(p);
}

const char *strobe__sm80_decode_reject(const struct problem *p) {
    const char *refused = reject_many_rows(p);
    return refused ? refused : decode_reject(p);
}

/* K/V heads of all sequences that clusters of so many CTAs take: more would not find room on the GPU at the same time. A
 * cluster's CTAs lie in one part of it, so that not every multiprocessor can be had. Up to LARGE_ITEMS clusters have a
 * multiprocessor for each CTA; more want even lengths, which the host knows, since a cluster has no part of others' keys. */
enum { LARGE_ITEMS = 16, MOST_ITEMS = 128 };
static int64_t most_items(const struct decode_variant *v) {
    return v->ctas == 1 ? 4 * LARGE_ITEMS / v->cluster : v->cluster == 4 ? 62 : MOST_ITEMS;
}

/* Few CTAs are enough for contiguous elements, which are little work beside their bytes; of what is more work a CTA of a
 * cluster takes this many keys before the other kernel is faster (docs/kernels/cuda.md). On a memory that gives more than 64
 * CTAs take, of six stacks, elements too. */
enum { KEYS_OF_BYTES = 1024, KEYS_IN_PAGES = 2048, KEYS_ON_SIX_STACKS = 4096, FIVE_STACKS_BITS = 5120 };
static bool has_six_stacks(const struct problem *p) {
    return strobe__cuda_limits(p->a.device_index).memory_bits > FIVE_STACKS_BITS;
}

/* What clusters with two CTAs on a multiprocessor take; of so few that some multiprocessors have none, not more keys. */
static const char *reject_small_clusters(const struct problem *p) {
    enum { FEW_ITEMS = 30, KEYS_OF_FEW = 16384 };
    const strobe_attention *a = &p->a;
    const int64_t items = a->batch * a->heads_kv;
    if (items > MOST_ITEMS) return "batch times heads_kv is above 128; up to 128 is taken";
    if (a->varlen || a->paged || a->k.dtype != a->q.dtype || a->dim > 128 || a->dim_v > 128)
        return "batch times heads_kv is above 16 with lengths in arrays, pages, int8, e4m3 or dim above 128; up to 16 is "
               "taken";
    if (items <= FEW_ITEMS && a->seq_k > (has_six_stacks(p) ? KEYS_OF_FEW / 2 : KEYS_OF_FEW))
        return "seq_k is above 16384, on a memory of more than 5120 bits 8192, with batch times heads_kv from 17 to 30; "
               "up to that is taken";
    return NULL;
}

const char *strobe__sm80_decode_cluster_reject(const struct problem *p) {
    const strobe_attention *a = &p->a;
    const int64_t items = a->batch * a->heads_kv;
    const char *refused = items > LARGE_ITEMS ? reject_small_clusters(p) : NULL;
    if (refused) return refused;
    const int64_t keys = a->seq_k / (items > LARGE_ITEMS / 2 ? 4 : 8);
    if (a->k.dtype != a->q.dtype && keys > KEYS_OF_BYTES)
        return "seq_k with int8 or e4m3 is above 4096 and batch times heads_kv above 8; less of either is taken";
    if (a->paged && keys > KEYS_IN_PAGES)
        return "seq_k in pages is above 16384, or 8192 with batch times heads_kv above 8; up to that is taken";
    if (items <= LARGE_ITEMS && keys > KEYS_ON_SIX_STACKS && has_six_stacks(p))
        return "seq_k is above 32768, or 16384 with batch times heads_kv above 8, on a memory of more than 5120 bits; "
               "up to that is taken";
    return decode_reject(p);
}

/* The first that takes the columns and the rows, and fits the GPU. */
static bool choose_among(const struct decode_variant *v, struct plan *plan) {
    const strobe_attention *a = &plan->problem->a;
    const int64_t columns = a->dim > a->dim_v ? a->dim : a->dim_v, rows = a->seq_q * plan->problem->group;
    const int32_t shared_bytes = strobe__cuda_limits(a->device_index).shared_bytes;
    for (; v->symbol; ++v) {
        if (v->stored != a->k.dtype || v->dim < columns || v->rows < rows || v->shared_bytes > shared_bytes) continue;
        if (v->cluster > 1 && a->batch * a->heads_kv > most_items(v)) continue;
        if (v->plain && !is_plain(plan->problem, v->dim)) continue;
        plan->variant = &v->base;
        return true;
    }
    return false;
}

bool strobe__sm80_decode_choose(struct plan *plan) { return choose_among(variants, plan); }
bool strobe__sm80_decode_cluster_choose(struct plan *plan) { return choose_among(cluster_variants, plan); }

/* Blocks of keys of an item where no array tells the lengths, as decode_schedule.h counts them; else 0. */
static int64_t even_blocks(const struct params *p, int64_t keys) {
    if (p->cu_q || p->cu_k || p->used_q || p->used_k || p->cache.leftpad) return 0;
    const int64_t end_to_end = p->start_shift + p->seq_k - p->seq_q;
    const struct band band = {p->left, p->right, p->bottom_right ? end_to_end : p->start_shift, p->seq_k};
    const int64_t first = band_first(&band, 0), end = band_end(&band, p->seq_q - 1);
    const int64_t blocks = ceil_div(end, keys) - (first < p->seq_k ? first : p->seq_k) / keys;
    return blocks > 0 ? blocks : 1;
}

/* Of CTAs that all stay on the GPU, those that leave each with whole items, or each item to as many CTAs: where items are
 * even, no share then ends within an item. As many as nine in ten of them are given up for it, since the end of an item
 * costs a CTA more time than a block of keys. */
static int64_t aligned_ctas(int64_t items, int64_t most) {
    const int64_t aligned = items <= most ? most / items * items : ceil_div(items, ceil_div(items, most));
    return 10 * aligned >= 9 * most ? aligned : most;
}

/* As many as stay on the GPU together, and no more than there can be blocks of keys. */
static int64_t most_ctas(const struct plan *plan) {
    const strobe_attention *a = &plan->problem->a;
    const struct decode_variant *v = variant_of(plan);
    const int64_t most = (int64_t)strobe__cuda_limits(a->device_index).multiprocessors * v->ctas;
    const int64_t blocks = a->batch * a->heads_kv * (a->seq_k / v->keys + 1);
    return blocks < most ? blocks : most;
}

/* An even number, so that all parts begin at multiples of 16 bytes. */
static int64_t rows_of_part(const struct problem *p) { return ceil_div(p->a.seq_q * p->group, 2) * 2; }

/* The most blocks of an item; blocks of a part whose size the caller has fixed, 0 without; parts of the most blocks. */
static int64_t item_blocks(const struct plan *plan) {
    const int64_t blocks = ceil_div(plan->problem->a.seq_k, variant_of(plan)->keys);
    return blocks > 0 ? blocks : 1;
}
static int64_t part_blocks(const struct plan *plan) {
    const int64_t size = ceil_div(plan->problem->tuning.split_keys, variant_of(plan)->keys), most = item_blocks(plan);
    return size < most ? size : most;
}
static int64_t item_slots(const struct plan *plan) {
    return part_blocks(plan) ? ceil_div(item_blocks(plan), part_blocks(plan)) : 1;
}

/* Bytes of the parts, in front of the counts. */
static size_t parts_bytes(const struct plan *plan) {
    const struct problem *p = plan->problem;
    const size_t row = (size_t)(variant_of(plan)->dim + 2) * sizeof(float);
    const int64_t slots = part_blocks(plan) ? p->a.batch * p->a.heads_kv * item_slots(plan) : 2 * most_ctas(plan);
    return (size_t)slots * (size_t)rows_of_part(p) * row;
}

static int64_t counts(const struct plan *plan) {
    const strobe_attention *a = &plan->problem->a;
    return part_blocks(plan) ? a->batch * a->heads_kv : most_ctas(plan);
}

size_t strobe__sm80_decode_workspace(const struct plan *plan) {
    return parts_bytes(plan) + (size_t)counts(plan) * sizeof(uint32_t);
}

strobe_status strobe__sm80_decode(const struct plan *plan, const struct execution *execution) {
    const struct problem *p = plan->problem;
    const struct decode_variant *v = variant_of(plan);
    struct decode_params params = {.p = strobe__cuda_params(p),
                                   .parts = execution->workspace,
                                   .arrived = (uint32_t *)((char *)execution->workspace + parts_bytes(plan)),
                                   .rows_most = (int32_t)rows_of_part(p),
                                   .part_blocks = (int32_t)part_blocks(plan),
                                   .item_slots = (int32_t)item_slots(plan)};
    params.even_blocks = (int32_t)even_blocks(&params.p, v->keys);
    params.even_units = (uint32_t)(params.even_blocks * p->a.heads_kv);
    const int64_t items = p->a.batch * p->a.heads_kv, parts = items * item_slots(plan), all = most_ctas(plan);
    const int64_t most = params.even_blocks && params.even_blocks * items < all ? params.even_blocks * items : all;
    const int64_t ctas = params.even_blocks ? aligned_ctas(parts, most) : most;
    if (params.even_blocks && !params.part_blocks && ctas % items == 0) params.item_ctas = (uint32_t)(ctas / items);
    const bool in_parts = !params.even_blocks || parts % ctas > 0 || parts > items; /* else CTAs have whole items */
    struct cuda_visit visit;
    strobe_status status = strobe__cuda_enter(p->a.device_index, &visit);
    if (!status) status = strobe__cuda_check_pointers(p, execution);
    if (!status && in_parts)
        status = strobe__cuda_check(
            cudaMemsetAsync(params.arrived, 0, (size_t)counts(plan) * sizeof(uint32_t), execution->stream),
            "cudaMemsetAsync");
    if (!status) status = strobe__cuda_launch(v->symbol, ctas, v->threads, v->shared_bytes, &params, execution->stream);
    strobe__cuda_leave(&visit);
    return status;
}

size_t strobe__sm80_decode_cluster_workspace(const struct plan *plan) {
    (void)plan;
    return 0;
}

strobe_status strobe__sm80_decode_cluster(const struct plan *plan, const struct execution *execution) {
    const struct problem *p = plan->problem;
    const struct decode_variant *v = variant_of(plan);
    const struct decode_params params = {.p = strobe__cuda_params(p)};
    struct cuda_visit visit;
    strobe_status status = strobe__cuda_enter(p->a.device_index, &visit);
    if (!status) status = strobe__cuda_check_pointers(p, execution);
    if (!status)
        status = strobe__cuda_launch(v->symbol, p->a.batch * p->a.heads_kv * v->cluster, v->threads, v->shared_bytes,
                                     &params, execution->stream);
    strobe__cuda_leave(&visit);
    return status;
}
