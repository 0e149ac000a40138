/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_fp8.c: e4m3 on every byte: values, rounding at, just below and just above every midpoint, saturation, NaN; and the
 * same by the command's own conversion. What is stored in e4m3 is what it stands for: with scales that are powers of two
 * every kernel of the CPU must give the bits that it gives for the same numbers in fp32. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "math/fp8.h"
#include "problem/element.h"
#include "strobe/strobe.h"
#include "test.h"

/* The value of a byte, from the definition of the format. */
static double value_of(int byte) {
    const int exponent = byte >> 3 & 15, fraction = byte & 7;
    const double value = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
    return byte & 0x80 ? -value : value;
}

static void test_every_byte(void **state) {
    (void)state;
    for (int byte = 0; byte < 256; ++byte) {
        const unsigned char element = (unsigned char)byte;
        const float wide = e4m3_to_float(element);
        if ((byte & 0x7f) == 0x7f) {
            assert_true(isnan(wide) && isnan(element_load(&element, STROBE_FP8_E4M3)));
            assert_int_equal(float_to_e4m3(wide), 0x7f);
            continue;
        }
        if ((double)wide != value_of(byte)) fail_msg("0x%02x is %g", byte, (double)wide);
        assert_int_equal(float_to_e4m3(wide), byte);
        assert_true(element_load(&element, STROBE_FP8_E4M3) == value_of(byte));
    }
}

/* By the library's conversion, and by the command's. */
static void rounds_to(float x, int byte) {
    unsigned char stored = 0;
    element_store(&stored, STROBE_FP8_E4M3, (double)x);
    if (float_to_e4m3(x) != byte) fail_msg("%a becomes 0x%02x, not 0x%02x", (double)x, float_to_e4m3(x), byte);
    if (stored != byte) fail_msg("the command makes 0x%02x of %a, not 0x%02x", stored, (double)x, byte);
}

static void test_every_midpoint(void **state) {
    (void)state;
    for (int byte = 0; byte < 0x7e; ++byte) {
        const float middle = (float)((value_of(byte) + value_of(byte + 1)) / 2);
        rounds_to(nextafterf(middle, 0), byte);
        rounds_to(middle, byte & 1 ? byte + 1 : byte);
        rounds_to(nextafterf(middle, INFINITY), byte + 1);
        rounds_to(-nextafterf(middle, 0), byte | 0x80);
        rounds_to(-middle, (byte & 1 ? byte + 1 : byte) | 0x80);
        rounds_to(-nextafterf(middle, INFINITY), (byte + 1) | 0x80);
    }
}

static void test_ends(void **state) {
    (void)state;
    static const float large[] = {448, 449, 464, 480, 1e9f, 0x1.fffffep127f, INFINITY};
    for (size_t n = 0; n < COUNT(large); ++n) rounds_to(large[n], 0x7e), rounds_to(-large[n], 0xfe);
    rounds_to(0, 0), rounds_to(-0.0f, 0x80);
    rounds_to(0x1p-149f, 0), rounds_to(-0x1p-149f, 0x80);
    rounds_to(NAN, 0x7f), rounds_to(-NAN, 0x7f);
}

/* -------------------------------------------------------------------------------------------------- what it stands for */

enum { SEQ = 70, HEADS = 2, DIM = 24 };
static unsigned char bytes[3][SEQ * HEADS * DIM];
static float wide[3][SEQ * HEADS * DIM], scale[3][SEQ * HEADS], out[2][SEQ * HEADS * DIM], lse[2][SEQ * HEADS];

static strobe_status run(const char *kernel, int64_t block, bool quantised) {
    strobe_tuning tuning = {.struct_size = sizeof tuning, .kernel = kernel};
    strobe_scales s = {.struct_size = sizeof s, .q = scale[0], .k = scale[1], .v = scale[2]};
    const int64_t stride[3] = {0, HEADS, 1};
    s.block_q = s.block_k = block;
    memcpy(s.stride_q, stride, sizeof stride), memcpy(s.stride_k, stride, sizeof stride);
    memcpy(s.stride_v, stride, sizeof stride);
    strobe_attention a = {.struct_size = sizeof a, .batch = 1, .seq_q = SEQ, .seq_k = SEQ, .heads_q = HEADS, .dim = DIM};
    a.mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, a.tuning = &tuning;
    a.q.data = quantised ? (void *)bytes[0] : wide[0];
    a.k.data = quantised ? (void *)bytes[1] : wide[1];
    a.v.data = quantised ? (void *)bytes[2] : wide[2];
    a.out.data = out[quantised], a.lse.data = lse[quantised];
    a.q.dtype = a.k.dtype = a.v.dtype = quantised ? STROBE_FP8_E4M3 : STROBE_FP32;
    if (quantised) a.scales = &s;
    return strobe_forward(&a, NULL, 0, NULL);
}

static void test_what_it_stands_for(void **state) {
    (void)state;
    static const int64_t blocks[] = {0, 1, 16};
    struct random r = {.state = 3};
    strobe_kernel_info info = {.struct_size = sizeof info};
    int ran = 0;
    for (size_t b = 0; b < COUNT(blocks); ++b) {
        for (int t = 0; t < 3; ++t) {
            for (int n = 0; n < SEQ * HEADS; ++n) scale[t][n] = ldexpf(1, -6 + (int)random_below(&r, 3));
            for (int n = 0; n < SEQ * HEADS * DIM; ++n) {
                const int row = n / (HEADS * DIM), head = n / DIM % HEADS;
                const int64_t of = blocks[b] ? row / blocks[b] * HEADS + head : head;
                bytes[t][n] = (unsigned char)(random_below(&r, 0x7e) | random_below(&r, 2) << 7);
                if (fabs(value_of(bytes[t][n])) > 32) bytes[t][n] &= 0xbf;
                wide[t][n] = (float)value_of(bytes[t][n]) * scale[t][of];
            }
        }
        for (int32_t n = 0; strobe_kernel_at(n, &info) == STROBE_OK; ++n) {
            if (info.operation != STROBE_FORWARD || info.device != STROBE_CPU || info.unavailable) continue;
            if (!(info.dtypes[0] >> STROBE_FP8_E4M3 & 1) || !strcmp(info.name, "standard_forward")) continue;
            assert_int_equal(run(info.name, blocks[b], true), STROBE_OK);
            assert_int_equal(run(info.name, blocks[b], false), STROBE_OK);
            assert_memory_equal(out[0], out[1], sizeof out[0]);
            assert_memory_equal(lse[0], lse[1], sizeof lse[0]);
            ++ran;
        }
    }
    assert_true(ran >= 2 * (int)COUNT(blocks)); /* the reference and a vector level */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_byte),
        cmocka_unit_test(test_every_midpoint),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_what_it_stands_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
