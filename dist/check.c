/* SPDX-License-Identifier: BSD-3-Clause
 *
 * check.c: what this library refuses, and which scheme takes what. Everything that strobe.h has rules for is checked by the
 * core library, to which the whole problem is shown. */
#include <stdio.h>
#include <string.h>

#include "dist.h"

/* Calls on parts of the problem are given what strobe.h's structures hold. A field that is appended there may mean something
 * else for a part: whoever appends one says here what becomes of it, and then changes these numbers. */
#if defined(__LP64__)
_Static_assert(sizeof(strobe_attention) == 440 && sizeof(strobe_gradients) == 240, "a descriptor has a new field");
_Static_assert(sizeof(strobe_varlen) == 72 && sizeof(strobe_bias) == 48 && sizeof(strobe_bool_mask) == 40 &&
                   sizeof(strobe_alibi) == 24 && sizeof(strobe_sinks) == 24 && sizeof(strobe_dropout) == 88,
               "a feature has a new field");
#endif

const char *const strobe__dist_scheme_names[5] = {"automatic", "ring", "all_gather", "ulysses", "two_levels"};

size_t strobe__dist_bytes(int32_t dtype) { return dtype == STROBE_FP32 ? 4 : 2; }

int64_t strobe__dist_product(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

static strobe_status check_range(const char *name, int64_t value, int64_t least, int64_t most) {
    if (value >= least && value <= most) return STROBE_OK;
    if (least == most)
        return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "%s is %lld; %lld is accepted", name, (long long)value,
                                 (long long)most);
    return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "%s is %lld; %lld to %lld is accepted", name, (long long)value,
                             (long long)least, (long long)most);
}

/* Strides of the whole problem's rows and keys, broadcast where the shard's are. */
static void whole_strides(const struct whole *w, int64_t stride[3]) {
    const int64_t head = strobe__dist_product(w->a.seq_q, w->a.seq_k);
    const int64_t whole[3] = {strobe__dist_product(w->a.heads_q, head), head, w->a.seq_k};
    for (int axis = 0; axis < 3; ++axis)
        if (stride[axis] != 0) stride[axis] = whole[axis];
}

/* The problem as the core library sees it: one process's, its tensors nowhere. */
static strobe_status check_whole(const struct whole *w) {
    strobe_attention a = w->a;
    strobe_gradients g = w->g;
    strobe_bias bias = w->bias, dbias = w->dbias;
    strobe_bool_mask mask = w->bool_mask;
    strobe_varlen varlen = w->varlen;
    varlen.total_q = w->total_q, varlen.total_k = w->total_k; /* which the core library cannot read on CUDA */
    if (w->cu_q) a.varlen = &varlen;
    strobe_tensor *const tensors[] = {&a.q, &a.k, &a.v, &a.out, &a.lse, &g.dout, &g.dlse, &g.dq, &g.dk, &g.dv};
    const bool dlse = g.dlse.data;
    for (size_t t = 0; t < sizeof tensors / sizeof tensors[0]; ++t) {
        tensors[t]->data = NULL;
        if (tensors[t]->reserved == 0) memset(tensors[t]->stride, 0, sizeof tensors[t]->stride);
    }
    if (dlse) g.dlse.data = &g; /* of no call: asked about, not used */
    bias.data = dbias.data = NULL, mask.data = NULL;
    whole_strides(w, bias.stride), whole_strides(w, dbias.stride), whole_strides(w, mask.stride);
    if (a.bias) a.bias = &bias;
    if (a.bool_mask) a.bool_mask = &mask;
    if (g.dbias) g.dbias = &dbias;
    size_t bytes;
    return strobe__dist_core(strobe_workspace(&a, w->backward ? &g : NULL, &bytes));
}

static strobe_status refuse(const char *name) {
    return strobe__dist_fail(STROBE_UNSUPPORTED, "%s is given; NULL is accepted over many processes", name);
}

static strobe_status check_features(const struct whole *w) {
    const strobe_attention *a = &w->a;
    if (a->varlen && w->varlen.used_q) return refuse("varlen.used_q");
    if (a->varlen && w->varlen.used_k) return refuse("varlen.used_k");
    if (a->varlen && w->varlen.leftpad_k) return refuse("varlen.leftpad_k");
    if (a->paged) return refuse("paged");
    if (a->block_mask) return refuse("block_mask");
    if (a->scales) return refuse("scales");
    if (a->score) return refuse("score");
    if (a->mask_lists) return refuse("mask_lists");
    if (w->g.dscore) return refuse("dscore");
    if (w->cu_q && a->bias)
        return strobe__dist_fail(STROBE_UNSUPPORTED, "bias is given with packed sequences; one of them is accepted");
    if (w->cu_q && a->bool_mask)
        return strobe__dist_fail(STROBE_UNSUPPORTED, "bool_mask is given with packed sequences; one of them is accepted");
    return STROBE_OK;
}

