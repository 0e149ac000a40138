/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fp8_library.c: the rows of `strobe lab fp8` that are not simulated: strobe_quantise with a scale a block and incoherent
 * processing, to e4m3 or q and k to int8, and the kernel that the library chooses, on the CPU and on a GPU. */
#include "io/memory.h"
#include "lab/lab_command.h"
#include "problem/cuda_memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strobe/strobe_quantise.h>

enum { Q, K, V, Q8, K8, V8, Q_SCALE, K_SCALE, V_SCALE, OUT, TENSORS };

typedef struct library_call {
    strobe_attention attention;
    strobe_scales scales;
    strobe_quantiser quantiser;
    size_t bytes[TENSORS];
    unsigned char *host[TENSORS], *memory[TENSORS]; /* memory: of the call's device */
    void *workspace;
} library_call;

static int64_t blocks_of(int64_t length, int64_t block) { return (length + block - 1) / block; }

static void place(strobe_tensor *t, unsigned char *data, int64_t length, int64_t d, int32_t dtype) {
    *t = (strobe_tensor){.data = data, .stride = {0, d, length * d}, .dtype = dtype};
}

static void make_host(library_call *c, const lab_fp8_input *in) {
    const double *values[3] = {in->q, in->k, in->v};
    for (int n = 0; n < 3; ++n) {
        const int64_t length = n == Q ? in->m : in->n, count = in->heads * length * in->d;
        c->bytes[Q + n] = (size_t)count * sizeof(float), c->bytes[Q8 + n] = (size_t)count;
        c->bytes[Q_SCALE + n] = (size_t)(in->heads * blocks_of(length, in->block)) * sizeof(float);
    }
    c->bytes[OUT] = (size_t)(in->heads * in->m * in->d) * 2;
    for (int n = 0; n < TENSORS; ++n) c->host[n] = memory_zeroed(c->bytes[n], 1);
    for (int n = 0; n < 3; ++n)
        for (size_t i = 0; i < c->bytes[Q8 + n]; ++i) ((float *)(void *)c->host[Q + n])[i] = (float)values[n][i];
}

static void describe(library_call *c, const lab_fp8_input *in, bool on_gpu, bool int8_scores) {
    strobe_attention *a = &c->attention;
    strobe_scales *s = &c->scales;
    strobe_quantiser *z = &c->quantiser;
    strobe_tensor *given[3] = {&z->q, &z->k, &z->v}, *stored[3] = {&a->q, &a->k, &a->v};
    const float **scales[3] = {&s->q, &s->k, &s->v};
    int64_t *strides[3] = {s->stride_q, s->stride_k, s->stride_v};
    a->struct_size = sizeof *a, s->struct_size = sizeof *s, z->struct_size = sizeof *z;
    a->batch = 1, a->heads_q = in->heads, a->seq_q = in->m, a->seq_k = in->n, a->dim = in->d, a->scales = s;
    a->dtype = STROBE_FP8_E4M3, a->device = on_gpu ? STROBE_CUDA : STROBE_CPU;
    s->block_q = s->block_k = in->block;
    z->dtype = STROBE_FP32, z->hadamard = STROBE_HADAMARD, z->seed = in->seed;
    for (int n = 0; n < 3; ++n) {
        const int64_t length = n == Q ? in->m : in->n;
        place(given[n], c->memory[Q + n], length, in->d, STROBE_FP32);
        place(stored[n], c->memory[Q8 + n], length, in->d, int8_scores && n != V ? STROBE_INT8 : STROBE_FP8_E4M3);
        *scales[n] = (const float *)(void *)c->memory[Q_SCALE + n];
        strides[n][1] = 1, strides[n][2] = blocks_of(length, in->block);
    }
    place(&a->out, c->memory[OUT], in->m, in->d, STROBE_BF16);
}

static bool run(library_call *c, bool on_gpu, const char **kernel) {
    char message[LAB_REFUSAL];
    size_t bytes = 0;
    if (strobe_select(&c->attention, NULL, kernel) || strobe_workspace(&c->attention, NULL, &bytes)) return false;
    if (on_gpu && bytes && !(c->workspace = cuda_memory_copied(NULL, bytes))) return false;
    if (strobe_quantise(&c->attention, &c->quantiser, NULL) ||
        strobe_forward(&c->attention, c->workspace, on_gpu ? bytes : 0, NULL))
        return false;
    return !on_gpu || (cuda_memory_wait(message, sizeof message) &&
                       cuda_memory_copy_back(c->host[OUT], c->memory[OUT], c->bytes[OUT]) &&
                       cuda_memory_copy_back(c->host[Q_SCALE], c->memory[Q_SCALE], c->bytes[Q_SCALE]));
}

static void measure(const library_call *c, const double *oracle, lab_fp8_result *result) {
    const size_t count = c->bytes[OUT] / 2;
    double sum = 0;
    *result = (lab_fp8_result){0};
    for (size_t i = 0; i < count; ++i) {
        const uint32_t bits = (uint32_t)((const uint16_t *)(const void *)c->host[OUT])[i] << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        const double error = fabs((double)value - oracle[i]);
        sum += error * error, result->largest_error = fmax(result->largest_error, error);
    }
    for (size_t i = 0; i < c->bytes[Q_SCALE] / sizeof(float); ++i)
        result->scale_q = fmax(result->scale_q, (double)((const float *)(const void *)c->host[Q_SCALE])[i]);
    result->rmse = sqrt(sum / (double)count);
}

bool lab_fp8_library(const lab_fp8_input *in, bool on_gpu, bool int8_scores, const double *oracle, const char **kernel,
                     lab_fp8_result *result) {
    char message[LAB_REFUSAL];
    library_call c;
    memset(&c, 0, sizeof c);
    if (on_gpu && !cuda_memory_open(message, sizeof message)) return false;
    make_host(&c, in);
    bool ok = true;
    for (int n = 0; n < TENSORS; ++n) {
        c.memory[n] = on_gpu ? cuda_memory_copied(c.host[n], c.bytes[n]) : c.host[n];
        ok = ok && c.memory[n];
    }
    describe(&c, in, on_gpu, int8_scores);
    ok = ok && run(&c, on_gpu, kernel);
    if (ok) measure(&c, oracle, result);
    for (int n = 0; n < TENSORS; ++n) {
        if (on_gpu) cuda_memory_free(c.memory[n]);
        free(c.host[n]);
    }
    if (on_gpu) cuda_memory_free(c.workspace);
    return ok;
}
