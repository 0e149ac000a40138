/* SPDX-License-Identifier: BSD-3-Clause
 *
 * problem.c: reads a caller's structures, of any version, into a problem with every default filled in. Checks only what
 * reading needs (structure sizes); what the values mean is validate.c's. */
#include "core/problem.h"

#include <math.h>
#include <string.h>

#include "core/score/bind.h"

/* A struct_size above this is not a newer version but a field that was never set. */
enum { LARGEST_STRUCT = 65536 };

/* Every version's size is a multiple of a pointer's, so that an older one ends between two fields and cuts no pointer. */
static bool is_size_of_a_version(size_t size, size_t target_bytes) {
    return sizeof size <= size && size <= LARGEST_STRUCT && (size >= target_bytes || size % sizeof(void *) == 0);
}

strobe_status strobe__struct_copy(void *target, size_t target_bytes, const void *source, const char *name) {
    size_t size;
    memcpy(&size, source, sizeof size);
    if (!is_size_of_a_version(size, target_bytes))
        return strobe__fail(STROBE_INVALID_ARGUMENT, "%s.struct_size is %zu; sizeof the structure, %zu, is accepted", name,
                            size, target_bytes);
    const unsigned char *bytes = source;
    for (size_t at = target_bytes; at < size; ++at)
        if (bytes[at] != 0)
            return strobe__fail(STROBE_INVALID_ARGUMENT,
                                "%s has a nonzero byte at offset %zu, in a field that this library, version %s, does not "
                                "know; zero is accepted there",
                                name, at, strobe_version());
    memset(target, 0, target_bytes);
    memcpy(target, source, size < target_bytes ? size : target_bytes);
    return STROBE_OK;
}

void strobe__default_stride(int64_t stride[3], int64_t batch, int64_t seq, int64_t head) {
    if (stride[0] != 0 || stride[1] != 0 || stride[2] != 0) return;
    stride[0] = batch, stride[1] = seq, stride[2] = head;
}

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [STROBE_FP32] = {"fp32", 4}, [STROBE_FP16] = {"fp16", 2},         [STROBE_BF16] = {"bf16", 2},
    [STROBE_FP64] = {"fp64", 8}, [STROBE_FP8_E4M3] = {"fp8_e4m3", 1}, [STROBE_INT8] = {"int8", 1},
};

size_t strobe__dtype_bytes(int32_t dtype) { return dtypes[dtype].bytes; }
const char *strobe__dtype_name(int32_t dtype) { return dtypes[dtype].name; }

int64_t strobe__varlen_entry(const strobe_varlen *varlen, const void *entries, int64_t b) {
    if (varlen->index_bits == 64) return ((const int64_t *)entries)[b];
    return ((const int32_t *)entries)[b];
}

/* The optional structures of a descriptor: where the pointer stands, where the copy goes. */
struct attachment {
    const char *name;
    size_t pointer, copy, bytes;
};