static strobe_status check_dtypes(const struct whole *w) {
    const struct {
        const char *name;
        int32_t dtype;
    } tensors[] = {{"q", w->a.q.dtype},       {"k", w->a.k.dtype},      {"v", w->a.v.dtype},   {"out", w->a.out.dtype},
                   {"dout", w->g.dout.dtype}, {"dq", w->g.dq.dtype},    {"dk", w->g.dk.dtype}, {"dv", w->g.dv.dtype},
                   {"lse", w->a.lse.dtype},   {"dlse", w->g.dlse.dtype}};
    const size_t count = sizeof tensors / sizeof tensors[0];
    for (size_t t = 0; t < count; ++t)
        if (tensors[t].dtype < STROBE_FP32 || tensors[t].dtype > (t < count - 2 ? STROBE_BF16 : STROBE_FP32))
            return strobe__dist_fail(STROBE_UNSUPPORTED, "%s.dtype is %d; %s is accepted over many processes",
                                     tensors[t].name, tensors[t].dtype,
                                     t < count - 2 ? "1 (fp32), 2 (fp16) or 3 (bf16)" : "1 (fp32)");
    const int32_t sinks = w->a.sinks && w->sinks.dtype != STROBE_DTYPE_DEFAULT ? w->sinks.dtype : STROBE_FP32;
    const int32_t dsinks = w->g.dsinks && w->dsinks.dtype != STROBE_DTYPE_DEFAULT ? w->dsinks.dtype : STROBE_FP32;
    if (sinks != STROBE_FP32 || dsinks != STROBE_FP32)
        return strobe__dist_fail(STROBE_UNSUPPORTED, "%s.dtype is %d; 1 (fp32) is accepted over many processes",
                                 sinks != STROBE_FP32 ? "sinks" : "dsinks", sinks != STROBE_FP32 ? sinks : dsinks);
    return STROBE_OK;
}

static strobe_status check_shards(const struct whole *w) {
    const struct {
        const char *name;
        int64_t given, total;
    } sides[] = {{"rows_q", w->d.rows_q, w->total_q}, {"rows_k", w->d.rows_k, w->total_k}};
    for (size_t s = 0; s < 2; ++s) {
        const int64_t rows = strobe_dist_rows(w->d.layout, sides[s].total, w->t.size, w->t.rank);
        if (sides[s].given != rows)
            return strobe__dist_fail(STROBE_INVALID_ARGUMENT,
                                     "%s is %lld; %lld, what rank %d of %d has of %lld in the %s layout, is accepted",
                                     sides[s].name, (long long)sides[s].given, (long long)rows, w->t.rank, w->t.size,
                                     (long long)sides[s].total, strobe__dist_layout_names[w->d.layout]);
    }
    return STROBE_OK;
}

/* The shard's tensors as the core library sees them: sizes, strides and dtypes alone. */
static strobe_status check_strides(const struct whole *w) {
    strobe_attention a = w->a;
    strobe_gradients g = w->g;
    a.batch = w->entries, a.seq_q = w->d.rows_q, a.seq_k = w->d.rows_k, a.mask = STROBE_MASK_NONE;
    a.varlen = NULL, a.bias = NULL, a.bool_mask = NULL, a.alibi = NULL, a.sinks = NULL, a.dropout = NULL;
    g.dbias = NULL, g.dsinks = NULL;
    a.tuning = NULL; /* a kernel that is asked for may take the calls, which are of other rows than the shard */
    size_t bytes;
    return strobe__dist_core(strobe_workspace(&a, w->backward ? &g : NULL, &bytes));
}

static strobe_status check_pointers(const struct whole *w) {
    const bool rows = w->entries > 0 && w->d.rows_q > 0, keys = w->entries > 0 && w->d.rows_k > 0;
    const struct {
        const char *name;
        const void *data;
        bool needed;
    } tensors[] = {{"q", w->a.q.data, rows},
                   {"k", w->a.k.data, keys},
                   {"v", w->a.v.data, keys},
                   {"out", w->a.out.data, rows},
                   {"lse", w->a.lse.data, rows && w->backward},
                   {"dout", w->g.dout.data, rows && w->backward},
                   {"dq", w->g.dq.data, rows && w->backward},
                   {"dk", w->g.dk.data, keys && w->backward},
                   {"dv", w->g.dv.data, keys && w->backward},
                   {"bias.data", w->bias.data, rows && w->a.bias && w->total_k > 0},
                   {"dbias.data", w->dbias.data, rows && w->g.dbias && w->total_k > 0},
                   {"bool_mask.data", w->bool_mask.data, rows && w->a.bool_mask && w->total_k > 0},
                   {"alibi.slopes", w->alibi.slopes, w->a.alibi && w->a.batch > 0},
                   {"sinks.data", w->sinks.data, w->a.sinks != NULL},
                   {"dsinks.data", w->dsinks.data, w->g.dsinks != NULL}};
    for (size_t t = 0; t < sizeof tensors / sizeof tensors[0]; ++t)
        if (tensors[t].needed && !tensors[t].data)
            return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "%s is NULL; a pointer is accepted", tensors[t].name);
    return STROBE_OK;
}

