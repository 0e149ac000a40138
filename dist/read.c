/* SPDX-License-Identifier: BSD-3-Clause
 *
 * read.c: the caller's structures of any size become a struct whole, with every default filled in. Offsets of packed
 * sequences are copied, as 64-bit integers. Nothing of a tensor is touched. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dist.h"

strobe_status strobe__dist_copy(void *target, size_t target_bytes, const void *source, const char *name) {
    enum { LARGEST_STRUCT = 4096 };
    size_t size;
    memcpy(&size, source, sizeof size);
    const bool cuts_a_field = size < target_bytes && size % sizeof(void *) != 0; /* no version ends there */
    if (size < sizeof size || size > LARGEST_STRUCT || cuts_a_field)
        return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "%s.struct_size is %zu; sizeof the structure, %zu, is accepted",
                                 name, size, target_bytes);
    const unsigned char *bytes = source;
    for (size_t at = target_bytes; at < size; ++at)
        if (bytes[at] != 0)
            return strobe__dist_fail(
                STROBE_INVALID_ARGUMENT,
                "%s has a nonzero byte at offset %zu, in a field that this library, version %s, does not "
                "know; zero is accepted there",
                name, at, strobe_version());
    memset(target, 0, target_bytes);
    memcpy(target, source, size < target_bytes ? size : target_bytes);
    return STROBE_OK;
}

/* Copies an optional structure and lets the holder point at the copy. */
#define COPY(holder, field, copy, name)                                            \
    do {                                                                           \
        if ((holder).field) {                                                      \
            TRY(strobe__dist_copy(&(copy), sizeof(copy), (holder).field, (name))); \
            (holder).field = &(copy);                                              \
        }                                                                          \
    } while (0)

static strobe_status read_features(struct whole *w) {
    COPY(w->a, varlen, w->varlen, "varlen");
    COPY(w->a, bias, w->bias, "bias");
    COPY(w->a, bool_mask, w->bool_mask, "bool_mask");
    COPY(w->a, alibi, w->alibi, "alibi");
    COPY(w->a, sinks, w->sinks, "sinks");
    COPY(w->a, dropout, w->dropout, "dropout");
    COPY(w->a, parallel, w->parallel, "parallel");
    COPY(w->a, tuning, w->tuning, "tuning");
    COPY(w->g, dbias, w->dbias, "dbias");
    COPY(w->g, dsinks, w->dsinks, "dsinks");
    if (w->varlen.index_bits == 0) w->varlen.index_bits = 32;
    return STROBE_OK;
}

static void default_stride(strobe_tensor *t, int64_t batch, int64_t sequence, int64_t head) {
    if (t->stride[0] == 0 && t->stride[1] == 0 && t->stride[2] == 0)
        t->stride[0] = batch, t->stride[1] = sequence, t->stride[2] = head;
}

static void default_rows(strobe_tensor *t, int64_t rows, int64_t heads, int64_t dim, int32_t dtype) {
    const int64_t row = strobe__dist_product(heads, dim);
    default_stride(t, strobe__dist_product(rows, row), row, dim);
    if (t->dtype == STROBE_DTYPE_DEFAULT) t->dtype = dtype;
}

static void default_lse(strobe_tensor *t, int64_t rows, int64_t heads) {
    default_stride(t, strobe__dist_product(heads, rows), 1, rows);
    if (t->dtype == STROBE_DTYPE_DEFAULT) t->dtype = STROBE_FP32;
}

static void fill_defaults(struct whole *w) {
    strobe_attention *a = &w->a;
    strobe_gradients *g = &w->g;
    if (a->heads_kv == 0) a->heads_kv = a->heads_q;
    if (a->dim_v == 0) a->dim_v = a->dim;
    if (a->dtype == STROBE_DTYPE_DEFAULT) a->dtype = STROBE_FP32;
    if (a->scale == 0 && a->dim > 0) a->scale = 1 / sqrt((double)a->dim);
    const int64_t rows = w->d.rows_q, keys = w->d.rows_k;
    default_rows(&a->q, rows, a->heads_q, a->dim, a->dtype);
    default_rows(&a->k, keys, a->heads_kv, a->dim, a->dtype);
    default_rows(&a->v, keys, a->heads_kv, a->dim_v, a->dtype);
    default_rows(&a->out, rows, a->heads_q, a->dim_v, a->dtype);
    default_lse(&a->lse, rows, a->heads_q);
    default_rows(&g->dout, rows, a->heads_q, a->dim_v, a->dtype);
    default_lse(&g->dlse, rows, a->heads_q);
    default_rows(&g->dq, rows, a->heads_q, a->dim, a->dtype);
    default_rows(&g->dk, keys, a->heads_kv, a->dim, a->dtype);
    default_rows(&g->dv, keys, a->heads_kv, a->dim_v, a->dtype);
    if (w->bias.dtype == STROBE_DTYPE_DEFAULT) w->bias.dtype = a->dtype;
    if (w->dbias.dtype == STROBE_DTYPE_DEFAULT) w->dbias.dtype = a->dtype;
    if (w->dropout.heads == 0) w->dropout.heads = a->heads_q;
    if (w->dropout.rows == 0) w->dropout.rows = a->seq_q;
    if (w->dropout.keys == 0) w->dropout.keys = a->seq_k;
}

