/* SPDX-License-Identifier: BSD-3-Clause
 *
 * element.h: one element of a tensor, whatever its type, as a double; and rounding to a type. The command converts by its
 * own code, not the library's, so that a wrong conversion there cannot hide behind the same one here. */
#ifndef STROBE_CLI_ELEMENT_H
#define STROBE_CLI_ELEMENT_H

#include <stddef.h>
#include <stdint.h>

/* dtype: STROBE_FP32, FP16, BF16, FP64, FP8_E4M3 or INT8, which is a byte of a mask as well. */
size_t element_bytes(int64_t dtype);

double element_load(const void *element, int64_t dtype);

/* Rounds to nearest, ties to even; what is too large becomes infinite, of e4m3 448, and is not for int8. */
void element_store(void *element, int64_t dtype, double value);
double element_round(int64_t dtype, double value);

/* The distance between the type's neighbouring numbers at a value's magnitude; infinite where the value is not finite. */
double element_step(int64_t dtype, double value);

#endif
