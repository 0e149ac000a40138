/* SPDX-License-Identifier: BSD-3-Clause
 *
 * variants.h: the variants of the Hopper backward that this build has. */
#ifndef STROBE_CUDA_SM90_BACKWARD_VARIANTS_H
#define STROBE_CUDA_SM90_BACKWARD_VARIANTS_H

#include "core/plan.h"
#include "cuda/host/compiled.h"
#include "cuda/host/launch.h"

/* A variant of backward.cu, or, with two CTAs to a block of keys, of backward_pair.cu; the build writes the list, each dtype
 * from few columns to many. rows, keys: of a block; features: an enum feature_class. */
struct backward_variant {
    struct variant base;
    int32_t dtype, gradients, features;
    int64_t dim, rows, keys, ctas;
    struct cuda_kernel *prepare, *symbol, *ordered, *finish; /* ordered: symbol with a fixed dQ order */
    struct compiled_text text; /* with a user's function; its feature class is still to be added */
};

/* The first that takes the problem's dtypes and columns with features of a class; where dK and dV alone are fp32, the first
 * that has one in fp32 beside it. NULL if there is none. */
const struct variant *strobe__sm90_backward_variant(const struct problem *p, int32_t features);

/* One with fp32 gradients, of as many columns or more, whose blocks and sums of dQ are the same; NULL if there is none. */
const struct backward_variant *strobe__sm90_backward_in_fp32(const struct backward_variant *of);

/* Whether dK and dV are fp32 beside a dQ of the inputs' dtype: rows that have seen all their keys, keys that others add to.
 */
static inline bool strobe__sm90_sums_keys(const struct problem *p) { return p->features & FEATURE(KEY_SUMS); }

#endif
