/* SPDX-License-Identifier: BSD-3-Clause
 *
 * level_visible.c: see level_visible.h. */
#include "level_visible.h"

#include "cpu/vector/visible.h"

enum coverage LEVEL_KERNEL(see_tile)(const struct problem *p, const struct sequence *s, int64_t kv, int64_t first,
                                     int64_t j0, int64_t keys, int64_t *rows, bool visible[MOST_TILE][64],
                                     bool seen[MOST_TILE]) {
    float scores[BLOCK_KEYS * TILE_ROWS];
    struct visible_block block;
    struct row_features features;
    const struct tile_rows t = tile_rows_at(p, s, kv, first);
    memset(&features, 0xff, sizeof features);
    memset(&block, 0xff, sizeof block);
    find_row_features(&features, &t);
    see_block(&block, &t, &features, j0, keys);
    for (int64_t at = 0; at < keys * TILE_ROWS; ++at) scores[at] = 1;
    if (block.coverage == BLOCK_PARTIAL) hide_scores(scores, &block, keys);
    *rows = t.n;
    for (int64_t r = 0; r < t.n; ++r) {
        seen[r] = block.coverage != BLOCK_SKIPPED && r / LANES >= block.first && r / LANES < block.end;
        for (int64_t j = 0; j < keys; ++j) visible[r][j] = seen[r] && scores[j * TILE_ROWS + r] == 1;
    }
    return block.coverage;
}
