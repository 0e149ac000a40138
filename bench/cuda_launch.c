/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_launch.c: what a call costs the host: strobe_forward and strobe_backward, which check, plan, describe the tensors and
 * launch, and do not wait; strobe_workspace and strobe_check of the same problem. Microseconds a call, least and median of
 * rounds of calls that the GPU is ready for. Beside them a call of cudaMemsetAsync, the least that anything on a stream
 * costs. Exit code 77: no GPU.
 *
 *     bench_cuda_launch [KERNEL]      the forward's */
#include <cuda_runtime_api.h>
#include <stdbool.h>
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

/* A problem, its gradients, and memory for both directions; the GPU's fills are small. */
struct problem {
    strobe_attention a;
    strobe_gradients g;
    strobe_tuning tuning;
    void *work;
    size_t need[2]; /* of the forward, of the backward */
};

enum way { FORWARD, BACKWARD, FORWARD_WORKSPACE, BACKWARD_WORKSPACE, BACKWARD_CHECK, MEMSET, WAYS };
static const char *const names[WAYS] = {"strobe_forward",           "strobe_backward",      "  strobe_workspace",
                                        "  strobe_workspace of it", "  strobe_check of it", "  cudaMemsetAsync"};

static void call(enum way way, struct problem *p) {
    size_t need;
    bool failed = false;
    switch (way) {
    case FORWARD: failed = strobe_forward(&p->a, p->work, p->need[0], NULL) != STROBE_OK; break;
    case BACKWARD: failed = strobe_backward(&p->a, &p->g, p->work, p->need[1], NULL) != STROBE_OK; break;
    case FORWARD_WORKSPACE: failed = strobe_workspace(&p->a, NULL, &need) != STROBE_OK; break;
    case BACKWARD_WORKSPACE: failed = strobe_workspace(&p->a, &p->g, &need) != STROBE_OK; break;
    case BACKWARD_CHECK: failed = strobe_check(&p->a, &p->g) != STROBE_OK; break;
    default: failed = cudaMemsetAsync(p->a.lse.data, 0, 64, NULL) != cudaSuccess;
    }
    require(failed, names[way]);
}

static void allocate(void **data, size_t bytes) {
    require(cudaMalloc(data, bytes) || cudaMemset(*data, 0, bytes), "cudaMalloc");
}

static void time_calls(int64_t dim, int32_t mask, const char *kernel) {
    const size_t bytes = (size_t)(SEQ * HEADS * dim * 2);
    struct problem p = {.tuning = {.struct_size = sizeof p.tuning, .kernel = kernel}, .g = {.struct_size = sizeof p.g}};
    strobe_attention *const a = &p.a;
    a->struct_size = sizeof *a, a->batch = 1, a->seq_q = SEQ, a->seq_k = SEQ, a->heads_q = HEADS, a->dim = dim;
    a->dtype = STROBE_BF16, a->device = STROBE_CUDA, a->mask = mask;
    void **const data[8] = {&a->q.data,     &a->k.data,   &a->v.data,   &a->out.data,
                            &p.g.dout.data, &p.g.dq.data, &p.g.dk.data, &p.g.dv.data};
    for (int i = 0; i < 8; ++i) allocate(data[i], bytes);
    allocate(&a->lse.data, (size_t)(SEQ * HEADS) * sizeof(float));
    for (int backward = 0; backward < 2; ++backward)
        require(strobe_workspace(a, backward ? &p.g : NULL, &p.need[backward]) != STROBE_OK, "strobe_workspace");
    allocate(&p.work, (p.need[0] > p.need[1] ? p.need[0] : p.need[1]) + 1);

    double times[WAYS][ROUNDS];
    for (int round = -1; round < ROUNDS; ++round)
        for (int way = 0; way < WAYS; ++way) {
            a->tuning = kernel && way == FORWARD ? &p.tuning : NULL;
            const double start = microseconds();
            for (int i = 0; i < CALLS; ++i) call((enum way)way, &p);
            if (round >= 0) times[way][round] = (microseconds() - start) / CALLS;
            cudaDeviceSynchronize();
        }
    printf("d=%d%s\n", (int)dim, mask ? " causal" : "");
    for (int way = 0; way < WAYS; ++way) report(names[way], times[way]);
    for (int i = 0; i < 8; ++i) cudaFree(*data[i]);
    cudaFree(a->lse.data), cudaFree(p.work);
}

int main(int argc, char **argv) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return 77;
    for (int64_t dim = 64; dim <= 128; dim *= 2)
        for (int causal = 0; causal < 2; ++causal)
            time_calls(dim, causal ? STROBE_MASK_CAUSAL_BOTTOM_RIGHT : STROBE_MASK_NONE, argc > 1 ? argv[1] : NULL);
    return 0;
}
