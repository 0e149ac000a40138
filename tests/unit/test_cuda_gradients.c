/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_cuda_gradients.c: on a Hopper GPU, dQ in the inputs' dtype beside dK and dV in fp32 has the bits of the call that
 * gives all three in that dtype, and dK and dV those of the call that gives all three in fp32: also where query heads of a
 * group are shared out, and where an infinity or a NaN has rows and keys computed again. Skipped without such a GPU. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "problem/cuda_memory.h"
#include "strobe/strobe.h"
#include "test.h"

struct shape {
    const char *name;
    int64_t batch, seq_q, seq_k, heads_q, heads_kv, dim;
    int32_t mask, dtype;
    int64_t left;
    bool packed, infinite;
};

static const struct shape shapes[] = {
    {"plain", 2, 300, 517, 4, 2, 128, STROBE_MASK_NONE, STROBE_BF16, 0, false, false},
    {"causal, many blocks", 1, 2048, 2048, 8, 2, 128, STROBE_MASK_CAUSAL_TOP_LEFT, STROBE_BF16, 0, false, false},
    {"causal, one K/V head, shared out", 1, 700, 256, 16, 1, 128, STROBE_MASK_CAUSAL_BOTTOM_RIGHT, STROBE_BF16, 0, false,
     false},
    {"shared out, infinite", 1, 700, 256, 16, 1, 128, STROBE_MASK_CAUSAL_BOTTOM_RIGHT, STROBE_BF16, 0, false, true},
    {"window", 1, 1111, 1300, 4, 4, 128, STROBE_MASK_WINDOW_TOP_LEFT, STROBE_BF16, 200, false, false},
    {"window, infinite", 1, 1111, 1300, 4, 4, 128, STROBE_MASK_WINDOW_TOP_LEFT, STROBE_BF16, 200, false, true},
    {"causal, infinite, fp16, 64", 2, 400, 400, 4, 2, 64, STROBE_MASK_CAUSAL_TOP_LEFT, STROBE_FP16, 0, false, true},
    {"256 columns", 1, 500, 500, 4, 2, 256, STROBE_MASK_CAUSAL_TOP_LEFT, STROBE_BF16, 0, false, true},
    {"70 columns", 1, 333, 333, 3, 3, 72, STROBE_MASK_CAUSAL_TOP_LEFT, STROBE_BF16, 0, false, false},
    {"packed", 3, 500, 500, 4, 2, 128, STROBE_MASK_CAUSAL_BOTTOM_RIGHT, STROBE_BF16, 0, true, false},
};

enum { DQ, DK, DV, GRADIENTS, SENTENCE = 256 };

static uint16_t element_of(const struct shape *s, float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (s->dtype == STROBE_BF16) return (uint16_t)(bits >> 16);
    /* fp16 of a number whose exponent it has, and of an infinity; rounded towards zero */
    const uint32_t sign = bits >> 16 & 0x8000u;
    if ((bits >> 23 & 0xffu) == 0xffu) return (uint16_t)(sign | 0x7c00u | (bits & 0x7fffffu ? 1u : 0u));
    const int exponent = (int)(bits >> 23 & 0xffu) - 127 + 15;
    return exponent <= 0 ? (uint16_t)sign : (uint16_t)(sign | (uint32_t)exponent << 10 | (bits >> 13 & 0x3ffu));
}

/* Numbers from -1 to 1; of an infinite tensor a few of one row in ninety are none. */
static void *filled(const struct shape *s, int64_t rows, int64_t heads, uint32_t seed, bool infinite) {
    const int64_t count = rows * heads * s->dim;
    uint16_t *values = malloc((size_t)count * sizeof *values);
    uint32_t state = seed;
    assert_non_null(values);
    for (int64_t n = 0; n < count; ++n) {
        state = state * 1664525u + 1013904223u;
        const float x = (float)(state >> 8) * 0x1p-23f - 1;
        const bool odd = infinite && n / (heads * s->dim) % 90 == 17 && n % 61 == 0;
        values[n] = element_of(s, odd ? (n % 2 ? INFINITY : NAN) : x);
    }
    void *data = cuda_memory_copied(values, (size_t)count * sizeof *values);
    assert_non_null(data);
    free(values);
    return data;
}

