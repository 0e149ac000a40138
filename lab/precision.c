/* SPDX-License-Identifier: BSD-3-Clause
 *
 * precision.c: rounding to a number format; see precision.h. */
#include "precision.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* A binary format: bits after the leading one, the exponent of the smallest normal number, the largest finite value. */
typedef struct format {
    const char *name;
    int64_t bytes;
    int fraction_bits, smallest_exponent;
    double largest;
    bool saturates;
} format;

static const format formats[] = {
    [LAB_FP64] = {.name = "fp64", .bytes = 8, .fraction_bits = 52},
    [LAB_FP32] = {.name = "fp32", .bytes = 4, .fraction_bits = 23},
    [LAB_FP16] = {"fp16", 2, 10, -14, 65504, false},
    [LAB_BF16] = {"bf16", 2, 7, -126, 0x1.fep127, false},
    [LAB_E4M3] = {"e4m3", 1, 3, -6, LAB_E4M3_LARGEST, true},
};

double lab_round(double x, lab_type type) {
    if (type == LAB_FP64) return x;
    if (type == LAB_FP32) return (double)(float)x;
    if (x == 0 || !isfinite(x)) return x;
    const format *f = &formats[type];
    const int exponent = ilogb(x) > f->smallest_exponent ? ilogb(x) : f->smallest_exponent;
    const double step = ldexp(1, exponent - f->fraction_bits); /* the distance between neighbours of the format at x */
    const double nearest = rint(x / step) * step;
    if (fabs(nearest) <= f->largest) return nearest;
    return copysign(f->saturates ? f->largest : INFINITY, x);
}

lab_type lab_working_type(lab_type elements) { return elements == LAB_FP64 ? LAB_FP64 : LAB_FP32; }

int64_t lab_type_bytes(lab_type type) { return formats[type].bytes; }

const char *lab_type_name(lab_type type) { return formats[type].name; }

double lab_type_roundoff(lab_type type) { return ldexp(1, -1 - formats[type].fraction_bits); }

bool lab_type_named(const char *name, lab_type *type) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; ++i) {
        if (strcmp(formats[i].name, name) != 0) continue;
        *type = (lab_type)i;
        return true;
    }
    return false;
}
