/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode.c: attention over a cache that is split over ranks. Each rank computes all query rows over its own keys, in fp32;
 * the parts go to every rank, and each merges them in the order of the ranks, so that all have the same bits. The part is
 * computed before the ranks compare: whatever goes wrong in it is known to all before data move. */
#include <stdlib.h>
#include <string.h>

#include "agree.h"
#include "portable/posix.h"
#include "tensor.h"

enum { MOST_RANKS_CUDA = 255 }; /* whose parts and sinks strobe_merge takes at once */

/* The call of one rank. */
struct decode {
    strobe_transport t, records;
    struct place place;
    strobe_attention a, part; /* the caller's; the same into fp32 memory of the workspace, without sinks */
    strobe_varlen varlen;
    strobe_sinks sinks;
    int64_t entries, rows; /* of out: batch and seq_q, or 1 and the packed rows */
    size_t out_bytes, message_bytes, kernel_bytes;
    unsigned char *messages;  /* [size][message_bytes]: a rank's out, then its lse */
    strobe_partial *partials; /* [size + 1], with room for both lists of messages behind: memory of the host */
    float *zeros; /* [heads_q + dim_v]: an out of zeros, with a stride of 1 from head to head, as no stride means another */
    void *kernel;
    struct exchange x;
};

static strobe_status read_rows(struct decode *d) {
    const strobe_varlen *v = &d->varlen;
    d->entries = d->a.batch, d->rows = d->a.seq_q;
    if (!d->a.varlen) return STROBE_OK;
    TRY(strobe__dist_copy(&d->varlen, sizeof d->varlen, d->a.varlen, "varlen"));
    if (v->used_q)
        return strobe__dist_fail(STROBE_UNSUPPORTED, "varlen.used_q is given; NULL is accepted where partial results merge");
    if (!v->cu_seqlens_q) return STROBE_OK;
    const bool wide = v->index_bits == 64;
    d->entries = 1, d->rows = v->total_q;
    if (d->a.device != STROBE_CPU) return STROBE_OK; /* total_q is required there, as the core library says */
    d->rows = wide ? ((const int64_t *)v->cu_seqlens_q)[d->a.batch] : ((const int32_t *)v->cu_seqlens_q)[d->a.batch];
    return STROBE_OK;
}

static strobe_status refuse_dtype(const char *name, int32_t dtype, const char *accepted) {
    return strobe__dist_fail(STROBE_UNSUPPORTED, "%s is %d; %s is accepted where partial results merge", name, dtype,
                             accepted);
}

static strobe_status check(struct decode *d) {
    strobe_attention *a = &d->a;
    if (a->device == STROBE_CUDA && d->t.size > MOST_RANKS_CUDA)
        return strobe__dist_fail(STROBE_UNSUPPORTED, "transport.size is %d with device 1 (CUDA); 1 to %d is accepted",
                                 d->t.size, MOST_RANKS_CUDA);
    if (a->batch < 0 || a->batch >= (int64_t)1 << 40) { /* before offsets are read */
        size_t bytes;
        return strobe__dist_core(strobe_workspace(a, NULL, &bytes));
    }
    TRY(read_rows(d));
    if (a->dtype == STROBE_FP64 || a->q.dtype == STROBE_FP64) return refuse_dtype("dtype", STROBE_FP64, "any but fp64");
    if (a->lse.dtype > STROBE_FP32) return refuse_dtype("lse.dtype", a->lse.dtype, "1 (fp32)");
    if (a->out.dtype == STROBE_DTYPE_DEFAULT)
        a->out.dtype = a->dtype == STROBE_DTYPE_DEFAULT ? STROBE_FP32 : a->dtype == STROBE_FP8_E4M3 ? STROBE_BF16 : a->dtype;
    if (a->sinks) TRY(strobe__dist_copy(&d->sinks, sizeof d->sinks, a->sinks, "sinks"));
    if (d->sinks.dtype > STROBE_FP32) return refuse_dtype("sinks.dtype", d->sinks.dtype, "1 (fp32)");
    if (a->sinks && !d->sinks.data)
        return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "sinks.data is NULL; a pointer is accepted");
    size_t bytes; /* of the caller's call as a whole: sizes, strides, features */
    return strobe__dist_core(strobe_workspace(a, NULL, &bytes));
}

