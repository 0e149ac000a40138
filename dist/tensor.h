/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tensor.h: what happens to tensors outside of attention: rows are copied, added and rounded. On CUDA all of it goes on the
 * place's stream; what fails there is noted in the place, whose status the call returns at its end. */
#ifndef STROBE_DIST_TENSOR_H
#define STROBE_DIST_TENSOR_H

#include "dist.h"

/* Memory that is handed out piece by piece, 64-byte aligned. Without a base it only counts. */
struct room {
    unsigned char *base;
    size_t used;
};
void *strobe__room_take(struct room *room, size_t bytes);
/* The caller's workspace, or where it has none on the CPU memory of our own, which *own then holds, to be freed. */
strobe_status strobe__room_find(struct room *room, const struct place *place, size_t needed, void *workspace, size_t given,
                                void **own);

/* A tensor [entries][rows][heads][dim] in memory of its own, and one of lse, [entries][heads][rows]. */
strobe_tensor strobe__tensor_of(void *data, int32_t dtype, int64_t rows, int64_t heads, int64_t dim);
strobe_tensor strobe__lse_of(void *data, int64_t rows, int64_t heads);
/* The same tensor from a row, or from a head, on. NULL stays NULL. */
strobe_tensor strobe__tensor_from(strobe_tensor t, int64_t row, int64_t head);

/* Elements of a copy: [entries][rows][heads][dim]; row i is row first + i * step of either side. */
struct extent {
    int64_t entries, rows, heads, dim;
    int64_t to_first, to_step, from_first, from_step;
};
/* On CUDA, of fp32, and the sum with `more` where it has data: rounded to the dtype of `to`. */
void strobe__round_on_device(struct place *on, strobe_tensor to, strobe_tensor from, strobe_tensor more, struct extent e);
void strobe__copy_rows(struct place *on, strobe_tensor to, strobe_tensor from, struct extent e); /* of one dtype */
void strobe__add_rows(struct place *on, strobe_tensor to, strobe_tensor from, struct extent e);  /* fp32 */

/* From collect to collected, copies of rows on CUDA, of which none reads or writes what another writes, go by as few kernels
 * as can be. What is put on the stream in between goes before or behind any of them. */
void strobe__collect(struct place *on);
void strobe__collected(struct place *on);

/* On CUDA: pieces of memory, by one kernel; and sums of rows, which are then empty again. */
struct copied_rows;
struct summed_rows;
void strobe__copy_pieces(struct place *on, const struct copied_rows *pieces, int64_t count);
void strobe__sum_rows(struct place *on, struct summed_rows *r);

/* On CUDA, of each row and head: to = from, 0 where it has no data, less the sum of a * b over `dim` columns. to and from
 * are fp32, as lse. */
void strobe__subtract_products(struct place *on, strobe_tensor to, strobe_tensor from, strobe_tensor a, strobe_tensor b,
                               struct extent e);

void strobe__zero(struct place *on, void *to, size_t bytes);
void strobe__zero_rows(struct place *on, void *to, int64_t stride_bytes, int64_t rows, int64_t row_bytes);
void strobe__fill(struct place *on, float *to, int64_t count, float value);
void strobe__copy(struct place *on, void *to, const void *from, size_t bytes);
/* to[x] = sum of parts[rank][x] over the ranks in their order, in double. */
void strobe__sum_parts(struct place *on, float *to, const float *parts, int64_t count, int32_t ranks);
/* Words of the host to the place's memory; they may change when this has returned. */
void strobe__upload(struct place *on, int64_t *to, const int64_t *words, int64_t count);

/* Makes the device of a place the thread's current one, where the place is a GPU, until leave undoes *entered. Fails with a
 * sentence where this build or machine has none, or the place's stream is another device's. */
strobe_status strobe__place_enter(const struct place *on, int *entered);
void strobe__place_leave(const struct place *on, int entered);

/* Refuses memory that the place's kernels could not use, where the place is a GPU; NULL is fine. */
strobe_status strobe__place_check(const struct place *on, const char *name, const void *data);

/* Refuses a stream that is being captured, in which ranks cannot wait for each other. */
strobe_status strobe__place_may_wait(const struct place *on);

/* Rounds fp32 rows, or the sums of two, to the dtype of `to`. more: without data there is one. Rows of `from` may change.
 * zeros: as many as there are heads. */
strobe_status strobe__round_rows(struct place *on, const struct whole *w, strobe_tensor to, strobe_tensor from,
                                 strobe_tensor more, struct extent e, float *zeros);

/* K and V, or dK and dV, of some rows, one behind the other: a message, and a block to compute on. */
struct block {
    strobe_tensor k, v;
};
size_t strobe__block_bytes(const strobe_attention *a, int64_t entries, int64_t rows, int32_t dtype);
struct block strobe__block_at(const strobe_attention *a, int64_t entries, int64_t rows, int32_t dtype, void *data);

#endif
