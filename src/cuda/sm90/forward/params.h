/* SPDX-License-Identifier: BSD-3-Clause
 *
 * params.h: what the host hands to the Hopper forward kernel, by value (__grid_constant__). Valid as C and as CUDA C. */
#ifndef STROBE_CUDA_SM90_FORWARD_PARAMS_H
#define STROBE_CUDA_SM90_FORWARD_PARAMS_H

#include <cuda.h>
#include <stdint.h>

#include "cuda/device/cache.h"
#include "cuda/device/params.h"
#include "cuda/device/philox.h"
#include "cuda/device/softcap.h"
#include "cuda/device/visible.h"
#include "math/divisor.h"
#include "strobe/strobe_trace.h"

/* Feature classes of this kernel alone: K and V in pages, with what class NONE or class SCORE has. */
#define FEATURES_PAGES       128
#define FEATURES_PAGES_SCORE (FEATURES_PAGES | (int)FEATURES_SCORE)
#define HAS_PAGES            (((FEATURE_CLASS)&FEATURES_PAGES) != 0)

/* And where few rows are to attend to many keys: a tile has rows of several heads and a part of the keys, out is fp32. */
#define FEATURES_PARTS       256
#define FEATURES_PAGES_PARTS (FEATURES_PARTS | FEATURES_PAGES)
#define HAS_PARTS            (((FEATURE_CLASS)&FEATURES_PARTS) != 0)

/* And what class NONE has, where tiles are alike: variants that host.c puts in its place, whose text is of class NONE.
 * RELAY, -DRELAYS_TILES: two CTAs share the last tiles, see relay.h; of a tile that it has begun a warp leaves so many
 * bytes, O and eight numbers a thread. PAIRS, -DCTA_PAIRS: two CTAs share K and V, see tile.h. */
#define FEATURES_RELAY        512
#define RELAY_WARP_BYTES(dim) (((dim) / 2 + 8) * 32 * 4)
#define FEATURES_PAIRS        1024
#define FEATURES_PAIRS_RELAY  (FEATURES_PAIRS | FEATURES_RELAY)

/* The workspace may hold anything before a launch: a memset of a few bytes would take as long as a launch. */
struct sm90_workspace {
    uint64_t launch;       /* the launch whose tile counter this is, set by its first CTA; 0 once all tiles are taken */
    uint32_t tile_counter; /* dynamic scheduling: tiles taken, beside the first of each CTA */
    uint32_t unused[13];
    /* [tile][warp]: chains of tiles of which a warp has exact rows to compute, see exact_row.h. NVRTC wants a number. */
#if defined(__CUDACC_RTC__)
    int32_t recompute_mark[1];
#else
    int32_t recompute_mark[];
#endif
};

/* The scales of e4m3 Q, K, V: strides of batch, block of rows, head; rows of a block, 0: the whole sequence. */
struct sm90_scales {
    const float *q, *k, *v;
    int64_t q_stride[3], k_stride[3], v_stride[3];
    int32_t block_q, block_k;
};

/* K or V in pages, as a tensor {64 columns, 8 slots, slabs, eights of slots, heads}: its fourth or fifth axis goes on from
 * page to page, by so many. Where columns are no whole slabs, it is {dim, 8, 1, ...}, and each slab of eight slots is copied
 * by itself. */
struct page_map {
    int32_t page_eights, page_heads, slabs; /* slabs: of a copy */
};

/* With parts: a tile's rows are those of 2^head_bits neighbouring heads in turns, which share K and V, and what struct
 * sm90_forward_params calls a head is so many heads, and a part of their keys. Of more than one part, part n of out and lse
 * lies n steps on; behind all lse is what their rounding has left (device/lse.h). */
struct sm90_parts {
    int32_t count, head_bits;
    int64_t step_out, step_lse;
};

struct sm90_forward_params {
    /* {dim, seq, heads, batch}; boxes of 64 columns and the rows of a tile, 128-byte swizzle. Packed tensors have batch 1.
     * With pages see struct page_map. */
    CUtensorMap q, k, v, bias_map;

