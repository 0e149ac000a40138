/* SPDX-License-Identifier: BSD-3-Clause
 *
 * array.c: sizes of arrays, with care; see array.h. */
#include "io/array.h"

bool array_bytes(const array *a, size_t element, size_t *bytes) {
    *bytes = element;
    for (int64_t axis = 0; axis < a->rank; ++axis)
        if (a->shape[axis] < 0 || __builtin_mul_overflow(*bytes, (size_t)a->shape[axis], bytes)) return false;
    return true;
}
