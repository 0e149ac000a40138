/* SPDX-License-Identifier: BSD-3-Clause
 *
 * launch.c: fills in struct params, and launches a kernel by its handle from C; see launch.h. */
#include "cuda/host/launch.h"

#include "cuda/host/compiled.h"
#include "cuda/host/device.h"
#include "cuda/host/visible.h"
#include "cuda/host/visible_function.h"
#include "math/exp2.h"

#include <stdio.h>

_Static_assert((int)CUDA_FP32 == (int)STROBE_FP32 && (int)CUDA_FP16 == (int)STROBE_FP16 &&
                   (int)CUDA_BF16 == (int)STROBE_BF16 && (int)CUDA_FP64 == (int)STROBE_FP64 &&
                   (int)CUDA_FP8 == (int)STROBE_FP8_E4M3 && (int)CUDA_INT8 == (int)STROBE_INT8,
               "params.h numbers dtypes as the public header does");

const char *strobe__cuda_reject(const struct problem *p) {
    if (p->a.batch * p->a.heads_kv > MOST_ROWS) return "batch times heads_kv is above 2^31; less is taken";
    if (p->varlen.cu_seqlens_q && p->varlen.total_q == 0 && p->a.seq_q > 0 && !p->no_rows)
        return "varlen.total_q is 0 with cu_seqlens_q in device memory, which the host cannot read; the rows of the packed "
               "tensors are taken";
    const char *refused = strobe__visible_function_reject(p);
    return refused ? refused : strobe__compiled_reject(p);
}

/* extent: batch, rows, heads; the strides of axes with one entry do not matter. */
static struct view tensor_view(const strobe_tensor *t, int64_t batch, int64_t rows, int64_t heads) {
    const int64_t bytes = (int64_t)strobe__dtype_bytes(t->dtype);
    struct view v = {.data = t->data, .batch = t->stride[0], .row = t->stride[1], .head = t->stride[2], .dtype = t->dtype};
    v.aligned = (uintptr_t)t->data % 16 == 0 && (batch <= 1 || v.batch * bytes % 16 == 0) &&
                (rows <= 1 || v.row * bytes % 16 == 0) && (heads <= 1 || v.head * bytes % 16 == 0);
    return v;
}

/* The rows along which a tensor's sequences lie: of packed ones, which begin at any row, as many as there may be. */
static int64_t all_rows(const struct problem *p) { return p->varlen.cu_seqlens_q ? INT64_MAX : p->a.seq_q; }
static int64_t all_keys(const struct problem *p) { return p->varlen.cu_seqlens_k ? INT64_MAX : p->a.seq_k; }

struct view strobe__cuda_scores_view(const void *data, const int64_t stride[3], int32_t dtype) {
    return (struct view){
        .data = (void *)(uintptr_t)data, .batch = stride[0], .head = stride[1], .row = stride[2], .dtype = dtype};
}

static void set_mask(struct params *to, const struct problem *p) {
    const int32_t mask = p->a.mask;
    const struct sequence nothing = {0};
    const struct band band = strobe__band(p, &nothing); /* its diagonal is without keys - rows, which the device adds */
    to->left = band.left, to->right = band.right, to->start_shift = band.diagonal;
    to->bottom_right = mask == STROBE_MASK_CAUSAL_BOTTOM_RIGHT || mask == STROBE_MASK_WINDOW_BOTTOM_RIGHT;
}

struct cache strobe__cuda_cache(const struct problem *p) {
    const strobe_attention *a = &p->a;
    struct cache to = {0};
    if (a->paged) {
        to.page_table = p->paged.page_table, to.table_stride = p->paged.table_stride;
        to.page_size = (int32_t)(p->paged.page_size < MOST_ROWS ? p->paged.page_size : MOST_ROWS);
        to.pages = (int32_t)(p->paged.pages < INT32_MAX ? p->paged.pages : INT32_MAX);
    }
    if (a->varlen) to.leftpad = p->varlen.leftpad_k;
    if (!a->scales) return to;
    to.k_scale = p->scales.k, to.v_scale = p->scales.v;
    to.scale_block = (int32_t)(p->scales.block_k < MOST_ROWS ? p->scales.block_k : MOST_ROWS);
    for (int axis = 0; axis < 3; ++axis)
        to.k_scale_stride[axis] = p->scales.stride_k[axis], to.v_scale_stride[axis] = p->scales.stride_v[axis];
    return to;
}

