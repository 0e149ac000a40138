/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_first.c: what a kernel's first call costs the host, in which its code is unpacked and the driver loads it, what a
 * later call costs it, and a call in a row of many, which may wait for the GPU, in microseconds; the context is there
 * before. Two libraries are compared by LD_LIBRARY_PATH, in turns.
 *
 *     bench_cuda_first */
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include "strobe/strobe.h"

enum { ROWS = 512, HEADS = 8, DIM = 128, LATER = 50, ROW = 300, BYTES = 4 * ROWS * HEADS * DIM };
enum { Q, K, V, OUT, LSE, DOUT, DQ, DK, DV, SLOTS };
enum { PLAIN, SOFTCAP, ALIBI, WORKSPACE_BYTES = 64 << 20 };

static const struct job {
    const char *title, *kernel;
    int32_t dtype, term;
    int64_t seq_q, seq_k, heads, dim;
    bool is_backward;
} jobs[] = {
    {"Hopper forward, bf16", "cuda_forward_sm90", STROBE_BF16, PLAIN, ROWS, ROWS, HEADS, DIM, false},
    {"the same, fp16", "cuda_forward_sm90", STROBE_FP16, PLAIN, ROWS, ROWS, HEADS, DIM, false},
    {"the same, bf16, softcap", "cuda_forward_sm90", STROBE_BF16, SOFTCAP, ROWS, ROWS, HEADS, DIM, false},
    {"the same, bf16, ALiBi", "cuda_forward_sm90", STROBE_BF16, ALIBI, ROWS, ROWS, HEADS, DIM, false},
    {"Hopper backward, bf16", "cuda_backward_sm90", STROBE_BF16, PLAIN, ROWS, ROWS, HEADS, DIM, true},
    {"the same, softcap", "cuda_backward_sm90", STROBE_BF16, SOFTCAP, ROWS, ROWS, HEADS, DIM, true},
    {"decoding by clusters, bf16", "cuda_decode_sm90", STROBE_BF16, PLAIN, 1, ROWS, HEADS, DIM, false},
    {"decoding, bf16", "cuda_decode_sm80", STROBE_BF16, PLAIN, 1, ROWS, HEADS, DIM, false},
    {"sm_80 forward, bf16", "cuda_forward_sm80", STROBE_BF16, PLAIN, ROWS, ROWS, HEADS, DIM, false},
    {"the same, ALiBi", "cuda_forward_sm80", STROBE_BF16, ALIBI, ROWS, ROWS, HEADS, DIM, false},
    {"sm_80 backward, bf16", "cuda_backward_sm80", STROBE_BF16, PLAIN, ROWS, ROWS, HEADS, DIM, true},
    {"fp32 forward", "cuda_forward_fp32", STROBE_FP32, PLAIN, ROWS, ROWS, HEADS, DIM, false},
    {"16 rows: Hopper, bf16", "cuda_forward_sm90", STROBE_BF16, PLAIN, 16, 16, 1, DIM, false},
    {"sm_80, bf16", "cuda_forward_sm80", STROBE_BF16, PLAIN, 16, 16, 1, DIM, false},
    {"fp32", "cuda_forward_fp32", STROBE_FP32, PLAIN, 16, 16, 1, DIM, false},
    {"fp32 of tf32 parts", "cuda_forward_tf32x3", STROBE_FP32, PLAIN, 16, 16, 1, DIM, false},
    {"128 rows: Hopper, bf16", "cuda_forward_sm90", STROBE_BF16, PLAIN, 128, 128, 1, DIM, false},
    {"sm_80, bf16", "cuda_forward_sm80", STROBE_BF16, PLAIN, 128, 128, 1, DIM, false},
    {"fp32", "cuda_forward_fp32", STROBE_FP32, PLAIN, 128, 128, 1, DIM, false},
    {"fp32 of tf32 parts", "cuda_forward_tf32x3", STROBE_FP32, PLAIN, 128, 128, 1, DIM, false},
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

int main(void) {
    const size_t bytes = SLOTS * (size_t)BYTES + WORKSPACE_BYTES + BYTES;
    char *memory;
    if (cudaMalloc((void **)&memory, bytes) != cudaSuccess || cudaMemset(memory, 0, bytes) != cudaSuccess)
        return puts("no GPU"), 77;
    printf("%-28s %10s %10s %10s\n", "us", "first", "later", "in a row");
    for (size_t n = 0; n < sizeof jobs / sizeof jobs[0]; ++n) {
        const struct job *job = &jobs[n];
        const strobe_tuning tuning = {.struct_size = sizeof tuning, .kernel = job->kernel};
        strobe_attention a = {
            .struct_size = sizeof a, .batch = 1, .seq_q = job->seq_q, .seq_k = job->seq_k, .heads_q = job->heads};
        strobe_gradients g = {.struct_size = sizeof g};
        const strobe_alibi alibi = {.struct_size = sizeof alibi,
                                    .slopes = (float *)(void *)(memory + SLOTS * (size_t)BYTES + WORKSPACE_BYTES)};
        void *slots[SLOTS];
        for (int slot = 0; slot < SLOTS; ++slot) slots[slot] = memory + (size_t)slot * BYTES;
        a.dim = job->dim, a.dtype = job->dtype, a.flags = STROBE_TF32X3, a.tuning = &tuning, a.device = STROBE_CUDA;
        a.q.data = slots[Q], a.k.data = slots[K], a.v.data = slots[V], a.out.data = slots[OUT], a.lse.data = slots[LSE];
        g.dout.data = slots[DOUT], g.dq.data = slots[DQ], g.dk.data = slots[DK], g.dv.data = slots[DV];
        if (job->term == SOFTCAP) a.softcap = 30;
        if (job->term == ALIBI) a.alibi = &alibi;
        void *work = memory + SLOTS * (size_t)BYTES;
        double first = 0, later = 1e9, begin_of_row = 0;
        for (int call = 0; call <= LATER + ROW; ++call) {
            const double begin = now();
            const strobe_status status = job->is_backward ? strobe_backward(&a, &g, work, WORKSPACE_BYTES, NULL)
                                                          : strobe_forward(&a, work, WORKSPACE_BYTES, NULL);
            const double took = now() - begin;
            if (status) {
                printf("%s: %s\n", job->title, strobe_last_error());
                break;
            }
            if (call <= LATER && cudaDeviceSynchronize() != cudaSuccess) return puts("the device failed"), 1;
            if (call == 0)
                first = took;
            else if (call <= LATER && took < later)
                later = took;
            if (call == LATER) begin_of_row = now();
            if (call == LATER + ROW) {
                cudaDeviceSynchronize();
                printf("%-28s %10.0f %10.1f %10.1f\n", job->title, first, later, (now() - begin_of_row) / ROW);
                fflush(stdout);
            }
        }
    }
    return 0;
}
