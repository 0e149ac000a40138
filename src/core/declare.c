/* SPDX-License-Identifier: BSD-3-Clause
 *
 * declare.c: whether a kernel's record declares all that a problem asks for: dtypes, features, dims, numbers, in this order,
 * and if not, a sentence that names the argument, its value and what the record declares. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/plan.h"

static bool __attribute__((format(printf, 3, 4)))
refuse(struct reason *why, enum reason_stage stage, const char *format, ...) {
    if (!why) return false;
    va_list arguments;
    va_start(arguments, format);
    why->stage = stage;
    vsnprintf(why->sentence, sizeof why->sentence, format, arguments);
    va_end(arguments);
    return false;
}

/* "fp32, fp16 and bf16 are taken", "q's dtype is taken". */
static void print_taken(char *text, size_t capacity, unsigned set) {
    size_t length = 0;
    text[0] = 0;
    for (int32_t dtype = STROBE_DTYPE_DEFAULT; set && length < capacity; ++dtype) {
        if (!(set & 1u << dtype)) continue;
        set &= ~(1u << dtype);
        const char *name = dtype == STROBE_DTYPE_DEFAULT ? "q's dtype" : strobe__dtype_name(dtype);
        length += (size_t)snprintf(text + length, capacity - length, "%s%s", name,
                                   !set                ? ""
                                   : (set & (set - 1)) ? ", "
                                                       : " and ");
    }
}

/* One kind of tensor: what the problem has, what the record takes, and of which tensors the sentence may speak. */
struct tensors {
    unsigned asked, taken;
    struct {
        const char *name;
        int32_t dtype;
    } of[3];
};

static bool refuse_dtype(struct reason *why, const struct tensors *t) {
    char taken[64];
    print_taken(taken, sizeof taken, t->taken);
    const bool several = (t->taken & (t->taken - 1)) != 0;
    for (size_t n = 0; n < sizeof t->of / sizeof t->of[0] && t->of[n].name; ++n)
        if (t->of[n].dtype && !(t->taken & 1u << t->of[n].dtype) && (t->asked & 1u << t->of[n].dtype))
            return refuse(why, OF_DTYPES, "%s is %s; %s %s taken", t->of[n].name, strobe__dtype_name(t->of[n].dtype), taken,
                          several ? "are" : "is");
    return false;
}

/* k and v have one dtype, or int8 and e4m3, which kernels take that take an int8 q. */
static bool has_taken_pair(const struct kernel *k, const struct problem *p) {
    const strobe_attention *a = &p->a;
    return a->k.dtype == a->v.dtype || (a->k.dtype == STROBE_INT8 && a->v.dtype == STROBE_FP8_E4M3 && k->dtypes.q & INT8);
}

static bool takes_dtypes(const struct kernel *k, const struct problem *p, struct reason *why) {
    const struct dtypes *asked = &p->dtypes, *taken = &k->dtypes;
    const unsigned q = asked->q;
#define REFUSED(kind) (asked->kind & ~(taken->kind | (taken->kind & SAME ? q : 0u)))
    if (!(REFUSED(q) | REFUSED(kv) | REFUSED(out) | REFUSED(lse) | REFUSED(bias) | REFUSED(sinks) | REFUSED(dout) |
          REFUSED(gradients) | REFUSED(dbias)) &&
        has_taken_pair(k, p))
        return true;
    if (!why) return false;
    const strobe_attention *a = &p->a;
    const strobe_gradients *g = &p->g;
    const struct tensors tensors[] = {
        {REFUSED(q), taken->q, {{"q", a->q.dtype}}},
        {REFUSED(kv), taken->kv, {{"k", a->k.dtype}, {"v", a->v.dtype}}},
        {REFUSED(out), taken->out, {{"out", a->out.dtype}}},
        {REFUSED(lse), taken->lse, {{"lse", a->lse.dtype}, {"dlse", g->dlse.dtype}}},
        {REFUSED(bias), taken->bias, {{"bias", p->bias.dtype}}},
        {REFUSED(sinks), taken->sinks, {{"sinks", p->sinks.dtype}, {"dsinks", p->dsinks.dtype}}},
        {REFUSED(dout), taken->dout, {{"dout", g->dout.dtype}}},
        {REFUSED(gradients), taken->gradients, {{"dq", g->dq.dtype}, {"dk", g->dk.dtype}, {"dv", g->dv.dtype}}},
        {REFUSED(dbias), taken->dbias, {{"dbias", p->dbias.dtype}}},
    };
#undef REFUSED
    for (size_t n = 0; n < sizeof tensors / sizeof tensors[0]; ++n)
        if (tensors[n].asked) return refuse_dtype(why, &tensors[n]);
    return refuse(why, OF_DTYPES, "k and v differ in dtype; one dtype for both is taken");
}

static bool takes_number(struct range taken, const char *name, int64_t value, struct reason *why) {
    if (value >= taken.least && value <= taken.most) return true;
    if (taken.most == INT64_MAX)
        return refuse(why, OF_NUMBERS, "%s is %lld; %lld and more is taken", name, (long long)value, (long long)taken.least);
    return refuse(why, OF_NUMBERS, "%s is %lld; %lld to %lld is taken", name, (long long)value, (long long)taken.least,
                  (long long)taken.most);
}

/* least 0: 1. */
static bool takes_dim(int32_t least, int32_t most, const char *name, int64_t value, struct reason *why) {
    if (value >= least && value <= most) return true;
    if (least == most) return refuse(why, OF_DIMS, "%s is %lld; %d is taken", name, (long long)value, most);
    return refuse(why, OF_DIMS, "%s is %lld; %d to %d is taken", name, (long long)value, least ? least : 1, most);
}

bool strobe__declares(const struct kernel *k, const struct problem *p, struct reason *why) {
    const strobe_attention *a = &p->a;
    const feature_set refused = p->features & ~k->features;
    if (!takes_dtypes(k, p, why)) return false;
    if (k->allowed_by & ~a->flags) return refuse(why, OF_DTYPES, "flags has no STROBE_TF32X3; with it this kernel is taken");
    if (refused) return refuse(why, OF_FEATURES, "%s", strobe__feature_refusal(__builtin_ctzll(refused)));
    if (!takes_dim(k->least_dim, k->dim, "dim", a->dim, why) || !takes_dim(k->least_dim_v, k->dim_v, "dim_v", a->dim_v, why))
        return false;
    if (k->v_in_k && !strobe__v_in_k(p))
        return refuse(why, OF_DIMS, "v is not k's first columns in the same memory; v in k's columns is taken");
    if (!takes_number(k->seq_q, "seq_q", a->seq_q, why) || !takes_number(k->seq_k, "seq_k", a->seq_k, why) ||
        !takes_number(k->rows, "seq_q times heads_q / heads_kv", a->seq_q * p->group, why))
        return false;
    const char *reason = k->reject ? k->reject(p) : NULL;
    return reason ? refuse(why, OF_NUMBERS, "%s", reason) : true;
}
