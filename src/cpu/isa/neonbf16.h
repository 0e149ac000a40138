/* SPDX-License-Identifier: BSD-3-Clause
 *
 * neonbf16.h: the operations of tiles.h on ARM processors that multiply matrices of bf16 (FEAT_BF16, ARMv8.6 and many of
 * 8.2): a vector is four of NEON's registers, and a tile product is made of BFMMLA.
 *
 * BFMMLA multiplies 2 rows of 4 bf16 by 2 columns of 4 and adds to 2 x 2 fp32. It adds the products of elements 0 and 1,
 * adds that to the sum, and does the same with elements 2 and 3. Each addition rounds to odd, that is, an inexact result
 * becomes the neighbour whose last bit is 1; denormals are taken for zero, and results flushed to zero, whatever FPCR says
 * (Arm Architecture Reference Manual, "BFMMLA", without FEAT_EBF16 or with FPCR.EBF = 0, which is how Linux starts threads).
 * docs/numerics.md says what that costs. */
#ifndef STROBE_CPU_ISA_NEONBF16_H
#define STROBE_CPU_ISA_NEONBF16_H

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "cpu/isa/neon.h"

QUADWISE_2(w_and, vec_words, vec_words, vandq_u32)
QUADWISE_2(w_add, vec_words, vec_words, vaddq_u32)

static inline vec_words w_shift(vec_words a) {
    EACH_QUAD a.q[i] = vshrq_n_u32(a.q[i], 16);
    return a;
}

static inline vec v_quotient(vec a, vec b) { return v_div(a, b); }

static inline vec v_fms(vec a, vec b, vec c) {
    EACH_QUAD c.q[i] = vfmaq_f32(vnegq_f32(c.q[i]), a.q[i], b.q[i]);
    return c;
}

static inline void w_store(void *x, vec_words a) {
    uint32_t *words = x;
    EACH_QUAD vst1q_u32(words + 4 * i, a.q[i]);
}

static inline vec_words w_load_lanes(const uint16_t *a, const uint16_t *b, const uint16_t *c, const uint16_t *d) {
    const uint16_t *const at[] = {a, b, c, d};
    vec_words r;
    EACH_QUAD r.q[i] = vreinterpretq_u32_u16(vld1q_u16(at[i]));
    return r;
}

/* The operations whose instructions have vectors of another type. */
#define OF_16(operation, a, b) vreinterpretq_u32_u16(operation(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b)))
#define OF_64(operation, a, b) vreinterpretq_u32_u64(operation(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b)))
#define ZIP_LOW_16(a, b)       OF_16(vzip1q_u16, a, b)
#define ZIP_HIGH_16(a, b)      OF_16(vzip2q_u16, a, b)
#define ZIP_LOW_64(a, b)       OF_64(vzip1q_u64, a, b)
#define ZIP_HIGH_64(a, b)      OF_64(vzip2q_u64, a, b)
#define LARGEST_16(a, b)       OF_16(vmaxq_u16, a, b)
QUADWISE_2(w_zip_low_16, vec_words, vec_words, ZIP_LOW_16)
QUADWISE_2(w_zip_high_16, vec_words, vec_words, ZIP_HIGH_16)
QUADWISE_2(w_zip_low_32, vec_words, vec_words, vzip1q_u32)
QUADWISE_2(w_zip_high_32, vec_words, vec_words, vzip2q_u32)
QUADWISE_2(w_zip_low_64, vec_words, vec_words, ZIP_LOW_64)
QUADWISE_2(w_zip_high_64, vec_words, vec_words, ZIP_HIGH_64)
QUADWISE_2(w_largest, vec_words, vec_words, LARGEST_16)

static inline void w_zip_rows(vec_words pairs[2], vec_words low, vec_words high) {
    EACH_QUAD {
        vec_words *to = &pairs[i / 2];
        to->q[2 * i % QUADS] = ZIP_LOW_16(low.q[i], high.q[i]);
        to->q[2 * i % QUADS + 1] = ZIP_HIGH_16(low.q[i], high.q[i]);
    }
}

/* What is not whole goes through memory. */
static inline vec_words w_load_some(const uint16_t *x, int64_t n) {
    uint16_t some[2 * LANES] = {0};
    if (n >= 2 * LANES) {
        vec_words r;
        EACH_QUAD r.q[i] = vreinterpretq_u32_u16(vld1q_u16(x + 8 * i));
        return r;
    }
    if (n > 0) memcpy(some, x, (size_t)n * sizeof *x);
    vec_words r;
    EACH_QUAD r.q[i] = vreinterpretq_u32_u16(vld1q_u16(some + 8 * i));
    return r;
}

