/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bind.c: the arguments of a score function in a call, and checks of its arrays one by one. bounds.c checks how they are
 * indexed. */
#include "core/score/bind.h"

#include <stdio.h>
#include <string.h>

#include "core/score/create.h"
#include "core/validate.h"

static strobe_status wrong_count(const char *name, int32_t count, int32_t declared) {
    return strobe__fail(STROBE_INVALID_ARGUMENT, "%s is %d; %d, as declared, is accepted", name, count, declared);
}

/* Contiguous strides where all are zero, the declared dtype where there is none. */
static void fill_in(strobe_score_elements *x, int rank, int32_t dtype) {
    bool none = true;
    for (int axis = 0; axis < rank; ++axis) none = none && x->stride[axis] == 0;
    int64_t stride = 1;
    for (int axis = rank - 1; axis >= 0 && none; --axis) {
        x->stride[axis] = stride;
        stride = strobe__product(stride, x->extent[axis] > 0 ? x->extent[axis] : 1);
    }
    for (int axis = rank; axis < SCORE_MOST_RANK; ++axis) x->extent[axis] = 1, x->stride[axis] = 0;
    if (x->dtype == STROBE_DTYPE_DEFAULT) x->dtype = dtype;
}

strobe_status strobe__score_bind(struct problem *p) {
    struct score_call *call = &p->score_call;
    if (!p->a.score) {
        if (p->g.dscore)
            return strobe__fail(STROBE_INVALID_ARGUMENT, "dscore is given without a score; both or none is accepted");
        return STROBE_OK;
    }
    const struct strobe_score *f = call->function = p->score.function;
    if (!f)
        return strobe__fail(STROBE_INVALID_ARGUMENT,
                            "score.function is NULL; a function of strobe_score_create is accepted");
    if (p->score.scalar_count != (p->score.scalars ? f->scalar_count : 0))
        return wrong_count("score.scalar_count", p->score.scalar_count, p->score.scalars ? f->scalar_count : 0);
    if (p->score.array_count != f->array_count)
        return wrong_count("score.array_count", p->score.array_count, f->array_count);
    if (f->array_count > 0 && !p->score.arrays)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "score.arrays is NULL; %d arrays, as declared, are accepted",
                            f->array_count);
    memcpy(call->scalar, f->scalar_value, sizeof call->scalar);
    for (int n = 0; p->score.scalars && n < f->scalar_count; ++n) call->scalar[n] = p->score.scalars[n];
    for (int n = 0; n < f->array_count; ++n) {
        call->array[n] = p->score.arrays[n];
        fill_in(&call->array[n], f->array_rank[n], f->array_dtype[n]);
    }
    if (!p->g.dscore) return STROBE_OK;
    if (p->dscore.array_count != f->array_count || p->dscore.reserved)
        return wrong_count(p->dscore.reserved ? "dscore.reserved" : "dscore.array_count",
                           p->dscore.reserved ? p->dscore.reserved : p->dscore.array_count, f->array_count);
    if (f->array_count > 0 && !p->dscore.arrays)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "dscore.arrays is NULL; %d arrays, as declared, are accepted",
                            f->array_count);
    for (int n = 0; n < f->array_count; ++n) {
        call->gradient[n] = p->dscore.arrays[n];
        fill_in(&call->gradient[n], f->array_rank[n], f->array_dtype[n]);
        /* A query has no data: an array counts by its extents. */
        call->wants_gradient[n] = call->gradient[n].data ||
                                  (!p->runs && f->array_has_gradient[n] && p->dscore.arrays[n].extent[0] > 0);
        call->wants_gradients = call->wants_gradients || call->wants_gradient[n];
    }
    return STROBE_OK;
}

struct score_place strobe__score_place(const struct problem *p, const struct sequence *s, int64_t h, int64_t i, int64_t j) {
    return (struct score_place){.b = s->b,
                                .h = h,
                                .hkv = h / p->group,
                                .i = p->a.q_start + i,
                                .j = p->a.k_start + j,
                                .seq_q = s->rows,
                                .seq_k = s->keys};
}

/* ------------------------------------------------------------------------------------------------------------- checks -- */

static strobe_status check_extents(const char *name, const strobe_score_elements *x, int rank, bool some) {
    char axis_name[96];
    int64_t reach = 0;
    for (int axis = 0; axis < rank; ++axis) {
        snprintf(axis_name, sizeof axis_name, "%s.extent[%d]", name, axis);
        TRY(strobe__check_range(axis_name, x->extent[axis], some ? 1 : 0, INT32_MAX));
        const int64_t stride = x->stride[axis] < 0 ? -x->stride[axis] : x->stride[axis];
        const int64_t step = x->extent[axis] > 1 ? strobe__product(x->extent[axis] - 1, stride) : 0;
        reach = step > INT32_MAX ? INT64_MAX / 2 : reach + step;
        snprintf(axis_name, sizeof axis_name, "%s.stride[%d]", name, axis);
        TRY(strobe__check_range(axis_name, x->stride[axis], -(int64_t)INT32_MAX, INT32_MAX));
    }
    if (reach <= INT32_MAX) return STROBE_OK;
    return strobe__fail(STROBE_INVALID_ARGUMENT, "%s reaches over 2^31 elements and more; fewer are accepted", name);
}

