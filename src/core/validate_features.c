/* SPDX-License-Identifier: BSD-3-Clause
 *
 * validate_features.c: the checks of the optional structures of a descriptor, a function each. */
#include "core/score/bind.h"
#include "core/validate.h"

#include <math.h>
#include <stdio.h>

static strobe_status check_lengths(const char *name, const strobe_varlen *v, const void *cu, const void *used, int64_t batch,
                                   int64_t longest, int64_t total) {
    int64_t before = cu ? strobe__varlen_entry(v, cu, 0) : 0;
    if (before < 0)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "varlen.cu_seqlens_%s[0] is %lld; 0 or more is accepted", name,
                            (long long)before);
    for (int64_t b = 0; b < batch; ++b) {
        int64_t room = longest;
        if (cu) {
            const int64_t end = strobe__varlen_entry(v, cu, b + 1);
            room = end - before;
            if (room < 0 || room > longest)
                return strobe__fail(
                    STROBE_INVALID_ARGUMENT,
                    "varlen.cu_seqlens_%s[%lld] is %lld after %lld; a length of 0 to seq_%s, %lld, is accepted", name,
                    (long long)b + 1, (long long)end, (long long)before, name, (long long)longest);
            before = end;
        }
        const int64_t length = used ? strobe__varlen_entry(v, used, b) : 0;
        if (length < 0 || length > room)
            return strobe__fail(STROBE_INVALID_ARGUMENT, "varlen.used_%s[%lld] is %lld; 0 to %lld is accepted", name,
                                (long long)b, (long long)length, (long long)room);
    }
    if (cu && total > 0 && before > total)
        return strobe__fail(STROBE_INVALID_ARGUMENT,
                            "varlen.cu_seqlens_%s ends at %lld; at most total_%s, %lld, is accepted", name,
                            (long long)before, name, (long long)total);
    return STROBE_OK;
}

/* That the keys that are padding are some of the sequence's, whose lengths are sound. */
static strobe_status check_padding(const struct problem *p) {
    const strobe_varlen *v = &p->varlen;
    for (int64_t b = 0; b < p->a.batch; ++b) {
        int64_t length = p->a.seq_k;
        if (v->cu_seqlens_k)
            length = strobe__varlen_entry(v, v->cu_seqlens_k, b + 1) - strobe__varlen_entry(v, v->cu_seqlens_k, b);
        if (v->used_k) length = strobe__varlen_entry(v, v->used_k, b);
        const int64_t padding = strobe__varlen_entry(v, v->leftpad_k, b);
        if (padding < 0 || padding > length)
            return strobe__fail(STROBE_INVALID_ARGUMENT,
                                "varlen.leftpad_k[%lld] is %lld; 0 to the sequence's length, %lld, is accepted",
                                (long long)b, (long long)padding, (long long)length);
    }
    return STROBE_OK;
}

static strobe_status check_varlen(const struct problem *p) {
    const strobe_varlen *v = &p->varlen;
    if (v->index_bits != 32 && v->index_bits != 64)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "varlen.index_bits is %d; 32 or 64 is accepted", v->index_bits);
    const struct {
        const char *name;
        const void *entries;
    } arrays[] = {{"varlen.cu_seqlens_q", v->cu_seqlens_q},
                  {"varlen.cu_seqlens_k", v->cu_seqlens_k},
                  {"varlen.used_q", v->used_q},
                  {"varlen.used_k", v->used_k},
                  {"varlen.leftpad_k", v->leftpad_k}};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; ++i)
        if (arrays[i].entries) TRY(strobe__check_pointer(arrays[i].name, arrays[i].entries, (size_t)v->index_bits / 8));
    TRY(strobe__check_range("varlen.total_q", v->total_q, 0, LARGEST_EXTENT));
    TRY(strobe__check_range("varlen.total_k", v->total_k, 0, LARGEST_EXTENT));
    if (!p->runs || p->a.device != STROBE_CPU) return STROBE_OK; /* device arrays cannot be read from here */
    TRY(check_lengths("q", v, v->cu_seqlens_q, v->used_q, p->a.batch, p->a.seq_q, v->total_q));
    TRY(check_lengths("k", v, v->cu_seqlens_k, v->used_k, p->a.batch, p->a.seq_k, v->total_k));
    return v->leftpad_k ? check_padding(p) : STROBE_OK;
}

