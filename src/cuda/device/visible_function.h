/* SPDX-License-Identifier: BSD-3-Clause
 *
 * visible_function.h: what visible_function.cu is given: the user's `visible` as steps, in the order of evaluation, and its
 * arrays. Nothing is compiled for it: the kernel reads the steps. Valid as C and as CUDA C. */
#ifndef STROBE_CUDA_DEVICE_VISIBLE_FUNCTION_H
#define STROBE_CUDA_DEVICE_VISIBLE_FUNCTION_H

#include "cuda/device/visible.h"
#include "math/score_operations.h"

enum { MOST_STEPS = 512, MOST_LEAVES = 512, MOST_FUNCTION_ARRAYS = 16, MOST_FUNCTION_LOADS = 48, MOST_INDICES = 4 };

/* Most functions are small, and a kernel with little in its parameters starts sooner: it is compiled for these, too. */
enum { FEW_STEPS = 48, FEW_LEAVES = 32, FEW_FUNCTION_ARRAYS = 4, FEW_FUNCTION_LOADS = 8 };

/* Where the values of a step lie, in shared memory: those that are the same for a call, a row or a key in a slot, which has
 * one for each row and key of the unit; those of pairs in a register, which has AT_ONCE for each thread. */
enum step_place { PLACE_CALL, PLACE_ROW, PLACE_KEY, PLACE_PAIR };

/* One operation of math/score_operations.h. Steps are numbered in the order of evaluation, classes one behind the other. */
struct function_step {
    uint8_t operation, place; /* an enum score_operation, an enum step_place */
    uint8_t is_integer;
    uint8_t array;         /* of a load */
    uint16_t at;           /* slot or register; of a leaf that the host knows: `number` too */
    uint16_t number;       /* of the leaf's value, or of the load */
    uint16_t operand[3];   /* steps */
    uint8_t from_place[3]; /* and where their values lie */
    uint16_t from[3];
};

/* An element that is read: of which array, and the steps of its indices. */
struct function_load {
    uint16_t array, index[MOST_INDICES];
};

struct function_array {
    const void *data;
    int32_t dtype, rank;
    int32_t extent[MOST_INDICES], stride[MOST_INDICES];
};

/* Dtypes of arrays beside enum cuda_dtype, numbers of strobe_score.h. */
enum { CUDA_INT32 = 32, CUDA_UINT8 = 33 };

struct function_head {
    struct visible_pass pass; /* its mask is combined with the function by "and" */
    /* NULL: all sequences have the same lengths, or these do not matter */
    const void *cu_q, *cu_k, *used_q, *used_k, *leftpad;
    int32_t index64;
    int32_t q_start, k_start, group;
    int32_t count[4]; /* steps of each class */
    int32_t root;     /* a step */
    int32_t slots, registers, at_once, steps;
};

#define VISIBLE_FUNCTION(FEW_OR_MOST)                               \
    {                                                               \
        struct function_head head;                                  \
        double leaf[FEW_OR_MOST##_LEAVES];                          \
        struct function_array array[FEW_OR_MOST##_FUNCTION_ARRAYS]; \
        struct function_load load[FEW_OR_MOST##_FUNCTION_LOADS];    \
        struct function_step step[FEW_OR_MOST##_STEPS];             \
    }

struct visible_function VISIBLE_FUNCTION(MOST);
struct small_visible_function VISIBLE_FUNCTION(FEW);

/* Words of shared memory. A row of keys has a word more for each sixteen, so that threads whose keys are sixteen apart meet
 * different banks. Ranges are three words of 8 bytes each, of a warp each. */
enum { KEY_WORDS = UNIT + UNIT / 16, RANGE_WARPS = UNIT_THREADS / 32, RANGE_WORDS = 6, MOST_AT_ONCE = 8 };

static inline int64_t visible_function_words(int64_t slots, int64_t registers, int64_t at_once, int64_t steps) {
    return RANGE_WORDS * RANGE_WARPS * steps + slots * (UNIT + KEY_WORDS) + registers * at_once * UNIT_THREADS;
}

#endif