/* Whether no two elements of a gradient share a place: from the smallest stride up, each steps over all below it. */
static bool elements_are_apart(const strobe_score_elements *x, int rank) {
    int64_t span = 1, stride[SCORE_MOST_RANK];
    for (int axis = 0; axis < rank; ++axis) stride[axis] = x->stride[axis] < 0 ? -x->stride[axis] : x->stride[axis];
    for (int64_t left = (1 << rank) - 1; left;) {
        int least = -1;
        for (int axis = 0; axis < rank; ++axis)
            if (left >> axis & 1 && (least < 0 || stride[axis] < stride[least])) least = axis;
        left &= ~((int64_t)1 << least);
        if (x->extent[least] <= 1) continue;
        if (stride[least] < span) return false;
        span += (x->extent[least] - 1) * stride[least];
    }
    return true;
}

static strobe_status check_array(const struct problem *p, int n, bool some) {
    const struct strobe_score *f = p->score_call.function;
    const strobe_score_elements *x = &p->score_call.array[n];
    char name[80];
    snprintf(name, sizeof name, "score.arrays[%d] (%s)", n, f->array_name[n].text);
    TRY(check_extents(name, x, f->array_rank[n], some));
    if (x->dtype != f->array_dtype[n])
        return strobe__fail(STROBE_INVALID_ARGUMENT, "%s.dtype is %d; %d, as declared, or 0 is accepted", name, x->dtype,
                            f->array_dtype[n]);
    if (x->reserved) return strobe__fail(STROBE_INVALID_ARGUMENT, "%s.reserved is %d; 0 is accepted", name, x->reserved);
    return p->runs && some ? strobe__check_pointer(name, x->data, strobe__score_dtype_bytes(x->dtype)) : STROBE_OK;
}

static strobe_status check_gradient(const struct problem *p, int n) {
    const struct strobe_score *f = p->score_call.function;
    const strobe_score_elements *x = &p->score_call.gradient[n], *array = &p->score_call.array[n];
    char name[80];
    if (!p->score_call.wants_gradient[n]) return STROBE_OK;
    snprintf(name, sizeof name, "dscore.arrays[%d] (%s)", n, f->array_name[n].text);
    if (!f->array_has_gradient[n])
        return strobe__fail(STROBE_INVALID_ARGUMENT,
                            "%s is given; NULL is accepted, since score does not change with this array's elements", name);
    if (x->dtype != STROBE_FP32 && x->dtype != STROBE_FP16 && x->dtype != STROBE_BF16 && x->dtype != STROBE_FP64)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "%s.dtype is %d; fp32, fp16, bf16 or fp64 is accepted", name, x->dtype);
    if (x->reserved) return strobe__fail(STROBE_INVALID_ARGUMENT, "%s.reserved is %d; 0 is accepted", name, x->reserved);
    for (int axis = 0; axis < f->array_rank[n]; ++axis)
        if (x->extent[axis] != array->extent[axis])
            return strobe__fail(STROBE_INVALID_ARGUMENT, "%s.extent[%d] is %lld; the array's, %lld, is accepted", name, axis,
                                (long long)x->extent[axis], (long long)array->extent[axis]);
    TRY(check_extents(name, x, f->array_rank[n], false));
    if (!elements_are_apart(x, f->array_rank[n]))
        return strobe__fail(STROBE_INVALID_ARGUMENT,
                            "%s.stride makes elements share a place; strides that keep them apart are "
                            "accepted",
                            name);
    return p->runs && x->data ? strobe__check_pointer(name, x->data, strobe__score_dtype_bytes(x->dtype)) : STROBE_OK;
}

strobe_status strobe__score_check(const struct problem *p) {
    const struct score_call *call = &p->score_call;
    const strobe_attention *a = &p->a;
    const bool some = a->batch > 0 && a->seq_q > 0 && a->seq_k > 0;
    for (int n = 0; n < call->function->scalar_count; ++n) {
        struct score_error error;
        if (!strobe__score_check_scalar(call->function, n, call->scalar[n], "score.scalars", &error))
            return strobe__fail(STROBE_INVALID_ARGUMENT, "%s", error.sentence);
    }
    for (int n = 0; n < call->function->array_count; ++n) TRY(check_array(p, n, some));
    for (int n = 0; n < call->function->array_count && p->g.dscore; ++n) TRY(check_gradient(p, n));
    return some ? strobe__score_check_bounds(p) : STROBE_OK;
}
