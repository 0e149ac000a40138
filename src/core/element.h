/* SPDX-License-Identifier: BSD-3-Clause
 *
 * element.h: one element of a tensor of any dtype, as a double, which holds every dtype's values exactly. For places where a
 * branch an element does not matter; fast paths convert rows at a time. */
#ifndef STROBE_CORE_ELEMENT_H
#define STROBE_CORE_ELEMENT_H

#include "math/float16.h"
#include "math/fp8.h"
#include "strobe/strobe.h"

static inline double element_load(const void *data, int32_t dtype, int64_t index) {
    switch (dtype) {
    case STROBE_FP64: return ((const double *)data)[index];
    case STROBE_FP16: return fp16_to_float(((const uint16_t *)data)[index]);
    case STROBE_BF16: return bf16_to_float(((const uint16_t *)data)[index]);
    case STROBE_INT8: return ((const int8_t *)data)[index];
    case STROBE_FP8_E4M3: return e4m3_to_float(((const uint8_t *)data)[index]);
    default: return ((const float *)data)[index];
    }
}

static inline void element_store(void *data, int32_t dtype, int64_t index, double value) {
    switch (dtype) {
    case STROBE_FP64: ((double *)data)[index] = value; break;
    case STROBE_FP16: ((uint16_t *)data)[index] = float_to_fp16((float)value); break;
    case STROBE_BF16: ((uint16_t *)data)[index] = float_to_bf16((float)value); break;
    default: ((float *)data)[index] = (float)value;
    }
}

#endif
