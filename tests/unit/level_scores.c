/* SPDX-License-Identifier: BSD-3-Clause
 *
 * level_scores.c: see level_scores.h. */
#include "level_scores.h"

#include "cpu/vector/dropout.h"
#include "cpu/vector/scores.h"

_Static_assert((int)TILE_ROWS <= (int)MOST_ROWS && (int)BLOCK_KEYS == (int)MOST_KEYS,
               "blocks of the tests hold the kernels'");

/* Between the tests' blocks, which have one size at all levels, and the kernels'. */
static void copy_in(float *to, float from[MOST_KEYS][MOST_ROWS]) {
    for (int64_t j = 0; j < BLOCK_KEYS; ++j) memcpy(to + j * TILE_ROWS, from[j], TILE_ROWS * sizeof *to);
}

static void copy_out(float to[MOST_KEYS][MOST_ROWS], const float *from) {
    for (int64_t j = 0; j < BLOCK_KEYS; ++j) memcpy(to[j], from + j * TILE_ROWS, TILE_ROWS * sizeof *from);
}

struct tile_sizes LEVEL_KERNEL(drop_tile)(const struct tile_place *at, const struct dropout_place *place,
                                          float z[MOST_KEYS][MOST_ROWS], float p[MOST_KEYS][MOST_ROWS]) {
    float block[BLOCK_KEYS * TILE_ROWS];
    const struct tile_rows t = tile_rows_at(at->p, at->s, at->kv, at->from);
    const int vectors = vectors_of(t.n);
    const struct visible_block v = {.first = at->first < vectors ? at->first : vectors,
                                    .end = at->end < vectors ? at->end : vectors};
    struct row_features features;
    memset(&features, 0xff, sizeof features);
    find_row_features(&features, &t);
    copy_in(block, z);
    dropout_factors(block, &features, &v, place, at->j0, at->keys);
    copy_out(z, block);
    copy_in(block, p);
    apply_dropout_factors(block, &features, &v, place, at->j0, at->keys);
    copy_out(p, block);
    return (struct tile_sizes){t.n, TILE_ROWS, LANES, v.first * LANES, v.end * LANES};
}

bool LEVEL_KERNEL(finish_tile)(const struct tile_place *at, float s[MOST_KEYS][MOST_ROWS], float slope[MOST_KEYS][MOST_ROWS],
                               float scale, struct tile_sizes *sizes, bool *hidden) {
    float block[BLOCK_KEYS * TILE_ROWS], slopes[BLOCK_KEYS * TILE_ROWS];
    const struct tile_rows t = tile_rows_at(at->p, at->s, at->kv, at->from);
    struct visible_block v;
    struct row_features features;
    memset(&features, 0xff, sizeof features);
    memset(&v, 0xff, sizeof v);
    find_row_features(&features, &t);
    see_block(&v, &t, &features, at->j0, at->keys);
    *sizes = (struct tile_sizes){t.n, TILE_ROWS, LANES, v.first * LANES, v.end * LANES};
    if (v.coverage == BLOCK_SKIPPED) return false;
    copy_in(block, s);
    copy_in(slopes, slope);
    *hidden = finish_block_scores(block, slopes, &t, &features, &v, at->j0, at->keys, scale);
    copy_out(s, block);
    copy_out(slope, slopes);
    return true;
}

void LEVEL_KERNEL(tanh_all)(float *x, int64_t count) {
    for (int64_t n = 0; n < count; n += LANES) v_store(x + n, v_tanh(v_load(x + n)));
}
