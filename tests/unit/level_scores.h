/* SPDX-License-Identifier: BSD-3-Clause
 *
 * level_scores.h: what the vectors of src/cpu/vector/ make of the scores of a tile and a block of keys, at each level of
 * vector instructions: level_scores.c is compiled once a level, with the kernels' options. */
#ifndef STROBE_TESTS_UNIT_LEVEL_SCORES_H
#define STROBE_TESTS_UNIT_LEVEL_SCORES_H

#include "core/problem.h"

enum { MOST_ROWS = 64, MOST_KEYS = 64 };

/* The vectors [first, end) of the tile from packed row `from` of K/V head kv of the sequence, and the keys [j0, j0 + keys).
 */
struct tile_place {
    const struct problem *p;
    const struct sequence *s;
    int64_t kv, from;
    int64_t j0, keys;
    int first, end;
};

/* The rows of the tile, its rows with lanes that lack one, and the lanes of a vector; the rows of vectors that were worked
 * on. */
struct tile_sizes {
    int64_t rows, tile_rows, lanes;
    int64_t first, end;
};

/* dropout_factors() and apply_dropout_factors() on [j][r] of z and p, whose other elements stay as they are. */
typedef struct tile_sizes drop_tile(const struct tile_place *at, const struct dropout_place *place,
                                    float z[MOST_KEYS][MOST_ROWS], float p[MOST_KEYS][MOST_ROWS]);

/* finish_block_scores() on [j][r] of s, the products of a tile that sees some of the block; slope of softcap alone. Returns
 * false, and touches nothing, where see_block() finds that it sees none. */
typedef bool finish_tile(const struct tile_place *at, float s[MOST_KEYS][MOST_ROWS], float slope[MOST_KEYS][MOST_ROWS],
                         float scale, struct tile_sizes *sizes, bool *hidden);

/* v_tanh() of `count` numbers, a multiple of 16. */
typedef void tanh_all(float *x, int64_t count);

drop_tile strobe__cpu_drop_tile_baseline;
finish_tile strobe__cpu_finish_tile_baseline;
tanh_all strobe__cpu_tanh_all_baseline;
#if defined(__x86_64__)
drop_tile strobe__cpu_drop_tile_avx2, strobe__cpu_drop_tile_avx512, strobe__cpu_drop_tile_amx;
finish_tile strobe__cpu_finish_tile_avx2, strobe__cpu_finish_tile_avx512, strobe__cpu_finish_tile_amx;
tanh_all strobe__cpu_tanh_all_avx2, strobe__cpu_tanh_all_avx512, strobe__cpu_tanh_all_amx;
#endif

#endif