static strobe_status check_paged(const struct problem *p) {
    const strobe_paged *g = &p->paged;
    const strobe_attention *a = &p->a;
    TRY(strobe__check_range("paged.page_size", g->page_size, 1, LARGEST_EXTENT));
    TRY(strobe__check_range("paged.pages", g->pages, 0, INT32_MAX));
    const int64_t needed = a->seq_k / g->page_size + (a->seq_k % g->page_size != 0);
    if (g->table_stride < needed || g->table_stride > LARGEST_EXTENT)
        return strobe__fail(STROBE_INVALID_ARGUMENT,
                            "paged.table_stride is %lld; %lld, for seq_k of %lld in pages of %lld, or more is accepted",
                            (long long)g->table_stride, (long long)needed, (long long)a->seq_k, (long long)g->page_size);
    if (a->varlen && p->varlen.cu_seqlens_k)
        return strobe__fail(STROBE_INVALID_ARGUMENT,
                            "varlen.cu_seqlens_k is given beside paged; used_k, for the lengths, is accepted");
    if (!p->runs || a->batch == 0 || a->seq_k == 0 || (p->by_slots && !g->page_table)) return STROBE_OK;
    return strobe__check_pointer("paged.page_table", g->page_table, sizeof *g->page_table);
}

/* Offsets of a [batch, heads, rows, keys] view fit: the same arithmetic as a tensor's, its inner axis being the keys. A
 * tensor's axes come in another order, which changes nothing here but the sentence, which has the caller's. */
static strobe_status check_scores(const char *name, const struct problem *p, const void *data, const int64_t stride[3],
                                  const int64_t extent[3], int64_t keys, int32_t dtype, bool written) {
    const strobe_tensor view = {
        .data = (void *)(uintptr_t)data, .stride = {stride[0], stride[1], stride[2]}, .dtype = dtype};
    const struct tensor_check check = {
        .name = name,
        .tensor = &view,
        .extent = {extent[0], extent[1], extent[2]},
        .inner = keys,
        .dtypes = FLOAT_DTYPES | DTYPE_BIT(STROBE_INT8),
        .written = written,
    };
    return keys == 0 ? STROBE_OK : strobe__check_tensor(&check, p->runs);
}

static strobe_status check_bias_type(const char *name, const strobe_bias *bias) {
    TRY(strobe__check_dtype(name, bias->dtype, FLOAT_DTYPES));
    if (bias->reserved == 0) return STROBE_OK;
    return strobe__fail(STROBE_INVALID_ARGUMENT, "%s.reserved is %d; 0 is accepted", name, bias->reserved);
}

static strobe_status check_bias(const struct problem *p) {
    const strobe_attention *a = &p->a;
    const int64_t extent[3] = {a->batch, a->heads_q, a->seq_q};
    TRY(check_bias_type("bias", &p->bias));
    return check_scores("bias", p, p->bias.data, p->bias.stride, extent, a->seq_k, p->bias.dtype, false);
}

/* Of a dbias without elements the strides mean nothing. It may repeat, where it sums: its extents are 1 there. */
static strobe_status check_dbias(const struct problem *p) {
    if (!p->a.bias) return strobe__fail(STROBE_INVALID_ARGUMENT, "dbias is given without a bias; both or none is accepted");
    static const char *const axes[3] = {"batch", "head", "row"};
    const int64_t whole[3] = {p->a.batch, p->a.heads_q, p->a.seq_q};
    int64_t extent[3];
    strobe__dbias_extent(p, extent);
    TRY(check_bias_type("dbias", &p->dbias));
    if (extent[0] == 0 || extent[1] == 0 || extent[2] == 0 || p->a.seq_k == 0) return STROBE_OK;
    for (int axis = 0; axis < 3; ++axis)
        if (whole[axis] > 1 && (p->bias.stride[axis] == 0) != (p->dbias.stride[axis] == 0))
            return strobe__fail(
                STROBE_INVALID_ARGUMENT,
                "dbias.stride is %lld on the %s axis, where bias.stride is %lld; both zero (broadcast, summed) or "
                "neither is accepted",
                (long long)p->dbias.stride[axis], axes[axis], (long long)p->bias.stride[axis]);
    return check_scores("dbias", p, p->dbias.data, p->dbias.stride, extent, p->a.seq_k, p->dbias.dtype, true);
}

static strobe_status check_bool_mask(const struct problem *p) {
    const strobe_attention *a = &p->a;
    const int64_t extent[3] = {a->batch, a->heads_q, a->seq_q};
    return check_scores("bool_mask", p, p->bool_mask.data, p->bool_mask.stride, extent, a->seq_k, STROBE_INT8, false);
}

static strobe_status check_block_mask(const struct problem *p) {
    const strobe_block_mask *m = &p->block_mask;
    TRY(strobe__check_range("block_mask.block_q", m->block_q, 1, LARGEST_EXTENT));
    TRY(strobe__check_range("block_mask.block_k", m->block_k, 1, LARGEST_EXTENT));
    const int64_t rows = (p->a.seq_q + m->block_q - 1) / m->block_q, keys = (p->a.seq_k + m->block_k - 1) / m->block_k;
    const int64_t extent[3] = {p->a.batch, p->a.heads_q, rows};
    return check_scores("block_mask", p, m->data, m->stride, extent, keys, STROBE_INT8, false);
}

