/* SPDX-License-Identifier: BSD-3-Clause
 *
 * score.h: a call's function of a score as score.c reads it, and frozen for a compiled program (frozen_score.c). */
#ifndef STROBE_PYTHON_SCORE_H
#define STROBE_PYTHON_SCORE_H

#include <strobe/strobe_score.h>

#include "arguments.h"

enum { MOST_SCALARS = 32, MOST_ARRAYS = 16, MOST_RANK = 4, NAME_ROOM = 32 };

struct score {
    strobe_score *function;
    strobe_score_source source; /* its texts and names are Python's, and live as long as the arguments */
    strobe_score_arguments arguments;
    strobe_score_gradients gradients;
    strobe_score_scalar scalars[MOST_SCALARS];
    strobe_score_array arrays[MOST_ARRAYS];
    strobe_score_elements elements[MOST_ARRAYS], delements[MOST_ARRAYS];
    struct tensor tensors[MOST_ARRAYS], dtensors[MOST_ARRAYS];
    int32_t scalar_count, array_count;
};

/* The same without addresses and without Python, behind struct frozen in a program's attribute. Arrays are contiguous. */
struct frozen_score {
    int32_t scalar_count, array_count;
    struct {
        char name[NAME_ROOM];
        double value;
        int64_t integer;
    } scalars[MOST_SCALARS];
    struct {
        char name[NAME_ROOM];
        int32_t rank, dtype;
        int64_t extent[MOST_RANK];
    } arrays[MOST_ARRAYS];
    int64_t score_length, visible_length; /* 0: there is none; of each text with its end */
    char texts[];                         /* score's and visible's */
};

/* A function made of a frozen one, in a call of a program. */
struct thawed_score {
    strobe_score *function;
    strobe_score_arguments arguments;
    strobe_score_gradients gradients;
    strobe_score_elements elements[MOST_ARRAYS], delements[MOST_ARRAYS];
};

/* Freezes the function of a call into memory that the caller frees, a multiple of 8 bytes; NULL without memory. */
struct frozen_score *freeze_score(const struct score *score, size_t *bytes);
/* Whether so many bytes hold a frozen function. */
bool is_frozen_score(const struct frozen_score *frozen, size_t bytes);
/* Attaches the function to a descriptor and its gradients. arrays, darrays: addresses, of gradients NULL where none is
 * wanted. thawed->function is to be destroyed after the call. */
strobe_status thaw_score(struct thawed_score *thawed, const struct frozen_score *frozen, void *const arrays[],
                         void *const darrays[], strobe_attention *a, strobe_gradients *g);

#endif