/* Sets every pointer into the workspace; without a base counts its bytes. */
static strobe_status lay_out(struct decode *d, struct room *room) {
    const int64_t heads = d->a.heads_q, dim_v = d->a.dim_v ? d->a.dim_v : d->a.dim;
    const size_t size = (size_t)d->t.size, elements = (size_t)(d->entries * d->rows * heads);
    d->out_bytes = (elements * (size_t)dim_v * sizeof(float) + 63) / 64 * 64;
    d->message_bytes = d->out_bytes + (elements * sizeof(float) + 63) / 64 * 64;
    d->messages = strobe__room_take(room, size * d->message_bytes);
    d->zeros = strobe__room_take(room, (size_t)(heads + dim_v) * sizeof *d->zeros);
    d->part = d->a;
    d->part.sinks = NULL;
    unsigned char *own = d->messages ? d->messages + (size_t)d->t.rank * d->message_bytes : NULL;
    d->part.out = strobe__tensor_of(own, STROBE_FP32, d->rows, heads, dim_v);
    d->part.lse = strobe__lse_of(own ? own + d->out_bytes : NULL, d->rows, heads);
    TRY(strobe__dist_core(strobe_workspace(&d->part, NULL, &d->kernel_bytes)));
    d->kernel = strobe__room_take(room, d->kernel_bytes);
    return STROBE_OK;
}

/* Lists of the host, for as long as the call. */
static strobe_status make_lists(struct decode *d) {
    const size_t size = (size_t)d->t.size;
    d->partials = malloc((size + 1) * sizeof *d->partials + 2 * size * sizeof *d->x.sends);
    if (!d->partials) return strobe__dist_no_memory();
    d->x = (struct exchange){.t = &d->t, .stream = d->place.stream, .sends = (strobe_message *)(d->partials + size + 1)};
    d->x.receives = d->x.sends + size;
    return STROBE_OK;
}

static strobe_status compute(const struct decode *d) {
    const bool rows = d->entries > 0 && d->rows > 0;
    if (rows && !d->a.out.data) return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "out is NULL; a pointer is accepted");
    return rows ? strobe__dist_core(strobe_forward(&d->part, d->kernel, d->kernel_bytes, d->place.stream)) : STROBE_OK;
}

static int list_fields(const struct decode *d, struct named *named) {
    const strobe_attention *a = &d->a;
    const size_t heads = (size_t)a->heads_q;
    const struct named all[] = {
        {"transport.size", d->t.size},
        {OPERATION, OPERATION_DECODE},
        {"device", a->device},
        {"batch", a->batch},
        {"seq_q", a->seq_q},
        {"rows of the packed queries", d->rows},
        {"heads_q", a->heads_q},
        {"dim", a->dim},
        {"dim_v", a->dim_v ? a->dim_v : a->dim},
        {"out.dtype", a->out.dtype},
        {"scale (its bits)", strobe__dist_bits(a->scale)},
        {"softcap (its bits)", strobe__dist_bits(a->softcap)},
        {"sinks (a hash)", a->device != STROBE_CPU
                               ? a->sinks != NULL
                               : strobe__dist_hash(a->sinks ? d->sinks.data : NULL, heads * sizeof(float))},
    };
    memcpy(named, all, sizeof all);
    return (int)(sizeof all / sizeof all[0]);
}