struct problem {
    strobe_attention a;
    strobe_varlen varlen;
    void *dout;
    int64_t rows, keys; /* of all sequences */
};

static void open_problem(const struct shape *s, struct problem *p) {
    strobe_attention *a = &p->a;
    *p = (struct problem){.a = {.struct_size = sizeof p->a, .batch = s->batch, .seq_q = s->seq_q, .seq_k = s->seq_k}};
    p->rows = s->batch * s->seq_q, p->keys = s->batch * s->seq_k;
    a->heads_q = s->heads_q, a->heads_kv = s->heads_kv, a->dim = s->dim, a->dtype = s->dtype, a->device = STROBE_CUDA;
    a->mask = s->mask, a->window_left = s->left, a->window_right = 0, a->flags = STROBE_DETERMINISTIC;
    a->q.data = filled(s, p->rows, s->heads_q, 1, s->infinite), a->k.data = filled(s, p->keys, s->heads_kv, 2, false);
    a->v.data = filled(s, p->keys, s->heads_kv, 3, false), p->dout = filled(s, p->rows, s->heads_q, 4, s->infinite);
    a->out.data = cuda_memory_copied(NULL, (size_t)(p->rows * s->heads_q * s->dim) * 2);
    a->lse.data = cuda_memory_copied(NULL, (size_t)(p->rows * s->heads_q) * sizeof(float));
    if (!s->packed) return;
    const int32_t offsets[] = {0, 130, 137, 500}; /* other rows are no sequence's */
    p->varlen = (strobe_varlen){.struct_size = sizeof p->varlen, .total_q = p->rows, .total_k = p->keys};
    p->varlen.cu_seqlens_q = p->varlen.cu_seqlens_k = cuda_memory_copied(offsets, sizeof offsets);
    a->varlen = &p->varlen;
}

static void *workspace_of(const strobe_attention *a, const strobe_gradients *g, size_t *bytes) {
    if (strobe_workspace(a, g, bytes)) fail_msg("%s", strobe_last_error());
    void *workspace = cuda_memory_copied(NULL, *bytes + 64);
    assert_non_null(workspace);
    return workspace;
}

/* Gradients of these dtypes, on the host: poison where nothing is written. */
static void run_backward(struct problem *p, int32_t dq, int32_t keys, unsigned char *to[GRADIENTS],
                         const size_t count[GRADIENTS]) {
    char message[SENTENCE];
    const int32_t dtypes[GRADIENTS] = {dq, keys, keys};
    strobe_gradients g = {.struct_size = sizeof g, .dout = {.data = p->dout}};
    strobe_tensor *const tensors[GRADIENTS] = {&g.dq, &g.dk, &g.dv};
    const char *kernel = "";
    size_t bytes, size[GRADIENTS];
    for (int n = 0; n < GRADIENTS; ++n) {
        size[n] = count[n] * (dtypes[n] == STROBE_FP32 ? 4 : 2);
        tensors[n]->dtype = dtypes[n], tensors[n]->data = cuda_memory_copied(NULL, size[n]);
        to[n] = malloc(size[n]);
        assert_non_null(to[n]);
    }
    if (strobe_select(&p->a, &g, &kernel)) fail_msg("%s", strobe_last_error());
    assert_string_equal(kernel, "cuda_backward_sm90");
    void *workspace = workspace_of(&p->a, &g, &bytes);
    if (strobe_backward(&p->a, &g, workspace, bytes, NULL)) fail_msg("%s", strobe_last_error());
    if (!cuda_memory_wait(message, sizeof message)) fail_msg("%s", message);
    for (int n = 0; n < GRADIENTS; ++n) {
        assert_true(cuda_memory_copy_back(to[n], tensors[n]->data, size[n]));
        cuda_memory_free(tensors[n]->data);
    }
    cuda_memory_free(workspace);
}

