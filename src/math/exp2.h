/* SPDX-License-Identifier: BSD-3-Clause
 *
 * exp2.h: constants of 2^x for the fast kernels: 2^x = 2^floor(x) * p(x - floor(x)), with p a minimax polynomial on [0, 1).
 * Its degree is 5, its relative error 7.5e-8 = 2^-23.7 before rounding and 1.5e-7 when evaluated in fp32, which is fp32
 * grade. p(0) is not exactly 1. The division by l cancels that, as long as l sums the same exponentials that P holds. */
#ifndef STROBE_MATH_EXP2_H
#define STROBE_MATH_EXP2_H

#define EXP2_C0 0.9999999250635878f
#define EXP2_C1 0.6931530732026261f
#define EXP2_C2 0.24015361702112634f
#define EXP2_C3 0.0558263181162335f
#define EXP2_C4 0.008989340023581907f
#define EXP2_C5 0.001877576700019989f

#define LOG2_E 1.4426950408889634
#define LN_2   0.6931471805599453

#endif