static strobe_status check_dist(const struct whole *w) {
    const strobe_dist *d = &w->d;
    TRY(check_range("layout", d->layout, STROBE_DIST_CONTIGUOUS, STROBE_DIST_STRIPED));
    TRY(check_range("scheme", d->scheme, STROBE_DIST_AUTOMATIC, STROBE_DIST_TWO_LEVELS));
    TRY(check_range("reserved", d->reserved, 0, 0));
    TRY(check_range("flags", (int64_t)d->flags, 0, STROBE_DIST_UNCOMPARED));
    if (d->group != 0 && d->scheme != STROBE_DIST_TWO_LEVELS && d->scheme != STROBE_DIST_AUTOMATIC)
        return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "group is %d with scheme %s; 0 is accepted", d->group,
                                 strobe__dist_scheme_names[d->scheme]);
    if (d->group < 0 || (d->group > 0 && w->t.size % d->group != 0) ||
        (d->group == 0 && d->scheme == STROBE_DIST_TWO_LEVELS))
        return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "group is %d; a divisor of transport.size, %d, is accepted",
                                 d->group, w->t.size);
    const double rates[] = {w->rates.flops, w->rates.bandwidth, w->rates.latency,
                            w->rates.call,  w->rates.memory,    w->rates.launch};
    for (size_t r = 0; r < sizeof rates / sizeof rates[0]; ++r)
        if (!(rates[r] > 0 && rates[r] < 1e30))
            return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "a number of rates is %g; positive ones are accepted",
                                     rates[r]);
    return STROBE_OK;
}

strobe_status strobe__dist_check(const struct whole *w) {
    TRY(check_dist(w));
    TRY(check_range("gradients.accumulate", w->g.accumulate, 0, 0)); /* it adds the parts of ranks, and rounds sums */
    TRY(check_range("gradients.reserved", w->g.reserved, 0, 0));
    TRY(check_features(w));
    TRY(check_whole(w));
    TRY(check_dtypes(w));
    TRY(check_shards(w));
    return check_strides(w);
}

strobe_status strobe__dist_check_run(const struct whole *w) {
    TRY(strobe__dist_check_transport(&w->t, &w->records, !(w->d.flags & STROBE_DIST_UNCOMPARED)));
    return check_pointers(w);
}

/* Whether a mask that begins top-left has other positions than ALiBi, which ends bottom-right. */
static bool diagonals_differ(const struct whole *w) {
    if (!w->a.alibi || w->bottom_right || (w->left >= FAR && w->right >= FAR)) return false;
    if (!w->cu_q) return w->total_q != w->total_k;
    for (int64_t d = 0; d < w->a.batch; ++d)
        if (w->cu_q[d + 1] - w->cu_q[d] != w->cu_k[d + 1] - w->cu_k[d]) return true;
    return false;
}

static const char *rejects_parts(const struct whole *w) {
    if (diagonals_differ(w)) return "ALiBi under a top-left mask of sequences with seq_q other than seq_k";
    if (w->g.dbias && w->bias.stride[2] == 0 && w->d.rows_q > 1) return "a dbias whose rows are summed";
    if (w->d.layout != STROBE_DIST_STRIPED || w->t.size == 1) return NULL;
    if (w->a.alibi) return "ALiBi in the striped layout";
    if (w->a.dropout && w->dropout.p > 0) return "dropout in the striped layout";
    if (w->cu_q) return "packed sequences in the striped layout";
    if (w->a.bias) return "a bias in the striped layout";
    return w->a.bool_mask ? "a boolean mask in the striped layout" : NULL;
}

static const char *rejects_heads(const struct whole *w, int32_t group) {
    static _Thread_local char sentence[96];
    if (group == 1) return NULL;
    if (w->a.bias) return "a bias, whose rows would have to travel";
    if (w->a.bool_mask) return "a boolean mask, whose rows would have to travel";
    if (w->a.heads_q % group == 0) return NULL;
    snprintf(sentence, sizeof sentence, "heads_q, %lld, which is no multiple of %d ranks", (long long)w->a.heads_q, group);
    return sentence;
}

struct scheme strobe__dist_scheme(const struct whole *w, int32_t scheme) {
    const bool heads = scheme == STROBE_DIST_ULYSSES;
    return (struct scheme){.name = strobe__dist_scheme_names[scheme],
                           .group = heads                              ? w->t.size
                                    : scheme == STROBE_DIST_TWO_LEVELS ? w->d.group
                                                                       : 1,
                           .gathers = scheme == STROBE_DIST_ALL_GATHER};
}

const char *strobe__dist_rejects(const struct whole *w, int32_t scheme) {
    if (scheme == STROBE_DIST_TWO_LEVELS && w->d.group == 0) return "group 0: nobody said how many ranks a group has";
    const int32_t group = strobe__dist_scheme(w, scheme).group;
    const char *why = rejects_heads(w, group);
    if (why || group == w->t.size) return why;
    if (scheme == STROBE_DIST_TWO_LEVELS && w->d.layout == STROBE_DIST_STRIPED && group > 1) return "the striped layout";
    return rejects_parts(w);
}
