/* SPDX-License-Identifier: BSD-3-Clause
 *
 * feature_class.h (sm90): which feature classes (enum feature_class) of Hopper's variants have what a problem asks for. */
#ifndef STROBE_CUDA_SM90_FEATURE_CLASS_H
#define STROBE_CUDA_SM90_FEATURE_CLASS_H

#include "core/kernel.h"

/* alone: the class that has it and nothing else, if there is one, and variants of it may be missing; general: the one that
 * has it with others, whose variants there are. */
struct sm90_classes {
    int32_t alone, general;
};

/* The option with which a variant of this class is compiled with a user's function: the function itself does what class
 * SCORE is for, so that less is left. */
const char *strobe__sm90_compiled_class(const struct problem *problem, int32_t features);

struct sm90_classes strobe__sm90_classes(const struct problem *problem);

/* Whether a variant of this class is compiled with the problem's function. In class ALIBI it is not: a function of the score
 * that comes to it is ALiBi with other slopes. */
bool strobe__sm90_is_compiled(const struct problem *problem, int32_t features);

/* What class ALIBI computes: score - factor slopes[batch stride_batch + head] |i + start + keys - rows - j|, slopes NULL: 1.
 */
struct sm90_alibi {
    const float *slopes;
    int64_t stride_batch;
    double factor;
    int32_t start;
};

/* What a variant of this class is given: the problem's ALiBi or, in class ALIBI, what its function of the score is. */
struct sm90_alibi strobe__sm90_alibi(const struct problem *problem, int32_t features);

#endif
