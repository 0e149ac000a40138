/* SPDX-License-Identifier: BSD-3-Clause
 *
 * append_check.c: the checks of strobe_append beyond those of the attention descriptor: tensors, scales, and where the host
 * can read them, the numbers of new tokens, lengths and positions. */
#include <math.h>
#include <stdio.h>

#include "core/append.h"
#include "core/validate.h"

#define SOURCE_DTYPES (DTYPE_BIT(STROBE_FP32) | DTYPE_BIT(STROBE_FP16) | DTYPE_BIT(STROBE_BF16))
#define TARGET_DTYPES (SOURCE_DTYPES | DTYPE_BIT(STROBE_FP8_E4M3) | DTYPE_BIT(STROBE_INT8))

static bool is_quantised(int32_t dtype) { return dtype == STROBE_FP8_E4M3 || dtype == STROBE_INT8; }

static strobe_status check_choices(const struct appending *w) {
    const strobe_appender *n = &w->n;
    const int64_t dim = w->p.a.dim;
    TRY(strobe__check_range("appender.seq_new", n->seq_new, 0, LARGEST_EXTENT));
    TRY(strobe__check_range("appender.total_new", n->total_new, 0, LARGEST_EXTENT));
    TRY(strobe__check_range("appender.flags", n->flags, 0, STROBE_Q_AT_LENGTH));
    TRY(strobe__check_range("appender.hadamard", n->hadamard, 0, STROBE_HADAMARD));
    if (n->hadamard && dim > MOST_HADAMARD_DIM)
        return strobe__fail(STROBE_UNSUPPORTED, "dim is %lld with appender.hadamard; 1 to %d is taken", (long long)dim,
                            MOST_HADAMARD_DIM);
    if (n->index_bits != 32 && n->index_bits != 64)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "appender.index_bits is %d; 32 or 64 is accepted", n->index_bits);
    const struct {
        const char *name;
        const void *entries;
        int32_t bits;
    } arrays[] = {{"appender.cu_seqlens_new", n->cu_seqlens_new, n->index_bits},
                  {"appender.used_new", n->used_new, n->index_bits},
                  {"appender.lengths", n->lengths, n->index_bits},
                  {"appender.positions", n->positions, n->index_bits},
                  {"appender.slots", n->slots, 64}};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; ++i)
        if (arrays[i].entries) TRY(strobe__check_pointer(arrays[i].name, arrays[i].entries, (size_t)arrays[i].bits / 8));
    return strobe__rotary_check(&w->rotary, dim);
}

/* The numbers of new tokens, as far as the host can read them. */
static strobe_status check_tokens(const struct appending *w) {
    const strobe_appender *n = &w->n;
    int64_t before = n->cu_seqlens_new ? append_entry(n->cu_seqlens_new, n->index_bits, 0) : 0;
    if (before < 0)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "appender.cu_seqlens_new[0] is %lld; 0 or more is accepted",
                            (long long)before);
    for (int64_t b = 0; b < w->p.a.batch; ++b) {
        int64_t room = n->seq_new;
        if (n->cu_seqlens_new) {
            const int64_t end = append_entry(n->cu_seqlens_new, n->index_bits, b + 1);
            room = end - before;
            if (room < 0 || room > n->seq_new)
                return strobe__fail(STROBE_INVALID_ARGUMENT,
                                    "appender.cu_seqlens_new[%lld] is %lld after %lld; a number of 0 to seq_new, %lld, is "
                                    "accepted",
                                    (long long)b + 1, (long long)end, (long long)before, (long long)n->seq_new);
            before = end;
        }
        const int64_t count = n->used_new ? append_entry(n->used_new, n->index_bits, b) : 0;
        if (count < 0 || count > room)
            return strobe__fail(STROBE_INVALID_ARGUMENT, "appender.used_new[%lld] is %lld; 0 to %lld is accepted",
                                (long long)b, (long long)count, (long long)room);
    }
    if (n->cu_seqlens_new && n->total_new > 0 && before > n->total_new)
        return strobe__fail(STROBE_INVALID_ARGUMENT,
                            "appender.cu_seqlens_new ends at %lld; at most total_new, %lld, is accepted", (long long)before,
                            (long long)n->total_new);
    return STROBE_OK;
}

