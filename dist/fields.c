/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fields.c: what has to be the same on every rank, as numbers with names. Arrays are compared by a hash of their bytes. */
#include <string.h>

#include "agree.h"

int64_t strobe__dist_bits(double number) {
    int64_t value;
    memcpy(&value, &number, sizeof value);
    return value;
}

/* FNV-1a of memory, so that arrays that differ show. */
static uint64_t hash_on(uint64_t h, const void *data, size_t bytes) {
    for (size_t n = 0; data && n < bytes; ++n) h = (h ^ ((const unsigned char *)data)[n]) * 1099511628211u;
    return h;
}
int64_t strobe__dist_hash(const void *data, size_t bytes) {
    return (int64_t)(hash_on(14695981039346656037u, data, bytes) >> 1);
}

/* Slopes of every batch entry that has its own. */
static int64_t hash_slopes(const struct whole *w) {
    uint64_t h = 14695981039346656037u;
    const int64_t entries = w->alibi.stride_batch ? w->a.batch : 1;
    if (w->a.device != STROBE_CPU) return w->a.alibi != NULL; /* the host does not read what lies on a device */
    for (int64_t b = 0; w->a.alibi && b < entries; ++b)
        h = hash_on(h, w->alibi.slopes + b * w->alibi.stride_batch, (size_t)w->a.heads_q * sizeof(float));
    return (int64_t)(h >> 1);
}

/* What has to be the same on every rank. */
int strobe__dist_fields(const struct whole *w, int32_t scheme, struct named *named) {
    const strobe_attention *a = &w->a;
    const int64_t heads = a->heads_q;
    const size_t offsets = w->cu_q ? (size_t)(a->batch + 1) * sizeof *w->cu_q : 0;
    const struct named all[] = {
        {"transport.size", w->t.size},
        {OPERATION, w->backward ? OPERATION_BACKWARD : OPERATION_FORWARD},
        {"device", a->device},
        {"transport.flags", w->t.flags},
        {"batch", a->batch},
        {"seq_q", a->seq_q},
        {"seq_k", a->seq_k},
        {"heads_q", a->heads_q},
        {"heads_kv", a->heads_kv},
        {"dim", a->dim},
        {"dim_v", a->dim_v},
        {"q.dtype", a->q.dtype},
        {"k.dtype", a->k.dtype},
        {"v.dtype", a->v.dtype},
        {"out.dtype", a->out.dtype},
        {"dout.dtype", w->backward ? w->g.dout.dtype : 0},
        {"dq.dtype", w->backward ? w->g.dq.dtype : 0},
        {"mask", a->mask},
        {"window_left", a->window_left},
        {"window_right", a->window_right},
        {"q_start", a->q_start},
        {"k_start", a->k_start},
        {"scale (its bits)", strobe__dist_bits(a->scale)},
        {"softcap (its bits)", strobe__dist_bits(a->softcap)},
        {"layout", w->d.layout},
        {"scheme", w->d.scheme},
        {"the scheme that was chosen", scheme},
        {"group", w->d.group},
        {"flags of strobe_dist", (int64_t)w->d.flags},
        {"varlen.cu_seqlens_q (a hash)", strobe__dist_hash(w->cu_q, offsets)},
        {"varlen.cu_seqlens_k (a hash)", strobe__dist_hash(w->cu_k, offsets)},
        {"bias (1 is given)", a->bias != NULL},
        {"bool_mask (1 is given)", a->bool_mask != NULL},
        {"alibi.slopes (a hash)", hash_slopes(w)},
        {"sinks (a hash)", !a->sinks                 ? 0
                           : a->device != STROBE_CPU ? 1
                                                     : strobe__dist_hash(w->sinks.data, (size_t)heads * sizeof(float))},
        {"dropout.p (its bits)", a->dropout ? strobe__dist_bits(w->dropout.p) : 0},
        {"dropout.seed", a->dropout ? (int64_t)w->dropout.seed : 0},
        {"dropout.offset", a->dropout ? (int64_t)w->dropout.offset : 0},
        {"dropout.heads, rows, keys (a hash)",
         a->dropout ? strobe__dist_hash(&w->dropout.heads, 7 * sizeof w->dropout.heads) : 0},
        {"dsinks (1 is given)", w->g.dsinks != NULL},
        {"dbias (1 is given)", w->g.dbias != NULL},
    };
    _Static_assert(sizeof all / sizeof all[0] <= MOST_NAMED, "more fields than a record holds");
    memcpy(named, all, sizeof all);
    return (int)(sizeof all / sizeof all[0]);
}
