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

#endif
