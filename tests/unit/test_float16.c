/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_float16.c: fp16 and bf16 on every pattern: values, rounding at, just below and just above every midpoint, overflow,
 * denormals, NaN; and fp16 against the compiler's _Float16 where it has one. */
#include <math.h>
#include <stdbool.h>

#include "core/element.h"
#include "math/float16.h"
#include "test.h"

enum { PATTERNS = 65536 };

/* A 16-bit format: sign, exponent, `fraction` bits. */
struct format {
    int fraction, bias, largest_exponent;
    float (*widen)(uint16_t);
    uint16_t (*narrow)(float);
};

static const struct format fp16 = {10, 15, 31, fp16_to_float, float_to_fp16};
static const struct format bf16 = {7, 127, 255, bf16_to_float, float_to_bf16};

/* The value of a finite pattern, from the definition of the format. */
static double value_of(const struct format *f, uint16_t pattern) {
    const int magnitude = pattern & 0x7fff, exponent = magnitude >> f->fraction;
    const int fraction = magnitude & ((1 << f->fraction) - 1);
    const double value = exponent == 0 ? ldexp(fraction, 1 - f->bias - f->fraction)
                                       : ldexp((1 << f->fraction) + fraction, exponent - f->bias - f->fraction);
    return pattern & 0x8000 ? -value : value;
}

static int exponent_of(const struct format *f, int pattern) { return (pattern & 0x7fff) >> f->fraction; }

static void every_pattern(const struct format *f) {
    for (int p = 0; p < PATTERNS; ++p) {
        const uint16_t pattern = (uint16_t)p;
        const float wide = f->widen(pattern);
        const uint16_t back = f->narrow(wide);
        const int fraction = p & ((1 << f->fraction) - 1);
        if (exponent_of(f, p) < f->largest_exponent) {
            if ((double)wide != value_of(f, pattern)) fail_msg("0x%04x widens to %a", p, (double)wide);
            if (back != pattern) fail_msg("0x%04x comes back as 0x%04x", p, back);
        } else if (fraction == 0) {
            if (!isinf(wide) || !signbit(wide) != !(p & 0x8000)) fail_msg("0x%04x is not infinite", p);
            if (back != pattern) fail_msg("0x%04x comes back as 0x%04x", p, back);
        } else {
            if (!isnan(wide) || !signbit(wide) != !(p & 0x8000)) fail_msg("0x%04x is not a NaN", p);
            if (!isnan(f->widen(back)) || !(back & 1 << (f->fraction - 1))) fail_msg("0x%04x comes back as 0x%04x", p, back);
        }
    }
}

/* Between each finite magnitude and the next, where the next may be infinity. The midpoint is exact in fp32. */
static void every_midpoint(const struct format *f) {
    for (int p = 0; exponent_of(f, p) < f->largest_exponent; ++p) {
        const int even = p & 1 ? p + 1 : p;
        const double low = value_of(f, (uint16_t)p);
        const bool last = exponent_of(f, p + 1) == f->largest_exponent;
        const double next = last ? 2 * low - value_of(f, (uint16_t)(p - 1)) : value_of(f, (uint16_t)(p + 1));
        const float middle = (float)((low + next) / 2);
        for (int sign = 0; sign < 2; ++sign) {
            const float direction = sign ? -1.0f : 1.0f;
            const int bit = sign ? 0x8000 : 0;
            const int tie = f->narrow(direction * middle), below = f->narrow(direction * nextafterf(middle, 0));
            const int above = f->narrow(direction * nextafterf(middle, INFINITY));
            if (tie != (even | bit)) fail_msg("%a is halfway and rounds to 0x%04x", (double)middle, tie);
            if (below != (p | bit)) fail_msg("just below %a rounds to 0x%04x", (double)middle, below);
            if (above != ((p + 1) | bit)) fail_msg("just above %a rounds to 0x%04x", (double)middle, above);
        }
    }
}

static void test_fp16_every_pattern(void **state) { (void)state, every_pattern(&fp16); }
static void test_bf16_every_pattern(void **state) { (void)state, every_pattern(&bf16); }
static void test_fp16_every_midpoint(void **state) { (void)state, every_midpoint(&fp16); }
static void test_bf16_every_midpoint(void **state) { (void)state, every_midpoint(&bf16); }

