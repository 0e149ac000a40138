/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_cuda_fp8.c: on Hopper the FP8 forward against the CPU's, which widens exactly, where `strobe check` does not go: rows
 * that do not fill the 16 bytes between them, whose rest is NaN; head dims that are no multiple of 8; results in fp16; and V
 * of ones, whose result is exactly 1. Skipped without a GPU that has the kernel. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "problem/element.h"
#include "with_gpu.h"

enum { BATCH = 2, ROWS = 150, KEYS = 260, HEADS = 4, KV_HEADS = 2, MOST_DIM = 256, BLOCKS = (KEYS + 127) / 128 };
enum { MOST_E4M3 = 448 };
enum { ON_Q = BATCH * ROWS * HEADS, ON_K = BATCH * KEYS * KV_HEADS };

/* What a call reads and writes, on either device. */
struct memory {
    unsigned char q[ON_Q * MOST_DIM], k[ON_K * MOST_DIM], v[ON_K * MOST_DIM], out[ON_Q * MOST_DIM * 2];
    float lse[ON_Q], q_scale[BATCH * HEADS * 2], k_scale[BATCH * BLOCKS * KV_HEADS], v_scale[BATCH * BLOCKS * KV_HEADS];
    int32_t ends[BATCH + 1];
};
static struct memory host, back;

struct way {
    int64_t dim, dim_v;
    int32_t out, mask;
    double softcap;
    bool packed, ones, odd_scales; /* odd: of q and k some negative, some 0 */
    bool int8;                     /* q and k are int8 */
};

static int64_t step_of(int64_t dim) { return (dim + 15) / 16 * 16; }

/* Rows of `dim` numbers at multiples of 16 bytes; what lies between them is NaN in e4m3, and large in int8. Ones are stored
 * as the quantiser stores a constant, the largest number that there is: for these the result is exact, see
 * sm90/fp8/softmax.h. */
static void fill_rows(unsigned char *rows, int64_t count, int64_t dim, struct random *r, bool ones, bool int8) {
    memset(rows, 0x7f, (size_t)(count * step_of(dim)));
    for (int64_t row = 0; row < count; ++row)
        for (int64_t column = 0; column < dim; ++column)
            element_store(rows + row * step_of(dim) + column, int8 ? STROBE_INT8 : STROBE_FP8_E4M3,
                          ones ? MOST_E4M3 : (int8 ? 127 : 1.5) * random_value(r));
}

static void fill(const struct way *w) {
    struct random r = {.state = (uint64_t)(w->dim * 1000 + w->dim_v)};
    memset(&host, 0x55, sizeof host);
    const float unit = w->int8 ? 0.012f : 1; /* of q and k */
    fill_rows(host.q, ON_Q, w->dim, &r, false, w->int8), fill_rows(host.k, ON_K, w->dim, &r, false, w->int8);
    fill_rows(host.v, ON_K, w->dim_v, &r, w->ones, false);
    for (size_t n = 0; n < COUNT(host.q_scale); ++n) host.q_scale[n] = unit * (0.5f + 0.07f * (float)n);
    for (size_t n = 0; n < COUNT(host.k_scale); ++n) {
        host.k_scale[n] = unit * (1.2f - 0.05f * (float)n);
        host.v_scale[n] = w->ones ? 1.0f / MOST_E4M3 : 0.3f + 0.1f * (float)n;
    }
    for (size_t n = 0; w->odd_scales && n < COUNT(host.q_scale); n += 3) host.q_scale[n] *= n % 2 ? -1 : 0;
    for (size_t n = 0; w->odd_scales && n < COUNT(host.k_scale); n += 2) host.k_scale[n] *= n % 4 ? -1 : 0;
    const int32_t ends[] = {0, 37, ROWS};
    memcpy(host.ends, ends, sizeof ends);
}

/* The descriptor's tensor of rows that lie `step` elements apart. */
static strobe_tensor rows_at(void *data, int64_t step, int64_t length, int64_t heads) {
    strobe_tensor t = {.data = data};
    t.stride[0] = length * heads * step, t.stride[1] = heads * step, t.stride[2] = step;
    return t;
}

