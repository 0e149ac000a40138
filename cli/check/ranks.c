/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ranks.c: see ranks.h. */
#include "check/ranks.h"

#include "check/rank_streams.h"
#include "io/memory.h"
#include "portable/posix.h"
#include "problem/cuda_driver.h"
#include "problem/cuda_memory.h"
#include "problem/element.h"
#include "problem/problem_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 256, POISON = 0xFF, MOST_THREADS = 64 };

typedef struct rank {
    buffer tensor[TENSOR_COUNT];
    unsigned char *on_gpu[TENSOR_COUNT]; /* copies of these, where calls are made on a GPU */
    unsigned char *block;                /* there: guard, workspace, guard */
    size_t workspace_bytes;
    strobe_attention attention;
    strobe_gradients gradients;
    strobe_bias bias, dbias;
    strobe_bool_mask bool_mask;
    strobe_sinks sinks, dsinks;
    strobe_alibi alibi;
    void *heads[2];           /* sinks and slopes, where the rank's GPU is not the first */
    strobe_transport nowhere; /* replaced by that of the threads */
    strobe_dist dist;
    strobe_status status;
    char message[PROBLEM_MESSAGE];
} rank;

typedef struct job {
    const inputs *in;
    const outputs *out;
    const call *c;
    const manner *how;
    bool gpu;
    struct streams *streams;
    rank *ranks;
    strobe_attention whole; /* the caller's, its offsets counted from 0 */
    strobe_varlen varlen;
    int64_t *cu[2], first[2]; /* of queries, of keys; rows before the first sequence */
} job;

static const buffer *whole_of(const job *j, tensor_id id) {
    return tensor_is_output(&j->in->problem, id) ? &j->out->tensor[id] : &j->in->tensor[id];
}

static bool is_there(const job *j, tensor_id id) { return whole_of(j, id)->data != NULL; }

/* Whether a tensor has rows of its own on each rank; the others are the same on all. */
static bool is_sharded(const job *j, tensor_id id) {
    const tensor_side side = tensor_side_of(id);
    if (side == OVER_ROWS || side == OVER_KEYS) return true;
    const int64_t axes = id == T_MASK ? j->in->problem.bool_mask : j->in->problem.bias;
    return side == OVER_SCORES && axes & AXIS_ROW;
}

static int64_t rows_of_rank(const rank *r, tensor_id id) {
    return tensor_side_of(id) == OVER_KEYS ? r->dist.rows_k : r->dist.rows_q;
}

/* The shard's own memory, [batch][rows][heads][columns], of one number a row [batch][heads][rows]. */
static bool make_tensor(const job *j, rank *r, tensor_id id) {
    const buffer *whole = whole_of(j, id);
    buffer *b = &r->tensor[id];
    const bool keeps_rows = !is_sharded(j, id), outside = id == T_LSE || id == T_DLSE;
    *b = (buffer){.dtype = whole->dtype};
    memcpy(b->extent, whole->extent, sizeof b->extent);
    if (!keeps_rows) b->extent[1] = rows_of_rank(r, id);
    const int64_t odd = j->gpu && j->whole.seq_q % 4 ? 8 : 3; /* where Hopper's kernels take the strides, and where not */
    const int64_t gap = r->nowhere.rank % 2 && tensor_side_of(id) != OVER_HEADS ? odd : 0;
    const int inner = outside || tensor_side_of(id) == OVER_SCORES ? 1 : 2, outer = 3 - inner;
    b->stride[inner] = b->extent[3] + (outside ? 0 : gap);
    b->stride[outer] = b->extent[inner] * b->stride[inner] + gap;
    b->stride[0] = b->extent[outer] * b->stride[outer] + gap;
    for (int axis = 0; axis < 3 && tensor_side_of(id) == OVER_SCORES; ++axis)
        if (whole->extent[axis] == 1 && !(axis == 1 && is_sharded(j, id))) b->stride[axis] = 0; /* broadcast */
    return buffer_allocate(b);
}