#define ATTACHMENT(holder, field) \
    { #field, offsetof(struct problem, holder.field), offsetof(struct problem, field), sizeof(((struct problem *)0)->field) }

static const struct attachment attachments[] = {
    ATTACHMENT(a, varlen),     ATTACHMENT(a, paged),    ATTACHMENT(a, bias),   ATTACHMENT(a, bool_mask),
    ATTACHMENT(a, block_mask), ATTACHMENT(a, alibi),    ATTACHMENT(a, sinks),  ATTACHMENT(a, dropout),
    ATTACHMENT(a, scales),     ATTACHMENT(a, parallel), ATTACHMENT(a, tuning), ATTACHMENT(a, score),
    ATTACHMENT(g, dbias),      ATTACHMENT(g, dsinks),   ATTACHMENT(g, dscore), ATTACHMENT(a, mask_lists),
};

static strobe_status read_attachments(struct problem *p) {
    for (size_t f = 0; f < sizeof attachments / sizeof attachments[0]; ++f) {
        const void *source;
        char *holder = (char *)p + attachments[f].pointer, *copy = (char *)p + attachments[f].copy;
        memcpy(&source, holder, sizeof source);
        if (!source) continue;
        const strobe_status status = strobe__struct_copy(copy, attachments[f].bytes, source, attachments[f].name);
        if (status) return status;
        const void *own = copy;
        memcpy(holder, &own, sizeof own);
    }
    return STROBE_OK;
}

static void default_dtype(int32_t *dtype, int32_t fallback) {
    if (*dtype == STROBE_DTYPE_DEFAULT) *dtype = fallback;
}

int64_t strobe__product(int64_t x, int64_t y) {
    int64_t product;
    return __builtin_mul_overflow(x, y, &product) ? INT64_MAX : product;
}

static void default_tensor(strobe_tensor *t, int64_t seq, int64_t heads, int64_t dim, int32_t dtype) {
    default_dtype(&t->dtype, dtype);
    strobe__default_stride(t->stride, strobe__product(strobe__product(seq, heads), dim), strobe__product(heads, dim), dim);
}

int64_t strobe__packed_total(const struct problem *p, const void *cu_seqlens, int64_t total) {
    const bool readable = p->runs && p->a.device == STROBE_CPU && p->a.batch >= 0 && p->a.batch <= LARGEST_EXTENT &&
                          (uintptr_t)cu_seqlens % (size_t)(p->varlen.index_bits == 64 ? 8 : 4) == 0;
    return total > 0 ? total : readable ? strobe__varlen_entry(&p->varlen, cu_seqlens, p->a.batch) : -1;
}

/* Of a packed tensor whose rows are not known, and which nothing reads, the longest sequence will do. */
static void default_lse(strobe_tensor *t, const struct problem *p) {
    const strobe_attention *a = &p->a;
    const void *cu_seqlens = a->varlen ? p->varlen.cu_seqlens_q : NULL;
    const int64_t total = cu_seqlens ? strobe__packed_total(p, cu_seqlens, p->varlen.total_q) : -1;
    const int64_t rows = total > 0 ? total : a->seq_q;
    default_dtype(&t->dtype, STROBE_FP32);
    strobe__default_stride(t->stride, strobe__product(a->heads_q, rows), 1, rows);
}

static void fill_defaults(struct problem *p) {
    strobe_attention *a = &p->a;
    default_dtype(&a->dtype, STROBE_FP32);
    if (a->heads_kv == 0) a->heads_kv = a->heads_q;
    if (a->dim_v == 0) a->dim_v = a->dim;
    if (a->scale == 0 && a->dim > 0) a->scale = 1 / sqrt((double)a->dim);
    if (p->varlen.index_bits == 0) p->varlen.index_bits = 32;
    default_tensor(&a->q, a->seq_q, a->heads_q, a->dim, a->dtype);
    const int64_t keys = a->paged ? p->paged.page_size : a->seq_k;
    default_tensor(&a->k, keys, a->heads_kv, a->dim, a->dtype);
    default_tensor(&a->v, keys, a->heads_kv, a->dim_v, a->dtype);
    if (p->paged.table_stride == 0 && p->paged.page_size > 0)
        p->paged.table_stride = a->seq_k / p->paged.page_size + (a->seq_k % p->paged.page_size != 0);
    const bool quantised = a->dtype == STROBE_FP8_E4M3 || a->dtype == STROBE_INT8;
    const int32_t wide = quantised ? STROBE_BF16 : a->dtype; /* of what is no quantised input */
    default_tensor(&a->out, a->seq_q, a->heads_q, a->dim_v, wide);
    default_lse(&a->lse, p);
    default_dtype(&p->bias.dtype, wide);
    default_dtype(&p->sinks.dtype, STROBE_FP32);
    if (p->dropout.heads == 0) p->dropout.heads = a->heads_q;
    if (p->dropout.rows == 0) p->dropout.rows = a->seq_q;
    if (p->dropout.keys == 0) p->dropout.keys = a->seq_k;
    if (p->dropout.p == 0) a->dropout = NULL; /* p = 0 drops nothing */
    p->group = a->heads_kv > 0 ? a->heads_q / a->heads_kv : 0;
    if (p->operation == STROBE_FORWARD) return;
    default_tensor(&p->g.dout, a->seq_q, a->heads_q, a->dim_v, wide);
    default_tensor(&p->g.dq, a->seq_q, a->heads_q, a->dim, wide);
    default_tensor(&p->g.dk, a->seq_k, a->heads_kv, a->dim, wide);
    default_tensor(&p->g.dv, a->seq_k, a->heads_kv, a->dim_v, wide);
    default_lse(&p->g.dlse, p);
    default_dtype(&p->dbias.dtype, p->bias.dtype);
    default_dtype(&p->dsinks.dtype, p->sinks.dtype);
}

/* Where the rows of packed tensors are not given, and lie in a GPU's memory, the host cannot read them. If none of the
 * tensors has memory there are none, whatever bound the caller states: with a bound of 0 no kernel looks for any. A dbias is
 * as large as the bounds say, and is written with zeros: with one they stay. A query needs no data, and so says nothing of
 * keys; without rows given it would be refused. */
static void drop_absent_sides(struct problem *p) {
    strobe_attention *a = &p->a;
    const strobe_gradients *g = &p->g;
    if (a->device == STROBE_CPU || !a->varlen) return;
    const bool rows = a->q.data || a->out.data || a->lse.data || g->dout.data || g->dlse.data || g->dq.data;
    const bool keys = a->k.data || a->v.data || g->dk.data || g->dv.data || !p->runs;
    p->no_rows = p->varlen.cu_seqlens_q && p->varlen.total_q == 0 && !rows;
    p->no_keys = p->varlen.cu_seqlens_k && p->varlen.total_k == 0 && !keys;
    if (p->no_rows && !g->dbias) a->seq_q = 0;
    if (p->no_keys && !g->dbias) a->seq_k = 0;
}

void strobe__problem_ask(struct problem *p) {
    p->features = strobe__features_of(p);
    p->dtypes = strobe__dtypes_of(p);
}

strobe_status strobe__problem_read(struct problem *p, const strobe_attention *attention, const strobe_gradients *gradients,
                                   bool runs) {
    memset(p, 0, sizeof *p);
    p->operation = gradients ? STROBE_BACKWARD : STROBE_FORWARD;
    p->runs = runs;
    if (!attention) return strobe__fail(STROBE_INVALID_ARGUMENT, "attention is NULL; a descriptor is accepted");
    strobe_status status = strobe__struct_copy(&p->a, sizeof p->a, attention, "attention");
    if (!status && gradients) status = strobe__struct_copy(&p->g, sizeof p->g, gradients, "gradients");
    if (!status) status = read_attachments(p);
    if (status) return status;
    fill_defaults(p);
    drop_absent_sides(p);
    status = strobe__score_bind(p);
    if (status) return status;
    strobe__problem_ask(p);
    return STROBE_OK;
}

struct band strobe__band(const struct problem *p, const struct sequence *s) {
    const strobe_attention *a = &p->a;
    const int32_t mask = a->mask;
    const bool window = mask == STROBE_MASK_WINDOW_TOP_LEFT || mask == STROBE_MASK_WINDOW_BOTTOM_RIGHT;
    const bool bottom = mask == STROBE_MASK_CAUSAL_BOTTOM_RIGHT || mask == STROBE_MASK_WINDOW_BOTTOM_RIGHT;
    const struct band band = {
        .left = window && a->window_left >= 0 ? a->window_left : BAND_UNBOUNDED,
        .right = window && a->window_right >= 0 ? a->window_right
                 : window || !mask              ? BAND_UNBOUNDED
                                                : 0,
        .diagonal = a->q_start - a->k_start + (bottom ? s->keys - s->rows : 0),
        .keys = s->keys,
    };
    return band;
}

struct sequence strobe__sequence(const struct problem *p, int64_t b) {
    const strobe_attention *a = &p->a;
    const strobe_varlen *v = a->varlen;
    struct sequence s = {.b = b, .rows = a->seq_q, .keys = a->seq_k};
    if (v && v->cu_seqlens_q) {
        s.packed_q = true;
        s.first_row = strobe__varlen_entry(v, v->cu_seqlens_q, b);
        s.rows = strobe__varlen_entry(v, v->cu_seqlens_q, b + 1) - s.first_row;
    }
    if (v && v->cu_seqlens_k) {
        s.packed_k = true;
        s.first_key = strobe__varlen_entry(v, v->cu_seqlens_k, b);
        s.keys = strobe__varlen_entry(v, v->cu_seqlens_k, b + 1) - s.first_key;
    }
    if (v && v->used_q) s.rows = strobe__varlen_entry(v, v->used_q, b);
    if (v && v->used_k) s.keys = strobe__varlen_entry(v, v->used_k, b);
    if (v && v->leftpad_k) {
        const int64_t padding = strobe__varlen_entry(v, v->leftpad_k, b);
        s.first_key += padding, s.keys -= padding;
    }
    if (a->paged) {
        s.pages = p->paged.page_table + b * p->paged.table_stride;
        s.page_size = p->paged.page_size, s.page_count = p->paged.pages;
        const bool power = (s.page_size & (s.page_size - 1)) == 0;
        s.page_shift = power ? __builtin_ctzll((unsigned long long)s.page_size) : -1;
    }

    s.band = strobe__band(p, &s);
    return s;
}

void strobe__dbias_extent(const struct problem *p, int64_t extent[3]) {
    const int64_t whole[3] = {p->a.batch, p->a.heads_q, p->a.seq_q};
    for (int axis = 0; axis < 3; ++axis) extent[axis] = p->dbias.stride[axis] ? whole[axis] : 1;
}

struct dropout_place strobe__dropout_place(const struct problem *p) {
    const strobe_dropout *d = &p->dropout;
    const double threshold = ceil(d->p * 4294967296.0); /* the least word that is kept */
    const struct dropout_place place = {
        .seed = d->seed,
        .offset = d->offset,
        .threshold = threshold >= 4294967295.0 ? UINT32_MAX : (uint32_t)threshold,
        .keep_scale = (float)(1 / (1 - d->p)),
        .heads = d->heads,
        .rows = d->rows,
        .quads = (d->keys + 3) / 4,
        .batch_start = d->batch_start,
        .head_start = d->head_start,
        .row_start = d->row_start,
        .key_start = d->key_start,
    };
    return place;
}