static void set_features(struct params *to, const struct problem *p) {
    const strobe_attention *a = &p->a;
    if (a->bias) to->bias = strobe__cuda_scores_view(p->bias.data, p->bias.stride, p->bias.dtype);
    if (a->bool_mask) to->bool_mask = strobe__cuda_scores_view(p->bool_mask.data, p->bool_mask.stride, STROBE_INT8);
    if (a->block_mask) {
        to->block_mask = strobe__cuda_scores_view(p->block_mask.data, p->block_mask.stride, STROBE_INT8);
        to->block_q = (int32_t)(p->block_mask.block_q < MOST_ROWS ? p->block_mask.block_q : MOST_ROWS);
        to->block_k = (int32_t)(p->block_mask.block_k < MOST_ROWS ? p->block_mask.block_k : MOST_ROWS);
    }
    if (a->alibi) to->slopes = p->alibi.slopes, to->slopes_batch = p->alibi.stride_batch;
    if (a->sinks) to->sinks = p->sinks.data;
    if (a->dropout) to->dropout = 1, to->place = strobe__dropout_place(p);
    to->cache = strobe__cuda_cache(p);
    if (!a->varlen) return;
    to->cu_q = a->varlen->cu_seqlens_q, to->cu_k = a->varlen->cu_seqlens_k;
    to->used_q = a->varlen->used_q, to->used_k = a->varlen->used_k;
    to->index64 = a->varlen->index_bits == 64;
}

static void set_gradients(struct params *to, const struct problem *p) {
    const strobe_attention *a = &p->a;
    const strobe_gradients *g = &p->g;
    const int64_t rows = all_rows(p), keys = all_keys(p);
    to->dout = tensor_view(&g->dout, a->batch, rows, a->heads_q);
    to->dlse = tensor_view(&g->dlse, a->batch, rows, a->heads_q);
    to->dq = tensor_view(&g->dq, a->batch, rows, a->heads_q);
    to->dk = tensor_view(&g->dk, a->batch, keys, a->heads_kv);
    to->dv = tensor_view(&g->dv, a->batch, keys, a->heads_kv);
    if (g->dbias) to->dbias = strobe__cuda_scores_view(p->dbias.data, p->dbias.stride, p->dbias.dtype);
    if (g->dsinks) to->dsinks = p->dsinks.data;
}

struct params strobe__cuda_params(const struct problem *p) {
    const strobe_attention *a = &p->a;
    struct params to = {.batch = (int32_t)a->batch,
                        .heads_kv = (int32_t)a->heads_kv,
                        .group = (int32_t)p->group,
                        .seq_q = (int32_t)a->seq_q,
                        .seq_k = (int32_t)a->seq_k,
                        .dim = (int32_t)a->dim,
                        .dim_v = (int32_t)a->dim_v,
                        .scale = (float)a->scale,
                        .softcap = (float)a->softcap,
                        .splits = 1,
                        .slices = 1};
    to.q = tensor_view(&a->q, a->batch, all_rows(p), a->heads_q);
    const int64_t entries = a->paged ? p->paged.pages : a->batch, keys = a->paged ? p->paged.page_size : all_keys(p);
    to.k = tensor_view(&a->k, entries, keys, a->heads_kv);
    to.v = tensor_view(&a->v, entries, keys, a->heads_kv);
    to.out = tensor_view(&a->out, a->batch, all_rows(p), a->heads_q);
    to.lse = tensor_view(&a->lse, a->batch, all_rows(p), a->heads_q);
    /* With nothing between the product and softmax, scale is part of the exponent, where it costs nothing; a negative one
     * would turn the largest score into the least weight. */
    to.scaled = a->softcap > 0 || a->bias || a->alibi || a->scale < 0 || p->features & FEATURE(SCORE);
    const double factor = to.scaled ? 1 : a->scale;
    to.exponent = (float)(factor * LOG2_E);
    to.to_natural = two_floats_of(to.exponent == 0 ? 0 : factor / (double)to.exponent);
    set_mask(&to, p);
    set_features(&to, p);
    if (p->operation == STROBE_BACKWARD) set_gradients(&to, p);
    return to;
}

