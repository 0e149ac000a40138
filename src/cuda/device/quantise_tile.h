/* SPDX-License-Identifier: BSD-3-Clause
 *
 * quantise_tile.h: the shared memory of quantise_block.cu, and how rows come there. A warp copies its own rows, whole lines
 * at a time, and its lanes then read their columns: units of 16 bytes lie so that eight lanes find theirs in different
 * banks, but for a few. Included by quantise_block.cu alone. */
#ifndef STROBE_CUDA_DEVICE_QUANTISE_TILE_H
#define STROBE_CUDA_DEVICE_QUANTISE_TILE_H

#include "cuda/device/quantise.h"
#include "cuda/device/stored_bytes.h"
#include "cuda/ptx/cp_async.h"
#include "cuda/ptx/shared_address.h"

#if defined(STORES_INT8)
enum { INT8 = 1 };
#else
enum { INT8 = 0 };
#endif
#define NAN_BITS   0x7fc00000u /* the scale of int8 rows of which a number is not finite */
#define LEAST_FOUR 0x81818181u /* -127 */

enum {
    THREE = COLUMNS % 3 == 0,        /* two transforms of two thirds of a row, which overlap */
    LANES = QUANTISE_LANES(COLUMNS), /* of a row */
    HELD = COLUMNS / LANES,          /* columns of a lane */
    THREADS = QUANTISE_CHUNK * LANES,
    WARP_ROWS = 32 / LANES,
    ROW_UNITS = COLUMNS / 8, /* of 16 bytes: of a row, and of a row of cosines or sines */
    ROW_PITCH = QUANTISE_ROW_PITCH(COLUMNS),
    TABLE_PITCH = QUANTISE_TABLE_PITCH(COLUMNS),
};

/* What a lane's columns need: the signs of both of a pair of neighbours in a word, in the bits of a 16-bit number's sign. Of
 * three thirds, the norm with the sign of each column of the second one too. */
struct lane_signs {
    uint32_t pair[HELD / 2];
    float norm[20 - HELD / 2]; /* of two halves a gap, so that lanes read different banks */
};

/* The rows that a CTA has of a head. */
struct rows {
    const uint16_t *from; /* the first one */
    uint8_t *to;
    float *scale;
    uint8_t tensor, count, scaled; /* rows that are there; that have a scale, used or not */
    int32_t head;
};

struct quantise_shared {
    struct rows head[QUANTISE_HEADS];
    uint32_t magnitude[3][QUANTISE_CHUNK]; /* of three heads, one after the other */
    struct lane_signs signs[LANES];
    uint4 rows[QUANTISE_CHUNK][ROW_PITCH];
    float4 table[2][QUANTISE_CHUNK][TABLE_PITCH]; /* only where rows turn, and where there is room; of sines as they turn
                                                     columns whose signs are changed */
};
static_assert(sizeof(struct quantise_shared) == QUANTISE_SHARED(COLUMNS) + QUANTISE_TABLES(COLUMNS), "the host asks for it");

INLINE int rows_there(const struct quantise_tensor *t, int64_t batch, int64_t first) {
    const int64_t used = t->used ? quantise_entry(t, t->used, batch) : t->rows;
    const int64_t left = (used < t->rows ? used : t->rows) - first;
    return left < 0 ? 0 : left < QUANTISE_CHUNK ? (int)left : QUANTISE_CHUNK;
}

/* Of entry `at` of the list of heads. */
INLINE struct rows rows_of(const struct quantise_together *all, uint32_t at, int64_t batch, int64_t first) {
    int which = 0;
#pragma unroll 1
    for (; which + 1 < all->count; ++which) {
        const uint32_t before = __umulhi(at, all->share[which]); /* entries of this tensor */
        const bool is_own = __umulhi(at + 1, all->share[which]) > before;
        at = is_own ? before : at - before;
        if (is_own) break;
    }
    const struct quantise_params *p = &all->tensor[which];
    const struct quantise_tensor *t = &p->t;
    struct rows rows = {.from = NULL,
                        .to = NULL,
                        .scale = NULL,
                        .tensor = (uint8_t)which,
                        .count = (uint8_t)rows_there(t, batch, first),
                        .scaled = (uint8_t)(t->rows - first < QUANTISE_CHUNK ? t->rows - first : QUANTISE_CHUNK),
                        .head = (int32_t)at};
    rows.from = (const uint16_t *)t->from + source_at(t, batch, first, at);
    rows.to = t->to + batch * t->to_stride[0] + first * t->to_stride[1] + at * t->to_stride[2];
    rows.scale = t->scale + batch * t->scale_stride[0] + (first >> p->block_shift) * t->scale_stride[1] +
                 at * t->scale_stride[2];
    return rows;
}

