/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_launch.c: what a call of strobe_forward costs the host, which checks, plans, describes the tensors and launches, and
 * does not wait: microseconds a call, least and median of rounds of calls that the GPU is ready for. Beside it a call of
 * cudaMemsetAsync, the least that anything on a stream costs. Exit code 77: no GPU.
 *
 *     bench_cuda_launch [KERNEL] */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <strobe/strobe.h>

enum { CALLS = 100, ROUNDS = 51, SEQ = 256, HEADS = 8 };

static double microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void require(int failed, const char *what) {
    if (!failed) return;
    fprintf(stderr, "bench_cuda_launch: %s: %s\n", what, strobe_last_error());
    exit(1);
}

static void report(const char *name, double times[ROUNDS]) {
    qsort(times, ROUNDS, sizeof times[0], ascending);
    printf("%-28s %6.2f us a call, median %6.2f\n", name, times[0], times[ROUNDS / 2]);
}

static void time_forward(int64_t dim, int32_t mask, const char *kernel) {
    const size_t bytes = (size_t)(SEQ * HEADS * dim * 2);
    strobe_tuning tuning = {.struct_size = sizeof tuning, .kernel = kernel};
    strobe_attention a = {.struct_size = sizeof a, .batch = 1, .seq_q = SEQ, .seq_k = SEQ, .heads_q = HEADS, .dim = dim};
    a.dtype = STROBE_BF16, a.device = STROBE_CUDA, a.mask = mask;
    if (kernel) a.tuning = &tuning;
    void **const data[4] = {&a.q.data, &a.k.data, &a.v.data, &a.out.data};
    for (int i = 0; i < 4; ++i) require(cudaMalloc(data[i], bytes) || cudaMemset(*data[i], 0, bytes), "cudaMalloc");
    require(cudaMalloc(&a.lse.data, (size_t)(SEQ * HEADS) * sizeof(float)) != cudaSuccess, "cudaMalloc");
    size_t need;
    void *work = NULL;
    require(strobe_workspace(&a, NULL, &need) != STROBE_OK, "strobe_workspace");
    require(cudaMalloc(&work, need ? need : 1) != cudaSuccess, "cudaMalloc");

    double calls[ROUNDS], least[ROUNDS];
    for (int round = -1; round < ROUNDS; ++round) {
        double start = microseconds();
        for (int i = 0; i < CALLS; ++i) require(strobe_forward(&a, work, need, NULL) != STROBE_OK, "strobe_forward");
        if (round >= 0) calls[round] = (microseconds() - start) / CALLS;
        cudaDeviceSynchronize();
        start = microseconds();
        for (int i = 0; i < CALLS; ++i) cudaMemsetAsync(a.lse.data, 0, 64, NULL);
        if (round >= 0) least[round] = (microseconds() - start) / CALLS;
        cudaDeviceSynchronize();
    }
    char name[64];
    snprintf(name, sizeof name, "strobe_forward d=%d%s", (int)dim, mask ? " causal" : "");
    report(name, calls);
    report("  cudaMemsetAsync", least);
    for (int i = 0; i < 4; ++i) cudaFree(*data[i]);
    cudaFree(a.lse.data), cudaFree(work);
}

int main(int argc, char **argv) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return 77;
    for (int64_t dim = 64; dim <= 128; dim *= 2)
        for (int causal = 0; causal < 2; ++causal)
            time_forward(dim, causal ? STROBE_MASK_CAUSAL_BOTTOM_RIGHT : STROBE_MASK_NONE, argc > 1 ? argv[1] : NULL);
    return 0;
}