bool strobe__cuda_needs_features(const struct problem *p) {
    const strobe_attention *a = &p->a;
    if (p->features & (VISIBLE_FEATURES | SCORE_FEATURES | FEATURE(SCORE) | FEATURE(DROPOUT))) return true;
    const struct params params = strobe__cuda_params(p);
    if (!params.q.aligned || !params.k.aligned || !params.v.aligned) return true;
    if (p->operation == STROBE_FORWARD) return false;
    const bool whole = a->dim % 8 == 0 && a->dim_v % 8 == 0; /* chunks of 16 bytes */
    return !params.dout.aligned || !params.dk.aligned || !params.dv.aligned || !whole || p->g.dk.dtype != a->q.dtype ||
           p->g.dv.dtype != a->q.dtype;
}

/* Those of a score function's arrays and of their gradients. */
static strobe_status check_score_pointers(const struct problem *p) {
    const struct score_call *call = &p->score_call;
    char name[80];
    for (int n = 0; p->a.score && n < call->function->array_count; ++n)
        for (int is_gradient = 0; is_gradient < 2; ++is_gradient) {
            const strobe_score_elements *x = is_gradient ? &call->gradient[n] : &call->array[n];
            snprintf(name, sizeof name, "%s.arrays[%d] (%s)", is_gradient ? "dscore" : "score", n,
                     call->function->array_name[n].text);
            const strobe_status status = strobe__cuda_check_pointer(name, x->data, p->a.device_index);
            if (status) return status;
        }
    return STROBE_OK;
}

strobe_status strobe__cuda_check_pointers(const struct problem *p, const struct execution *execution) {
    const strobe_attention *a = &p->a;
    const bool any = a->batch > 0, any_rows = any && a->seq_q > 0, any_keys = any && a->seq_k > 0;
    const bool any_pairs = any_rows && any_keys;
    const struct {
        const char *name;
        const void *data; /* NULL where nothing is in it: its pointer may be anything */
    } pointers[] = {
        {"q", any_rows ? a->q.data : NULL},
        {"k", any_keys ? a->k.data : NULL},
        {"v", any_keys ? a->v.data : NULL},
        {"out", any_rows ? a->out.data : NULL},
        {"lse", any_rows ? a->lse.data : NULL},
        {"dout", any_rows ? p->g.dout.data : NULL},
        {"dlse", any_rows ? p->g.dlse.data : NULL},
        {"dq", any_rows ? p->g.dq.data : NULL},
        {"dk", any_keys ? p->g.dk.data : NULL},
        {"dv", any_keys ? p->g.dv.data : NULL},
        {"dq", any_rows ? p->added_to[0].data : NULL},
        {"dk", any_keys ? p->added_to[1].data : NULL},
        {"dv", any_keys ? p->added_to[2].data : NULL},
        {"bias", a->bias && any_pairs ? p->bias.data : NULL},
        {"dbias", p->g.dbias && any_pairs ? p->dbias.data : NULL},
        {"bool_mask", a->bool_mask && any_pairs ? p->bool_mask.data : NULL},
        {"block_mask", a->block_mask && any_pairs ? p->block_mask.data : NULL},
        {"alibi.slopes", a->alibi && any ? p->alibi.slopes : NULL},
        {"sinks", a->sinks ? p->sinks.data : NULL},
        {"dsinks", p->g.dsinks ? p->dsinks.data : NULL},
        {"varlen.cu_seqlens_q", a->varlen ? a->varlen->cu_seqlens_q : NULL},
        {"varlen.cu_seqlens_k", a->varlen ? a->varlen->cu_seqlens_k : NULL},
        {"varlen.used_q", a->varlen && any ? a->varlen->used_q : NULL},
        {"varlen.used_k", a->varlen && any ? a->varlen->used_k : NULL},
        {"scales.q", a->scales ? p->scales.q : NULL},
        {"scales.k", a->scales ? p->scales.k : NULL},
        {"scales.v", a->scales ? p->scales.v : NULL},
        {"varlen.leftpad_k", a->varlen && any ? p->varlen.leftpad_k : NULL},
        {"paged.page_table", a->paged && any_keys ? p->paged.page_table : NULL},
        {"mask_lists.data", a->mask_lists ? p->mask_lists.data : NULL},
        {"workspace", execution->workspace},
    };
    for (size_t i = 0; i < sizeof pointers / sizeof pointers[0]; ++i) {
        const strobe_status status = strobe__cuda_check_pointer(pointers[i].name, pointers[i].data, a->device_index);
        if (status) return status;
    }
    return check_score_pointers(p);
}