/* The units that a lane copies: of number i the row, and the unit in it. Three numbers on, or one where a row's units are a
 * power of two, it is the same unit ROWS_BELOW below. */
enum { PERIOD = THREE ? 3 : 1, LOADS = WARP_ROWS * ROW_UNITS / 32, ROWS_BELOW = 32 * PERIOD / ROW_UNITS };
INLINE int copied_row(int i) { return threadIdx.x / 32 * WARP_ROWS + (threadIdx.x % 32 + 32 * i) / ROW_UNITS; }
INLINE int copied_unit(int i) { return (threadIdx.x % 32 + 32 * i) % ROW_UNITS; }

/* Where unit n of a row lies. With two halves there is a gap after eight, since a lane reads two units at once, or four of a
 * table; of three thirds it reads half of one, or one of a table. */
INLINE int place_in_row(int n) { return THREE ? n : n + n / 8; }

/* Begins to copy the warp's rows of a head to the tile; those that are not there become 0. */
INLINE void load_rows(const struct quantise_together *all, struct quantise_shared *s, const struct rows *rows) {
    const int64_t stride = all->tensor[rows->tensor].t.from_stride[1], below = ROWS_BELOW * stride;
    const uint16_t *const first_row = rows->from;
    const int count = rows->count;
#pragma unroll
    for (int n = 0; n < PERIOD; ++n) {
        const int first = copied_row(n), unit = copied_unit(n), left = count - first;
        const uint16_t *from = first_row + (first * stride + 8 * unit);
        const uint32_t to = shared_address(&s->rows[first][place_in_row(unit)]);
#pragma unroll
        for (int i = 0; i < LOADS / PERIOD; ++i, from += below)
            cp_async_16(to + i * ROWS_BELOW * (int)sizeof s->rows[0], from, i * ROWS_BELOW < left ? 16 : 0);
    }
    cp_async_commit();
}

/* Waits until the warp's rows, and tables, have come. */
INLINE void wait_for_rows(void) {
    cp_async_wait(0);
    __syncwarp();
}

/* Begins to copy the warp's rows of both tables, `count` from position `first` on; load_rows() closes the group. */
INLINE void load_tables(const struct quantise_choices *c, struct quantise_shared *s, int64_t first, int count) {
#pragma unroll 1
    for (int i = 0; i < LOADS; ++i) {
        const int row = copied_row(i), unit = copied_unit(i), bytes = row < count ? 16 : 0;
        const int64_t at = (first + row) * (COLUMNS / 2) + 4 * unit;
        cp_async_16(shared_address(&s->table[0][row][place_in_row(unit)]), c->cos + at, bytes);
        cp_async_16(shared_address(&s->table[1][row][place_in_row(unit)]), c->sin + at, bytes);
    }
}

/* The sign of the first, or the second, of two neighbours, as a number's bit. */
INLINE uint32_t first_sign(uint32_t pair) { return pair << 16 & 0x80000000u; }
INLINE uint32_t second_sign(uint32_t pair) { return pair & 0x80000000u; }
INLINE float with_sign(float x, uint32_t sign) { return __uint_as_float(__float_as_uint(x) ^ sign); }

/* Four sines of pairs of which both columns have changed their signs, `first` and `second` those of four columns, as if
 * those had changed theirs: a turned number is a sum of products, whose bits stay but for the sign. */
INLINE float4 signed_sines(float4 sin, const uint32_t *first, const uint32_t *second) {
    const uint32_t low = first[0] ^ second[0], high = first[1] ^ second[1];
    return make_float4(with_sign(sin.x, first_sign(low)), with_sign(sin.y, second_sign(low)),
                       with_sign(sin.z, first_sign(high)), with_sign(sin.w, second_sign(high)));
}

/* Two 16-bit numbers. */
INLINE void widen_two(uint32_t two, bool is_bf16, float *to) {
    to[0] = is_bf16 ? __uint_as_float(two << 16) : f16_to_float((uint16_t)two);
    to[1] = is_bf16 ? __uint_as_float(two & 0xffff0000u) : f16_to_float((uint16_t)(two >> 16));
}

