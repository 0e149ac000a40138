/* SPDX-License-Identifier: BSD-3-Clause
 *
 * inputs_append.c: the inputs of a problem with `append=N`: the last keys of every sequence, up to N of them, come into K
 * and V by strobe_append, and with them all of q; see inputs_append.h. What is written is compared with what was there
 * before, so that every check of such a problem is one of strobe_append too, on the device of the problem. */
#include "problem/inputs_append.h"

#include "problem/append_trial.h"
#include "problem/element.h"
#include "problem/inputs_shape.h"
#include "problem/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strobe/strobe_append.h>

enum { FAR_POSITION = 1 << 20 };

/* One call of strobe_append: which keys of each sequence are new, and in which of its manners. */
typedef struct appended {
    inputs *in;
    call c;
    strobe_appender n;
    strobe_rotary rotary;
    strobe_scales scales;
    int64_t *count, *before; /* [batch] new keys, keys before them */
    int64_t *length;         /* [batch] what the cache holds before them, padding too */
    int64_t *first;          /* [batch + 1] of the tokens of sequence b in a packed source */
    int64_t *slots;          /* a token */
    float *source[3];        /* q, k, v: fp32, contiguous */
    int64_t tokens;          /* rows of k and v in the source */
    bool packed;
} appended;

static const tensor_id of_source[3] = {T_Q, T_K, T_V};
static const tensor_id scale_of[3] = {T_Q_SCALE, T_K_SCALE, T_V_SCALE};

static int64_t token_of(const appended *a, int64_t b, int64_t i) {
    return a->packed ? a->first[b] + i : b * a->n.seq_new + i;
}

/* The scale of a row as the call has it: 1 where its numbers are none of those that have one. */
static double scale_at(const appended *a, int which, int64_t b, int64_t row, int64_t head) {
    const float *const whole = which == 0 ? a->scales.q : which == 1 ? a->scales.k : a->scales.v;
    const int64_t *stride = which == 0 ? a->scales.stride_q : which == 1 ? a->scales.stride_k : a->scales.stride_v;
    const int64_t block = which == 0 ? a->scales.block_q : a->scales.block_k;
    if (!whole) return 1;
    if (block == 0) return (double)whole[b * stride[0] + head * stride[2]];
    return element_load(inputs_row(a->in, scale_of[which], &a->in->tensor[scale_of[which]], b, row, head), STROBE_FP32);
}

/* The true values of a row of q, k or v. */
static void load_row(const appended *a, int which, int64_t b, int64_t row, int64_t head, double *to) {
    const buffer *t = &a->in->tensor[of_source[which]];
    const unsigned char *from = inputs_row(a->in, of_source[which], t, b, row, head);
    const double scale = scale_at(a, which, b, row, head);
    for (int64_t c = 0; c < t->extent[3]; ++c)
        to[c] = scale * element_load(from + (size_t)c * element_bytes(t->dtype), t->dtype);
}

/* A row as it was before rotary embedding, for a position. */
static void rotate_back(const appended *a, double *row, int64_t position) {
    const int64_t pairs = a->rotary.dim / 2;
    for (int64_t n = 0; n < pairs; ++n) {
        const double angle = (double)position * pow(a->rotary.base, -(double)n / (double)pairs);
        double *first = row + (a->rotary.interleaved ? 2 * n : n), *second = first + (a->rotary.interleaved ? 1 : pairs);
        const double x = *first, y = *second;
        *first = x * cos(angle) + y * sin(angle), *second = y * cos(angle) - x * sin(angle);
    }
}

/* Rows of sequence b that the call writes: [*first, *first + the returned number). */
static int64_t rows_of_sequence(const appended *a, int which, int64_t b, int64_t *first) {
    *first = which ? a->before[b] : 0;
    return which ? a->count[b] : a->in->sequences[b].rows;
}

static int64_t position_of(const appended *a, int which, int64_t b, int64_t row) {
    return which ? a->in->problem.k_start + a->in->sequences[b].padding + row : a->in->problem.q_start + a->length[b] + row;
}