/* The shard's rows from the whole, or into it. */
static void move_rows(const job *j, const rank *r, tensor_id id, bool back) {
    const buffer *whole = whole_of(j, id), *own = &r->tensor[id];
    const size_t element = element_bytes(own->dtype), bytes = (size_t)own->extent[3] * element;
    const bool sharded = is_sharded(j, id), keys = tensor_side_of(id) == OVER_KEYS;
    const strobe_dist *d = &r->dist;
    const int64_t *cu = j->cu[keys], total = cu ? cu[j->whole.batch] : whole->extent[1];
    const int64_t first = tensor_side_of(id) <= OVER_KEYS ? j->first[keys] : 0;
    if (!own->data || !whole->data) return;
    for (int64_t b = 0; b < own->extent[0]; ++b)
        for (int64_t i = 0; i < own->extent[1]; ++i) {
            const int64_t row = sharded ? strobe_dist_position(d->layout, total, r->nowhere.size, r->nowhere.rank, i) : i;
            for (int64_t h = 0; h < own->extent[2]; ++h) {
                unsigned char *there = buffer_at(whole, b, first + row, h, element),
                              *here = buffer_at(own, b, i, h, element);
                memcpy(back ? there : here, back ? here : there, bytes);
            }
        }
}

/* Where a call finds the tensor. */
static unsigned char *address(const rank *r, tensor_id id) {
    const buffer *b = &r->tensor[id];
    return r->on_gpu[id] && b->data ? r->on_gpu[id] + (b->data - b->bytes) : b->data;
}

static strobe_tensor view(const rank *r, tensor_id id) {
    const buffer *b = &r->tensor[id];
    strobe_tensor t = {.data = address(r, id), .dtype = (int32_t)b->dtype};
    if (b->extent[0] == 0 || b->extent[1] == 0) t.data = NULL;
    if (r->nowhere.rank % 2 && t.data) memcpy(t.stride, b->stride, sizeof t.stride); /* the others' are the default */
    return t;
}

static void set_scores(const rank *r, tensor_id id, void **data, int64_t stride[3]) {
    const buffer *b = &r->tensor[id];
    *data = address(r, id), stride[0] = b->stride[0], stride[1] = b->stride[2], stride[2] = b->stride[1];
}

static void describe(const job *j, rank *r) {
    const call *c = j->c;
    strobe_attention *a = &r->attention;
    strobe_gradients *g = &r->gradients;
    a->q = view(r, T_Q), a->k = view(r, T_K), a->v = view(r, T_V), a->out = view(r, T_OUT), a->lse = view(r, T_LSE);
    if (c->attention.lse.data == NULL) a->lse.data = NULL;
    if (a->bias) r->bias = c->bias, a->bias = &r->bias, set_scores(r, T_BIAS, &r->bias.data, r->bias.stride);
    if (a->bool_mask) {
        void *data;
        r->bool_mask = c->bool_mask, a->bool_mask = &r->bool_mask;
        set_scores(r, T_MASK, &data, r->bool_mask.stride);
        r->bool_mask.data = data;
    }
    if (!c->backward) return;
    g->dout = view(r, T_DOUT), g->dlse = view(r, T_DLSE);
    g->dq = view(r, T_DQ), g->dk = view(r, T_DK), g->dv = view(r, T_DV);
    if (g->dbias) r->dbias = c->dbias, g->dbias = &r->dbias, set_scores(r, T_DBIAS, &r->dbias.data, r->dbias.stride);
    if (g->dsinks) r->dsinks = c->dsinks, r->dsinks.data = address(r, T_DSINKS), g->dsinks = &r->dsinks;
}

/* What is not of the rank's own lies on the first GPU: a copy for another one. */
static void *copy_heads(const job *j, tensor_id id, int device, void **data) {
    const buffer *b = &j->in->tensor[id];
    unsigned char *copy = cuda_memory_copied_to(device, b->bytes, b->size);
    *data = copy ? copy + (b->data - b->bytes) : NULL;
    return copy;
}

static bool copy_features(const job *j, rank *r, int device) {
    strobe_attention *a = &r->attention;
    void *data;
    if (a->sinks) {
        r->sinks = *a->sinks, a->sinks = &r->sinks;
        r->heads[0] = copy_heads(j, T_SINKS, device, &r->sinks.data);
    }
    if (a->alibi && a->alibi->slopes) {
        r->alibi = *a->alibi, a->alibi = &r->alibi;
        r->heads[1] = copy_heads(j, T_SLOPES, device, &data), r->alibi.slopes = data;
    }
    return (!a->sinks || r->heads[0]) && (!a->alibi || !a->alibi->slopes || r->heads[1]);
}

