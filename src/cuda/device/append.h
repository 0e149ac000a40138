/* SPDX-License-Identifier: BSD-3-Clause
 *
 * append.h (device): what the kernel of strobe_append is given: q, k and v of one launch. Valid as C and as CUDA C. */
#ifndef STROBE_CUDA_DEVICE_APPEND_H
#define STROBE_CUDA_DEVICE_APPEND_H

#include "math/append.h"

enum {
    APPEND_THREADS = 128,    /* of a CTA */
    APPEND_LEAST_LANES = 8,  /* of a group that has rows, or pieces of rows */
    APPEND_MOST_COLUMNS = 8, /* of a lane, where rows are in registers */
    APPEND_UNITS = 4,        /* rows or pieces of a group, at most: their loads are all under way at once */
    APPEND_MOST_DIM = 576,
    APPEND_MOST_PAIRS = APPEND_MOST_DIM / 2,
    APPEND_MOST_RUN = 8, /* tokens of a warp that has a run of them */
};

/* Lanes of a row of 64, 128 or 256 columns in a run, rows of a warp, and the most tokens at once where rows are turned. */
#define APPEND_RUN_LANES(dim)  ((dim) == 256 ? 8 : 4)
#define APPEND_RUN_ROWS(dim)   (32 / APPEND_RUN_LANES(dim))
#define APPEND_RUN_TOKENS(dim) ((dim) == 256 ? 1 : 2)

/* Divides numbers below 2^31 by a number from 1 on: (n + high half of n * multiplier) >> shift (Granlund, Montgomery 1994).
 */
struct append_divisor {
    uint32_t by, multiplier, shift;
};

/* What the kernel is compiled for: all three tensors are copied; or they are, or go by vectors without quantisation; or by
 * vectors with nothing but quantisation to scales of their own; or all. */
enum append_variant { APPEND_COPIES, APPEND_FLOATS, APPEND_BYTES, APPEND_ALL };

/* How a tensor's rows go from one memory to the other. */
enum append_way {
    APPEND_COPY,     /* unchanged, 16 bytes at a time */
    APPEND_VECTORS,  /* 16-bit rows of up to 256 columns, eight a lane, in registers */
    APPEND_ELEMENTS, /* whatever they are: a warp has a row, in shared memory, one element at a time */
};

struct append_side {
    struct append_tensor at;
    int32_t way;
    int32_t lane_bits;            /* log2 of the lanes of a group */
    int32_t units;                /* of a token: its heads, or pieces of them */
    int32_t each;                 /* units of a group */
    struct append_divisor rows;   /* of a batch entry of the tensor */
    struct append_divisor parts;  /* of a token: groups that have its units */
    struct append_divisor pieces; /* of a head, with APPEND_COPY */
    uint32_t groups, blocks;      /* of all tokens; CTAs that have them */
    int32_t from_bytes;           /* of an element */
    int32_t quantised;            /* to int8 or e4m3 */
    int32_t quantised_alone;      /* by vectors, with nothing else, and to scales of its own */
    int32_t run;                  /* in runs: tokens of a warp */
    uint32_t tokens;              /* in runs: of all batch entries */
};

struct append_params {
    struct append_side side[3];
    struct append_cache cache;
    struct quantise_choices choices; /* frequency: NULL, it is below */
    int32_t computed;                /* angles come from `frequency` and from no table */
    int32_t tables_aligned;          /* the angles of a lane's columns can be read 16 bytes at a time */
    int32_t columns;                 /* of a Hadamard transform */
    float norm;                      /* 1 / sqrt(columns) */
    uint64_t frequency[APPEND_MOST_PAIRS];
};

#endif
