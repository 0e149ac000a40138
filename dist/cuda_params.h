/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_params.h: what cuda_memory.c hands to the kernels of cuda_memory.cu, by value. Valid as C and as CUDA C. */
#ifndef STROBE_DIST_CUDA_PARAMS_H
#define STROBE_DIST_CUDA_PARAMS_H

#include <stdint.h>

/* Rows [entries][rows][heads][units] with strides in bytes; units lie side by side. */
struct move_params {
    unsigned char *to;
    const unsigned char *from;
    int64_t entries, rows, to_stride[3], from_stride[3]; /* from entry to entry, row to row, head to head */
    uint32_t units, inner;                               /* of a head; of all heads */
    int32_t unit_bytes;                                  /* 2, 4, 8 or 16 */
    int32_t adds;                                        /* units are of floats, and are added to what is there */
};

/* Rows of fp32, or the sums of two, rounded to the type of `to`; strides in elements. */
enum { ROUNDED_FP32, ROUNDED_FP16, ROUNDED_BF16 };
struct round_params {
    unsigned char *to;
    const float *from, *more; /* more: NULL, or what is added */
    int64_t entries, rows, to_stride[3], from_stride[3], more_stride[3];
    uint32_t units, inner; /* of a head; of all heads */
    int32_t type, wide;    /* wide: units are of eight elements, else of one */
};

/* Words that travel in the parameters themselves, so that a captured graph keeps them. */
enum { UPLOADED_WORDS = 448 };
struct upload_params {
    int64_t *to;
    int32_t count;
    int64_t word[UPLOADED_WORDS];
};

#endif