/* Four numbers over a scale as bytes. zero: of what sign, where it is +0 all zeros get it. Of int8, where the scale is NaN,
 * the least number, as everywhere. */
INLINE uint32_t four_bytes(const float *x, float inverse, float zero) {
    float level[4];
    if (INT8 && inverse != inverse) return LEAST_FOUR;
#pragma unroll
    for (int n = 0; n < 4; ++n) level[n] = fmaf(x[n], inverse, zero);
    return INT8 ? four_levels_int8(level) : four_levels_e4m3(level);
}

INLINE float sign_by(int bit) { return bit ? -1 : 1; }

INLINE void butterfly(float *a, float *b) {
    const float sum = *a + *b, difference = *a - *b;
    *a = sum, *b = difference;
}

/* A step's butterflies of low and high, after which lanes `apart` from each other swap: the one whose number has the bit
 * gets both lanes' differences, the other one both sums, its own in low. So the next step, of columns that were in different
 * lanes, is in a lane's own registers, and half as many numbers go across lanes as without. A lane that has the bit has
 * the second of each pair in low then: butterfly() leaves the difference with another sign in high, which flip_of_lane() and
 * flip_of_high() know; a product by 1 or -1 is exact, so that each result has one rounding. */
template <int N> INLINE void butterfly_and_swap(int lane, int apart, float (&low)[N], float (&high)[N]) {
    const float sign = sign_by(lane & apart);
#pragma unroll
    for (int n = 0; n < N; ++n) {
        const float sent = fmaf(high[n], -sign, low[n]);
        low[n] = fmaf(high[n], sign, low[n]), high[n] = __shfl_xor_sync(0xffffffffu, sent, apart);
    }
}

/* The sign that all of a lane's numbers have got, by the steps between lanes, which come from far to near. */
INLINE uint32_t flip_of_lane(int lane) { return (uint32_t)__popc(lane & lane >> 1) << 31; }
/* And those of high, behind the last of these steps. */
INLINE uint32_t flip_of_high(int lane) { return (uint32_t)lane << 31; }

#if COLUMNS % 3 != 0
#include "cuda/device/quantise_halves.h"
#else
#include "cuda/device/quantise_thirds.h"
#endif

/* The thread's row, a half or a third after the other; signs: of its columns; NULL where they stay. */
INLINE void load_row(const struct quantise_shared *s, const struct lane_signs *signs, bool is_bf16, int index, int lane,
                     struct row *r) {
    uint32_t two[HELD / 2];
    read_row(s, index, lane, two);
    if (signs)
#pragma unroll
        for (int n = 0; n < HELD / 8; ++n) {
            const uint4 sign = ((const uint4 *)signs->pair)[n];
            two[4 * n] ^= sign.x, two[4 * n + 1] ^= sign.y, two[4 * n + 2] ^= sign.z, two[4 * n + 3] ^= sign.w;
        }
    if (is_bf16)
#pragma unroll
        for (int n = 0; n < HELD / 2; ++n) widen_two(two[n], true, &r->x[2 * n / PART][2 * n % PART]);
    else
#pragma unroll
        for (int n = 0; n < HELD / 2; ++n) widen_two(two[n], false, &r->x[2 * n / PART][2 * n % PART]);
}

/* The signs of every lane's columns. All threads. */
INLINE void spread_signs(const struct quantise_choices *c, float norm, struct quantise_shared *s) {
#pragma unroll 1
    for (int n = threadIdx.x; n < COLUMNS / 2; n += THREADS) {
        struct lane_signs *const signs = &s->signs[n / (HELD / 2)];
        const int at = n % (HELD / 2), column = column_of(n / (HELD / 2), 2 * at / WIDTH, 2 * at % WIDTH);
        const uint32_t two = c->signs[column / 32] >> column % 32;
        signs->pair[at] = (two & 1) << 15 | two >> 1 << 31;
        if (THREE && at >= 4 && at < 8) {
            signs->norm[2 * at - 8] = with_sign(norm, first_sign(signs->pair[at]));
            signs->norm[2 * at - 7] = with_sign(norm, second_sign(signs->pair[at]));
        }
    }
}

#endif
