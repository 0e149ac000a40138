/* SPDX-License-Identifier: BSD-3-Clause
 *
 * level_sizes.c: see level_sizes.h. */
#include "level_sizes.h"

#include "cpu/vector/tile.h"

const int64_t LEVEL_KERNEL(tile_rows) = TILE_ROWS;