static void set_band(struct whole *w) {
    const int32_t mask = w->a.mask;
    const bool window = mask == STROBE_MASK_WINDOW_TOP_LEFT || mask == STROBE_MASK_WINDOW_BOTTOM_RIGHT;
    const bool causal = mask == STROBE_MASK_CAUSAL_TOP_LEFT || mask == STROBE_MASK_CAUSAL_BOTTOM_RIGHT;
    w->left = window && w->a.window_left >= 0 ? w->a.window_left : FAR;
    w->right = causal ? 0 : window && w->a.window_right >= 0 ? w->a.window_right : FAR;
    w->bottom_right = mask == STROBE_MASK_CAUSAL_BOTTOM_RIGHT || mask == STROBE_MASK_WINDOW_BOTTOM_RIGHT;
}

/* The offsets of one side as 64-bit integers, which begin at 0 and do not decrease. */
static strobe_status read_offsets(const struct whole *w, const char *name, const void *offsets, int64_t longest,
                                  int64_t *cu) {
    for (int64_t b = 0; b <= w->a.batch; ++b) {
        cu[b] = w->varlen.index_bits == 64 ? ((const int64_t *)offsets)[b] : ((const int32_t *)offsets)[b];
        if (b == 0 && cu[0] != 0)
            return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "varlen.cu_seqlens_%s[0] is %lld; 0 is accepted", name,
                                     (long long)cu[0]);
        if (b > 0 && (cu[b] < cu[b - 1] || cu[b] - cu[b - 1] > longest))
            return strobe__dist_fail(
                STROBE_INVALID_ARGUMENT,
                "varlen.cu_seqlens_%s[%lld] is %lld after %lld; a length of 0 to seq_%s, %lld, is accepted", name,
                (long long)b, (long long)cu[b], (long long)cu[b - 1], name, (long long)longest);
    }
    return STROBE_OK;
}

static strobe_status read_documents(struct whole *w) {
    w->entries = w->a.batch, w->total_q = w->a.seq_q, w->total_k = w->a.seq_k;
    const strobe_varlen *v = &w->varlen;
    if (!w->a.varlen || (!v->cu_seqlens_q && !v->cu_seqlens_k)) return STROBE_OK;
    if (!v->cu_seqlens_q || !v->cu_seqlens_k)
        return strobe__dist_fail(STROBE_UNSUPPORTED,
                                 "varlen.cu_seqlens_%s is NULL; offsets of both sides, or of none, are accepted",
                                 v->cu_seqlens_q ? "k" : "q");
    if (v->index_bits != 32 && v->index_bits != 64)
        return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "varlen.index_bits is %d; 32 or 64 is accepted", v->index_bits);
    const size_t bytes = (size_t)(w->a.batch + 1) * sizeof *w->cu_q;
    w->cu_q = malloc(bytes), w->cu_k = malloc(bytes);
    if (!w->cu_q || !w->cu_k) return strobe__dist_no_memory();
    TRY(read_offsets(w, "q", v->cu_seqlens_q, w->a.seq_q, w->cu_q));
    TRY(read_offsets(w, "k", v->cu_seqlens_k, w->a.seq_k, w->cu_k));
    w->entries = 1, w->total_q = w->cu_q[w->a.batch], w->total_k = w->cu_k[w->a.batch];
    return STROBE_OK;
}

/* The defaults of a CPU are one core's of a server, and processes of one host that exchange through shared memory; those of
 * a GPU were fitted to two H100 of a host, linked by NVLink. */
static void fill_rates(strobe_dist_rates *r, bool gpu, bool copies) {
    if (r->flops == 0) r->flops = gpu ? 6e14 : 5e10;
    if (r->bandwidth == 0) r->bandwidth = copies ? 3e11 : gpu ? 2.4e11 : 4e9;
    if (r->latency == 0) r->latency = gpu ? 30e-6 : 20e-6;
    if (r->call == 0) r->call = gpu ? 20e-6 : 10e-6;
    if (r->memory == 0) r->memory = gpu ? 2.3e12 : 1e10;
    if (r->launch == 0) r->launch = gpu ? 8e-6 : 1e-9;
}

