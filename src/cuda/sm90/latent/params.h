/* SPDX-License-Identifier: BSD-3-Clause
 *
 * params.h: what the host hands to the kernels of latent attention, by value (__grid_constant__). Valid as C and as CUDA C.
 */
#ifndef STROBE_CUDA_SM90_LATENT_PARAMS_H
#define STROBE_CUDA_SM90_LATENT_PARAMS_H

#include <cuda.h>

#include "cuda/device/params.h"

/* The shape that the kernels are made for: columns of Q and K, of which the first are V's; keys of a block; rows of a CTA.
 */
enum { LATENT_DIM = 576, LATENT_DIM_V = 512, LATENT_KEYS = 48, LATENT_ROWS = 64, LATENT_MOST_ROWS = 8 * LATENT_ROWS };

/* Of a CTA of latent.cu: all that a multiprocessor has. */
enum { LATENT_SHARED_BYTES = 227 * 1024, LATENT_THREADS = 512 };

/* The most shares: a lane of the merge keeps five of a row's parts. */
enum { LATENT_MOST_SHARES = 160 };

/* Floats of a part: O, not normalised, [row][LATENT_DIM_V], then the maximum in base 2 and the sum of weights, [row][2]. */
enum { LATENT_PART_FLOATS = LATENT_ROWS * (LATENT_DIM_V + 2) };

/* Where an item's parts lie, and how many there are. Item n is K/V head n % heads_kv of sequence n / heads_kv. Entry n of
 * the table is that of item n where there are no more items than shares, and with parts of a fixed size; else that of the
 * item which begins in share n and ends in a later one. Where there is nothing to be merged, parts is less than 2. */
struct crossing {
    int32_t item, slot, parts, rows; /* slot: of the first part, see part_of(); rows: packed ones of the item */
};

enum { LATENT_MERGE_THREADS = 256 }; /* of a CTA of merge.cu */

struct latent_params {
    CUtensorMap q; /* {576, heads, rows, batch}, boxes of 64 columns and q_piece heads */
    CUtensorMap k; /* {64, slots, slabs, K/V heads, pages or sequences}, boxes of eight slots with all columns */
    struct params p;
    float *parts;               /* [slots][row tiles][LATENT_PART_FLOATS], see part_of() */
    struct crossing *crossings; /* [entries] */
    int32_t entries, by_item;   /* by_item: entries are items */
    int32_t row_warps;          /* warps that merge a row: 4, or 1 where a row has few parts */
    int32_t *marks;             /* recompute marks, [item][row tiles]; see exact_rows.h */
    int32_t shares, row_tiles;  /* the grid is shares * row_tiles CTAs */
    uint32_t tiles_factor;      /* x / row_tiles = x tiles_factor / 2^16 for all CTAs x */
    int32_t least_units;        /* of a share, so that there are not more parts than pay for their merge */
    int32_t segment_units;      /* that take as long as the end of a segment and the begin of another */
    int32_t part_blocks;        /* blocks of a part, whose size the caller has fixed (split_keys); 0: shares cut the parts */
    int32_t item_slots;         /* with it: slots of an item's parts */
    int32_t q_piece;            /* query heads that one tensor copy brings */
    int32_t may_hide; /* keys below a sequence's length may be hidden from a row: O is searched for what 0 * NaN did */
    float lag_unit, least_lag; /* see sm90/forward/softmax.h */
    float softcap_rate;        /* see device/score_terms.h */
};

#endif