/* Where a row of the source lies: q as the tensor's own rows, tokens of k and v as they are packed or padded. */
static float *source_row(const appended *a, int which, int64_t b, int64_t row, int64_t head) {
    const buffer *t = &a->in->tensor[of_source[which]];
    const bool packed_q = a->in->problem.varlen & VARLEN_CU_Q;
    const int64_t q_row = packed_q ? a->in->sequences[b].first_row + row : b * a->in->problem.seq_q + row;
    const int64_t at = which ? token_of(a, b, row - a->before[b]) : q_row;
    return a->source[which] + (at * t->extent[2] + head) * t->extent[3];
}

typedef bool row_step(const appended *a, int which, int64_t b, int64_t row, int64_t head, void *memory);

/* Calls step for every row that the call writes, as long as it returns true. */
static bool each_row(const appended *a, row_step *step, void *memory) {
    for (int which = 0; which < 3; ++which)
        for (int64_t b = 0; a->source[which] && b < a->in->problem.batch; ++b) {
            int64_t first;
            const int64_t count = rows_of_sequence(a, which, b, &first);
            for (int64_t row = first; row < first + count; ++row)
                for (int64_t head = 0; head < a->in->tensor[of_source[which]].extent[2]; ++head)
                    if (!(which && inputs_key_is_missing(a->in, b, row)) && !step(a, which, b, row, head, memory))
                        return false;
        }
    return true;
}

/* Puts a row into the source and wipes it, and a scale that will be written, where it was. */
static bool take_row(const appended *a, int which, int64_t b, int64_t row, int64_t head, void *memory) {
    const buffer *t = &a->in->tensor[of_source[which]];
    double *values = memory;
    float *to = source_row(a, which, b, row, head);
    load_row(a, which, b, row, head, values);
    if (which < 2 && a->n.rotary) rotate_back(a, values, position_of(a, which, b, row));
    for (int64_t c = 0; c < t->extent[3]; ++c) to[c] = (float)values[c];
    return true;
}

static bool wipe_row(const appended *a, int which, int64_t b, int64_t row, int64_t head, void *memory) {
    const buffer *t = &a->in->tensor[of_source[which]], *scale = &a->in->tensor[scale_of[which]];
    const bool writes = (which ? a->scales.block_k : a->scales.block_q) == 1;
    (void)memory;
    memset(inputs_row(a->in, of_source[which], t, b, row, head), 0xFF, (size_t)t->extent[3] * element_bytes(t->dtype));
    if (writes && (which == 0 ? a->scales.q : which == 1 ? a->scales.k : a->scales.v))
        memset(inputs_row(a->in, scale_of[which], scale, b, row, head), 0xFF, sizeof(float));
    return true;
}

/* What a row was, as bytes that are compared, and may be other ones: memory has the whole inputs as they were. */
typedef struct comparison {
    const inputs *was;
    char *message;
    size_t capacity;
} comparison;

/* Whether a row is what it was, to the rounding of its dtype where it was computed anew; then takes it over into `was`. */
static bool compare_row(const appended *a, int which, int64_t b, int64_t row, int64_t head, void *memory) {
    const comparison *m = memory;
    const buffer *t = &a->in->tensor[of_source[which]], *old = &m->was->tensor[of_source[which]];
    const buffer *scale = &a->in->tensor[scale_of[which]], *old_scale = &m->was->tensor[scale_of[which]];
    const int64_t columns = t->extent[3];
    const bool rescaled = (which ? a->scales.block_k : a->scales.block_q) == 1 && (which == 0   ? a->scales.q
                                                                                   : which == 1 ? a->scales.k
                                                                                                : a->scales.v);
    const bool exact = !rescaled && !(which < 2 && a->n.rotary);
    const size_t bytes = (size_t)columns * element_bytes(t->dtype);
    unsigned char *is = inputs_row(a->in, of_source[which], t, b, row, head);
    unsigned char *was = inputs_row(m->was, of_source[which], old, b, row, head);
    double size = 0, worst = 0;
    const double factor = scale_at(a, which, b, row, head);
    const double old_factor = rescaled
                                  ? element_load(inputs_row(m->was, scale_of[which], old_scale, b, row, head), STROBE_FP32)
                                  : factor;
    for (int64_t c = 0; c < columns; ++c) {
        const size_t at = (size_t)c * element_bytes(t->dtype);
        const double x = factor * element_load(is + at, t->dtype), y = old_factor * element_load(was + at, t->dtype);
        if (isnan(x) && isnan(y)) continue;
        size = fmax(size, fabs(y)), worst = fmax(worst, x == y ? 0 : fabs(x - y));
    }
    const double step = t->dtype == STROBE_INT8 ? factor : element_step(t->dtype, size / factor) * factor;
    const double allowed = exact ? 0 : step + 4e-6 * size;
    if (!(worst <= allowed) && worst != 0) { /* the scale may be a NaN */
        snprintf(m->message, m->capacity,
                 "strobe_append wrote row %lld of head %lld of %s of batch entry %lld wrong by %.3g, "
                 "where %.3g is allowed",
                 (long long)row, (long long)head, tensor_name(of_source[which]), (long long)b, worst, allowed);
        return false;
    }
    memcpy(was, is, bytes);
    if (rescaled)
        memcpy(inputs_row(m->was, scale_of[which], old_scale, b, row, head),
               inputs_row(a->in, scale_of[which], scale, b, row, head), sizeof(float));
    return true;
}

