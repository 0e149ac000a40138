/* SPDX-License-Identifier: BSD-3-Clause
 *
 * level.h: the level of vector instructions that a file is compiled for, by -DSTROBE_LEVEL_<level> and the compiler flags of
 * src/CMakeLists.txt. The algorithms are one text over the vector operations of isa/<level>.h:
 *
 *   LANES, REGISTERS         floats in a vector, vectors that the processor holds
 *   UNROLL, VECTORS          the register tile of the matrix products, UNROLL x VECTORS accumulators
 *   SMALL_CACHES             1: products prefetch into L1 what a large second-level cache would bring in time
 *   v_load v_store v_set v_add v_sub v_mul v_div v_fma v_max v_abs v_sqrt v_select_less v_select_equal
 *   v_store_parts            stores the parts of UNROLL lanes of a vector, so many floats apart
 *   v_min v_with_sign        the second if one is a NaN; a >= 0 with another's sign
 *   v_reciprocal             1 / a for a normal a, relative error 1e-7
 *   v_equal_bits             one bit a lane: the lanes that are equal
 *   w_load w_set w_xor3      vectors of LANES words of 32 bits
 *   w_add64 w_high           LANES / 2 numbers of 64 bits, plus a number, and their high halves
 *   w_multiply               LANES / 2 products in 64 bits of the words of even lanes
 *   w_join                   the even lanes of a, and those of b in the lanes behind them
 *   w_double                 twice each word
 *   v_select_highest_bit     the highest bit of each word chooses between two vectors
 *   v_select_below           and so do words below others
 *   v_transpose_floats       LANES vectors: lane i of vector j becomes lane j of vector i
 *   nonzero_bytes            of 32 bytes, one bit each: it is not 0
 *   v_load_bf16 v_load_fp16  LANES elements, widened
 *   v_store_bf16 _fp16       LANES elements, rounded to nearest even; a NaN stays one
 *   v_load2_bf16 _fp16 _int8 2 LANES elements, widened: a struct vec2
 *   v_load2_e4m3             the same, over 256
 *   v_sum v_highest          the sum and the maximum of a vector's lanes, without a NaN for v_highest
 *   v_sums                   the sums of the lanes of LANES vectors, as one vector
 *   v_exp2_start _scale      2^x for x <= 127, relative error 1.6e-7, exact for whole x, 0 below -125, NaN to NaN: the
 *                            fraction of x, and the polynomial of it times the power of two (v_exp2)
 *
 * Every function here and in the headers of src/cpu is static. Of inline functions with linkage the linker keeps one copy
 * for all files, which could be the one compiled for AVX-512. */
#ifndef STROBE_CPU_LEVEL_H
#define STROBE_CPU_LEVEL_H

#include <stdint.h>
#include <string.h>

#include "core/float_mode.h"

/* A function that is inlined everywhere, and so compiled for each value of its constant arguments. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))

#if defined(STROBE_LEVEL_amx)
#define STROBE_TILES
#include "cpu/isa/amx.h"
#define LEVEL_KERNEL(name) strobe__cpu_##name##_amx
#elif defined(STROBE_LEVEL_avx512bf16)
#define STROBE_TILES
#include "cpu/isa/amx.h"
#define LEVEL_KERNEL(name) strobe__cpu_##name##_avx512bf16
#elif defined(STROBE_LEVEL_avx512)
#include "cpu/isa/avx512.h"
#define LEVEL_KERNEL(name) strobe__cpu_##name##_avx512
#elif defined(STROBE_LEVEL_avx2)
#include "cpu/isa/avx2.h"
#define LEVEL_KERNEL(name) strobe__cpu_##name##_avx2
#elif defined(STROBE_LEVEL_neonbf16)
#define STROBE_TILES
#include "cpu/isa/neonbf16.h"
#define LEVEL_KERNEL(name) strobe__cpu_##name##_neonbf16
#elif defined(STROBE_LEVEL_neon)
#include "cpu/isa/neon.h"
#define LEVEL_KERNEL(name) strobe__cpu_##name##_neon
#else
#include "cpu/isa/baseline.h"
#define LEVEL_KERNEL(name) strobe__cpu_##name##_baseline
#endif
#if defined(STROBE_TILES)
#include "cpu/isa/tiles.h"
#endif

/* What is left of 2^x. A loop can start that of other numbers in between. */
ALWAYS_INLINE vec v_exp2_finish(struct exp2_parts e) {
    vec p = v_fma(v_set(EXP2_C5), e.fraction, v_set(EXP2_C4));
    p = v_fma(p, e.fraction, v_set(EXP2_C3));
    p = v_fma(p, e.fraction, v_set(EXP2_C2));
    p = v_fma(p, e.fraction, v_set(EXP2_C1));
    p = v_fma(p, e.fraction, v_set(EXP2_C0));
    return v_exp2_scale(e, p);
}

static inline vec v_exp2(vec x) { return v_exp2_finish(v_exp2_start(x)); }

/* Denormals are 60 times as slow as other numbers and mean nothing here. So they are flushed to zero while a task runs, and
 * then the thread's mode is restored. */
static inline float_mode enter_flush_to_zero(void) {
    const float_mode mode = float_mode_get();
#if defined(__x86_64__)
    float_mode_set(mode | 0x8040u); /* FTZ, DAZ */
#endif
    return mode;
}
static inline void leave_flush_to_zero(float_mode mode) { float_mode_set(mode); }

#endif
