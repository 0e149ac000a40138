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

/* Whether `prepare` counts the tiles: where lengths of keys are known to the device alone, and packed sequences can have
 * fewer tiles than if each were as long as the longest. Not without rows, for a block of which it has a CTA. */
bool strobe__sm90_has_sequences(const struct problem *problem, const struct tile_shape *shape);

/* CTAs of `prepare` and `finish`, each of which has a block of rows. */
int64_t strobe__sm90_row_ctas(const struct problem *problem, const struct tile_shape *shape);

/* In which order tiles are taken and walk, and how many there are, or as many as there can be. features: an enum
 * feature_class, the variant's. `params` has the band, the lengths and the shares. */
void strobe__sm90_fill_order(struct sm90_backward_params *params, const struct problem *problem,
                             const struct tile_shape *shape, int32_t features);

/* The shares' dK and dV, fp32, in the workspace; rows start at multiples of 32 bytes. */
int64_t strobe__sm90_share_words(const struct problem *problem); /* of one share of all keys */
void strobe__sm90_fill_shares(struct sm90_backward_params *params, const struct problem *problem, float *memory);

/* What the main kernel is given: each share is a K/V head to it. */
struct sm90_backward_params strobe__sm90_params_of_shares(const struct sm90_backward_params *params);
#endif