/* On a GPU, where the library has none of its own. A call that is refused says so by itself. */
static bool make_workspace(const job *j, rank *r) {
    r->nowhere.flags = STROBE_TRANSPORT_BESIDE_KERNELS; /* as that of the streams has */
    if (strobe_dist_workspace(&r->dist, j->c->backward ? &r->gradients : NULL, &r->workspace_bytes)) r->workspace_bytes = 0;
    r->block = cuda_memory_copied_to(r->attention.device_index, NULL, r->workspace_bytes + 2 * GUARD);
    return r->block != NULL;
}

static bool make_rank(const job *j, int32_t number) {
    rank *r = &j->ranks[number];
    r->attention = j->whole, r->gradients = j->c->gradients;
    problem_ranks_describe(&j->in->problem, &j->whole, number, &r->nowhere, &r->dist);
    r->dist.attention = &r->attention;
    const int device = j->gpu ? streams_device(number) : 0;
    r->attention.device_index = device;
    if (device > 0 && !copy_features(j, r, device)) return false;
    for (int id = 0; id < TENSOR_COUNT; ++id) {
        const tensor_side side = tensor_side_of((tensor_id)id);
        const bool own = side == OVER_ROWS || side == OVER_KEYS || id == T_BIAS || id == T_DBIAS || id == T_MASK ||
                         id == T_DSINKS;
        if (!own || !is_there(j, (tensor_id)id)) continue;
        if (!make_tensor(j, r, (tensor_id)id)) return false;
        if (!tensor_is_output(&j->in->problem, (tensor_id)id)) move_rows(j, r, (tensor_id)id, false);
        if (j->gpu) r->on_gpu[id] = cuda_memory_copied_to(device, r->tensor[id].bytes, r->tensor[id].size);
        if (j->gpu && !r->on_gpu[id]) return false;
    }
    describe(j, r);
    return !j->gpu || make_workspace(j, r);
}

/* ---------------------------------------------------------------------------------------------------- on its thread -- */

static strobe_status run_in(const strobe_dist *d, const strobe_gradients *g, void *workspace, size_t bytes) {
    return g ? strobe_dist_backward(d, g, workspace, bytes, NULL) : strobe_dist_forward(d, workspace, bytes, NULL);
}

static void run_rank_on_gpu(const job *j, rank *r, const strobe_transport *host) {
    const strobe_transport transport = streams_transport(j->streams, host);
    void *stream = streams_of_rank(j->streams, host->rank), *workspace = r->block + GUARD;
    r->dist.transport = &transport;
    const cuda_driver *driver = cuda_driver_open(r->message, sizeof r->message);
    void *before = NULL, *after = NULL;
    /* A thread may have its own device current, nothing, or another device. */
    if (host->rank % 3 != 1 && !cuda_driver_use(streams_device(host->rank + host->rank % 3 / 2))) abort();
    (void)driver->get_context(&before);
    if (j->c->backward)
        r->status = strobe_dist_backward(&r->dist, &r->gradients, workspace, r->workspace_bytes, stream);
    else
        r->status = strobe_dist_forward(&r->dist, workspace, r->workspace_bytes, stream);
    snprintf(r->message, sizeof r->message, "%s", r->status ? strobe_dist_last_error() : "");
    (void)driver->get_context(&after);
    if (before == after || (!before && r->attention.device_index == 0)) return;
    r->status = STROBE_DEVICE_ERROR;
    snprintf(r->message, sizeof r->message, "rank %d: the call has changed the thread's current context", host->rank);
}