static strobe_status check_sinks(const char *name, const struct problem *p, const strobe_sinks *sinks) {
    TRY(strobe__check_dtype(name, sinks->dtype, LSE_DTYPES));
    if (sinks->reserved != 0)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "%s.reserved is %d; 0 is accepted", name, sinks->reserved);
    return p->runs ? strobe__check_pointer(name, sinks->data, strobe__dtype_bytes(sinks->dtype)) : STROBE_OK;
}

/* The part of a larger problem that a call is: its end lies in the larger one, else two heads or rows would share a mask. */
static strobe_status check_part(const char *axis, int64_t larger, int64_t start, int64_t extent, const char *of) {
    if (larger >= start + extent) return STROBE_OK;
    return strobe__fail(STROBE_INVALID_ARGUMENT,
                        "dropout.%ss is %lld; %lld, for %s_start of %lld and %s of %lld, or more is accepted", axis,
                        (long long)larger, (long long)(start + extent), axis, (long long)start, of, (long long)extent);
}

static strobe_status check_dropout(const strobe_attention *a) {
    const strobe_dropout *d = a->dropout;
    if (!(d->p >= 0 && d->p < 1))
        return strobe__fail(STROBE_INVALID_ARGUMENT, "dropout.p is %g; at least 0 and below 1 is accepted", d->p);
    TRY(strobe__check_range("dropout.heads", d->heads, 0, LARGEST_EXTENT));
    TRY(strobe__check_range("dropout.rows", d->rows, 0, LARGEST_EXTENT));
    TRY(strobe__check_range("dropout.keys", d->keys, 0, LARGEST_EXTENT));
    TRY(strobe__check_range("dropout.batch_start", d->batch_start, 0, LARGEST_EXTENT));
    TRY(strobe__check_range("dropout.head_start", d->head_start, 0, LARGEST_EXTENT));
    TRY(strobe__check_range("dropout.row_start", d->row_start, 0, LARGEST_EXTENT));
    TRY(strobe__check_range("dropout.key_start", d->key_start, 0, LARGEST_EXTENT));
    TRY(check_part("head", d->heads, d->head_start, a->heads_q, "heads_q"));
    if (a->varlen) return STROBE_OK; /* seq_q and seq_k are bounds that no sequence need reach */
    TRY(check_part("row", d->rows, d->row_start, a->seq_q, "seq_q"));
    return check_part("key", d->keys, d->key_start, a->seq_k, "seq_k");
}

/* The scales of one of q, k and v, as they are to be checked. */
struct scales_check {
    const char *name, *tensor;
    const float *data;
    const int64_t *stride;
    int32_t dtype;     /* the tensor's */
    const void *given; /* its data */
    int64_t seq, heads, block;
    const void *cu_seqlens, *used;
    int64_t total;
    bool none; /* of packed ones whose number is not known: there are none */
};

/* e4m3 with a scale a sequence or a tensor: where the host can see them, those of sequences that have rows are positive
 * numbers. Others are data like any other, of which a NaN reaches the rows that see it. */
static strobe_status check_scale_values(const struct problem *p, const struct scales_check *c) {
    if (!p->runs || p->stores || p->a.device != STROBE_CPU || c->dtype != STROBE_FP8_E4M3 || c->block != 0) return STROBE_OK;
    for (int64_t b = 0; b < p->a.batch; ++b) {
        int64_t rows = c->seq;
        if (c->cu_seqlens)
            rows = strobe__varlen_entry(&p->varlen, c->cu_seqlens, b + 1) -
                   strobe__varlen_entry(&p->varlen, c->cu_seqlens, b);
        if (c->used) rows = strobe__varlen_entry(&p->varlen, c->used, b);
        for (int64_t h = 0; rows > 0 && h < c->heads; ++h) {
            const float scale = c->data[b * c->stride[0] + h * c->stride[2]];
            if (!(scale > 0 && isfinite(scale)))
                return strobe__fail(STROBE_INVALID_ARGUMENT,
                                    "%s of batch entry %lld and head %lld is %g; a positive finite number is accepted",
                                    c->name, (long long)b, (long long)h, (double)scale);
        }
    }
    return STROBE_OK;
}

