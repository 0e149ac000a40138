/* SPDX-License-Identifier: BSD-3-Clause
 *
 * element.c: elements of all types as doubles; see element.h. Every type is described by its significand and the range of
 * its exponents; rounding works on doubles and is exact, so no value is ever rounded twice. */
#include "problem/element.h"

#include <math.h>
#include <string.h>
#include <strobe/strobe.h>

typedef struct format {
    size_t bytes;
    int significand;    /* bits, the hidden one included */
    int least_exponent; /* of a normal number; below it numbers lose bits */
    double largest;
} format;

static const format formats[] = {
    [STROBE_FP32] = {4, 24, -126, 0x1.fffffep127}, [STROBE_FP16] = {2, 11, -14, 65504},
    [STROBE_BF16] = {2, 8, -126, 0x1.fep127},      [STROBE_FP64] = {8, 53, -1022, 0x1.fffffffffffffp1023},
    [STROBE_FP8_E4M3] = {1, 4, -6, 448},           [STROBE_INT8] = {1, 7, 6, 127}, /* its unit is 1 everywhere */
};

size_t element_bytes(int64_t dtype) { return formats[dtype].bytes; }

double element_round(int64_t dtype, double value) {
    const format *f = &formats[dtype];
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    int exponent = (int)(bits >> 52 & 0x7ff) - 1023;
    if (f->significand == 53 || isnan(value) || (exponent == 1024 && dtype != STROBE_FP8_E4M3)) return value;
    if (dtype == STROBE_FP8_E4M3 && fabs(value) > f->largest) return copysign(f->largest, value); /* it has no infinity */
    if (fabs(value) >= 2 * f->largest) return copysign(INFINITY, value);
    if (exponent < f->least_exponent) exponent = f->least_exponent;
    /* In the binade of this constant a double's unit is the type's unit at the value: the addition rounds. */
    const uint64_t constant_bits = (uint64_t)(1023 + 52 + exponent - f->significand + 1) << 52 | (uint64_t)1 << 51;
    double constant;
    memcpy(&constant, &constant_bits, sizeof constant);
    const double rounded = copysign((fabs(value) + constant) - constant, value);
    return fabs(rounded) > f->largest ? copysign(INFINITY, value) : rounded;
}

double element_step(int64_t dtype, double value) {
    const format *f = &formats[dtype];
    if (!isfinite(value)) return INFINITY;
    const int exponent = value == 0 ? f->least_exponent : ilogb(value);
    return ldexp(1, (exponent < f->least_exponent ? f->least_exponent : exponent) - f->significand + 1);
}

static uint32_t float_bits(double value) {
    const float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    return bits;
}

/* value is an fp16 number. */
static uint16_t fp16_bits(double value) {
    const uint16_t sign = signbit(value) ? 0x8000 : 0;
    const double magnitude = fabs(value);
    if (isnan(value)) return sign | 0x7e00;
    if (isinf(value)) return sign | 0x7c00;
    if (magnitude < 0x1p-14) return (uint16_t)(sign | (uint16_t)(magnitude * 0x1p24)); /* the unit of the smallest numbers */
    const uint32_t bits = float_bits(magnitude);
    return (uint16_t)(sign | ((bits >> 13) - ((127 - 15) << 10)));
}

static double fp16_value(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double magnitude = exponent ? (1024 + fraction) * 0x1p-25 * (double)((uint64_t)1 << exponent) : fraction * 0x1p-24;
    if (exponent == 31) magnitude = fraction ? NAN : INFINITY;
    return bits & 0x8000 ? -magnitude : magnitude;
}

/* value is an e4m3 number or a NaN. */
static unsigned char fp8_bits(double value) {
    const unsigned char sign = signbit(value) ? 0x80 : 0;
    const double magnitude = fabs(value);
    if (isnan(value)) return 0x7f;
    if (magnitude < 0x1p-6) return (unsigned char)(sign | (unsigned char)(magnitude * 0x1p9));
    const int exponent = ilogb(magnitude);
    return (unsigned char)(sign | (exponent + 7) << 3 | ((int)ldexp(magnitude, 3 - exponent) & 7));
}

static double fp8_value(unsigned char bits) {
    const int exponent = bits >> 3 & 15, fraction = bits & 7;
    double magnitude = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
    if ((bits & 0x7f) == 0x7f) magnitude = NAN;
    return bits & 0x80 ? -magnitude : magnitude;
}

double element_load(const void *element, int64_t dtype) {
    uint16_t half;
    uint32_t bits;
    float single;
    double value;
    switch (dtype) {
    case STROBE_FP32: return memcpy(&single, element, sizeof single), (double)single;
    case STROBE_FP16: return memcpy(&half, element, sizeof half), fp16_value(half);
    case STROBE_BF16:
        memcpy(&half, element, sizeof half);
        bits = (uint32_t)half << 16;
        return memcpy(&single, &bits, sizeof single), (double)single;
    case STROBE_FP64: return memcpy(&value, element, sizeof value), value;
    case STROBE_FP8_E4M3: return fp8_value(*(const unsigned char *)element);
    default: return *(const signed char *)element;
    }
}

void element_store(void *element, int64_t dtype, double value) {
    const double rounded = element_round(dtype, value);
    const float single = (float)rounded;
    uint16_t half;
    switch (dtype) {
    case STROBE_FP32: memcpy(element, &single, sizeof single); break;
    case STROBE_FP16: half = fp16_bits(rounded), memcpy(element, &half, sizeof half); break;
    case STROBE_BF16: half = (uint16_t)(float_bits(rounded) >> 16), memcpy(element, &half, sizeof half); break;
    case STROBE_FP64: memcpy(element, &value, sizeof value); break;
    case STROBE_FP8_E4M3: *(unsigned char *)element = fp8_bits(rounded); break;
    default: *(signed char *)element = (signed char)rounded;
    }
}