static strobe_status run(const struct way *w, struct memory *m, int32_t device, void *workspace, size_t *bytes) {
    strobe_scales s = {.struct_size = sizeof s, .q = m->q_scale, .k = m->k_scale, .v = m->v_scale};
    s.block_q = w->packed ? 0 : 128, s.block_k = w->packed ? 0 : 128;
    const int64_t of_q[3] = {2 * HEADS, w->packed ? 0 : HEADS, 1},
                  of_k[3] = {BLOCKS * KV_HEADS, w->packed ? 0 : KV_HEADS, 1};
    memcpy(s.stride_q, of_q, sizeof of_q), memcpy(s.stride_k, of_k, sizeof of_k), memcpy(s.stride_v, of_k, sizeof of_k);
    strobe_varlen packed = {.struct_size = sizeof packed, .cu_seqlens_q = m->ends, .cu_seqlens_k = m->ends};
    packed.total_q = packed.total_k = ROWS;
    const strobe_tuning tuning = {.struct_size = sizeof tuning, .kernel = "cuda_forward_fp8_sm90"};
    const int64_t keys = w->packed ? ROWS : KEYS;
    strobe_attention a = {.struct_size = sizeof a, .batch = BATCH, .seq_q = ROWS, .seq_k = keys, .heads_q = HEADS};
    a.heads_kv = KV_HEADS, a.dim = w->dim, a.dim_v = w->dim_v, a.dtype = STROBE_FP8_E4M3, a.device = device, a.scales = &s;
    a.q = rows_at(m->q, step_of(w->dim), ROWS, HEADS), a.k = rows_at(m->k, step_of(w->dim), keys, KV_HEADS);
    a.v = rows_at(m->v, step_of(w->dim_v), keys, KV_HEADS);
    if (w->int8) a.q.dtype = a.k.dtype = STROBE_INT8;
    a.out = rows_at(m->out, w->dim_v, ROWS, HEADS), a.out.dtype = w->out;
    a.lse.data = m->lse, a.mask = w->mask, a.softcap = w->softcap, a.window_left = 70, a.window_right = 3;
    if (w->packed) a.varlen = &packed;
    if (device == STROBE_CUDA) a.tuning = &tuning;
    return bytes ? strobe_workspace(&a, NULL, bytes)
                 : strobe_forward(&a, workspace, device == STROBE_CUDA ? SIZE_MAX : 0, NULL);
}

/* A row of the GPU's may differ by what rounding the weights to three bits of fraction costs. */
static void assert_near(const struct way *w) {
    for (int64_t row = 0; row < (w->packed ? ROWS * HEADS : ON_Q); ++row) {
        double wrong = 0, right = 0;
        for (int64_t column = 0; column < w->dim_v; ++column) {
            const int64_t at = (row * w->dim_v + column) * 2;
            const double x = element_load(back.out + at, w->out), y = element_load(host.out + at, w->out);
            if (w->ones && x != 1 && y != 0)
                fail_msg("dim %d, row %d, column %d: %g of V of ones", (int)w->dim, (int)row, (int)column, x);
            wrong += (x - y) * (x - y), right += y * y;
        }
        const double lse = (double)back.lse[row], exact = (double)host.lse[row];
        if (!(sqrt(wrong) <= 0.1 * sqrt(right)) || !(lse == exact || fabs(lse - exact) <= 0.01))
            fail_msg(
                "dim %d and %d, out %d, mask %d, softcap %g, packed %d: row %d is off by %g of %g, its lse is %g for %g",
                (int)w->dim, (int)w->dim_v, w->out, w->mask, w->softcap, w->packed, (int)row, sqrt(wrong), sqrt(right), lse,
                exact);
    }
}

