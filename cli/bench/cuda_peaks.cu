/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_peaks.cu: what a GPU can do at best, in loops that do nothing else; cuda_bench.c launches them.
 *   peak_wgmma   bf16 matrix products, A from registers, B from shared memory (Hopper)
 *   peak_mma     bf16 matrix products from registers (mma.sync, from sm_80 on)
 *   peak_fma     fp32 multiply-adds from registers
 *   peak_copy    a copy in device memory, 16 bytes a thread and step
 * Operands are random: products of zeros take less power, and so run at higher clocks than those of a real problem. Each
 * thread's results meet in one value, which is stored if it is what it cannot be, so that nothing is left out. */
#define STROBE_MMA_TYPE "bf16"
#include "cuda/ptx/mma.h"
#if __CUDA_ARCH_FEAT_SM90_ALL
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/wgmma.h"
#endif

/* Two bf16 between 1/2 and 2 in size, of either sign (a step of PCG's output function decides). */
static __device__ uint32_t random_pair(uint32_t seed) {
    uint32_t x = seed * 747796405u + 2891336453u;
    x = ((x >> ((x >> 28) + 4)) ^ x) * 277803737u;
    x ^= x >> 22;
    return (x & 0x80ff80ffu) | 0x3f003f00u;
}

static __device__ __forceinline__ void keep(const float *sums, int count, float *sink) {
    float all = 0;
#pragma unroll
    for (int n = 0; n < count; ++n) all += sums[n];
    if (all == 0.123456789f) *sink = all;
}

/* 8 products of 4096 operations a warp and round. */
extern "C" __global__ void __launch_bounds__(256) peak_mma(int rounds, float *sink) {
    uint32_t a[4][4], b[2][2];
    float sums[8][4] = {};
    const uint32_t seed = (blockIdx.x * 256 + threadIdx.x) * 32;
#pragma unroll
    for (int n = 0; n < 16; ++n) a[n / 4][n % 4] = random_pair(seed + n);
#pragma unroll
    for (int n = 0; n < 4; ++n) b[n / 2][n % 2] = random_pair(seed + 16 + n);
#pragma unroll 1
    for (int round = 0; round < rounds; ++round)
#pragma unroll
        for (int n = 0; n < 8; ++n) mma_m16n8k16_bf16(sums[n], a[n / 2], b[n % 2][0], b[n % 2][1]);
#pragma unroll
    for (int n = 0; n < 8; ++n) keep(sums[n], 4, sink);
}

/* 32 sums: 64 operations a thread and round. */
extern "C" __global__ void __launch_bounds__(256) peak_fma(int rounds, float *sink) {
    const float x = 1 + 1e-6f * (float)threadIdx.x, y = 1e-3f * (float)(blockIdx.x + 1);
    float sums[32];
#pragma unroll
    for (int n = 0; n < 32; ++n) sums[n] = (float)n;
#pragma unroll 1
    for (int round = 0; round < rounds; ++round)
#pragma unroll
        for (int n = 0; n < 32; ++n) sums[n] = fmaf(sums[n], x, y);
    keep(sums, 32, sink);
}

extern "C" __global__ void __launch_bounds__(512) peak_copy(uint4 *to, const uint4 *from, size_t chunks) {
    const size_t step = (size_t)gridDim.x * 512;
    size_t at = (size_t)blockIdx.x * 512 + threadIdx.x;
    for (; at + 3 * step < chunks; at += 4 * step) { /* four loads on their way */
        const uint4 a = from[at], b = from[at + step], c = from[at + 2 * step], d = from[at + 3 * step];
        to[at] = a, to[at + step] = b, to[at + 2 * step] = c, to[at + 3 * step] = d;
    }
    for (; at < chunks; at += step) to[at] = from[at];
}

/* Two warp groups of 64 rows x 256 columns; a round is 16 products over a depth of 16. */
extern "C" __global__ void __launch_bounds__(256, 1) peak_wgmma(int rounds, float *sink) {
#if __CUDA_ARCH_FEAT_SM90_ALL
    enum { SLAB_BYTES = 64 * 128 }; /* 64 rows of 64 columns */
    __shared__ __align__(1024) uint32_t b[4 * SLAB_BYTES / 4];
    uint32_t a[4][4];
    float sums[128] = {};
    const uint32_t seed = (blockIdx.x * 256 + threadIdx.x) * 16;
    for (unsigned n = threadIdx.x; n < sizeof b / 4; n += 256) b[n] = random_pair(n * 7919 + blockIdx.x);
#pragma unroll
    for (int n = 0; n < 16; ++n) a[n / 4][n % 4] = random_pair(seed + n);
    fence_proxy_async();
    __syncthreads();
    const uint64_t operand = wgmma_operand(shared_address(b), SLAB_BYTES);
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 16; ++k) wgmma_rs_256(sums, a[k % 4], operand + k % 4 * 16 * 128 / 16);
        wgmma_commit();
        wgmma_wait(0); /* the other group's products go on meanwhile */
    }
    keep(sums, 128, sink);
#endif
}
