/* SPDX-License-Identifier: BSD-3-Clause
 *
 * level_visible.h: what src/cpu/vector/visible.h says of a tile and a block of keys, at each level of vector instructions:
 * level_visible.c is compiled once a level, with the kernels' options. */
#ifndef STROBE_TESTS_UNIT_LEVEL_VISIBLE_H
#define STROBE_TESTS_UNIT_LEVEL_VISIBLE_H

#include "core/problem.h"

/* The tile from packed row `first` of K/V head kv of the sequence, and the keys [j0, j0 + keys). visible[r][j], of
 * [MOST_TILE][64], and the scores of ones become what the row sees and -inf elsewhere, by the bits. Returns the coverage;
 * rows: of the tile; seen[r]: the row lies in a vector that sees something. */
enum { MOST_TILE = 64 };
typedef enum coverage see_tile(const struct problem *p, const struct sequence *s, int64_t kv, int64_t first, int64_t j0,
                               int64_t keys, int64_t *rows, bool visible[MOST_TILE][64], bool seen[MOST_TILE]);

see_tile strobe__cpu_see_tile_baseline;
#if defined(__x86_64__)
see_tile strobe__cpu_see_tile_avx2, strobe__cpu_see_tile_avx512, strobe__cpu_see_tile_amx;
#endif

#endif
