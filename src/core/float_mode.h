/* SPDX-License-Identifier: BSD-3-Clause
 *
 * float_mode.h: how a thread's processor computes with floats: which way it rounds, whether it flushes denormals, whether it
 * ends the process at a NaN. A caller may have set any of it; a task computes as programs start. */
#ifndef STROBE_CORE_FLOAT_MODE_H
#define STROBE_CORE_FLOAT_MODE_H

#if defined(__x86_64__)
#include <stdint.h>
#include <xmmintrin.h>
typedef uint32_t float_mode;
enum { FLOAT_MODE_OF_PROGRAMS = 0x1f80 }; /* to nearest, denormals kept, no exception is trapped */
static inline float_mode float_mode_get(void) { return _mm_getcsr(); }
static inline void float_mode_set(float_mode mode) { _mm_setcsr(mode); }
#else /* elsewhere nothing traps, and rounding is what C can set */
#include <fenv.h>
typedef int float_mode;
enum { FLOAT_MODE_OF_PROGRAMS = FE_TONEAREST };
static inline float_mode float_mode_get(void) { return fegetround(); }
static inline void float_mode_set(float_mode mode) { (void)fesetround(mode); }
#endif

#endif
