/* SPDX-License-Identifier: BSD-3-Clause
 *
 * kernels_agree.c: `strobe check` in small, for processors that are emulated and have no libraries but libc: every kernel of
 * this build against the oracle, forward and backward, over shapes, dtypes and masks. The allowance is coarser than that of
 * `strobe check`: four times standard attention's error and a rounding of the largest result. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "strobe/strobe.h"

enum { BATCH = 2, HEADS = 4, HEADS_KV = 2, MOST_SEQ = 70, MOST_DIM = 129, MOST = BATCH * MOST_SEQ * HEADS * MOST_DIM };

/* Inputs, and the results of one kernel: out and lse, or dq, dk and dv. */
static _Alignas(8) uint8_t q[4 * MOST], k[4 * MOST], v[4 * MOST], dout[4 * MOST];
static float lse[BATCH * HEADS * MOST_SEQ];
struct results {
    _Alignas(8) uint8_t tensor[3][4 * MOST];
};
static struct results oracle, standard, result;
static uint8_t out[4 * MOST] __attribute__((aligned(8)));

static double load(const void *data, int32_t dtype, int64_t at) {
    float x;
    uint16_t half;
    if (dtype == STROBE_FP32) return memcpy(&x, (const float *)data + at, sizeof x), (double)x;
    memcpy(&half, (const uint16_t *)data + at, sizeof half);
    if (dtype == STROBE_BF16) {
        const uint32_t bits = (uint32_t)half << 16;
        return memcpy(&x, &bits, sizeof x), (double)x;
    }
    const int exponent = half >> 10 & 31, fraction = half & 1023;
    const double magnitude = exponent == 31 ? NAN : exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return half & 0x8000 ? -magnitude : magnitude;
}

/* Numbers of magnitude 1/8 to 1, either sign. */
static void fill(void *data, int32_t dtype, unsigned seed) {
    for (int64_t n = 0; n < MOST; ++n) {
        seed = seed * 1664525u + 1013904223u;
        const unsigned sign = seed >> 31, rest = seed >> 8 & 0x3fffff;
        const uint32_t single = sign << 31 | (0x3e000000u + rest * 6);
        const uint16_t half = (uint16_t)(dtype == STROBE_BF16 ? single >> 16 : sign << 15 | (0x3000 + rest % 0xc00));
        if (dtype == STROBE_FP32)
            memcpy((float *)data + n, &single, sizeof single);
        else
            memcpy((uint16_t *)data + n, &half, sizeof half);
    }
}

static strobe_status run(const char *kernel, strobe_attention *a, bool backward, struct results *to) {
    const strobe_tuning tuning = {.struct_size = sizeof tuning, .kernel = kernel};
    a->tuning = &tuning;
    memset(to, 0xff, sizeof *to); /* NaN */
    if (!backward) {
        a->out.data = to->tensor[0];
        return strobe_forward(a, NULL, 0, NULL);
    }
    a->out.data = out;
    strobe_gradients g = {.struct_size = sizeof g, .dout.data = dout};
    g.dq.data = to->tensor[0], g.dk.data = to->tensor[1], g.dv.data = to->tensor[2];
    return strobe_backward(a, &g, NULL, 0, NULL);
}

