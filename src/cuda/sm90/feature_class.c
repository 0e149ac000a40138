/* SPDX-License-Identifier: BSD-3-Clause
 *
 * feature_class.c: see feature_class.h. The variants of ALiBi alone and of softcap alone work in units of raw dot products:
 * the scale is a divisor there, and slopes over it, or the square of it over softcap, must be numbers. */
#include "cuda/sm90/feature_class.h"

#include "core/score/alibi.h"
#include "cuda/device/softcap.h"
#include "cuda/host/tensor_map.h"
#include "cuda/host/visible.h"
#include "cuda/sm90/backward/params.h"
#include "cuda/sm90/forward/params.h"

#define LARGE_SCALE (double)(1 << 20)

#define MOST_START (1 << 28)

/* Below this softcap, weights of scores under -0.35 softcap would count, for which the polynomial is not exact. */
#define LEAST_POLYNOMIAL_SOFTCAP 24

static int32_t general_class(const struct problem *p) {
    const feature_set changes = FEATURE(SOFTCAP) | FEATURE(ALIBI);
    const bool masks = p->features & VISIBLE_FEATURES;
    const bool scores = p->features & (p->operation == STROBE_FORWARD ? changes | FEATURE(NEGATIVE_SCALE) : changes);
    if (p->a.paged) return scores || p->features & FEATURE(SCORE) ? FEATURES_PAGES_SCORE : FEATURES_PAGES;
    if (p->features & (FEATURE(BIAS) | FEATURE(DROPOUT))) return FEATURES_ALL;
    if (masks) return scores || !strobe__cuda_blocks_are_units(p) ? FEATURES_ALL : FEATURES_MASK;
    return scores || p->features & FEATURE(SCORE) ? FEATURES_SCORE : FEATURES_NONE;
}

struct sm90_alibi strobe__sm90_alibi(const struct problem *p, int32_t features) {
    struct score_alibi own = {.slopes = p->alibi.slopes, .stride_batch = p->alibi.stride_batch, .factor = 1};
    const bool of_function = features == FEATURES_ALIBI && !p->a.alibi && strobe__score_as_alibi(p, &own);
    return (struct sm90_alibi){.slopes = own.slopes,
                               .stride_batch = own.stride_batch,
                               .factor = own.factor,
                               .start = p->a.alibi || of_function ? (int32_t)(p->a.q_start - p->a.k_start + own.shift) : 0};
}

/* Distances stay exact in a float that kernels round at most once, and their starts in 32 bits. */
static bool function_is_alibi(const struct problem *p) {
    struct score_alibi own;
    const int64_t start = p->a.q_start - p->a.k_start;
    return strobe__score_as_alibi(p, &own) && start + own.shift <= MOST_START && start + own.shift >= -MOST_START;
}

bool strobe__sm90_is_compiled(const struct problem *p, int32_t features) {
    return p->features & FEATURE(SCORE) && features != FEATURES_ALIBI;
}

static const char *compiled_class_with_sinks(const struct problem *p, int32_t features) {
    if (features == FEATURES_MASK) return "FEATURE_CLASS=(FEATURES_MASK|FEATURES_SINKS)";
    return p->features & (FEATURE(SOFTCAP) | FEATURE(ALIBI)) ? "FEATURE_CLASS=(FEATURES_SCORE|FEATURES_SINKS)"
                                                             : "FEATURE_CLASS=FEATURES_SINKS";
}

const char *strobe__sm90_compiled_class(const struct problem *p, int32_t features) {
    if (features == FEATURES_ALL) return "FEATURE_CLASS=FEATURES_ALL";
    if (p->g.dsinks) return compiled_class_with_sinks(p, features);
    if (features == FEATURES_MASK) return "FEATURE_CLASS=FEATURES_MASK";
    const bool scores = p->features & (FEATURE(SOFTCAP) | FEATURE(ALIBI));
    if (p->a.paged) return scores ? "FEATURE_CLASS=FEATURES_PAGES_SCORE" : "FEATURE_CLASS=FEATURES_PAGES";
    return scores ? "FEATURE_CLASS=FEATURES_SCORE" : "FEATURE_CLASS=FEATURES_NONE";
}

/* With dsinks: a function of the score is compiled with its class and the sums for them. */
static struct sm90_classes classes_with_sinks(const struct problem *p, const struct sm90_classes *without) {
    struct sm90_classes classes = *without;
    if (p->features & FEATURE(SCORE)) return classes;
    classes.alone = without->general == FEATURES_NONE ? FEATURES_SINKS : FEATURES_ALL;
    classes.general = FEATURES_ALL;
    return classes;
}

struct sm90_classes strobe__sm90_classes(const struct problem *p) {
    const feature_set asked = p->features &
                              (SCORE_FEATURES | VISIBLE_FEATURES | FEATURE(SCORE) | FEATURE(DROPOUT) | FEATURE(DBIAS));
    const double scale = p->a.scale, softcap = p->a.softcap;
    const bool usual = scale >= 1 / LARGE_SCALE && scale <= LARGE_SCALE;
    struct sm90_classes classes;
    classes.alone = classes.general = general_class(p);
    if (p->a.paged) return classes;
    if (p->g.dsinks) return classes_with_sinks(p, &classes);
    if (asked == FEATURE(ALIBI) && usual) classes.alone = FEATURES_ALIBI;
    if (asked == FEATURE(SCORE) && usual && function_is_alibi(p)) classes.alone = FEATURES_ALIBI;
    if (asked == FEATURE(SOFTCAP) && usual && softcap >= LEAST_POLYNOMIAL_SOFTCAP && softcap <= LARGE_SCALE)
        classes.alone = FEATURES_SOFTCAP;
    if (asked == FEATURE(BIAS) && strobe__scores_can_be_copied(p, &p->bias)) classes.alone = FEATURES_BIAS;
    if (asked == FEATURE(DROPOUT)) classes.alone = FEATURES_DROPOUT;
    return classes;
}
