/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_cuda_sinks.c: on a GPU, the gradient of sinks of a call that has a part of the keys, with out and lse of all of them,
 * is that of all keys, with the error of out; and of all keys it does not depend on out. So it is beside sinks that leave
 * all keys together a ten-thousandth of a row. Skipped without a GPU, and for kernels that are not there. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "with_gpu.h"

enum { ROWS = 70, KEYS = 150, HEADS = 4, HEADS_KV = 2, DIM = 64, MOST = KEYS * HEADS * DIM, SENTENCE = 256 };

/* On the host; and where the device has the same. */
struct tensors {
    float q[MOST], k[MOST], v[MOST], dout[MOST], out[MOST], dq[MOST], dk[MOST], dv[MOST];
    float lse[ROWS * HEADS], sinks[HEADS], dsinks[HEADS];
};
static struct tensors host, *device;
static unsigned char *workspace;
enum { WORKSPACE_BYTES = 8 << 20 };

static float number(int64_t n, int what) { return (float)((n * 7919 + what * 104729) % 2003 - 1001) / 500; }

/* Numbers that bf16 can hold. */
static void fill(int32_t dtype, void *to, int what) {
    for (int64_t n = 0; n < MOST; ++n) {
        const float x = number(n, what);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        bits &= 0xffff0000u;
        if (dtype == STROBE_BF16)
            ((uint16_t *)to)[n] = (uint16_t)(bits >> 16);
        else
            memcpy((float *)to + n, &bits, sizeof bits);
    }
}

/* With the tensors of the host, or of the device. */
static strobe_attention attention_of(int32_t dtype, int32_t where, const strobe_sinks *sinks, int64_t keys) {
    struct tensors *const t = where == STROBE_CPU ? &host : device;
    strobe_attention a = {.struct_size = sizeof a, .batch = 1, .seq_q = ROWS, .seq_k = keys, .heads_q = HEADS};
    a.heads_kv = HEADS_KV, a.dim = DIM, a.dtype = dtype, a.device = where, a.sinks = sinks;
    a.q.data = t->q, a.k.data = t->k, a.v.data = t->v, a.out.data = t->out, a.lse.data = t->lse;
    return a;
}

/* Out and lse are the CPU's. The heads' sinks are from far below the keys of a row together to ten thousand times them. */
static void begin(int32_t dtype) {
    fill(dtype, host.q, 0), fill(dtype, host.k, 1), fill(dtype, host.v, 2), fill(dtype, host.dout, 3);
    for (int h = 0; h < HEADS; ++h) host.sinks[h] = (float)(7 + 5 * h);
    const strobe_sinks sinks = {.struct_size = sizeof sinks, .data = host.sinks};
    const strobe_attention a = attention_of(dtype, STROBE_CPU, &sinks, KEYS);
    if (strobe_forward(&a, NULL, 0, NULL)) fail_msg("%s", strobe_last_error());
    assert_true(cuda_memory_copy_over(device, &host, sizeof host));
}

/* The gradient by the first `keys` keys. Returns false if the kernel does not take the call. */
static bool dsinks_of(int32_t dtype, const char *kernel, int64_t keys, double to[HEADS]) {
    char message[SENTENCE];
    const strobe_sinks sinks = {.struct_size = sizeof sinks, .data = device->sinks};
    const strobe_sinks dsinks = {.struct_size = sizeof dsinks, .data = device->dsinks};
    const strobe_tuning tuning = {.struct_size = sizeof tuning, .kernel = kernel};
    strobe_attention a = attention_of(dtype, STROBE_CUDA, &sinks, keys);
    strobe_gradients g = {.struct_size = sizeof g, .dsinks = &dsinks};
    a.tuning = &tuning;
    g.dout.data = device->dout, g.dq.data = device->dq, g.dk.data = device->dk, g.dv.data = device->dv;
    if (strobe_backward(&a, &g, workspace, WORKSPACE_BYTES, NULL)) return false;
    if (!cuda_memory_wait(message, sizeof message)) fail_msg("%s", message);
    assert_true(cuda_memory_copy_back(host.dsinks, device->dsinks, sizeof host.dsinks));
    for (int h = 0; h < HEADS; ++h) to[h] = (double)host.dsinks[h];
    return true;
}

static void same(const char *kernel, const double x[HEADS], const double y[HEADS], double allowed) {
    for (int h = 0; h < HEADS; ++h)
        if (!(fabs(x[h] - y[h]) <= allowed * fabs(y[h]))) fail_msg("%s: dsinks %d is %g, not %g", kernel, h, x[h], y[h]);
}

static const struct taken {
    const char *kernel;
    int32_t dtype;
} kernels[] = {
    {"cuda_backward_sm90", STROBE_BF16}, {"cuda_backward_sm80", STROBE_BF16}, {"cuda_backward_fp32", STROBE_FP32}};

static void test_part_of_the_keys(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof kernels / sizeof kernels[0]; ++n) {
        const struct taken *t = &kernels[n];
        double whole[HEADS], part[HEADS];
        begin(t->dtype);
        if (!dsinks_of(t->dtype, t->kernel, KEYS, whole)) continue;
        for (int64_t keys = 0; keys < KEYS; keys += 74) {
            if (!dsinks_of(t->dtype, t->kernel, keys, part)) fail_msg("%s", strobe_last_error());
            same(t->kernel, part, whole, t->dtype == STROBE_BF16 ? 2e-2 : 1e-4);
        }
    }
}

/* An out that is off by up to an eighth. */
static void test_out_does_not_count(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof kernels / sizeof kernels[0]; ++n) {
        const struct taken *t = &kernels[n];
        double right[HEADS], found[HEADS];
        if (t->dtype != STROBE_BF16) continue;
        begin(t->dtype);
        if (!dsinks_of(t->dtype, t->kernel, KEYS, right)) continue;
        for (int64_t x = 0; x < ROWS * HEADS * DIM; ++x) {
            uint16_t *const out = (uint16_t *)(void *)host.out + x;
            *out = (uint16_t)(*out + x % 16);
        }
        assert_true(cuda_memory_copy_over(device->out, host.out, sizeof host.out));
        assert_true(dsinks_of(t->dtype, t->kernel, KEYS, found));
        same(t->kernel, found, right, 1e-4);
    }
}

static int open_memory(void **state) {
    (void)state;
    device = cuda_memory_copied(NULL, sizeof *device), workspace = cuda_memory_copied(NULL, WORKSPACE_BYTES);
    return device && workspace ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_part_of_the_keys), cmocka_unit_test(test_out_does_not_count)};
    return has_gpu() ? cmocka_run_group_tests(tests, open_memory, NULL) : 77;
}