/* More shared memory than the 48 KiB, with a kernel's own variables, that are there without a request. A request takes a
 * tenth of a launch's time, so that those that were made are remembered: of each function with each amount in each context,
 * in one of a few places that others may take over. */
static strobe_status allow_shared(const void *function, int32_t bytes) {
    static _Atomic uint64_t requests[256];
    if (bytes <= 40 * 1024) return STROBE_OK;
    const uint64_t mixed = (uint64_t)(uintptr_t)function * 0xbf58476d1ce4e5b9u ^ strobe__cuda_context();
    const uint64_t request = mixed * 0x9e3779b97f4a7c15u + (uint64_t)bytes;
    _Atomic uint64_t *place = &requests[request >> 56];
    if (*place == request) return STROBE_OK;
    const strobe_status status = strobe__cuda_check(
        cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "cudaFuncSetAttribute");
    if (!status) *place = request;
    return status;
}

static strobe_status launch(struct cuda_kernel *kernel, int64_t blocks, int32_t threads, int32_t shared_bytes,
                            const void *params, void *stream, bool early) {
    const void *function;
    if (blocks == 0) return STROBE_OK;
    if (blocks > INT32_MAX)
        return strobe__fail(STROBE_UNSUPPORTED, "the problem takes %lld blocks of threads; below 2^31 is taken",
                            (long long)blocks);
    strobe_status status = strobe__cuda_find_kernel(kernel, &function);
    if (!status) status = allow_shared(function, shared_bytes);
    if (status) return status;
    cudaLaunchAttribute overlap = {.id = cudaLaunchAttributeProgrammaticStreamSerialization,
                                   .val = {.programmaticStreamSerializationAllowed = 1}};
    const cudaLaunchConfig_t config = {.gridDim = {(unsigned)blocks, 1, 1},
                                       .blockDim = {(unsigned)threads, 1, 1},
                                       .dynamicSmemBytes = (size_t)shared_bytes,
                                       .stream = (cudaStream_t)stream,
                                       .attrs = &overlap,
                                       .numAttrs = early};
    void *arguments[] = {(void *)(uintptr_t)params};
    return strobe__cuda_check(cudaLaunchKernelExC(&config, function, arguments), "the launch of a kernel");
}

strobe_status strobe__cuda_launch(struct cuda_kernel *kernel, int64_t blocks, int32_t threads, int32_t shared_bytes,
                                  const void *params, void *stream) {
    return launch(kernel, blocks, threads, shared_bytes, params, stream, false);
}

strobe_status strobe__cuda_launch_early(struct cuda_kernel *kernel, int64_t blocks, int32_t threads, int32_t shared_bytes,
                                        const void *params, void *stream) {
    return launch(kernel, blocks, threads, shared_bytes, params, stream, true);
}