static inline void w_store_some(uint16_t *x, vec_words a, int64_t n) {
    uint16_t all[2 * LANES];
    uint16_t *to = n >= 2 * LANES ? x : all;
    EACH_QUAD vst1q_u16(to + 8 * i, vreinterpretq_u16_u32(a.q[i]));
    if (to == all && n > 0) memcpy(x, all, (size_t)n * sizeof *x);
}

static inline void v_store_some(float *x, vec a, int64_t n) {
    float all[LANES];
    float *to = n >= LANES ? x : all;
    v_store(to, a);
    if (to == all && n > 0) memcpy(x, all, (size_t)n * sizeof *x);
}

/* C has no name for the stores that bypass caches. */
static inline void w_stream(void *x, vec_words a) { w_store(x, a); }
static inline void v_stream(float *x, vec a) { v_store(x, a); }
static inline void stream_fence(void) {}

static inline bool w_all_below(vec_words a, uint16_t bound) {
    const vec_words two = w_largest(a, (vec_words){{a.q[2], a.q[3], a.q[0], a.q[1]}});
    return vmaxvq_u16(vreinterpretq_u16_u32(LARGEST_16(two.q[0], two.q[1]))) < bound;
}

static inline bool w_some_have(vec_words a, uint16_t bits) {
    const uint16x8_t all = vdupq_n_u16(bits);
    uint16x8_t found = vdupq_n_u16(0);
    EACH_QUAD found = vorrq_u16(found, vceqq_u16(vandq_u16(vreinterpretq_u16_u32(a.q[i]), all), all));
    return vmaxvq_u16(found) != 0;
}

typedef vec_words lane_mask; /* all bits of a lane, or none */

static inline lane_mask lanes_first(int64_t n) {
    const uint32x4_t place = {0, 1, 2, 3};
    const uint32_t bound = n < 0 ? 0 : n < LANES ? (uint32_t)n : (uint32_t)LANES;
    lane_mask r;
    EACH_QUAD r.q[i] = vcltq_u32(vaddq_u32(place, vdupq_n_u32(4u * (uint32_t)i)), vdupq_n_u32(bound));
    return r;
}

static inline lane_mask lanes_not_at_most(vec a, vec b) {
    lane_mask r;
    EACH_QUAD r.q[i] = vmvnq_u32(vcleq_f32(a.q[i], b.q[i]));
    return r;
}

QUADWISE_2(lanes_below, lane_mask, vec_words, vcltq_u32)

static inline bool lanes_any(lane_mask a) {
    return vmaxvq_u32(vorrq_u32(vorrq_u32(a.q[0], a.q[1]), vorrq_u32(a.q[2], a.q[3]))) != 0;
}

static inline vec v_pick(lane_mask where, vec yes, vec no) {
    EACH_QUAD no.q[i] = vbslq_f32(where.q[i], yes.q[i], no.q[i]);
    return no;
}

static inline vec_words w_and_where(lane_mask where, vec_words a, vec_words b) {
    EACH_QUAD a.q[i] = vandq_u32(a.q[i], vornq_u32(b.q[i], where.q[i]));
    return a;
}

static inline vec v_keep_visible(lane_mask rows, vec score, vec a) {
    EACH_QUAD {
        const uint32x4_t hidden = vceqq_f32(score.q[i], vdupq_n_f32(-INFINITY)), seen = vbicq_u32(rows.q[i], hidden);
        a.q[i] = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a.q[i]), seen));
    }
    return a;
}

/* Upper halves of `even` go to lower halves of `odd`. */
static inline vec_words v_pair_cut(vec_words even, vec_words odd) {
    EACH_QUAD odd.q[i] = vsriq_n_u32(odd.q[i], even.q[i], 16);
    return odd;
}

/* The instruction rounds to nearest even, and a NaN stays one. */
static inline uint16x8_t round_quad(float32x4_t x) { return vreinterpretq_u16_bf16(vcvtq_low_bf16_f32(x)); }

static inline vec_words v_pair_even(vec even, vec odd) {
    vec_words r;
    EACH_QUAD r.q[i] = vreinterpretq_u32_u16(vzip1q_u16(round_quad(even.q[i]), round_quad(odd.q[i])));
    return r;
}

static inline vec_words v_pair(vec even, vec odd) { return v_pair_even(even, odd); }

static inline vec_words w_round_bf16(vec low, vec high) {
    vec_words r;
    EACH_QUAD {
        const vec *of = i < QUADS / 2 ? &low : &high;
        const bfloat16x8_t first = vcvtq_low_bf16_f32(of->q[2 * i % QUADS]);
        r.q[i] = vreinterpretq_u32_u16(vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(first, of->q[2 * i % QUADS + 1])));
    }
    return r;
}

/* The counter that programs may read is too slow to tell. */
static inline bool lines_are_far(const char *const *line, int n) {
    (void)line;
    return n > 0;
}

#include "cpu/isa/dot_tiles.h"

static inline void tiles_enter(void) {}
static inline void tiles_leave(void) { _tile_release(); }

#endif
