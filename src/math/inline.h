/* SPDX-License-Identifier: BSD-3-Clause
 *
 * inline.h: the specifiers of the functions of src/math, so that the same text is C11 and CUDA C. */
#ifndef STROBE_MATH_INLINE_H
#define STROBE_MATH_INLINE_H

#if defined(__CUDACC__)
#define STROBE_INLINE __host__ __device__ static inline
#else
#define STROBE_INLINE static inline
#endif

#endif
