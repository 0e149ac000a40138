/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_float_mode.c: a caller that rounds upwards, and that ends the process at a NaN, an infinity or a division by 0, gets
 * the bytes that any other gets, from the calls that work something out before their tasks; and has its mode back. Forward
 * and backward are in test_threads.c. */
#include <fenv.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/float_mode.h"
#include "strobe/strobe_append.h"
#include "strobe/strobe_score.h"
#include "test.h"

enum { ROWS = 40, DIM = 64, START = 1 << 20 };

static float q[ROWS * DIM], k[ROWS * DIM], out[ROWS * DIM], turned[ROWS * DIM];
static uint8_t bytes[3][ROWS * DIM];
static float scales[3][ROWS], lse[ROWS], dq[ROWS * DIM], dk[ROWS * DIM], dv[ROWS * DIM];

static struct results {
    float k[ROWS * DIM], q[ROWS * DIM], out[ROWS * DIM], dq[ROWS * DIM], scales[3][ROWS];
    uint8_t bytes[3][ROWS * DIM];
    strobe_status status[5];
} found[2];

static float_mode before;

static void enter(bool other) {
    before = float_mode_get();
    if (!other) return;
    assert_int_equal(fesetround(FE_UPWARD), 0);
#if defined(__x86_64__) && !defined(_WIN32)
    float_mode_set(float_mode_get() & ~(float_mode)0x680); /* invalid operation, division by 0, overflow */
#endif
}

static strobe_status leave(bool other, strobe_status status) {
    const int rounding = fegetround();
#if defined(__x86_64__) && !defined(_WIN32)
    const bool traps = !(float_mode_get() & 0x680);
#else
    const bool traps = other;
#endif
    fesetround(FE_TONEAREST);
    float_mode_set(before);
    assert_int_equal(rounding, other ? FE_UPWARD : FE_TONEAREST);
    assert_int_equal(traps, other);
    return status;
}

static strobe_attention descriptor(void) {
    strobe_attention a = {.struct_size = sizeof a, .batch = 1, .seq_q = ROWS, .seq_k = ROWS, .heads_q = 1, .dim = DIM};
    a.q_start = a.k_start = START;
    return a;
}

static void run(struct results *to, bool other) {
    const strobe_rotary rotary = {.struct_size = sizeof rotary, .base = 500000};
    strobe_attention a = descriptor();
    a.q.data = turned, a.k.data = out, a.v.data = dv;
    strobe_appender n = {.struct_size = sizeof n, .seq_new = ROWS, .rotary = &rotary};
    n.q.data = q, n.k.data = k, n.v.data = k;
    enter(other), to->status[0] = leave(other, strobe_append(&a, &n, NULL));
    memcpy(to->k, out, sizeof out), memcpy(to->q, turned, sizeof turned);

    strobe_scales s = {.struct_size = sizeof s, .q = scales[0], .k = scales[1], .v = scales[2], .block_q = 1, .block_k = 1};
    s.stride_q[1] = s.stride_k[1] = s.stride_v[1] = 1;
    strobe_quantiser z = {.struct_size = sizeof z, .rotary = &rotary, .hadamard = STROBE_HADAMARD};
    z.q.data = q, z.k.data = k, z.v.data = k;
    a = descriptor();
    a.dtype = STROBE_FP8_E4M3, a.scales = &s, a.q.data = bytes[0], a.k.data = bytes[1], a.v.data = bytes[2];
    enter(other), to->status[1] = leave(other, strobe_quantise(&a, &z, NULL));
    memcpy(to->bytes, bytes, sizeof bytes), memcpy(to->scales, scales, sizeof scales);

    const strobe_score_source source = {
        .struct_size = sizeof source,
        .score = "score * (0.1 + 0.2) + min(1.0 / 0.0, exp(1000.0)) * 0.0 > 1 ? 1.0 / 3 : score"};
    strobe_score *function = NULL;
    enter(other), to->status[2] = leave(other, strobe_score_create(&source, &function));
    assert_int_equal(to->status[2], STROBE_OK);
    const strobe_score_arguments score = {.struct_size = sizeof score, .function = function};
    a = descriptor();
    a.q.data = q, a.k.data = k, a.v.data = k, a.out.data = out, a.lse.data = lse, a.score = &score;
    strobe_gradients g = {.struct_size = sizeof g, .dout.data = q, .dq.data = dq, .dk.data = dk, .dv.data = dv};
    enter(other), to->status[3] = leave(other, strobe_forward(&a, NULL, 0, NULL));
    enter(other), to->status[4] = leave(other, strobe_backward(&a, &g, NULL, 0, NULL));
    memcpy(to->out, out, sizeof out), memcpy(to->dq, dq, sizeof dq);
    strobe_score_destroy(function);
}

static void test_the_same_bytes(void **state) {
    (void)state;
    struct random r = {.state = 1};
    for (int n = 0; n < ROWS * DIM; ++n) q[n] = (float)random_value(&r), k[n] = (float)random_value(&r);
    run(&found[0], false), run(&found[1], true);
    for (int n = 0; n < 5; ++n) assert_int_equal(found[1].status[n], STROBE_OK);
    assert_memory_equal(found[0].k, found[1].k, sizeof found[0].k);
    assert_memory_equal(found[0].q, found[1].q, sizeof found[0].q);
    assert_memory_equal(found[0].bytes, found[1].bytes, sizeof found[0].bytes);
    assert_memory_equal(found[0].scales, found[1].scales, sizeof found[0].scales);
    assert_memory_equal(found[0].out, found[1].out, sizeof found[0].out);
    assert_memory_equal(found[0].dq, found[1].dq, sizeof found[0].dq);
}

/* To compare a NaN is an invalid operation. */
static void test_refusals(void **state) {
    (void)state;
    strobe_attention a = descriptor();
    size_t needed;
    const char *name;
    char text[64];
    a.q.data = q, a.k.data = k, a.v.data = k, a.out.data = out, a.scale = NAN;
    enter(true), assert_int_equal(leave(true, strobe_check(&a, NULL)), STROBE_INVALID_ARGUMENT);
    enter(true), assert_int_equal(leave(true, strobe_workspace(&a, NULL, &needed)), STROBE_INVALID_ARGUMENT);
    enter(true), assert_int_equal(leave(true, strobe_select(&a, NULL, &name)), STROBE_INVALID_ARGUMENT);
    enter(true), assert_int_equal(leave(true, strobe_explain(&a, NULL, text, sizeof text, NULL)), STROBE_INVALID_ARGUMENT);
    strobe_score *function = NULL;
    const strobe_score_scalar scalar = {.name = "w", .value = NAN, .integer = 1};
    const strobe_score_source source = {
        .struct_size = sizeof source, .score = "score + w", .scalars = &scalar, .scalar_count = 1};
    enter(true), assert_int_equal(leave(true, strobe_score_create(&source, &function)), STROBE_INVALID_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_same_bytes), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