/* That the new keys of sequence b have room behind its length. */
static strobe_status check_length(const struct appending *w, int64_t b) {
    const struct append_cache *c = &w->cache;
    const int64_t count = append_tokens(c, b), room = append_room(c, b), length = append_length(c, b);
    if (length < 0 && !c->lengths)
        return strobe__fail(
            STROBE_INVALID_ARGUMENT,
            "batch entry %lld has %lld new tokens and a length of %lld with them; at least as many is accepted",
            (long long)b, (long long)count, (long long)(length + count));
    if (length < 0)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "appender.lengths[%lld] is %lld; 0 or more is accepted", (long long)b,
                            (long long)length);
    if (c->slots ? length <= LARGEST_EXTENT : length <= room - count) return STROBE_OK;
    return strobe__fail(STROBE_INVALID_ARGUMENT,
                        "appender.lengths[%lld] is %lld; 0 to %lld, with %lld new tokens in a cache of %lld, is accepted",
                        (long long)b, (long long)length, (long long)(room - count), (long long)count, (long long)room);
}

/* The rows that sequence b has of a tensor. */
static int64_t tokens_of(const struct appending *w, const struct append_tensor *t, int64_t b) {
    return t->cached ? append_tokens(&w->cache, b) : strobe__sequence(&w->p, b).rows;
}

static strobe_status check_positions(const struct appending *w, int64_t b) {
    static const char *const names[] = {"q", "k"};
    for (int which = APPEND_Q; which <= APPEND_K; ++which) {
        const struct append_tensor *t = &w->tensor[which];
        if (!t->t.from) continue;
        int64_t rows = tokens_of(w, t, b);
        if (!t->cached && w->cache.q_at_length && rows > 1) rows = 1;
        char name[48];
        snprintf(name, sizeof name, "%s of batch entry %lld", names[which], (long long)b);
        TRY(strobe__rotary_check_positions(&w->rotary, name, append_position(&w->cache, t, b, 0), rows));
    }
    return STROBE_OK;
}

static strobe_status check_lengths(const struct appending *w) {
    const bool placed = !w->n.slots && (w->n.k.data || w->n.v.data), turned = w->rotary.given;
    for (int64_t b = 0; b < w->p.a.batch; ++b) {
        if (placed || (turned && !w->n.positions)) TRY(check_length(w, b));
        if (turned && w->n.positions)
            TRY(strobe__check_range("appender.positions[]", append_entry(w->n.positions, w->n.index_bits, b), -LARGEST_START,
                                    LARGEST_START));
        if (turned) TRY(check_positions(w, b));
    }
    return STROBE_OK;
}

/* Names of one of the three. */
struct names {
    const char *source, *target, *scale, *block;
};

/* Scales that are written lie apart; of those that are given the host reads the numbers where it can. */
static strobe_status check_scales(const struct appending *w, const struct append_tensor *t, const struct names *name) {
    const struct quantise_tensor *q = &t->t;
    const bool quantised = is_quantised(t->to_dtype);
    if (q->scale && !quantised)
        return strobe__fail(STROBE_UNSUPPORTED, "%s is given and %s.dtype is %s; NULL is taken", name->scale, name->target,
                            strobe__dtype_name(t->to_dtype));
    if (!quantised) return STROBE_OK;
    TRY(strobe__check_pointer(name->scale, q->scale, sizeof *q->scale));
    if (q->block > 1)
        return strobe__fail(STROBE_UNSUPPORTED, "%s is %lld; 0 or 1 is taken", name->block, (long long)q->block);
    if (q->block == 1) {
        const struct append_cache *c = &w->cache;
        const strobe_tensor view = {
            .data = q->scale, .stride = {q->scale_stride[0], q->scale_stride[1], q->scale_stride[2]}, .dtype = STROBE_FP32};
        const struct tensor_check check = {
            .name = name->scale,
            .tensor = &view,
            .extent = {t->cached ? c->entries : q->batch, t->cached ? c->rows : q->rows, q->heads},
            .inner = 1,
            .dtypes = DTYPE_BIT(STROBE_FP32),
            .written = true};
        return strobe__check_tensor(&check, true);
    }
    if (w->p.a.device != STROBE_CPU) return STROBE_OK;
    for (int64_t b = 0; b < w->p.a.batch; ++b)
        for (int64_t h = 0; tokens_of(w, t, b) > 0 && h < q->heads; ++h) {
            const float scale = q->scale[b * q->scale_stride[0] + h * q->scale_stride[2]];
            if (!(scale > 0 && isfinite(scale)))
                return strobe__fail(STROBE_INVALID_ARGUMENT,
                                    "%s of batch entry %lld and head %lld is %g; a positive finite number is accepted",
                                    name->scale, (long long)b, (long long)h, (double)scale);
        }
    return STROBE_OK;
}