static void compare(const struct shape *s) {
    struct problem p;
    unsigned char *narrow[GRADIENTS], *wide[GRADIENTS], *both[GRADIENTS];
    size_t bytes;
    open_problem(s, &p);
    const size_t count[GRADIENTS] = {(size_t)(p.rows * s->heads_q * s->dim), (size_t)(p.keys * s->heads_kv * s->dim),
                                     (size_t)(p.keys * s->heads_kv * s->dim)};
    void *workspace = workspace_of(&p.a, NULL, &bytes);
    if (strobe_forward(&p.a, workspace, bytes, NULL)) fail_msg("%s", strobe_last_error());
    run_backward(&p, s->dtype, s->dtype, narrow, count);
    run_backward(&p, STROBE_FP32, STROBE_FP32, wide, count);
    run_backward(&p, s->dtype, STROBE_FP32, both, count);
    if (memcmp(both[DQ], narrow[DQ], count[DQ] * 2) != 0) fail_msg("%s: dq has other bits", s->name);
    if (memcmp(both[DK], wide[DK], count[DK] * 4) != 0) fail_msg("%s: dk has other bits", s->name);
    if (memcmp(both[DV], wide[DV], count[DV] * 4) != 0) fail_msg("%s: dv has other bits", s->name);
    for (int n = 0; n < GRADIENTS; ++n) free(narrow[n]), free(wide[n]), free(both[n]);
    cuda_memory_free(workspace), cuda_memory_free(p.dout);
    cuda_memory_free(p.a.q.data), cuda_memory_free(p.a.k.data), cuda_memory_free(p.a.v.data);
    cuda_memory_free(p.a.out.data), cuda_memory_free(p.a.lse.data);
    cuda_memory_free((void *)(uintptr_t)p.varlen.cu_seqlens_q);
}

/* Whether the Hopper backward is there: of a call that it takes. */
static bool has_hopper(void) {
    char message[SENTENCE];
    const char *kernel = "";
    const strobe_attention a = {.struct_size = sizeof a,
                                .batch = 1,
                                .seq_q = 256,
                                .seq_k = 256,
                                .heads_q = 2,
                                .dim = 128,
                                .dtype = STROBE_BF16,
                                .device = STROBE_CUDA};
    const strobe_gradients g = {.struct_size = sizeof g};
    return cuda_memory_open(message, sizeof message) && strobe_select(&a, &g, &kernel) == STROBE_OK &&
           strcmp(kernel, "cuda_backward_sm90") == 0;
}

static void dq_is_rounded_beside_fp32(void **state) {
    (void)state;
    if (!has_hopper()) skip();
    for (size_t n = 0; n < sizeof shapes / sizeof shapes[0]; ++n) compare(&shapes[n]);
}

/* dv of another dtype than dk, and fp32 for dq alone, are nobody's. */
static void other_mixtures_are_refused(void **state) {
    (void)state;
    if (!has_hopper()) skip();
    strobe_attention a = {.struct_size = sizeof a,
                          .batch = 1,
                          .seq_q = 256,
                          .seq_k = 256,
                          .heads_q = 2,
                          .dim = 128,
                          .dtype = STROBE_BF16,
                          .device = STROBE_CUDA};
    const strobe_tuning tuning = {.struct_size = sizeof tuning, .kernel = "cuda_backward_sm90"};
    static const int32_t mixtures[][GRADIENTS] = {{STROBE_BF16, STROBE_FP32, STROBE_BF16},
                                                  {STROBE_BF16, STROBE_BF16, STROBE_FP32},
                                                  {STROBE_FP32, STROBE_BF16, STROBE_BF16}};
    a.tuning = &tuning;
    for (size_t n = 0; n < sizeof mixtures / sizeof mixtures[0]; ++n) {
        size_t bytes;
        strobe_gradients g = {.struct_size = sizeof g};
        g.dq.dtype = mixtures[n][DQ], g.dk.dtype = mixtures[n][DK], g.dv.dtype = mixtures[n][DV];
        assert_int_equal(strobe_workspace(&a, &g, &bytes), STROBE_UNSUPPORTED);
        assert_non_null(strstr(strobe_last_error(), "dq, dk and dv differ in dtype; "));
    }
}

int main(void) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(dq_is_rounded_beside_fp32),
                                              cmocka_unit_test(other_mixtures_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
