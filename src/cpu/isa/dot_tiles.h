/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dot_tiles.h: the tiles of amx.h on a processor that has no tile unit, but vector products of pairs of bf16 (AVX512_BF16),
 * so that the kernels of cpu/amx run there unchanged. vdpbf16ps multiplies 16 pairs by 16 pairs and adds both products of
 * each to a lane: a tile product is 256 of them, one for each row of A and of B.
 *
 * Nothing is done before it has to be. A tile that was loaded is not copied: it is a place in memory, where products read
 * it. Products wait in a queue until one of their sums is stored or loaded anew. Then those that add to the same tile are
 * one sum, which stays in registers, and two tiles with the same rows of A share what is read of them. So what a tile was
 * loaded from must stay as it is until its products are done, as it does in cpu/amx, whose buffers change between steps
 * alone.
 *
 * A product of pairs rounds to nearest after the odd and after the even elements, takes denormals for zero and flushes
 * results to zero (Intel's manual, SDM, volume 2, "VDPBF16PS"). */
#ifndef STROBE_CPU_ISA_DOT_TILES_H
#define STROBE_CPU_ISA_DOT_TILES_H

#include <stdbool.h>

#include "cpu/isa/avx512.h"

enum { TILES = 8, DOT_ROWS = 16, DOT_HALF = 8, MOST_WAITING = 16 };

/* Rows in memory; of zeros where the distance is 0. */
struct dot_rows {
    const char *at;
    size_t row; /* bytes from one to the next */
};

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

/* A pair, in all lanes. */
static inline __m512i dot_pair(const char *at) {
    int pair;
    memcpy(&pair, at, sizeof pair);
    return _mm512_set1_epi32(pair);
}

static inline vec dot_add(vec sum, __m512i a, __m512i b) {
#if defined(STROBE_AMX_EMULATED) /* for builds that test, on a processor without the instruction */
    const __m512i upper = _mm512_set1_epi32(-0x10000);
    const vec odd = v_fma(_mm512_castsi512_ps(_mm512_and_si512(a, upper)), _mm512_castsi512_ps(_mm512_and_si512(b, upper)),
                          sum);
    return v_fma(_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)), _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)), odd);
#else
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#endif
}

/* Half of the rows of one or two tiles of sums: += the products of a chain, a[n] b[n] (and a[n] more[n]), from row `first`
 * on. Eight rows of A meet one or two vectors of B. */
static inline __attribute__((always_inline)) void dot_half(float (*sums)[LANES], float (*others)[LANES], struct dot_rows c,
                                                           struct dot_rows other, const struct dot_rows *a,
                                                           const struct dot_rows *b, const struct dot_rows *more, int count,
                                                           size_t first, bool two) {
    vec sum[DOT_HALF], next[DOT_HALF];
#pragma GCC unroll 8
    for (size_t m = 0; m < DOT_HALF; ++m) {
        sum[m] = _mm512_loadu_ps(c.at + (first + m) * c.row);
        if (two) next[m] = _mm512_loadu_ps(other.at + (first + m) * other.row);
    }
    for (int n = 0; n < count; ++n) {
        const size_t row = a[n].row, third = 3 * row;
        const char *low = a[n].at + first * row, *high = low + 4 * row, *b_at = b[n].at, *more_at = two ? more[n].at : b_at;
        for (size_t k = 0; k < DOT_ROWS; ++k, low += 4, high += 4, b_at += b[n].row) {
            const __m512i pairs = _mm512_loadu_si512(b_at), others_pairs = _mm512_loadu_si512(more_at);
            const char *const at[DOT_HALF] = {low,  low + row,  low + 2 * row,  low + third,
                                              high, high + row, high + 2 * row, high + third};
#pragma GCC unroll 8
            for (size_t m = 0; m < DOT_HALF; ++m) {
                const __m512i pair = dot_pair(at[m]);
                sum[m] = dot_add(sum[m], pair, pairs);
                if (two) next[m] = dot_add(next[m], pair, others_pairs);
            }
            if (two) more_at += more[n].row;
        }
    }
#pragma GCC unroll 8
    for (size_t m = 0; m < DOT_HALF; ++m) {
        _mm512_store_ps(sums[first + m], sum[m]);
        if (two) _mm512_store_ps(others[first + m], next[m]);
    }
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
        _mm512_storeu_ps((char *)base + r * row, _mm512_loadu_ps(t->tile[tile].at + r * t->tile[tile].row));
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
