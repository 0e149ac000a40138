/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_sinks_parts.c: the gradient of sinks of a call that has a part of the keys, or none, with out and lse of all of them,
 * as one process of many has: it is that of all keys, with the error of out. And of all keys, it does not depend on out: an
 * out that is off by its rounding, or more, changes nothing. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "strobe/strobe.h"
#include "test.h"

enum { ROWS = 70, KEYS = 150, HEADS = 4, HEADS_KV = 2, DIM = 24, MOST = KEYS * HEADS * DIM };

struct call {
    int32_t dtype;
    union {
        float wide[MOST];
        uint16_t narrow[MOST];
    } q, k, v, dout, out, dq, dk, dv;
    float lse[ROWS * HEADS], dlse[ROWS * HEADS], sinks[HEADS], dsinks[HEADS];
};

static float number(int64_t n, int what) { return (float)((n * 7919 + what * 104729) % 2003 - 1001) / 500; }

/* Numbers that bf16 can hold. */
static void fill(struct call *c, void *to, int what) {
    for (int64_t n = 0; n < MOST; ++n) {
        const float x = number(n, what);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        bits &= 0xffff0000u;
        if (c->dtype == STROBE_BF16)
            ((uint16_t *)to)[n] = (uint16_t)(bits >> 16);
        else
            memcpy((float *)to + n, &bits, sizeof bits);
    }
}

static strobe_attention attention_of(struct call *c, const strobe_sinks *sinks, int64_t keys) {
    strobe_attention a = {.struct_size = sizeof a, .batch = 1, .seq_q = ROWS, .seq_k = keys, .heads_q = HEADS};
    a.heads_kv = HEADS_KV, a.dim = DIM, a.dtype = c->dtype, a.sinks = sinks;
    a.q.data = &c->q, a.k.data = &c->k, a.v.data = &c->v, a.out.data = &c->out, a.lse.data = c->lse;
    return a;
}

static void begin(struct call *c, int32_t dtype) {
    c->dtype = dtype;
    fill(c, &c->q, 0), fill(c, &c->k, 1), fill(c, &c->v, 2), fill(c, &c->dout, 3);
    for (int h = 0; h < HEADS; ++h) c->sinks[h] = 1 + number(h, 4);
    for (int64_t n = 0; n < ROWS * HEADS; ++n) c->dlse[n] = number(n, 5);
    const strobe_sinks sinks = {.struct_size = sizeof sinks, .data = c->sinks};
    const strobe_attention a = attention_of(c, &sinks, KEYS);
    if (strobe_forward(&a, NULL, 0, NULL)) fail_msg("%s", strobe_last_error());
}

/* The gradient by the first `keys` keys. Returns false if the kernel does not take the call. */
static bool dsinks_of(struct call *c, const char *kernel, int64_t keys, bool with_dlse, double to[HEADS]) {
    const strobe_sinks sinks = {.struct_size = sizeof sinks, .data = c->sinks};
    const strobe_sinks dsinks = {.struct_size = sizeof dsinks, .data = c->dsinks};
    const strobe_tuning tuning = {.struct_size = sizeof tuning, .kernel = kernel};
    strobe_attention a = attention_of(c, &sinks, keys);
    strobe_gradients g = {.struct_size = sizeof g, .dsinks = &dsinks};
    a.tuning = &tuning;
    g.dout.data = &c->dout, g.dq.data = &c->dq, g.dk.data = &c->dk, g.dv.data = &c->dv;
    if (with_dlse) g.dlse.data = c->dlse;
    if (strobe_backward(&a, &g, NULL, 0, NULL)) return false;
    for (int h = 0; h < HEADS; ++h) to[h] = (double)c->dsinks[h];
    return true;
}

static void same(const char *kernel, const double x[HEADS], const double y[HEADS], double allowed) {
    double most = 0;
    for (int h = 0; h < HEADS; ++h) most = fmax(most, fabs(y[h]));
    for (int h = 0; h < HEADS; ++h)
        if (!(fabs(x[h] - y[h]) <= allowed * most)) fail_msg("%s: dsinks %d is %g, not %g", kernel, h, x[h], y[h]);
}

static const char *const kernels[] = {"cpu_backward_baseline",   "cpu_backward_avx2",    "cpu_backward_avx512",
                                      "cpu_backward_avx512bf16", "cpu_backward_neon",    "cpu_backward_neonbf16",
                                      "cpu_backward_amx",        "cpu_backward_fp32_amx"};
static struct call c;

static void test_part_of_the_keys(void **state) {
    (void)state;
    int taken = 0;
    for (int dtype = 0; dtype < 2; ++dtype)
        for (size_t n = 0; n < sizeof kernels / sizeof kernels[0]; ++n)
            for (int with_dlse = 0; with_dlse < 2; ++with_dlse) {
                double whole[HEADS], part[HEADS];
                begin(&c, dtype ? STROBE_BF16 : STROBE_FP32);
                if (!dsinks_of(&c, kernels[n], KEYS, with_dlse, whole)) continue;
                ++taken;
                for (int64_t keys = 0; keys < KEYS; keys += 74) {
                    if (!dsinks_of(&c, kernels[n], keys, with_dlse, part)) fail_msg("%s", strobe_last_error());
                    same(kernels[n], part, whole, dtype ? 1e-2 : 1e-5);
                }
            }
    assert_true(taken > 0);
}

/* An out that is off by up to an eighth. */
static void test_out_does_not_count(void **state) {
    (void)state;
    int taken = 0;
    for (size_t n = 0; n < sizeof kernels / sizeof kernels[0]; ++n) {
        double right[HEADS], found[HEADS];
        begin(&c, STROBE_BF16);
        if (!dsinks_of(&c, kernels[n], KEYS, true, right)) continue;
        ++taken;
        for (int64_t x = 0; x < ROWS * HEADS * DIM; ++x) c.out.narrow[x] = (uint16_t)(c.out.narrow[x] + x % 16);
        assert_true(dsinks_of(&c, kernels[n], KEYS, true, found));
        same(kernels[n], found, right, 1e-5);
    }
    assert_true(taken > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_part_of_the_keys), cmocka_unit_test(test_out_does_not_count)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
