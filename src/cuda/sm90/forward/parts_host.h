/* SPDX-License-Identifier: BSD-3-Clause
 *
 * parts_host.h: the host's part of variants with parts (struct sm90_parts): rows that are few, as those of a prefix that
 * sequences share or a chunk of a prompt, over so many keys that these are cut for multiprocessors to have work. */
#ifndef STROBE_CUDA_SM90_FORWARD_PARTS_HOST_H
#define STROBE_CUDA_SM90_FORWARD_PARTS_HOST_H

#include "core/kernel.h"
#include "cuda/sm90/forward/params.h"

/* How a call is cut for tiles of so many rows and blocks of so many keys. */
struct sm90_cut {
    int64_t head_bits; /* log2 of the heads whose rows a tile has */
    int64_t row_tiles, heads, count;
};

/* visible: keys that a row may see. */
struct sm90_cut strobe__sm90_cut(const struct problem *problem, int64_t visible, int64_t tile_rows, int64_t keys);

/* Tiles of all parts. */
int64_t strobe__sm90_cut_tiles(const struct problem *problem, const struct sm90_cut *cut);

/* Changes what the params of a call without parts say; parts and their lse go to `workspace`, if there is more than one. */
void strobe__sm90_set_cut(struct sm90_forward_params *to, const struct problem *problem, const struct sm90_cut *cut,
                          float *workspace);

/* The map of q. */
bool strobe__sm90_encode_cut(struct sm90_forward_params *to, const struct problem *problem);

/* The launch behind that of the parts, if there is more than one. */
strobe_status strobe__sm90_merge_cut(const struct problem *problem, const struct sm90_cut *cut, float *workspace,
                                     void *stream);

#endif