static bool set_tokens(appended *a, random_stream *r) {
    const problem *p = &a->in->problem;
    a->count = calloc((size_t)p->batch + 1, sizeof *a->count), a->before = calloc((size_t)p->batch + 1, sizeof *a->before);
    a->first = calloc((size_t)p->batch + 1, sizeof *a->first), a->length = calloc((size_t)p->batch + 1, sizeof *a->length);
    if (!a->count || !a->before || !a->first || !a->length) return false;
    a->packed = random_below(r, 2);
    for (int64_t b = 0; b < p->batch; ++b) {
        const int64_t keys = a->in->sequences[b].keys, most = keys < p->append ? keys : p->append;
        a->count[b] = random_below(r, 4) ? most : random_below(r, most + 1);
        a->before[b] = keys - a->count[b], a->length[b] = a->in->sequences[b].padding + a->before[b];
        a->first[b + 1] = a->first[b] + a->count[b];
        if (a->count[b] > a->n.seq_new) a->n.seq_new = a->count[b];
    }
    a->tokens = a->packed ? a->first[p->batch] : p->batch * a->n.seq_new;
    a->n.index_bits = 64;
    if (a->packed)
        a->n.cu_seqlens_new = a->first;
    else
        a->n.used_new = a->count;
    if (random_below(r, 2)) a->n.lengths = a->length;
    return true;
}

/* By slots: the number of each key in memory; tokens whose page is none, and those that there are not, go nowhere. */
static bool set_slots(appended *a, random_stream *r) {
    const problem *p = &a->in->problem;
    if (random_below(r, 3)) return true;
    a->slots = malloc((size_t)(a->tokens + 1) * sizeof *a->slots);
    if (!a->slots) return false;
    for (int64_t n = 0; n < a->tokens; ++n) a->slots[n] = -1 - n;
    for (int64_t b = 0; b < p->batch; ++b)
        for (int64_t i = 0; i < a->count[b]; ++i) {
            const int64_t j = a->before[b] + i, at = a->in->sequences[b].first_key + j;
            int64_t slot = (p->varlen & VARLEN_CU_K ? 0 : b * p->seq_k) + at;
            if (p->page_size) {
                const int32_t page = a->in->pages[b * inputs_pages_of_sequence(p) + at / p->page_size];
                slot = inputs_key_is_missing(a->in, b, j) ? INT64_MAX - i : page * p->page_size + at % p->page_size;
            }
            a->slots[token_of(a, b, i)] = slot;
        }
    a->n.slots = a->slots;
    return true;
}

static void set_rotary(appended *a, random_stream *r) {
    static const double bases[] = {10000, 500000, 10};
    const problem *p = &a->in->problem;
    const bool near = llabs(p->q_start) < FAR_POSITION && llabs(p->k_start) < FAR_POSITION;
    if (p->dim < 2 || p->nan || !near || random_below(r, 2)) return;
    a->rotary = (strobe_rotary){.struct_size = sizeof a->rotary, .base = bases[random_below(r, 3)]};
    a->rotary.dim = random_below(r, 2) ? p->dim / 2 * 2 : 2 + random_below(r, p->dim / 2) * 2;
    if (a->rotary.dim > p->dim) a->rotary.dim = p->dim / 2 * 2;
    a->rotary.interleaved = (int32_t)random_below(r, 2);
    a->n.rotary = &a->rotary;
}

