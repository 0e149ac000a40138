/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dot_tiles.h: the tiles of amx.h on a processor that has no tile unit, but vector products of bf16, so that the kernels of
 * cpu/amx run there unchanged. dot_half() makes half of a tile product of them: dot_pairs.h on x86-64, dot_matrices.h on
 * ARM.
 *
 * Nothing is done before it has to be. A tile that was loaded is not copied: it is a place in memory, where products read
 * it. Products wait in a queue until one of their sums is stored or loaded anew. Then those that add to the same tile are
 * one sum, which stays in registers, and two tiles with the same rows of A share what is read of them. So what a tile was
 * loaded from must stay as it is until its products are done, as it does in cpu/amx, whose buffers change between steps
 * alone. */
#ifndef STROBE_CPU_ISA_DOT_TILES_H
#define STROBE_CPU_ISA_DOT_TILES_H

#include <stdbool.h>
#include <stddef.h>

enum { TILES = 8, DOT_ROWS = 16, DOT_HALF = 8, MOST_WAITING = 16 };

/* Rows in memory; of zeros where the distance is 0. */
struct dot_rows {
    const char *at;
    size_t row; /* bytes from one to the next */
};

#if defined(__aarch64__)
#include "cpu/isa/dot_matrices.h"
#else
#include "cpu/isa/dot_pairs.h"
#endif

struct dot_product {
    int c;
    struct dot_rows a, b;
};

struct dot_tiles {
    struct dot_rows tile[TILES];
    int waiting;
    struct dot_product queue[MOST_WAITING];
    _Alignas(64) float sums[TILES][DOT_ROWS][LANES];
};

/* One set a thread. Each file that includes this has its own: no kernel hands tiles to another file. */
static _Thread_local struct dot_tiles dot_tiles;

/* Their address: asked for once a function, since compilers would look it up again for each use of a field. */
static inline struct dot_tiles *own_tiles(void) {
    struct dot_tiles *volatile own = &dot_tiles;
    return own;
}

static __attribute__((noinline)) void dot_one(struct dot_tiles *t, int c, const struct dot_rows *a, const struct dot_rows *b,
                                              int count) {
    for (size_t first = 0; first < DOT_ROWS; first += DOT_HALF)
        dot_half(t->sums[c], t->sums[c], t->tile[c], t->tile[c], a, b, b, count, first, false);
}

static __attribute__((noinline)) void dot_two(struct dot_tiles *t, int c, int other, const struct dot_rows *a,
                                              const struct dot_rows *b, const struct dot_rows *more, int count) {
    for (size_t first = 0; first < DOT_ROWS; first += DOT_HALF)
        dot_half(t->sums[c], t->sums[other], t->tile[c], t->tile[other], a, b, more, count, first, true);
}

/* Takes the products of one tile out of the queue. Returns how many there are. */
static inline int dot_take(struct dot_tiles *t, int c, struct dot_rows *a, struct dot_rows *b) {
    int count = 0, left = 0;
    for (int n = 0; n < t->waiting; ++n) {
        if (t->queue[n].c == c)
            a[count] = t->queue[n].a, b[count++] = t->queue[n].b;
        else
            t->queue[left++] = t->queue[n];
    }
    t->waiting = left;
    return count;
}

/* The tile whose products have the same rows of A, in the same order; -1: there is none. */
static inline int dot_partner(const struct dot_tiles *t, const struct dot_rows *a, int count) {
    int found = 0;
    if (t->waiting < count) return -1;
    const int c = t->queue[0].c;
    for (int n = 0; n < t->waiting; ++n) {
        if (t->queue[n].c != c) continue;
        if (found == count || t->queue[n].a.at != a[found].at) return -1;
        ++found;
    }
    return found == count ? c : -1;
}

/* Does all products that wait. */
static __attribute__((noinline)) void dot_flush(struct dot_tiles *t) {
    struct dot_rows a[MOST_WAITING], b[MOST_WAITING], more[MOST_WAITING];
    while (t->waiting > 0) {
        const int c = t->queue[0].c, count = dot_take(t, c, a, b), other = dot_partner(t, a, count);
        if (other < 0) {
            dot_one(t, c, a, b, count);
        } else {
            dot_take(t, other, a, more);
            dot_two(t, c, other, a, b, more, count);
            t->tile[other] = (struct dot_rows){(const char *)t->sums[other], sizeof t->sums[0][0]};
        }
        t->tile[c] = (struct dot_rows){(const char *)t->sums[c], sizeof t->sums[0][0]};
    }
}

static void dot_finish(struct dot_tiles *t, int tile) {
    for (int n = 0; n < t->waiting; ++n)
        if (t->queue[n].c == tile) {
            dot_flush(t);
            return;
        }
}

static __attribute__((noinline)) void dot_load(struct dot_tiles *t, int tile, const void *base, size_t row) {
    dot_finish(t, tile);
    t->tile[tile] = (struct dot_rows){base, row};
}

static __attribute__((noinline)) void dot_store(struct dot_tiles *t, int tile, void *base, size_t row) {
    dot_finish(t, tile);
    for (size_t r = 0; r < DOT_ROWS; ++r)
        v_store((float *)(void *)((char *)base + r * row),
                v_load((const float *)(const void *)(t->tile[tile].at + r * t->tile[tile].row)));
}

static __attribute__((noinline)) void dot_multiply(struct dot_tiles *t, int c, int a, int b) {
    if (t->waiting == MOST_WAITING) dot_flush(t);
    t->queue[t->waiting++] = (struct dot_product){c, t->tile[a], t->tile[b]};
}

static _Alignas(64) const float no_sums[LANES];

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(memory)         ((void)(memory))
#define _tile_release()                  (own_tiles()->waiting = 0)
#define _tile_zero(t)                    dot_load(own_tiles(), t, no_sums, 0)
#define _tile_loadd(t, base, row)        dot_load(own_tiles(), t, base, row)
#define _tile_stream_loadd(t, base, row) dot_load(own_tiles(), t, base, row)
#define _tile_stored(t, base, row)       dot_store(own_tiles(), t, base, row)
#define _tile_dpbf16ps(c, a, b)          dot_multiply(own_tiles(), c, a, b)

#endif
