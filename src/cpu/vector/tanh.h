/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tanh.h: tanh of a vector, for softcap and for score functions. */
#ifndef STROBE_CPU_TANH_H
#define STROBE_CPU_TANH_H

#include "cpu/level.h"

#if !defined(STROBE_TILES) || defined(STROBE_AMX_fp32) /* isa/tiles.h has one for 16 bits */
/* tanh x: x + x^3 p(x^2) with a minimax polynomial for |x| <= 0.625, error 1.6e-9, and 1 - 2 / (1 + e^2x) beyond. */
static inline vec v_tanh(vec x) {
    const vec size = v_abs(x), square = v_mul(x, x);
    vec p = v_fma(v_set(0.002292744816f), square, v_set(-0.008343945516f));
    p = v_fma(p, square, v_set(0.02176891865f));
    p = v_fma(p, square, v_set(-0.05395925958f));
    p = v_fma(p, square, v_set(0.1333330356f));
    p = v_fma(p, square, v_set(-0.3333333317f));
    const vec near = v_fma(v_mul(p, square), x, x);
    const vec exponent = v_min(v_set(40.0f), v_mul(size, v_set((float)(2 * LOG2_E))));
    const vec far = v_fma(v_set(-2), v_reciprocal(v_add(v_set(1), v_exp2(exponent))), v_set(1));
    return v_select_less(size, v_set(0.625f), near, v_with_sign(far, x));
}
#endif

#endif
