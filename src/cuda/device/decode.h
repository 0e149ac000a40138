/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode.h (device): what sm80/decode.cu is given. */
#ifndef STROBE_CUDA_DEVICE_DECODE_H
#define STROBE_CUDA_DEVICE_DECODE_H

#include "cuda/device/params.h"

struct decode_params {
    struct params p;
    /* Two slots for each CTA, of rows_most rows each: O of a part, not normalised, [row][columns of the kernel], then the
     * maximum and the sum of weights, [row][2]. */
    float *parts;
    uint32_t *arrived; /* [CTAs], 0 at first: parts that are there of the item that begins in a CTA and ends in another */
    int32_t rows_most;
    /* Where no array tells the lengths: blocks of keys of each item, and of all items a sequence; else 0, 0. */
    int32_t even_blocks;
    uint32_t even_units;
};

#endif
