/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_memory.h: what memory.c needs of a GPU. Functions return NULL or why they failed; work goes on the stream, and
 * nothing is waited for. In builds without CUDA cuda_none.c has them, and each fails. */
#ifndef STROBE_DIST_CUDA_MEMORY_H
#define STROBE_DIST_CUDA_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_params.h"

/* Rows [entries][rows][heads][elements] of 2 or 4 bytes each, strides in elements; elements lie side by side. */
struct moved_rows {
    void *to;
    const void *from;
    int64_t count[4], to_stride[3], from_stride[3];
    int32_t element_bytes;
};

const char *strobe__dist_cuda_move(const struct moved_rows *m, bool adds, void *stream); /* adds: fp32 */
/* Copies of which none reads or writes what another writes, by as few kernels as can be. */
const char *strobe__dist_cuda_move_all(const struct moved_rows *moves, int64_t count, void *stream);

/* Rows of fp32, or the sums of two (more: NULL, or the other), rounded to a type of the same order as in cuda_params.h. */
struct rounded_rows {
    void *to;
    const float *from, *more;
    int64_t count[4], to_stride[3], from_stride[3], more_stride[3];
    int32_t type;
};
const char *strobe__dist_cuda_round(const struct rounded_rows *r, void *stream);

const char *strobe__dist_cuda_products(struct product_params *p, void *stream); /* fills in wide */
const char *strobe__dist_cuda_zero(void *to, int64_t stride, int64_t rows, int64_t row_bytes, void *stream);
const char *strobe__dist_cuda_fill(float *to, int64_t count, float value, void *stream);
const char *strobe__dist_cuda_copy(void *to, const void *from, size_t bytes, void *stream);
/* Pieces of less than 2^32 bytes each, by one kernel, from and to any memory that the device reaches. */
struct copied_rows {
    void *to;
    const void *from;
    size_t bytes;
};
const char *strobe__dist_cuda_copy_pieces(const struct copied_rows *pieces, int64_t count, void *stream);
/* Runs that kernel and the next one over nothing, so that the driver has them. */
const char *strobe__dist_cuda_load_copies(void *stream);
/* Fills in first_chunk and chunks, of pieces in the order of the steps, and fillers. */
const char *strobe__dist_cuda_exchange(struct exchange_params *p, void *stream);
/* first_chunk, chunks and wide are filled in here. */
const char *strobe__dist_cuda_sum_rows(struct summed_rows *r, void *stream);
const char *strobe__dist_cuda_sum(float *to, const float *parts, int64_t count, int32_t ranks, void *stream);
const char *strobe__dist_cuda_upload(int64_t *to, const int64_t *words, int64_t count, void *stream);

/* Makes a device current: its primary context, unless a context of that device is current. *entered is what leaving undoes.
 */
const char *strobe__dist_cuda_enter(int32_t index, int *entered);
void strobe__dist_cuda_leave(int32_t index, int entered);

/* Whose memory it is, on a device that has been entered: a device's number, most often index, or one of these. Managed and
 * pinned memory is any device's. */
enum { MEMORY_OF_ANY = -1, MEMORY_OF_THE_HOST = -2 };
int strobe__dist_cuda_owner(const void *data, int32_t index);
/* Whose stream it is, on a device that has been entered; the default streams are any device's. */
int strobe__dist_cuda_stream_owner(void *stream);
bool strobe__dist_cuda_is_captured(void *stream);

#endif
