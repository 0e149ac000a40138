/* SPDX-License-Identifier: BSD-3-Clause
 *
 * arithmetic.h: the arithmetics for which the texts of this folder are compiled:
 *
 *   reference   float64 throughout, rounded once when a result is stored. This is the oracle.
 *   standard    (-DSTROBE_STANDARD) standard attention in the tensors' own dtype, as a framework computes it without a fused
 *               kernel: S and P are rounded to the dtype, sums are fp32. Tolerances are derived from its error.
 *   tensor_core (-DSTROBE_STANDARD -DSTROBE_TENSOR_CORE) attention of 16 bits as a GPU's fused kernel computes it: scores
 * and P stay fp32, and Q K^T is summed as tensor cores sum it (tensor_core.h). The tolerance of a GPU's lse.
 *
 * KERNEL(name) is the name of a kernel's function in this arithmetic. */
#ifndef STROBE_REFERENCE_ARITHMETIC_H
#define STROBE_REFERENCE_ARITHMETIC_H

#include <math.h>

#include "core/element.h"
#include "core/score/bind.h"

#if defined(STROBE_STANDARD)
typedef float real;
#define REAL(function) function##f
#define REAL_DTYPE     STROBE_FP32
#define OTHER_DTYPE    STROBE_FP64
#if defined(STROBE_TENSOR_CORE)
#define KERNEL(name) strobe__tensor_core_##name
#else
#define KERNEL(name) strobe__standard_##name
#endif
#else
typedef double real;
#define REAL(function) function
#define REAL_DTYPE     STROBE_FP64
#define OTHER_DTYPE    STROBE_FP32
#define KERNEL(name)   strobe__reference_##name
#endif

static inline real load(const void *data, int32_t dtype, int64_t index) { return (real)element_load(data, dtype, index); }

/* So many elements of a row, at most, lie on the stack as reals: dtypes are told apart once for all of them. */
enum { ROW_PART = 64 };

static inline int64_t part_of(int64_t n, int64_t x) { return n - x < ROW_PART ? n - x : ROW_PART; }

/* n elements from `index` on, at most ROW_PART: where they lie if they are reals there, else in `room`. */
static inline const real *load_part(real room[ROW_PART], const void *data, int32_t dtype, int64_t index, int64_t n) {
    switch (dtype) {
    case REAL_DTYPE: return (const real *)data + index;
    case OTHER_DTYPE:
        for (int64_t x = 0; x < n; ++x) room[x] = load(data, OTHER_DTYPE, index + x);
        break;
    case STROBE_BF16:
        for (int64_t x = 0; x < n; ++x) room[x] = load(data, STROBE_BF16, index + x);
        break;
    default:
        for (int64_t x = 0; x < n; ++x) room[x] = load(data, dtype, index + x);
    }
    return room;
}

static inline void store(void *data, int32_t dtype, int64_t index, real value) { element_store(data, dtype, index, value); }

/* A value that standard attention would hold in the dtype: rounded to it there, unchanged elsewhere. */
static inline real intermediate(int32_t dtype, real value) {
#if defined(STROBE_STANDARD) && !defined(STROBE_TENSOR_CORE)
    if (dtype == STROBE_FP8_E4M3 || dtype == STROBE_INT8) dtype = STROBE_BF16; /* a product of bytes is stored in 16 bits */
    if (dtype == STROBE_FP16) return fp16_to_float(float_to_fp16(value));
    if (dtype == STROBE_BF16) return bf16_to_float(float_to_bf16(value));
#endif
    (void)dtype;
    return value;
}

/* A weight of standard attention, `power` = exp(score - maximum) over the row's sum. With q in bytes, and so V in e4m3, the
 * power, times 2^8 so that its range is e4m3's, is what is rounded, as the operand of a product with V. */
static inline real weight_of(int32_t dtype, real power, real sum) {
#if defined(STROBE_STANDARD)
    if (dtype == STROBE_FP8_E4M3 || dtype == STROBE_INT8) return e4m3_to_float(float_to_e4m3(power * 256)) / 256 / sum;
#endif
    return intermediate(dtype, power / sum);
}

#endif