/* All parts to all ranks, and their sum, with the sinks, into the caller's out and lse. */
static strobe_status exchange_and_merge(struct decode *d) {
    const int64_t heads = d->a.heads_q, dim_v = d->a.dim_v ? d->a.dim_v : d->a.dim;
    const int32_t size = d->t.size, self = d->t.rank;
    for (int32_t rank = 0; rank < size; ++rank) {
        unsigned char *message = d->messages + (size_t)rank * d->message_bytes;
        d->partials[rank].out = strobe__tensor_of(message, STROBE_FP32, d->rows, heads, dim_v);
        d->partials[rank].lse = strobe__lse_of(message + d->out_bytes, d->rows, heads);
        if (rank == self) continue;
        strobe__exchange_send(&d->x, rank, d->messages + (size_t)self * d->message_bytes, d->message_bytes);
        strobe__exchange_receive(&d->x, rank, message, d->message_bytes);
    }
    TRY(strobe__exchange_start(&d->x, true));
    TRY(strobe__exchange_wait(&d->x));
    strobe__zero(&d->place, d->zeros, (size_t)(heads + dim_v) * sizeof *d->zeros);
    d->partials[size].out = (strobe_tensor){.data = d->zeros, .stride = {0, 0, 1}, .dtype = STROBE_FP32};
    d->partials[size].lse = (strobe_tensor){.data = d->sinks.data, .stride = {0, 0, 1}, .dtype = STROBE_FP32};
    const strobe_partials m = {.struct_size = sizeof m,
                               .batch = d->entries,
                               .seq_q = d->rows,
                               .heads_q = heads,
                               .dim_v = dim_v,
                               .count = size + (d->a.sinks ? 1 : 0),
                               .parts = d->partials,
                               .out = d->a.out,
                               .lse = d->a.lse,
                               .device = d->place.device,
                               .device_index = d->place.index,
                               .parallel = d->a.parallel};
    TRY(strobe__dist_core(strobe_merge(&m, d->place.stream)));
    if (!d->place.status) return STROBE_OK;
    return strobe__dist_fail(d->place.status, "the device failed to move data: %s", d->place.sentence);
}

/* Up to the comparison: everything that may go wrong on one rank alone. */
static strobe_status prepare(struct decode *d, const strobe_attention *part, uint64_t flags, void *workspace, size_t given,
                             void **own, int *entered) {
    struct room room = {0};
    if (flags & ~(uint64_t)STROBE_DIST_UNCOMPARED)
        return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "flags is %llu; 0 or 1 is accepted", (unsigned long long)flags);
    if (!part) return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "part is NULL; a descriptor is accepted");
    TRY(strobe__dist_copy(&d->a, sizeof d->a, part, "part"));
    d->place.device = d->a.device, d->place.index = d->a.device_index;
    TRY(strobe__dist_check_device(&d->a, &d->t));
    TRY(strobe__place_enter(&d->place, entered));
    TRY(check(d));
    TRY(make_lists(d));
    TRY(lay_out(d, &room));
    const size_t needed = room.used;
    TRY(strobe__room_find(&room, &d->place, needed, workspace, given, own));
    TRY(strobe__place_check(&d->place, "workspace", needed ? workspace : NULL));
    TRY(lay_out(d, &room));
    return compute(d);
}

strobe_status strobe_dist_decode(const strobe_attention *part, const strobe_transport *transport, uint64_t flags,
                                 void *workspace, size_t workspace_bytes, void *stream) {
    struct decode d = {.entries = 0};
    struct named named[MOST_NAMED];
    const bool compares = !(flags & STROBE_DIST_UNCOMPARED);
    void *own = NULL;
    int entered = 0;
    TRY(strobe__dist_read_transport(&d.t, &d.records, transport));
    TRY(strobe__dist_check_transport(&d.t, &d.records, compares));
    d.place.stream = stream;
    if (compares && d.t.device == STROBE_CUDA && d.t.size > 1) {
        const struct place gpu = {.device = STROBE_CUDA, .stream = stream};
        TRY(strobe__place_may_wait(&gpu));
    }
    strobe_status status = prepare(&d, part, flags, workspace, workspace_bytes, &own, &entered);
    if (compares && d.t.size > 1)
        status = strobe__dist_agree(&d.records, stream, named, status ? 0 : list_fields(&d, named), status);
    if (!status && d.entries > 0 && d.rows > 0) status = exchange_and_merge(&d);
    aligned_free(own);
    free(d.partials);
    strobe__place_leave(&d.place, entered);
    return status;
}

strobe_status strobe_dist_decode_workspace(const strobe_attention *part, const strobe_transport *transport, size_t *bytes) {
    struct decode d = {.entries = 0};
    struct room room = {0};
    if (!bytes) return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "bytes is NULL; a pointer to a size_t is accepted");
    TRY(strobe__dist_read_transport(&d.t, &d.records, transport));
    if (!part) return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "part is NULL; a descriptor is accepted");
    TRY(strobe__dist_copy(&d.a, sizeof d.a, part, "part"));
    TRY(check(&d));
    TRY(lay_out(&d, &room));
    *bytes = room.used;
    return STROBE_OK;
}
