/* SPDX-License-Identifier: BSD-3-Clause
 *
 * add.h (device): what device/add.cu is given. */
#ifndef STROBE_CUDA_DEVICE_ADD_H
#define STROBE_CUDA_DEVICE_ADD_H

#include <stdint.h>

/* A gradient: rows of `columns` floats, of so many positions and heads of each batch entry. */
struct added {
    float *to;
    const float *from;
    int64_t to_batch, to_row, to_head, from_batch, from_row, from_head; /* strides */
    const void *cu, *used;                                              /* of its side; NULL: absent */
    int32_t seq, heads, columns;
    int32_t in_fours; /* every row of both begins at 16 bytes, and columns is a multiple of four */
    int64_t blocks;   /* of the grid, one after the other */
};

enum { ADD_WARPS = 8, MOST_ADDED = 3 };

struct add_params {
    struct added gradient[MOST_ADDED];
    int32_t count, batch, index64;
};

#endif
