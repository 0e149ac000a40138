/* SPDX-License-Identifier: BSD-3-Clause
 *
 * feature.c: the features and the dtypes of a problem; see feature.h. Compiling it checks that fields.h knows every field of
 * the public structures. */
#include "core/feature.h"

#include "core/fields.h"
#include "core/problem.h"

_Static_assert(FEATURE_COUNT <= 64, "a feature_set has 64 bits");

feature_set strobe__features_of(const struct problem *p) {
    feature_set set = 0;
#define DETECT(name, title, refusal, condition) set |= (condition) ? FEATURE(name) : 0;
    STROBE__FEATURES(DETECT)
#undef DETECT
    return set;
}

static const struct {
    const char *title, *refusal;
} features[] = {
#define WORDS(name, title, refusal, condition) {title, refusal},
    STROBE__FEATURES(WORDS)
#undef WORDS
};

const char *strobe__feature_title(int bit) { return bit >= 0 && bit < FEATURE_COUNT ? features[bit].title : NULL; }
const char *strobe__feature_refusal(int bit) { return features[bit].refusal; }

static unsigned bit(int32_t dtype) { return dtype >= STROBE_FP32 && dtype <= STROBE_INT8 ? 1u << dtype : 0; }

struct dtypes strobe__dtypes_of(const struct problem *p) {
    const strobe_attention *a = &p->a;
    const strobe_gradients *g = &p->g;
    struct dtypes d = {.q = (uint16_t)bit(a->q.dtype),
                       .kv = (uint16_t)(bit(a->k.dtype) | bit(a->v.dtype)),
                       .out = (uint16_t)bit(a->out.dtype)};
    if (p->operation == STROBE_BACKWARD || a->lse.data) d.lse = (uint16_t)bit(a->lse.dtype);
    if (a->bias) d.bias = (uint16_t)bit(p->bias.dtype);
    if (a->sinks) d.sinks = (uint16_t)bit(p->sinks.dtype);
    if (p->operation == STROBE_FORWARD) return d;
    if (g->dlse.data) d.lse |= (uint16_t)bit(g->dlse.dtype);
    if (g->dsinks) d.sinks |= (uint16_t)bit(p->dsinks.dtype);
    if (g->dbias) d.dbias = (uint16_t)bit(p->dbias.dtype);
    d.dout = (uint16_t)bit(g->dout.dtype);
    d.gradients = (uint16_t)(bit(g->dq.dtype) | bit(g->dk.dtype) | bit(g->dv.dtype));
    return d;
}

/* Every field of a public structure has its line in fields.h: the sizes add up. */
#define BYTES(type, field, role) +sizeof(((type *)0)->field)
#define COVERED(type)            _Static_assert(0 FIELDS_##type(BYTES) == sizeof(type), #type " has a field without a line in fields.h")
COVERED(strobe_tensor);
COVERED(strobe_varlen);
COVERED(strobe_paged);
COVERED(strobe_bias);
COVERED(strobe_bool_mask);
COVERED(strobe_block_mask);
COVERED(strobe_alibi);
COVERED(strobe_sinks);
COVERED(strobe_dropout);
COVERED(strobe_scales);
COVERED(strobe_parallel);
COVERED(strobe_tuning);
COVERED(strobe_score_arguments);
COVERED(strobe_score_gradients);
COVERED(strobe_mask_lists);
COVERED(strobe_attention);
COVERED(strobe_gradients);
