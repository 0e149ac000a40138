/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tensor_map.h: tensors of 16-bit elements and of bytes as Hopper's copy engine wants them described. */
#ifndef STROBE_CUDA_SM90_TENSOR_MAP_H
#define STROBE_CUDA_SM90_TENSOR_MAP_H

#include <cuda.h>

#include "core/kernel.h"

/* Every row starts at a multiple of 16 bytes. */
bool strobe__rows_are_aligned(const strobe_tensor *tensor);

/* Whether the copy engine takes the tensor [batch, seq, heads, columns]: rows that are aligned and ascend. An axis of
 * several entries with a stride of 0, all of which are one, cannot be described to it. */
bool strobe__can_be_copied(const strobe_tensor *tensor, int64_t batch, int64_t heads);

/* {dim, seq, heads, batch} with boxes of 128 bytes of columns and `rows` rows, 128-byte swizzle. False if the driver
 * refuses. */
bool strobe__encode_map(CUtensorMap *map, const strobe_tensor *tensor, int64_t dim, int64_t seq, int64_t heads,
                        int64_t batch, int64_t rows);

/* The last rows of sequences that lie one behind the other, {dim, rows before the end, heads, ends of sequences, batch} with
 * boxes of 64 columns and `rows` rows. The box at {column, rows - n, head, end, batch} has the n rows in front of row `end`,
 * and zeros behind them, whatever lies there. False if the driver refuses. */
bool strobe__encode_ends_map(CUtensorMap *map, const strobe_tensor *tensor, int64_t dim, int64_t seq, int64_t heads,
                             int64_t batch, int64_t rows);

/* strobe__encode_map's of 16-bit elements with rows behind heads, {dim, heads, seq, batch}: a box has box_rows rows of each
 * of box_heads heads, a row's heads side by side. */
bool strobe__encode_heads_map(CUtensorMap *map, const strobe_tensor *tensor, int64_t dim, int64_t seq, int64_t heads,
                              int64_t batch, int64_t box_heads, int64_t box_rows);

/* A tensor of 16-bit elements in whole eights of slots, {64 columns, 8 slots, slabs of columns, eights, heads} with boxes of
 * 64 columns, 8 slots, box_slabs and box_eights, so that eights lie one behind the other, 128-byte swizzle; where columns
 * are no whole slabs {columns, 8, 1, eights, heads}. The stride between slots is the tensor's. False if the driver refuses.
 */
bool strobe__encode_eights_map(CUtensorMap *map, const strobe_tensor *tensor, int64_t columns, int64_t eights, int64_t heads,
                               int64_t head_stride, int64_t box_slabs, int64_t box_eights);

/* A tensor of 16-bit elements with whole slabs of columns, {64 columns, rows, slabs, heads, batch} with boxes of 64 columns,
 * box_rows and all slabs, 128-byte swizzle: a box lies as [slab][box_rows][64]. False if the driver refuses. */
bool strobe__encode_slabs_map(CUtensorMap *map, const strobe_tensor *tensor, int64_t columns, int64_t rows, int64_t heads,
                              int64_t batch, int64_t box_rows);

/* Whether the copy engine takes a tensor over scores [batch, head, row, key]: of the elements' type, with rows as above. An
 * axis that is broadcast has an extent of 1, but rows, which are not. */
bool strobe__scores_can_be_copied(const struct problem *problem, const strobe_bias *scores);

/* {keys, rows, heads, batch} with boxes of `keys` keys, 16 or 64, and `rows` rows, swizzled by as many bytes as a row has.
 */
bool strobe__encode_scores_map(CUtensorMap *map, const struct problem *problem, const strobe_bias *scores, int64_t keys,
                               int64_t rows);

#endif
