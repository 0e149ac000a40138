/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward_host.c: the host side of the Hopper forward: what it takes, the tensor maps, the launch. The driver's encoder of
 * tensor maps is found through the runtime, so that nothing links against libcuda and the same library loads without one. */
#include "cuda/sm90/forward_host.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <string.h>

#include "core/refusals.h"
#include "cuda/device.h"
#include "cuda/launch.h"
#include "cuda/sm90/forward_params.h"

#define VARIANT(name, dtype, dim, keys, groups, terms) void strobe__##name(struct sm90_forward_params);
#include "sm90_forward_variants.h"
#undef VARIANT

/* A compiled form of forward.cu; the build writes the list, each dtype from few columns to many. */
struct form {
    int32_t dtype, terms; /* terms: with softcap or ALiBi */
    int64_t dim, keys, groups;
    void (*symbol)(struct sm90_forward_params);
};

#define VARIANT(name, dtype_, dim_, keys_, groups_, terms_) \
    {.dtype = STROBE_##dtype_, .terms = terms_, .dim = dim_, .keys = keys_, .groups = groups_, .symbol = strobe__##name},
static const struct form forms[] = {
#include "sm90_forward_variants.h"
    {0},
};

static const struct form *choose(const struct problem *p) {
    const strobe_attention *a = &p->a;
    const int64_t dim = a->dim > a->dim_v ? a->dim : a->dim_v;
    const int32_t terms = a->softcap > 0 || a->alibi;
    for (const struct form *f = forms; f->symbol; ++f)
        if (f->dtype == a->q.dtype && f->terms == terms && f->dim >= dim) return f;
    return NULL;
}

static int64_t row_tiles(const strobe_attention *a, const struct form *form) {
    return ceil_div(a->seq_q, 64 * form->groups);
}

/* Tensor copies want rows at multiples of 16 bytes, and ascending. */
static bool is_aligned(const strobe_tensor *t) {
    return (uintptr_t)t->data % 16 == 0 && t->stride[0] % 8 == 0 && t->stride[1] % 8 == 0 && t->stride[2] % 8 == 0;
}

static bool can_be_copied(const strobe_tensor *t) {
    const int64_t most = (int64_t)1 << 38;
    return is_aligned(t) && t->stride[0] >= 0 && t->stride[1] > 0 && t->stride[2] >= 0 && t->stride[0] < most &&
           t->stride[1] < most && t->stride[2] < most;
}

static const char *reject_features(const strobe_attention *a) {
    if (a->bias) return "a bias is given; none is taken";
    if (a->bool_mask) return "a boolean mask is given; causal masks and windows are taken";
    if (a->block_mask) return "a block mask is given; causal masks and windows are taken";
    if (a->dropout) return "dropout is given; none is taken";
    if (a->scale < 0) return "scale is negative; a positive one is taken";
    return NULL;
}

const char *strobe__sm90_forward_reject(const struct problem *p) {
    const strobe_attention *a = &p->a;
    enum { FEWEST_ROWS = 64, MOST_POSITIONS = 1 << 28 };
    const char *reason = strobe__refuse_what_no_kernel_has(p);
    if (!reason) reason = strobe__cuda_refuses(p);
    if (!reason) reason = reject_features(a);
    if (reason) return reason;
    if (strobe__cuda_limits(a->device_index).major != 9) return "this GPU is not of compute capability 9.0; that is taken";
    if (a->q.dtype == STROBE_FP32) return "q is fp32; fp16 and bf16 are taken";
    if (a->out.dtype != a->q.dtype) return "out's dtype is not q's; q's is taken";
    if (a->dim > 256 || a->dim_v > 256) return "dim or dim_v is above 256; 1 to 256 are taken";
    if (!choose(p)) return "no form for its dtype and dim was built (STROBE_CUDA_ONLY)";
    if (a->seq_q < FEWEST_ROWS) return "seq_q is below 64, a tile's rows; 64 and more are taken";
    if (a->seq_q > MOST_POSITIONS || a->seq_k > MOST_POSITIONS) return "seq_q or seq_k is above 2^28; up to that is taken";
    if (strobe__product(strobe__product(a->batch, a->heads_q), row_tiles(a, choose(p))) > INT32_MAX)
        return "there are more than 2^31 tiles of rows; fewer are taken";
    if (!can_be_copied(&a->q) || !can_be_copied(&a->k) || !can_be_copied(&a->v))
        return "rows of q, k or v do not start at ascending multiples of 16 bytes; rows that do are taken";
    return NULL;
}

static PFN_cuTensorMapEncodeTiled_v12000 encoder(void) {
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found) !=
            cudaSuccess ||
        found != cudaDriverEntryPointSuccess)
        return NULL;
    PFN_cuTensorMapEncodeTiled_v12000 encode;
    memcpy(&encode, &function, sizeof encode); /* ISO C has no cast from an object to a function pointer */
    return encode;
}

