/* SPDX-License-Identifier: BSD-3-Clause
 *
 * quantise.h (device): what the kernels of strobe_quantise are given, one of q, k, v a launch. Valid as C and as CUDA C. */
#ifndef STROBE_CUDA_DEVICE_QUANTISE_H
#define STROBE_CUDA_DEVICE_QUANTISE_H

#include "math/quantise.h"

/* Rows of a CTA of quantise_rows.cu: those that share a scale are among them, or it takes two passes. */
enum { QUANTISE_CHUNK = 128, QUANTISE_GROUPS = 32 };

/* The most heads that a CTA of quantise_block.cu works on, one after the other. */
enum { QUANTISE_HEADS = 64 };

/* quantise_block.cu, by the columns of a row: lanes of a row; units of 16 bytes from row to row of its shared memory, and of
 * the tables of rotary embedding there; bytes of it, and those of the tables behind. */
#define QUANTISE_LANES(columns) ((columns) / ((columns) % 3 == 0 ? 24 : 32))
#define QUANTISE_ROW_PITCH(columns) \
    ((columns) == 256 ? 38 : (columns) == 96 ? 14 : (columns) == 192 ? 28 : (columns) / 8 + 1)
#define QUANTISE_TABLE_PITCH(columns) ((columns) % 3 == 0 ? (columns) / 8 : (columns) / 64 * 9)
#define QUANTISE_SHARED(columns) \
    (QUANTISE_HEADS * 32 + QUANTISE_LANES(columns) * 80 + QUANTISE_CHUNK * (12 + 16 * QUANTISE_ROW_PITCH(columns)))
#define QUANTISE_TABLES(columns) (QUANTISE_CHUNK * 2 * 16 * QUANTISE_TABLE_PITCH(columns))

enum quantise_phase {
    QUANTISE_AT_ONCE,  /* magnitudes, scales and bytes */
    QUANTISE_GATHER,   /* magnitudes into the scales */
    QUANTISE_STORE,    /* bytes, by the scales */
    QUANTISE_CLEAR,    /* of quantise_scales.cu: magnitudes of 0 */
    QUANTISE_CONCLUDE, /* magnitudes become scales */
};

struct quantise_params {
    struct quantise_tensor t;
    struct quantise_choices c;
    int32_t phase;
    int32_t columns, block_shift;     /* of a Hadamard transform; log2 of t.block where a CTA has whole blocks */
    float norm;                       /* 1 / sqrt(columns) */
    int32_t chunks;                   /* of a head */
    int32_t from_aligned, to_aligned; /* eight columns of a row are aligned as a whole */
    int32_t tables_aligned;           /* eight of cos and sin too, and the pairs are eights */
    int32_t tables_staged;            /* quantise_block.cu has them in shared memory */
    int64_t scale_extent[3];          /* slots along each axis: 1 where the stride is 0 */
};

/* What quantise_block.cu is given: up to three tensors of as many rows of one head dim, of which those that turn have one
 * position of row 0, and are all transformed or none. Heads of all of them are in one list, where they alternate as evenly
 * as their numbers allow: transformed ones wait for instructions, others for memory. */
struct quantise_together {
    struct quantise_params tensor[3];
    uint32_t share[2];   /* of the first one in all heads, and of the second one in those of it and the third, over 2^32 */
    int32_t count;       /* of tensors */
    int32_t heads, each; /* of all tensors; those of a CTA */
};

#endif