static void run_rank(void *context, const strobe_transport *transport) {
    const job *j = context;
    rank *r = &j->ranks[transport->rank];
    const strobe_gradients *g = j->c->backward ? &r->gradients : NULL;
    size_t bytes = 0;
    if (j->gpu) {
        run_rank_on_gpu(j, r, transport);
        return;
    }
    r->dist.transport = transport;
    const bool own = j->how->workspace != WORKSPACE_LIBRARY && strobe_dist_workspace(&r->dist, g, &bytes) == STROBE_OK;
    unsigned char *block = own ? aligned_alloc(64, bytes + 2 * GUARD) : NULL;
    if (block) memset(block, POISON, bytes + 2 * GUARD);
    r->status = run_in(&r->dist, g, block && bytes ? block + GUARD : NULL, block ? bytes : 0);
    snprintf(r->message, sizeof r->message, "%s", r->status ? strobe_dist_last_error() : "");
    for (size_t n = 0; block && !r->status && n < GUARD; ++n)
        if (block[n] != POISON || block[GUARD + bytes + n] != POISON) {
            r->status = STROBE_DEVICE_ERROR;
            snprintf(r->message, sizeof r->message, "memory outside the workspace of %zu bytes was written", bytes);
        }
    aligned_free(block);
}

/* ------------------------------------------------------------------------------------------------------- all of them -- */

/* The whole's elements; what is left of the shard must be as it was. */
static bool take_back(const job *j, rank *r, char *message, size_t capacity) {
    for (int id = 0; id < TENSOR_COUNT; ++id) {
        buffer *b = &r->tensor[id];
        if (!b->bytes || !tensor_is_output(&j->in->problem, (tensor_id)id)) continue;
        const bool once = !is_sharded(j, (tensor_id)id);
        if (!once || r->nowhere.rank == 0 || (id == T_DBIAS && r->dist.rows_q > 0)) move_rows(j, r, (tensor_id)id, true);
        const size_t bytes = (size_t)b->extent[3] * element_bytes(b->dtype);
        if (id == T_DSINKS && memcmp(b->data, j->ranks[0].tensor[id].data, bytes) != 0 && r != j->ranks) {
            snprintf(message, capacity, "rank %d has other bits of dsinks than rank 0", r->nowhere.rank);
            return false;
        }
        for (int64_t e = 0; b->data && e < b->extent[0]; ++e)
            for (int64_t i = 0; i < b->extent[1]; ++i)
                for (int64_t h = 0; h < b->extent[2]; ++h)
                    memset(buffer_at(b, e, i, h, element_bytes(b->dtype)), POISON, bytes);
        if (buffer_is_wiped(b)) continue;
        snprintf(message, capacity, "rank %d wrote beside %s", r->nowhere.rank, tensor_name((tensor_id)id));
        return false;
    }
    return true;
}

static strobe_status judge(const job *j, int32_t count, char *message, size_t capacity) {
    const rank *first = &j->ranks[0];
    for (int32_t n = 1; n < count; ++n) {
        const rank *r = &j->ranks[n];
        if (r->status == first->status && strcmp(r->message, first->message) == 0) continue;
        snprintf(message, capacity, "rank 0 returns %d, \"%.200s\", and rank %d %d, \"%.200s\"", first->status,
                 first->message, n, r->status, r->message);
        return STROBE_DEVICE_ERROR;
    }
    snprintf(message, capacity, "%s", first->message);
    for (int32_t n = count - 1; n >= 0 && !first->status; --n) /* the others are compared with rank 0 */
        if (!take_back(j, &j->ranks[n], message, capacity)) return STROBE_DEVICE_ERROR;
    return first->status;
}

static int64_t *offsets_from_0(const void *cu, int32_t bits, int64_t batch, int64_t *first) {
    if (!cu) return NULL;
    int64_t *offsets = memory_zeroed((size_t)batch + 1, sizeof *offsets);
    for (int64_t b = 0; b <= batch; ++b) {
        offsets[b] = bits == 64 ? ((const int64_t *)cu)[b] : ((const int32_t *)cu)[b];
        if (b == 0) *first = offsets[0];
        offsets[b] -= *first;
    }
    return offsets;
}

/* libstrobe_dist has no rows before the first sequence, and reads offsets on the host. */
static void read_offsets(job *j) {
    j->whole = j->c->attention;
    if (!j->whole.varlen) return;
    strobe_varlen *v = &j->varlen;
    *v = *j->whole.varlen, j->whole.varlen = v;
    v->cu_seqlens_q = j->in->varlen_arrays[0], v->cu_seqlens_k = j->in->varlen_arrays[1];
    j->cu[0] = offsets_from_0(v->cu_seqlens_q, v->index_bits, j->whole.batch, &j->first[0]);
    j->cu[1] = offsets_from_0(v->cu_seqlens_k, v->index_bits, j->whole.batch, &j->first[1]);
    v->cu_seqlens_q = j->cu[0], v->cu_seqlens_k = j->cu[1];
    v->total_q = v->total_k = 0;
    if (j->cu[0] && j->cu[1]) v->index_bits = 64;
}

