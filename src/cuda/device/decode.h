/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode.h (device): what sm80/decode.cu is given. */
#ifndef STROBE_CUDA_DEVICE_DECODE_H
#define STROBE_CUDA_DEVICE_DECODE_H

#include "cuda/device/params.h"

struct decode_params {
    struct params p;
    /* Two slots for each CTA, or those of part_blocks, of rows_most rows each: O of a part, not normalised, [row][columns
     * of the kernel], then the maximum and the sum of weights, [row][2]. */
    float *parts;
    uint32_t *arrived;   /* 0 at first: parts that are there of the item that begins in a CTA and ends in another, [CTAs], */
    int32_t rows_most;   /* or, with part_blocks, of each item */
    int32_t part_blocks; /* blocks of a part, whose size the caller has fixed (split_keys); 0: shares cut the parts */
    int32_t item_slots;  /* with it: slots of an item's parts */
    /* Where no array tells the lengths: blocks of keys of each item, and of all items a sequence; else 0, 0. */
    int32_t even_blocks;
    uint32_t even_units;
    uint32_t item_ctas; /* with them: CTAs of each item, of which each has one part; 0: the device cuts shares */
};

#endif