static void as_on_the_cpu(void **state) {
    static const struct way ways[] = {
        {40, 40, STROBE_FP16, STROBE_MASK_NONE, 0, false, false, false, false},
        {72, 136, STROBE_BF16, STROBE_MASK_CAUSAL_BOTTOM_RIGHT, 0, false, false, false, false},
        {136, 5, STROBE_FP16, STROBE_MASK_NONE, 0, true, false, false, false},
        {200, 200, STROBE_FP16, STROBE_MASK_WINDOW_BOTTOM_RIGHT, 0, false, false, false, false},
        {256, 256, STROBE_FP16, STROBE_MASK_CAUSAL_BOTTOM_RIGHT, 0, true, false, false, false},
        {33, 129, STROBE_FP16, STROBE_MASK_WINDOW_BOTTOM_RIGHT, 20, false, false, false, false},
        {64, 64, STROBE_FP16, STROBE_MASK_CAUSAL_BOTTOM_RIGHT, 20, false, false, false, false},
        {100, 100, STROBE_FP16, STROBE_MASK_NONE, 20, true, false, false, false},
        {200, 24, STROBE_BF16, STROBE_MASK_NONE, 20, false, false, false, false},
        {250, 250, STROBE_FP16, STROBE_MASK_CAUSAL_BOTTOM_RIGHT, 20, true, false, false, false},
        {64, 64, STROBE_FP16, STROBE_MASK_NONE, 0, false, true, false, false},
        {128, 128, STROBE_BF16, STROBE_MASK_CAUSAL_BOTTOM_RIGHT, 0, false, true, false, false},
        {192, 192, STROBE_FP16, STROBE_MASK_NONE, 0, false, true, false, false},
        {256, 256, STROBE_BF16, STROBE_MASK_CAUSAL_BOTTOM_RIGHT, 0, false, true, false, false},
        {128, 128, STROBE_FP16, STROBE_MASK_NONE, 20, false, true, false, false},
        {64, 64, STROBE_FP16, STROBE_MASK_NONE, 0, false, false, true, false},
        {128, 128, STROBE_BF16, STROBE_MASK_CAUSAL_BOTTOM_RIGHT, 0, false, false, true, false},
        {256, 256, STROBE_FP16, STROBE_MASK_WINDOW_BOTTOM_RIGHT, 0, false, false, true, false},
        {128, 128, STROBE_FP16, STROBE_MASK_CAUSAL_BOTTOM_RIGHT, 20, false, false, true, false},
        {40, 40, STROBE_FP16, STROBE_MASK_NONE, 0, false, false, false, true},
        {136, 5, STROBE_FP16, STROBE_MASK_NONE, 0, true, false, false, true},
        {64, 64, STROBE_BF16, STROBE_MASK_CAUSAL_BOTTOM_RIGHT, 20, false, false, false, true},
        {200, 200, STROBE_FP16, STROBE_MASK_WINDOW_BOTTOM_RIGHT, 0, false, false, false, true},
        {128, 128, STROBE_BF16, STROBE_MASK_CAUSAL_BOTTOM_RIGHT, 0, false, true, false, true},
        {256, 256, STROBE_FP16, STROBE_MASK_CAUSAL_BOTTOM_RIGHT, 0, false, false, true, true},
        {128, 128, STROBE_FP16, STROBE_MASK_NONE, 0, false, false, true, true},
    };
    char message[256];
    size_t bytes;
    (void)state;
    for (size_t n = 0; n < COUNT(ways); ++n) {
        const struct way *w = &ways[n];
        fill(w);
        const strobe_status taken = run(w, &host, STROBE_CUDA, NULL, &bytes);
        if (taken == STROBE_UNSUPPORTED && n == 0) skip(); /* no Hopper, or a build without the kernel */
        if (taken) fail_msg("way %d: %s", (int)n, strobe_last_error());
        struct memory *there = cuda_memory_copied(&host, sizeof host);
        void *workspace = cuda_memory_copied(NULL, bytes + 64);
        assert_non_null(there), assert_non_null(workspace);
        if (run(w, there, STROBE_CUDA, workspace, NULL)) fail_msg("way %d: %s", (int)n, strobe_last_error());
        if (run(w, &host, STROBE_CPU, NULL, NULL)) fail_msg("way %d on the CPU: %s", (int)n, strobe_last_error());
        if (!cuda_memory_wait(message, sizeof message)) fail_msg("%s", message);
        assert_true(cuda_memory_copy_back(&back, there, sizeof back));
        cuda_memory_free(there), cuda_memory_free(workspace);
        assert_near(w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_on_the_cpu)};
    return RUN_WITH_GPU(tests);
}