/* The sources; scales of tensors that are not quantised are no part of the call, nor is a q whose rows share scales. */
static bool set_sources(appended *a) {
    const problem *p = &a->in->problem;
    a->scales = a->c.scales;
    if (!problem_is_quantised(problem_kv_dtype(p))) a->scales.k = a->scales.v = NULL;
    if (!problem_is_quantised(p->dtype)) a->scales.q = NULL;
    for (int which = 0; which < 3; ++which) {
        const buffer *t = &a->in->tensor[of_source[which]];
        const int64_t count = which ? a->tokens : p->varlen & VARLEN_CU_Q ? a->in->total_q : p->batch * p->seq_q;
        if (which == 0 && a->scales.q && a->scales.block_q > 1) continue;
        if (inputs_lies_in(p, of_source[which]) != of_source[which]) continue; /* comes with K */
        a->source[which] = calloc((size_t)(count * t->extent[2] * t->extent[3]) + 1, sizeof(float));
        if (!a->source[which]) return false;
    }
    if (!a->source[0]) a->scales.q = NULL;
    a->n.q.data = a->source[0], a->n.k.data = a->source[1], a->n.v.data = a->source[2];
    a->c.attention.scales = a->scales.q || a->scales.k ? &a->scales : NULL;
    return true;
}

/* A copy of the inputs' memory; their descriptions stay those of `in`. */
static bool copy_memory(inputs *to, const inputs *in) {
    *to = *in;
    for (int id = 0; id < TENSOR_COUNT; ++id) to->tensor[id].bytes = NULL;
    for (int id = 0; id < TENSOR_COUNT; ++id) {
        const buffer *from = &in->tensor[id];
        if (!from->bytes) continue;
        unsigned char *bytes = malloc(from->size + 1);
        if (!bytes) return false;
        memcpy(bytes, from->bytes, from->size);
        to->tensor[id].bytes = bytes;
        for (int other = 0; other < TENSOR_COUNT; ++other) { /* its own elements, and those that lie in its memory */
            const unsigned char *data = in->tensor[other].data;
            if (data >= from->bytes && data < from->bytes + from->size)
                to->tensor[other].data = bytes + (data - from->bytes);
        }
    }
    return true;
}

static bool compare_all(const appended *a, inputs *was, char *message, size_t capacity) {
    comparison m = {was, message, capacity};
    if (!each_row(a, compare_row, &m)) return false;
    for (int id = 0; id < TENSOR_COUNT; ++id) {
        const buffer *is = &a->in->tensor[id];
        if (!is->bytes || !memcmp(is->bytes, was->tensor[id].bytes, is->size)) continue;
        snprintf(message, capacity, "strobe_append wrote memory of %s that no new token has", tensor_name((tensor_id)id));
        return false;
    }
    return true;
}

static bool append_all(appended *a, inputs *was, char *message, size_t capacity) {
    const outputs none = {0};
    random_stream r = random_at((uint64_t)a->in->problem.seed, 0x617070656e64, 0);
    snprintf(message, capacity, "there is no memory for what is appended");
    call_prepare(&a->c, a->in, &none);
    a->n = (strobe_appender){.struct_size = sizeof a->n};
    if (!set_tokens(a, &r) || !set_slots(a, &r)) return false;
    set_rotary(a, &r);
    if (!set_sources(a) || !copy_memory(was, a->in)) return false;
    double *values = calloc((size_t)(a->in->problem.dim + a->in->problem.dim_v), sizeof *values);
    if (!values) return false;
    each_row(a, take_row, values);
    free(values);
    each_row(a, wipe_row, NULL);
    const int64_t rows_q = a->in->problem.varlen & VARLEN_CU_Q ? a->in->total_q
                                                               : a->in->problem.batch * a->in->problem.seq_q;
    const int64_t count[3] = {rows_q, a->tokens, a->tokens};
    if (append_trial_run(a->in, &a->c, &a->n, count, message, capacity)) return false;
    return compare_all(a, was, message, capacity);
}

bool inputs_append(inputs *in, char *message, size_t capacity) {
    appended a = {.in = in};
    inputs was = {.problem = {0}};
    if (!in->problem.append) return true;
    const bool ok = append_all(&a, &was, message, capacity);
    for (int id = 0; id < TENSOR_COUNT; ++id) free(was.tensor[id].bytes);
    for (int which = 0; which < 3; ++which) free(a.source[which]);
    free(a.slots), free(a.first), free(a.before), free(a.count), free(a.length);
    return ok;
}