    void *out;                            /* [batch][seq_q][heads_q][dim_v] by strides */
    float *lse;                           /* NULL: not wanted */
    int64_t out_stride[3], lse_stride[3]; /* batch, sequence, head, in elements */
    const void *k_data, *v_data, *q_data; /* for exact rows; strides of batch, sequence, head */
    int64_t q_stride[3], k_stride[3], v_stride[3];

    int32_t batch, seq_q, seq_k, heads_q, group, dim, dim_v;
    int32_t row_tiles;  /* of the longest sequence */
    int32_t tiles;      /* row_tiles * all_heads: the most there can be */
    int32_t all_heads;  /* heads_q * batch */
    int32_t is_dynamic; /* dynamic scheduling, since tiles differ in length; else a CTA's tiles are gridDim.x apart */
    uint32_t
        known_tiles; /* tiles that a CTA knows at a time, with the one in hand; 2 to TILES. More where tiles are so short
                      * that all roles wait for descriptions, else few, since other CTAs could do what one holds. */
    uint64_t launch; /* a number of this launch alone, not 0 */
    struct divisor by_group, by_heads_q, by_section_heads, by_last_heads, by_section_tiles; /* see set_divisors() */
    int32_t section_heads; /* heads of a section: they are worked on at a time, so that their K and V stay in the L2 cache */
    struct sm90_workspace *workspace;
    int32_t may_hide; /* a tile may load keys that are hidden from some of its rows: O is searched for what 0 * NaN did */
    int32_t out_is_aligned;         /* four columns of out, two of fp32, are 8 bytes, aligned */
    int32_t bottom_right;           /* the last row stands at the last key */
    int32_t first_shift, end_shift; /* the band, see struct band32, before what bottom_right adds */
    int32_t start;                  /* q_start - k_start, for ALiBi */

    const void *cu_seqlens_q, *cu_seqlens_k, *used_q, *used_k; /* NULL: none */
    int32_t index_bits;
    int32_t is_ragged; /* some of these is given, or keys are padded on the left: each tile's description looks them up */

    struct view bias, mask, blocks; /* of scores, keys contiguous, 0 = broadcast; masks: a byte each, 0 hides */
    int32_t block_q, block_k;       /* rows and keys that share a byte of `blocks` */
    struct visible visible;         /* what is visible of the masks; owners are rows */
    int32_t dropout;
    struct dropout_place place;
    float scale, exponent;             /* P = 2^(dot * exponent - ...) without score features */
    struct two_floats to_natural;      /* lse_of_row() */
    float lag_unit;                    /* 1 / exponent */
    float least_lag;                   /* the maximum may always lag by so many doublings of the weight, see softmax.h */
    float softcap;                     /* 0: none */
    struct softcap_terms cap;          /* where it is alone */
    float alibi_factor, inverse_scale; /* with ALiBi alone: what all slopes are multiplied by, and that over the scale */
    struct philox_rounds rounds;
    int32_t batch_is_inner; /* tiles of a head in all entries of the batch are neighbours: they share a bias */
    const float *alibi;     /* slopes; NULL: none, or with ALiBi alone 1 */
    int64_t alibi_stride;
    const float *sinks;        /* [heads_q], NULL: none */
    struct sm90_scales scales; /* of sm90/fp8 alone */
    struct cache cache;
    /* With pages, see pages.h: keys of a piece; pieces of a block; blocks whose pieces a warp holds, a power of two. */
    int32_t piece_keys, block_pieces, window_blocks;
    struct divisor by_page_size;
    struct page_map k_pages, v_pages;
    struct sm90_parts parts;
#if defined(STROBE_TRACE)
    strobe_trace *trace;
#endif
#if defined(STROBE_SCORE_FUNCTION)
    struct score_values score;
#endif
};

/* What out's elements are, by -D: fp32, or those of Q, K and V; and what makes one of the first of two numbers. */
#if defined(OUT_FP32)
#define OUT_TYPE   float
#define PACK_OUT   first_of
#define STORE_ROWS store_rows_fp32
#else
#define OUT_TYPE   uint16_t
#define PACK_OUT   pack
#define STORE_ROWS store_rows
#endif

#endif
