/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tile_order.h: how the tiles of a Hopper backward are shared out among CTAs, by the problem's shape alone: into how many
 * shares a group's query heads go, and which heads' tiles are taken at a time. */
#ifndef STROBE_CUDA_SM90_BACKWARD_TILE_ORDER_H
#define STROBE_CUDA_SM90_BACKWARD_TILE_ORDER_H

#include "core/kernel.h"
#include "cuda/sm90/backward/params.h"

/* Of a variant: rows of a block, keys of a tile, CTAs that work on one, columns of dQ's sums. */
struct tile_shape {
    int64_t rows, keys, ctas, columns;
};

/* Whether tiles differ in length. */
bool strobe__sm90_tiles_differ(const struct problem *problem);

/* Whether tiles add to dQ in a fixed order: with STROBE_DETERMINISTIC, and where that is faster. */
bool strobe__sm90_keeps_dq_order(const struct problem *problem, const struct tile_shape *shape);

int64_t strobe__sm90_shares(const struct problem *problem, const struct tile_shape *shape);

/* K/V heads, each counted once for each share, of a section and of the last one, see tile_of() in tile.h. */
int64_t strobe__sm90_section_heads(const struct problem *problem, const struct tile_shape *shape, int64_t shares);
int64_t strobe__sm90_last_heads(const struct problem *problem, const struct tile_shape *shape, int64_t shares);

/* The shares' dK and dV, fp32, in the workspace; rows start at multiples of 32 bytes. */
int64_t strobe__sm90_share_words(const struct problem *problem); /* of one share of all keys */
void strobe__sm90_fill_shares(struct sm90_backward_params *params, const struct problem *problem, float *memory);

/* What the main kernel is given: each share is a K/V head to it. */
struct sm90_backward_params strobe__sm90_params_of_shares(const struct sm90_backward_params *params);
#endif
