/* SPDX-License-Identifier: BSD-3-Clause
 *
 * float_mode.h: how a thread's processor computes with floats: which way it rounds, whether it flushes denormals, whether it
 * ends the process at a NaN. A caller may have set any of it; the library computes as programs start. */
#ifndef STROBE_CORE_FLOAT_MODE_H
#define STROBE_CORE_FLOAT_MODE_H

#if defined(__x86_64__) && !defined(_WIN32)
#include <stdint.h>
#include <xmmintrin.h>
typedef uint32_t float_mode;
enum { FLOAT_MODE_OF_PROGRAMS = 0x1f80 }; /* to nearest, denormals kept, no exception is trapped */
static inline float_mode float_mode_get(void) { return _mm_getcsr(); }
static inline void float_mode_set(float_mode mode) { _mm_setcsr(mode); }
#elif defined(__x86_64__) /* Windows, whose exp() and log() compute by x87, which rounds as fesetround() says */
#include <fenv.h>
#include <stdint.h>
#include <xmmintrin.h>
typedef uint64_t float_mode; /* what x87 rounds to in the upper half */
enum { FLOAT_MODE_OF_PROGRAMS = 0x1f80 };
static inline float_mode float_mode_get(void) { return (float_mode)(uint32_t)fegetround() << 32 | _mm_getcsr(); }
static inline void float_mode_set(float_mode mode) {
    (void)fesetround((int)(mode >> 32)); /* of both units */
    _mm_setcsr((uint32_t)mode);
}
#else /* elsewhere nothing traps, and rounding is what C can set */
#include <fenv.h>
typedef int float_mode;
enum { FLOAT_MODE_OF_PROGRAMS = FE_TONEAREST };
static inline float_mode float_mode_get(void) { return fegetround(); }
static inline void float_mode_set(float_mode mode) { (void)fesetround(mode); }
#endif

/* The mode of programs, until float_mode_set() gets back what this returns. */
static inline float_mode float_mode_enter(void) {
    const float_mode mode = float_mode_get();
    float_mode_set(FLOAT_MODE_OF_PROGRAMS);
    return mode;
}

#endif