static void test_named_values(void **state) {
    (void)state;
    static const struct {
        float value;
        uint16_t fp16, bf16;
    } rows[] = {
        {0.0f, 0x0000, 0x0000},       {-0.0f, 0x8000, 0x8000},      {1.0f, 0x3c00, 0x3f80},      {-2.0f, 0xc000, 0xc000},
        {65504.0f, 0x7bff, 0x4780},   {65519.996f, 0x7bff, 0x4780}, {65520.0f, 0x7c00, 0x4780},  {-1e30f, 0xfc00, 0xf14a},
        {3.4e38f, 0x7c00, 0x7f80},    {0x1p-14f, 0x0400, 0x3880},   {0x1p-24f, 0x0001, 0x3380},  {0x1p-25f, 0x0000, 0x3300},
        {0x1.8p-25f, 0x0001, 0x3340}, {0x1p-149f, 0x0000, 0x0000},  {0x1p-133f, 0x0000, 0x0001}, {INFINITY, 0x7c00, 0x7f80},
        {-INFINITY, 0xfc00, 0xff80},
    };
    for (size_t n = 0; n < COUNT(rows); ++n) {
        assert_int_equal(float_to_fp16(rows[n].value), rows[n].fp16);
        assert_int_equal(float_to_bf16(rows[n].value), rows[n].bf16);
    }
}

static void test_nan_stays_nan(void **state) {
    (void)state;
    static const uint32_t patterns[] = {0x7f800001u, 0x7fc00000u, 0xff800001u, 0xffffffffu, 0x7f80ffffu, 0x7fffffffu};
    for (size_t n = 0; n < COUNT(patterns); ++n) {
        assert_true(isnan(fp16_to_float(float_to_fp16(bits_float(patterns[n])))));
        assert_true(isnan(bf16_to_float(float_to_bf16(bits_float(patterns[n])))));
    }
}

/* One element of any dtype: rounded on the way in, exact on the way out. */
static void test_elements(void **state) {
    (void)state;
    static const double value = 1 + 0x1.8p-8; /* between two bf16, exact in the others */
    static const struct {
        int32_t dtype;
        double stored;
    } rows[] = {
        {STROBE_FP32, 1 + 0x1.8p-8}, {STROBE_FP16, 1 + 0x1.8p-8}, {STROBE_BF16, 1 + 0x1p-7}, {STROBE_FP64, 1 + 0x1.8p-8}};
    for (size_t n = 0; n < COUNT(rows); ++n) {
        double memory[3] = {0};
        element_store(memory, rows[n].dtype, 1, value);
        element_store(memory, rows[n].dtype, 2, -value);
        assert_true(element_load(memory, rows[n].dtype, 0) == 0);
        assert_true(element_load(memory, rows[n].dtype, 1) == rows[n].stored);
        assert_true(element_load(memory, rows[n].dtype, 2) == -rows[n].stored);
    }
    uint16_t half;
    element_store(&half, STROBE_FP16, 0, 1 + 0x1.8p-11);
    assert_int_equal(half, 0x3c01);
}

#if defined(__FLT16_MAX__)
__extension__ typedef _Float16 compilers;

static void test_fp16_against_the_compiler(void **state) {
    (void)state;
    struct random random = {1};
    for (int n = 0; n < 1000000; ++n) {
        const float x = bits_float((uint32_t)random_bits(&random));
        const compilers half = (compilers)x;
        uint16_t pattern;
        memcpy(&pattern, &half, sizeof pattern);
        if (isnan(x)) continue; /* payloads are the compiler's own affair */
        if (float_to_fp16(x) != pattern) fail_msg("%a rounds to 0x%04x", (double)x, float_to_fp16(x));
    }
    for (int p = 0; p < PATTERNS; ++p) {
        const uint16_t pattern = (uint16_t)p;
        compilers half;
        memcpy(&half, &pattern, sizeof half);
        const float ours = fp16_to_float(pattern), theirs = (float)half;
        if (float_bits(ours) != float_bits(theirs) && !isnan(theirs)) fail_msg("0x%04x widens to %a", p, (double)ours);
    }
}
#else
static void test_fp16_against_the_compiler(void **state) { (void)state, skip(); }
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp16_every_pattern),
        cmocka_unit_test(test_bf16_every_pattern),
        cmocka_unit_test(test_fp16_every_midpoint),
        cmocka_unit_test(test_bf16_every_midpoint),
        cmocka_unit_test(test_named_values),
        cmocka_unit_test(test_nan_stays_nan),
        cmocka_unit_test(test_elements),
        cmocka_unit_test(test_fp16_against_the_compiler),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
