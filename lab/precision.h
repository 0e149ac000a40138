/* SPDX-License-Identifier: BSD-3-Clause
 *
 * precision.h: the number formats of the lab. Values are held as doubles, and a format is a rounding. So one text of an
 * algorithm runs in any precision, and the cost of a format shows where it rounds. */
#ifndef STROBE_LAB_PRECISION_H
#define STROBE_LAB_PRECISION_H

#include <stdbool.h>
#include <stdint.h>

typedef enum lab_type { LAB_FP64, LAB_FP32, LAB_FP16, LAB_BF16, LAB_E4M3 } lab_type;

/* The nearest value of the format, ties to even. fp16 and bf16 overflow to infinity; e4m3 has none and saturates at 448. */
double lab_round(double x, lab_type type);

/* The format that arithmetic on such elements is done in: fp64 for fp64, fp32 for everything else. */
lab_type lab_working_type(lab_type elements);

int64_t lab_type_bytes(lab_type type);
const char *lab_type_name(lab_type type);

/* Half of the distance between 1 and the next value: the largest relative error of one rounding. */
double lab_type_roundoff(lab_type type);

/* False if name is none of fp64, fp32, fp16, bf16, e4m3. */
bool lab_type_named(const char *name, lab_type *type);

enum { LAB_E4M3_LARGEST = 448 };

#endif