/* A source may not lie where something is written, but for q in its own place. */
static strobe_status check_apart(const struct appending *w, const struct names *name, int which) {
    static const char *const targets[] = {"q", "k", "v"};
    const struct append_tensor *own = &w->tensor[which];
    bool in_place = which == APPEND_Q && own->t.from_dtype == own->to_dtype;
    for (int axis = 0; axis < 3; ++axis) in_place = in_place && own->t.from_stride[axis] == own->t.to_stride[axis];
    for (int other = 0; other < APPEND_TENSORS; ++other) {
        if (w->tensor[other].t.from == NULL || w->tensor[other].t.to != own->t.from || (other == which && in_place))
            continue;
        return strobe__fail(STROBE_INVALID_ARGUMENT, "%s is the memory of %s; memory of its own is accepted", name->source,
                            targets[other]);
    }
    return STROBE_OK;
}

static strobe_status check_side(const struct appending *w, int which) {
    static const struct names names[] = {{"appender.q", "q", "scales.q", "scales.block_q"},
                                         {"appender.k", "k", "scales.k", "scales.block_k"},
                                         {"appender.v", "v", "scales.v", "scales.block_k"}};
    const struct append_tensor *t = &w->tensor[which];
    const struct quantise_tensor *q = &t->t;
    const struct names *name = &names[which];
    const strobe_tensor *source = which == APPEND_Q ? &w->n.q : which == APPEND_K ? &w->n.k : &w->n.v;
    if (!q->from) return STROBE_OK;
    if (q->rows < 0)
        return strobe__fail(STROBE_UNSUPPORTED,
                            "%s is 0 with cumulative lengths in device memory, which the host cannot read; the rows of the "
                            "packed tensor are taken",
                            t->cached ? "appender.total_new" : "varlen.total_q");
    TRY(strobe__check_dtype(name->target, t->to_dtype, TARGET_DTYPES));
    const struct tensor_check check = {.name = name->source,
                                       .tensor = source,
                                       .extent = {q->batch, q->rows, q->heads},
                                       .inner = q->dim,
                                       .dtypes = SOURCE_DTYPES};
    TRY(strobe__check_tensor(&check, true));
    if (q->batch == 0 || q->rows == 0) return STROBE_OK;
    if (t->cached && w->p.a.varlen && w->p.varlen.cu_seqlens_k &&
        strobe__packed_total(&w->p, w->p.varlen.cu_seqlens_k, w->p.varlen.total_k) < 0)
        return strobe__fail(STROBE_UNSUPPORTED,
                            "varlen.total_k is 0 with cumulative lengths in device memory, which the host cannot read; the "
                            "rows of the packed cache are taken");
    const bool none = t->cached && w->cache.entries == 0; /* a cache without slots: nothing is written */
    if (!none) TRY(strobe__check_pointer(name->target, q->to, strobe__dtype_bytes(t->to_dtype)));
    if (!none) TRY(check_scales(w, t, name));
    return check_apart(w, name, which);
}

strobe_status strobe__append_check(const struct appending *w) {
    const struct append_tensor *k = &w->tensor[APPEND_K], *v = &w->tensor[APPEND_V];
    const bool readable = w->p.a.device == STROBE_CPU;
    TRY(check_choices(w));
    if (readable) TRY(check_tokens(w));
    if (k->t.from && v->t.from && k->to_dtype != v->to_dtype)
        return strobe__fail(STROBE_UNSUPPORTED, "k and v differ in dtype, %s and %s; one dtype for both is taken",
                            strobe__dtype_name(k->to_dtype), strobe__dtype_name(v->to_dtype));
    for (int which = 0; which < APPEND_TENSORS; ++which) TRY(check_side(w, which));
    return readable ? check_lengths(w) : STROBE_OK;
}