/* {dim, seq, heads, batch} with boxes of 64 columns and `rows` rows. A stride of 0 is that of an axis of extent 1, which may
 * have any: 16 bytes will do. */
static bool encode_map(CUtensorMap *map, const strobe_tensor *t, int64_t dim, int64_t seq, int64_t heads, int64_t batch,
                       int64_t rows) {
    const PFN_cuTensorMapEncodeTiled_v12000 encode = encoder();
    const cuuint64_t extent[4] = {(cuuint64_t)dim, (cuuint64_t)seq, (cuuint64_t)heads, (cuuint64_t)batch};
    cuuint64_t stride[3] = {(cuuint64_t)t->stride[1] * 2, (cuuint64_t)t->stride[2] * 2, (cuuint64_t)t->stride[0] * 2};
    for (int axis = 0; axis < 3; ++axis)
        if (stride[axis] == 0) stride[axis] = 16;
    const cuuint32_t box[4] = {64, (cuuint32_t)rows, 1, 1}, step[4] = {1, 1, 1, 1};
    const CUtensorMapDataType type = t->dtype == STROBE_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                             : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    return encode && encode(map, type, 4, t->data, extent, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                            CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

static bool encode_maps(struct sm90_forward_params *m, const struct problem *p, const struct form *form) {
    const strobe_attention *a = &p->a;
    const strobe_varlen *v = &p->varlen;
    /* A packed tensor's total, where the caller does not give it, is at most batch times the longest. */
    const int64_t rows = !v->cu_seqlens_q ? a->seq_q : v->total_q ? v->total_q : a->batch * a->seq_q;
    const int64_t keys = !v->cu_seqlens_k ? a->seq_k : v->total_k ? v->total_k : a->batch * a->seq_k;
    const int64_t batch_q = v->cu_seqlens_q ? 1 : a->batch, batch_k = v->cu_seqlens_k ? 1 : a->batch;
    return encode_map(&m->q, &a->q, a->dim, rows, a->heads_q, batch_q, 64) &&
           encode_map(&m->k, &a->k, a->dim, keys, a->heads_kv, batch_k, form->keys) &&
           encode_map(&m->v, &a->v, a->dim_v, keys, a->heads_kv, batch_k, form->keys);
}

/* Heads whose K and V take about half of the L2 cache, whole groups of them. */
static int64_t section_heads(const struct problem *p) {
    const strobe_attention *a = &p->a;
    const int64_t head_bytes = a->seq_k * (a->dim + a->dim_v) * 2, cache_bytes = (int64_t)32 << 20;
    const int64_t kv_heads = head_bytes > 0 ? cache_bytes / head_bytes : a->heads_kv;
    const int64_t all = a->batch * a->heads_q, some = (kv_heads > 0 ? kv_heads : 1) * p->group;
    return some < all ? some : all;
}

/* Keys past the end of a dense tensor arrive as zeros; only masks and neighbours in memory can bring others. */
static bool may_hide(const struct problem *p) { return p->a.mask != STROBE_MASK_NONE || p->a.varlen; }

static void fill(struct sm90_forward_params *m, const struct problem *p, const struct form *form) {
    const strobe_attention *a = &p->a;
    const struct sequence nothing = {0};
    const struct band band = strobe__band(p, &nothing); /* its diagonal is without keys - rows, which the device adds */
    m->left = band.left, m->right = band.right, m->start = a->q_start - a->k_start;
    m->bottom_right = a->mask == STROBE_MASK_CAUSAL_BOTTOM_RIGHT || a->mask == STROBE_MASK_WINDOW_BOTTOM_RIGHT;
    m->may_hide = may_hide(p);
    m->out = a->out.data, m->lse = a->lse.data, m->out_is_aligned = is_aligned(&a->out);
    m->q_data = a->q.data, m->k_data = a->k.data, m->v_data = a->v.data;
    memcpy(m->out_stride, a->out.stride, sizeof m->out_stride), memcpy(m->lse_stride, a->lse.stride, sizeof m->lse_stride);
    memcpy(m->q_stride, a->q.stride, sizeof m->q_stride);
    memcpy(m->k_stride, a->k.stride, sizeof m->k_stride), memcpy(m->v_stride, a->v.stride, sizeof m->v_stride);
    m->seq_q = (int32_t)a->seq_q, m->seq_k = (int32_t)a->seq_k, m->group = (int32_t)p->group;
    m->heads_q = (int32_t)a->heads_q, m->section_heads = (int32_t)section_heads(p);
    m->dim = (int32_t)a->dim, m->dim_v = (int32_t)a->dim_v;
    m->row_tiles = (int32_t)row_tiles(a, form), m->tiles = (int32_t)(row_tiles(a, form) * a->heads_q * a->batch);
    m->cu_seqlens_q = p->varlen.cu_seqlens_q, m->cu_seqlens_k = p->varlen.cu_seqlens_k;
    m->used_q = p->varlen.used_q, m->used_k = p->varlen.used_k, m->index_bits = p->varlen.index_bits;
    m->scale = (float)a->scale, m->softcap = (float)a->softcap;
    m->alibi = p->alibi.slopes, m->alibi_stride = p->alibi.stride_batch, m->sinks = p->sinks.data;
}

/* Q, two stages of K and V, where there is room a second Q and O, barriers, and what it takes to align to 1024 bytes. */
static int32_t shared_bytes(const struct form *f) {
    const int64_t slabs = (f->dim + 63) / 64, tiles = f->dim <= 128 ? 3 : 1;
    return (int32_t)(slabs * 128 * (64 * f->groups * tiles + 4 * f->keys)) + 1024 + 512;
}

size_t strobe__sm90_forward_workspace(const struct problem *p) {
    const struct form *form = choose(p);
    const int64_t warps = row_tiles(&p->a, form) * p->a.heads_q * p->a.batch * 4 * form->groups;
    return sizeof(struct sm90_workspace) + (may_hide(p) ? (size_t)warps * sizeof(struct sm90_repair) : 0);
}

static strobe_status launch(const struct problem *p, const struct execution *execution) {
    const struct form *form = choose(p);
    struct sm90_forward_params params;
    memset(&params, 0, sizeof params);
    fill(&params, p, form);
    params.workspace = execution->workspace;
    if (p->a.seq_k > 0 && !encode_maps(&params, p, form))
        return strobe__fail(STROBE_DEVICE_ERROR, "q, k or v could not be described to the tensor copy engine");
    const strobe_status status = strobe__cuda_check(
        cudaMemsetAsync(params.workspace, 0, sizeof *params.workspace, execution->stream), "cudaMemsetAsync");
    if (status) return status;
    const int64_t processors = strobe__cuda_limits(p->a.device_index).multiprocessors;
    return strobe__cuda_launch((void (*)(void))form->symbol, params.tiles < processors ? params.tiles : processors,
                               (int32_t)(128 * (form->groups + 1)), shared_bytes(form), &params, execution->stream);
}

strobe_status strobe__sm90_forward(const struct problem *p, const struct execution *execution) {
    int before;
    strobe_status status = strobe__cuda_check_pointers(p, execution);
    if (!status) status = strobe__cuda_enter(p->a.device_index, &before);
    if (status) return status;
    status = launch(p, execution);
    strobe__cuda_leave(before);
    return status;
}
