/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tensor.h: what happens to tensors outside of attention: rows are copied, added and rounded. All of it is the host's work;
 * a device would need its own. */
#ifndef STROBE_DIST_TENSOR_H
#define STROBE_DIST_TENSOR_H

#include "dist.h"

/* Memory that is handed out piece by piece, 64-byte aligned. Without a base it only counts. */
struct room {
    unsigned char *base;
    size_t used;
};
void *strobe__room_take(struct room *room, size_t bytes);
/* The caller's workspace, or where it has none memory of our own, which *own then holds, to be freed. */
strobe_status strobe__room_find(struct room *room, size_t needed, void *workspace, size_t given, void **own);

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
void strobe__copy_rows(strobe_tensor to, strobe_tensor from, struct extent e); /* of one dtype */
void strobe__add_rows(strobe_tensor to, strobe_tensor from, struct extent e);  /* fp32 */

/* Rounds fp32 rows to the dtype of `to`. zeros: as many as there are heads. */
strobe_status strobe__round_rows(const struct whole *w, strobe_tensor to, strobe_tensor from, struct extent e, float *zeros);

/* K and V, or dK and dV, of some rows, one behind the other: a message, and a block to compute on. */
struct block {
    strobe_tensor k, v;
};
size_t strobe__block_bytes(const strobe_attention *a, int64_t entries, int64_t rows, int32_t dtype);
struct block strobe__block_at(const strobe_attention *a, int64_t entries, int64_t rows, int32_t dtype, void *data);

#endif