static strobe_status wait_for_gpus(int32_t count, char *message, size_t capacity) {
    for (int32_t n = count - 1; n >= 0; --n) /* the first device is current at last */
        if (!cuda_driver_use(streams_device(n)) || !cuda_memory_wait(message, capacity)) return STROBE_DEVICE_ERROR;
    return STROBE_OK;
}

/* Waits for the GPU; results and their guard bands to the host. */
static strobe_status bring_back(job *j, int32_t count, char *message, size_t capacity) {
    unsigned char guard[GUARD];
    if (wait_for_gpus(count, message, capacity)) return STROBE_DEVICE_ERROR;
    for (int32_t n = 0; n < count; ++n) {
        rank *r = &j->ranks[n];
        for (int id = 0; id < TENSOR_COUNT; ++id)
            if (r->on_gpu[id] && tensor_is_output(&j->in->problem, (tensor_id)id) &&
                !cuda_memory_copy_back(r->tensor[id].bytes, r->on_gpu[id], r->tensor[id].size))
                return STROBE_DEVICE_ERROR;
        for (int side = 0; side < 2; ++side) {
            const unsigned char *at = r->block + (side ? GUARD + r->workspace_bytes : 0);
            if (!cuda_memory_copy_back(guard, at, GUARD)) return STROBE_DEVICE_ERROR;
            for (size_t b = 0; b < GUARD && !r->status; ++b)
                if (guard[b] != POISON) {
                    snprintf(message, capacity, "rank %d: memory outside the workspace was written", n);
                    return STROBE_DEVICE_ERROR;
                }
        }
    }
    return STROBE_OK;
}

static strobe_status run_all(job *j, int32_t count, char *message, size_t capacity) {
    struct world *world = world_make(count);
    strobe_status status = STROBE_OK;
    if (j->gpu) j->streams = streams_make(world, count, message, capacity);
    if (j->gpu && !j->streams) status = STROBE_UNSUPPORTED;
    if (!status && j->gpu)
        status = wait_for_gpus(count, message, capacity); /* what is filled, and their streams do not wait */
    if (!status) world_run(world, run_rank, j);
    if (!status && j->gpu) status = bring_back(j, count, message, capacity);
    streams_free(j->streams);
    world_free(world);
    return status ? status : judge(j, count, message, capacity);
}

strobe_status ranks_run(const inputs *in, const outputs *out, const call *c, const manner *how, char *message,
                        size_t capacity) {
    const int32_t count = (int32_t)in->problem.ranks;
    if (in->problem.ranks > MOST_THREADS) {
        snprintf(message, capacity, "ranks is %lld; 1 to %d, a thread for each, is accepted", (long long)in->problem.ranks,
                 MOST_THREADS);
        return STROBE_UNSUPPORTED;
    }
    job j = {.in = in, .out = out, .c = c, .how = how, .ranks = memory_zeroed((size_t)count, sizeof *j.ranks)};
    j.gpu = c->attention.device == STROBE_CUDA;
    read_offsets(&j);
    bool made = true;
    strobe_status status = STROBE_OUT_OF_MEMORY;
    for (int32_t n = 0; made && n < count; ++n) made = make_rank(&j, n);
    if (made)
        status = run_all(&j, count, message, capacity);
    else
        snprintf(message, capacity, "the shards of %d ranks could not be allocated", count);
    for (int32_t n = 0; n < count; ++n) {
        for (int id = 0; id < TENSOR_COUNT; ++id) {
            buffer_free(&j.ranks[n].tensor[id]);
            if (j.gpu) cuda_memory_free(j.ranks[n].on_gpu[id]);
        }
        if (j.gpu) cuda_memory_free(j.ranks[n].block);
        for (int h = 0; h < 2; ++h) cuda_memory_free(j.ranks[n].heads[h]);
    }
    free(j.ranks), free(j.cu[0]), free(j.cu[1]);
    return status;
}