strobe_status strobe__dist_read_transport(strobe_transport *t, strobe_transport *records,
                                          const strobe_transport *transport) {
    *records = (strobe_transport){.size = 0};
    if (!transport) return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "transport is NULL; a transport is accepted");
    TRY(strobe__dist_copy(t, sizeof *t, transport, "transport"));
    if (t->size < 1 || t->size > 65536)
        return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "transport.size is %d; 1 to 65536 is accepted", t->size);
    if (t->rank < 0 || t->rank >= t->size)
        return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "transport.rank is %d; 0 to %d is accepted", t->rank, t->size - 1);
    if (t->records) TRY(strobe__dist_copy(records, sizeof *records, t->records, "transport.records"));
    if (!t->records && t->device == STROBE_CPU) *records = *t;
    if (!records->start || !records->wait || records->rank != t->rank || records->size != t->size)
        records->size = 0; /* refused by strobe__dist_check_transport */
    return STROBE_OK;
}

strobe_status strobe__dist_check_transport(const strobe_transport *t, const strobe_transport *records, bool compares) {
    if (t->size > 1 && (!t->start || !t->wait))
        return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "transport.%s is NULL; a pointer is accepted",
                                 t->start ? "wait" : "start");
    if (t->device != STROBE_CPU && t->device != STROBE_CUDA)
        return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "transport.device is %d; 0 or 1 is accepted", t->device);
    if (t->flags & ~STROBE_TRANSPORT_BESIDE_KERNELS)
        return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "transport.flags is %d; 0 or 1 is accepted", t->flags);
    if (t->size == 1 || !compares || records->size > 0) return STROBE_OK;
    if (!t->records)
        return strobe__dist_fail(
            STROBE_INVALID_ARGUMENT,
            "transport.records is NULL with device 1 (CUDA); a transport for memory of the host is accepted, "
            "or STROBE_DIST_UNCOMPARED");
    return strobe__dist_fail(STROBE_INVALID_ARGUMENT,
                             "transport.records is of other ranks or lacks start or wait; one of rank %d of %d is accepted",
                             t->rank, t->size);
}

strobe_status strobe__dist_check_device(const strobe_attention *a, const strobe_transport *t) {
    if ((a->device != STROBE_CPU && a->device != STROBE_CUDA) || a->device == t->device || t->size == 1) return STROBE_OK;
    return strobe__dist_fail(STROBE_INVALID_ARGUMENT,
                             "device is %d with a transport whose device is %d; the same is accepted", a->device, t->device);
}

/* The transport first: with it the ranks can agree on what else is wrong. */
static strobe_status read_transport(struct whole *w, const strobe_dist *dist) {
    if (!dist) return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "dist is NULL; a descriptor is accepted");
    TRY(strobe__dist_copy(&w->d, sizeof w->d, dist, "dist"));
    return strobe__dist_read_transport(&w->t, &w->records, w->d.transport);
}

strobe_status strobe__dist_read(struct whole *w, const strobe_dist *dist, const strobe_gradients *gradients, bool backward) {
    *w = (struct whole){.backward = backward};
    TRY(read_transport(w, dist));
    if (!w->d.attention) return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "attention is NULL; a descriptor is accepted");
    TRY(strobe__dist_copy(&w->a, sizeof w->a, w->d.attention, "attention"));
    w->place.device = w->a.device, w->place.index = w->a.device_index;
    TRY(strobe__dist_check_device(&w->a, &w->t));
    if (backward && !gradients)
        return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "gradients is NULL; a descriptor is accepted");
    if (backward) TRY(strobe__dist_copy(&w->g, sizeof w->g, gradients, "gradients"));
    COPY(w->d, rates, w->rates, "rates");
    w->hides = w->a.device == STROBE_CUDA && w->t.flags & STROBE_TRANSPORT_BESIDE_KERNELS;
    fill_rates(&w->rates, w->a.device == STROBE_CUDA, w->hides);
    TRY(read_features(w));
    fill_defaults(w);
    set_band(w);
    if (w->a.batch < 0 || w->a.batch >= (int64_t)1 << 40) return STROBE_OK; /* refused by strobe__dist_check */
    return read_documents(w);
}

void strobe__dist_release(struct whole *w) {
    free(w->cu_q), free(w->cu_k);
    w->cu_q = w->cu_k = NULL;
}