/* The largest difference from the oracle over elements of tensor t; NaN if any is. */
static double difference(const struct results *x, int t, int32_t dtype, int64_t elements) {
    double worst = 0;
    for (int64_t n = 0; n < elements; ++n) {
        const double d = fabs(load(x->tensor[t], dtype, n) - load(oracle.tensor[t], dtype, n));
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

/* One rounding of the oracle's largest element. */
static double largest_rounding(int tensors, int32_t dtype, const int64_t *elements) {
    const double rounding = dtype == STROBE_FP32 ? 0x1p-24 : dtype == STROBE_FP16 ? 0x1p-11 : 0x1p-8;
    double most = 0;
    for (int t = 0; t < tensors; ++t)
        for (int64_t n = 0; n < elements[t]; ++n) most = fmax(most, fabs(load(oracle.tensor[t], dtype, n)));
    return most * rounding;
}

/* Every kernel of an operation on one problem; returns how many are wrong. */
static int compare(strobe_attention *a, bool backward, int *ran) {
    const int tensors = backward ? 3 : 1;
    const int64_t rows = BATCH * a->seq_q * HEADS, keys = BATCH * a->seq_k * HEADS_KV;
    const int64_t elements[3] = {rows * a->dim, keys * a->dim, keys * a->dim};
    int wrong = 0;
    if (run(backward ? "reference_backward" : "reference_forward", a, backward, &oracle) ||
        run(backward ? "standard_backward" : "standard_forward", a, backward, &standard)) {
        printf("the oracle: %s\n", strobe_last_error());
        return 1;
    }
    const double rounding = largest_rounding(tensors, a->dtype, elements);
    strobe_kernel_info info = {.struct_size = sizeof info};
    for (int32_t index = 0; strobe_kernel_at(index, &info) == STROBE_OK; ++index) {
        if (info.operation != (backward ? STROBE_BACKWARD : STROBE_FORWARD) || info.unavailable) continue;
        const strobe_status status = run(info.name, a, backward, &result);
        if (status == STROBE_UNSUPPORTED) continue; /* a kernel for other problems than this one */
        ++*ran;
        for (int t = 0; t < tensors; ++t) {
            const double error = status ? NAN : difference(&result, t, a->dtype, elements[t]);
            const double allowed = 4 * (difference(&standard, t, a->dtype, elements[t]) + rounding);
            if (error <= allowed) continue;
            ++wrong;
            printf("%s tensor %d: sq=%d sk=%d d=%d dtype=%d mask=%d: error %g, allowed %g %s\n", info.name, t, (int)a->seq_q,
                   (int)a->seq_k, (int)a->dim, a->dtype, a->mask, error, allowed, status ? strobe_last_error() : "");
        }
    }
    return wrong;
}

/* Forward, then backward from its out and lse. */
static int check(strobe_attention a, int *ran) {
    a.struct_size = sizeof a;
    a.batch = BATCH, a.heads_q = HEADS, a.heads_kv = HEADS_KV, a.window_left = 9, a.window_right = 3;
    a.q.data = q, a.k.data = k, a.v.data = v;
    fill(q, a.dtype, 1), fill(k, a.dtype, 2), fill(v, a.dtype, 3), fill(dout, a.dtype, 4);
    a.lse.data = lse;
    int wrong = compare(&a, false, ran);
    run("reference_forward", &a, false, &result);
    memcpy(out, result.tensor[0], sizeof out);
    return wrong + compare(&a, true, ran);
}

int main(void) {
    static const int64_t shapes[][3] = {{1, 70, 64}, {37, 37, 24}, {70, 33, 1}, {5, 66, 129}};
    static const int32_t dtypes[] = {STROBE_FP32, STROBE_FP16, STROBE_BF16};
    const strobe_dropout dropout = {.struct_size = sizeof dropout, .p = 0.25, .seed = 7};
    int ran = 0, wrong = 0;
    for (int shape = 0; shape < 4; ++shape)
        for (int d = 0; d < 3; ++d)
            for (int32_t mask = STROBE_MASK_NONE; mask <= STROBE_MASK_WINDOW_BOTTOM_RIGHT; ++mask)
                wrong += check((strobe_attention){.seq_q = shapes[shape][0],
                                                  .seq_k = shapes[shape][1],
                                                  .dim = shapes[shape][2],
                                                  .dtype = dtypes[d],
                                                  .mask = mask,
                                                  .softcap = mask == STROBE_MASK_NONE ? 2 : 0,
                                                  .dropout = mask == STROBE_MASK_CAUSAL_BOTTOM_RIGHT ? &dropout : NULL},
                               &ran);
    printf("%s: %d runs, %d wrong\n", strobe_build_info(), ran, wrong);
    return ran == 0 || wrong > 0;
}