/* Scales are a tensor [batch, blocks, heads] of fp32. */
static strobe_status check_scales_of(const struct problem *p, const struct scales_check *c) {
    const strobe_attention *a = &p->a;
    const bool packed = c->cu_seqlens, whole = c->block == 0,
               quantised = c->dtype == STROBE_INT8 || c->dtype == STROBE_FP8_E4M3;
    int64_t rows = c->seq;
    if (packed) rows = strobe__packed_total(p, c->cu_seqlens, c->total);
    if (rows < 0) rows = !c->none; /* nothing can be said of a second row */
    const bool in_pages = a->paged && c->tensor[0] != 'q', nothing = rows == 0 || (in_pages && p->paged.pages == 0);
    if (!c->data && quantised && p->runs && a->batch > 0 && !nothing && !(p->stores && !c->given))
        return strobe__fail(STROBE_INVALID_ARGUMENT, "%s is NULL and %s.dtype is %s; %s with its scales is accepted",
                            c->name, c->tensor, strobe__dtype_name(c->dtype), strobe__dtype_name(c->dtype));
    if (!c->data) return STROBE_OK;
    if (in_pages && !whole && c->block != 1)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "scales.block_k is %lld beside paged; 0 or 1 is accepted",
                            (long long)c->block);
    if (in_pages) rows = p->paged.page_size;
    const int64_t blocks = whole ? 1 : rows / c->block + (rows % c->block != 0);
    const strobe_tensor view = {
        .data = (void *)(uintptr_t)c->data, .stride = {c->stride[0], c->stride[1], c->stride[2]}, .dtype = STROBE_FP32};
    const struct tensor_check check = {
        .name = c->name,
        .tensor = &view,
        .extent = {in_pages && !whole ? p->paged.pages
                   : packed && !whole ? a->batch > 0
                                      : a->batch,
                   blocks, c->heads},
        .inner = 1,
        .dtypes = DTYPE_BIT(STROBE_FP32),
    };
    TRY(strobe__check_tensor(&check, p->runs));
    return check_scale_values(p, c);
}

static strobe_status check_scales(const struct problem *p) {
    const strobe_scales *s = &p->scales;
    const strobe_attention *a = &p->a;
    const strobe_varlen v = a->varlen ? p->varlen : (strobe_varlen){0};
    TRY(strobe__check_range("scales.block_q", s->block_q, 0, LARGEST_EXTENT));
    TRY(strobe__check_range("scales.block_k", s->block_k, 0, LARGEST_EXTENT));
    const struct scales_check checks[] = {
        {"scales.q", "q", s->q, s->stride_q, a->q.dtype, a->q.data, a->seq_q, a->heads_q, s->block_q, v.cu_seqlens_q,
         v.used_q, v.total_q, p->no_rows},
        {"scales.k", "k", s->k, s->stride_k, a->k.dtype, a->k.data, a->seq_k, a->heads_kv, s->block_k, v.cu_seqlens_k,
         v.used_k, v.total_k, p->no_keys},
        {"scales.v", "v", s->v, s->stride_v, a->v.dtype, a->v.data, a->seq_k, a->heads_kv, s->block_k, v.cu_seqlens_k,
         v.used_k, v.total_k, p->no_keys},
    };
    for (size_t n = 0; n < sizeof checks / sizeof checks[0]; ++n) TRY(check_scales_of(p, &checks[n]));
    return STROBE_OK;
}

strobe_status strobe__check_parallel(const strobe_parallel *parallel) {
    if (parallel->reserved != 0)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "parallel.reserved is %d; 0 is accepted", parallel->reserved);
    return strobe__check_range("parallel.threads", parallel->threads, parallel->run ? 1 : 0, 65536);
}

strobe_status strobe__check_features(const struct problem *p) {
    const strobe_attention *a = &p->a;
    if (a->varlen) TRY(check_varlen(p));
    if (a->paged) TRY(check_paged(p));
    if (a->bias) TRY(check_bias(p));
    if (a->bool_mask) TRY(check_bool_mask(p));
    if (a->block_mask) TRY(check_block_mask(p));
    if (a->alibi && p->runs && a->batch > 0) TRY(strobe__check_pointer("alibi.slopes", p->alibi.slopes, sizeof(float)));
    if (a->sinks) TRY(check_sinks("sinks", p, a->sinks));
    if (a->dropout) TRY(check_dropout(a));
    TRY(check_scales(p));
    if (a->parallel) TRY(strobe__check_parallel(a->parallel));
    if (a->tuning) TRY(strobe__check_range("tuning.split_keys", p->tuning.split_keys, 0, LARGEST_EXTENT));
    if (a->score) TRY(strobe__score_check(p));
    if (a->mask_lists) TRY(strobe__check_mask_lists(p));
    if (p->g.dbias) TRY(check_dbias(p));
    if (!p->g.dsinks) return STROBE_OK;
    if (!a->sinks) return strobe__fail(STROBE_INVALID_ARGUMENT, "dsinks is given without sinks; both or none is accepted");
    return check_sinks("dsinks", p, p->g.dsinks);
}
