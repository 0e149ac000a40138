/* SPDX-License-Identifier: BSD-3-Clause
 *
 * feature_class.c: see feature_class.h. The variants of ALiBi alone and of softcap alone work in units of raw dot products:
 * the scale is a divisor there, and slopes over it, or the square of it over softcap, must be numbers. */
#include "cuda/sm90/feature_class.h"

#include "cuda/device/softcap.h"
#include "cuda/host/tensor_map.h"
#include "cuda/host/visible.h"
#include "cuda/sm90/forward/params.h"

#define LARGE_SCALE (double)(1 << 20)

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

const char *strobe__sm90_compiled_class(const struct problem *p, int32_t features) {
    if (features == FEATURES_ALL) return "FEATURE_CLASS=FEATURES_ALL";
    if (features == FEATURES_MASK) return "FEATURE_CLASS=FEATURES_MASK";
    const bool scores = p->features & (FEATURE(SOFTCAP) | FEATURE(ALIBI));
    if (p->a.paged) return scores ? "FEATURE_CLASS=FEATURES_PAGES_SCORE" : "FEATURE_CLASS=FEATURES_PAGES";
    return scores ? "FEATURE_CLASS=FEATURES_SCORE" : "FEATURE_CLASS=FEATURES_NONE";
}

struct sm90_classes strobe__sm90_classes(const struct problem *p) {
    const feature_set asked = p->features &
                              (SCORE_FEATURES | VISIBLE_FEATURES | FEATURE(SCORE) | FEATURE(DROPOUT) | FEATURE(DBIAS));
    const double scale = p->a.scale, softcap = p->a.softcap;
    const bool usual = scale >= 1 / LARGE_SCALE && scale <= LARGE_SCALE;
    struct sm90_classes classes;
    classes.alone = classes.general = general_class(p);
    if (p->a.paged) return classes;
    if (asked == FEATURE(ALIBI) && usual) classes.alone = FEATURES_ALIBI;
    if (asked == FEATURE(SOFTCAP) && usual && softcap >= LEAST_POLYNOMIAL_SOFTCAP && softcap <= LARGE_SCALE)
        classes.alone = FEATURES_SOFTCAP;
    if (asked == FEATURE(BIAS) && strobe__scores_can_be_copied(p, &p->bias)) classes.alone = FEATURES_BIAS;
    if (asked == FEATURE(DROPOUT)) classes.alone = FEATURES_DROPOUT;
    return classes;
}
