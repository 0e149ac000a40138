/* SPDX-License-Identifier: BSD-3-Clause
 *
 * exp2.h: constants of 2^x for the fast kernels: 2^x = 2^floor(x) * p(x - floor(x)), with p a minimax polynomial of degree 5
 * on [0, 1] among those with p(0) = 1 and p(1) = 2. So whole powers are exact, and so are numbers that fp32 cannot tell from
 * them: a row's only key has a weight of exactly 1. Its relative error is 9.8e-8 before rounding (7.5e-8 would be possible
 * without the two conditions) and 1.6e-7 when evaluated in fp32. */
#ifndef STROBE_MATH_EXP2_H
#define STROBE_MATH_EXP2_H

#define EXP2_C0 1.0f
#define EXP2_C1 0.6931517124176025f
#define EXP2_C2 0.2401593029499054f
#define EXP2_C3 0.05581868439912796f
#define EXP2_C4 0.008990994654595852f
#define EXP2_C5 0.001879318617284298f

#define LOG2_E 1.4426950408889634
#define LN_2   0.6931471805599453

#endif
