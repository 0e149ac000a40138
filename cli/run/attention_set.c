/* SPDX-License-Identifier: BSD-3-Clause
 *
 * attention_set.c: q, k and v from files; see attention_set.h. */
#include "run/attention_set.h"

#include "problem/element.h"

#include <stdio.h>
#include <string.h>

static const array *find(const safetensors *file, const char *prefix, const char *last) {
    char name[ARRAY_NAME + 8];
    snprintf(name, sizeof name, "%s%s", prefix, last);
    return safetensors_find(file, name);
}

bool attention_set_next(const safetensors *file, const char *wanted, size_t *at, attention_set *set) {
    for (; *at < file->count; ++*at) {
        const char *name = file->arrays[*at].name;
        const size_t length = strlen(name);
        if (length == 0 || name[length - 1] != 'q') continue;
        *set = (attention_set){.q = &file->arrays[*at]};
        memcpy(set->prefix, name, length - 1);
        set->k = find(file, set->prefix, "k");
        set->v = find(file, set->prefix, "v");
        set->expected = find(file, set->prefix, "out");
        if (!set->k || !set->v || (wanted && strcmp(wanted, set->prefix))) continue;
        ++*at;
        return true;
    }
    return false;
}

static void get_shape(const array *a, int64_t shape[4]) {
    shape[0] = 1;
    memcpy(shape + (a->rank == 3), a->shape, (size_t)a->rank * sizeof *shape);
}

/* Quantised tensors would want their scales. */
static bool is_float(const array *a) {
    return a->dtype == STROBE_FP64 || a->dtype == STROBE_FP32 || a->dtype == STROBE_FP16 || a->dtype == STROBE_BF16;
}

static bool is_usable(const attention_set *set, const char *name, const array *a, char *message, size_t capacity) {
    if ((a->rank == 3 || a->rank == 4) && is_float(a)) return true;
    snprintf(message, capacity,
             "%s%s has %lld axes%s; [batch, seq, heads, dim] or [seq, heads, dim] in F16, BF16, F32 or F64 is accepted",
             set->prefix, name, (long long)a->rank, is_float(a) ? "" : " and another type");
    return false;
}

bool attention_set_problem(const attention_set *set, problem *p, bool keep_dtype, char *message, size_t capacity) {
    int64_t q[4], k[4], v[4];
    if (!is_usable(set, "q", set->q, message, capacity) || !is_usable(set, "k", set->k, message, capacity) ||
        !is_usable(set, "v", set->v, message, capacity))
        return false;
    get_shape(set->q, q), get_shape(set->k, k), get_shape(set->v, v);
    const bool fits = q[0] == k[0] && q[0] == v[0] && k[1] == v[1] && k[2] == v[2] && k[2] > 0 && q[2] % k[2] == 0 &&
                      q[3] == k[3] && set->q->dtype == set->k->dtype && set->q->dtype == set->v->dtype;
    if (!fits) {
        snprintf(message, capacity,
                 "%sq [%lld, %lld, %lld, %lld], k [%lld, %lld, %lld, %lld] and v [%lld, %lld, %lld, %lld] do not belong "
                 "together; one type, one batch, k and v of one length and heads, q and k of one dim are accepted",
                 set->prefix, (long long)q[0], (long long)q[1], (long long)q[2], (long long)q[3], (long long)k[0],
                 (long long)k[1], (long long)k[2], (long long)k[3], (long long)v[0], (long long)v[1], (long long)v[2],
                 (long long)v[3]);
        return false;
    }
    p->batch = q[0], p->seq_q = q[1], p->heads_q = q[2], p->dim = q[3];
    p->seq_k = k[1], p->heads_kv = k[2], p->dim_v = v[3];
    if (!keep_dtype) p->dtype = set->q->dtype;
    char text[PROBLEM_TEXT];
    problem reread; /* the grammar knows which sizes are sane */
    problem_print(p, text);
    return problem_parse(text, &reread, message, capacity);
}

const array *attention_set_expected(const attention_set *set, const problem *p) {
    const array *a = set->expected;
    int64_t shape[4];
    if (!a || (a->rank != 3 && a->rank != 4) || !is_float(a)) return NULL;
    get_shape(a, shape);
    const bool same = shape[0] == p->batch && shape[1] == p->seq_q && shape[2] == p->heads_q && shape[3] == p->dim_v;
    return same ? a : NULL;
}

buffer attention_set_view(const array *a) {
    buffer b = {.data = (unsigned char *)(uintptr_t)a->data, .dtype = a->dtype};
    get_shape(a, b.extent);
    b.stride[2] = b.extent[3];
    b.stride[1] = b.extent[2] * b.stride[2];
    b.stride[0] = b.extent[1] * b.stride[1];
    return b;
}

bool attention_set_inputs(const attention_set *set, const problem *p, inputs *in, char *message, size_t capacity) {
    const array *const arrays[] = {[T_Q] = set->q, [T_K] = set->k, [T_V] = set->v};
    if (!inputs_create(in, p, message, capacity)) return false;
    for (int id = T_Q; id <= T_V; ++id) {
        const buffer from = attention_set_view(arrays[id]);
        inputs_copy(in, (tensor_id)id, &in->tensor[id], &from);
    }
    return true;
}
