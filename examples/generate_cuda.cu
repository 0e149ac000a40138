/* SPDX-License-Identifier: BSD-3-Clause
 *
 * generate_cuda.cu: what generate.c asks of a GPU; see generate_device.h. Products are cuBLAS's, which is opened at run
 * time: CUDA's toolkit brings it, and so does PyTorch for CUDA. The rest are kernels of a block of threads a row. Everything
 * is put on one stream. A step that decodes is captured in a CUDA graph and launched as one from then on, as inference
 * engines do: the library's calls read lengths and pages in the GPU's memory, so that nothing has to be captured anew. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>

#include <cuda_runtime.h>

#include <strobe/strobe.h>

#include "generate_device.h"

enum { THREADS = 128, GRAPHS = 257, CUBLAS_BYTES = 32 << 20 };

static cudaStream_t stream;
static cudaGraphExec_t graphs[GRAPHS];
static int recorded = -1;

static void check(cudaError_t error, const char *what) {
    if (error != cudaSuccess) stop(what, cudaGetErrorString(error));
}

/* ------------------------------------------------------------------------------------------------------------- cuBLAS -- */

typedef struct cublasContext *cublas_handle;
enum { AS_IT_IS, TRANSPOSED }; /* cublasOperation_t */

static struct {
    cublas_handle handle;
    int (*create)(cublas_handle *);
    int (*set_stream)(cublas_handle, cudaStream_t);
    int (*set_workspace)(cublas_handle, void *, size_t);
    int (*sgemm)(cublas_handle, int, int, int, int, int, const float *, const float *, int, const float *, int,
                 const float *, float *, int);
} cublas;

static void open_cublas(void) {
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
    void *library = NULL;
    for (int n = 0; n < 3 && !library; ++n) library = dlopen(names[n], RTLD_NOW);
    if (!library) stop("cuBLAS, which multiplies matrices, is not where libraries are looked for", dlerror());
    *(void **)&cublas.create = dlsym(library, "cublasCreate_v2");
    *(void **)&cublas.set_stream = dlsym(library, "cublasSetStream_v2");
    *(void **)&cublas.set_workspace = dlsym(library, "cublasSetWorkspace_v2");
    *(void **)&cublas.sgemm = dlsym(library, "cublasSgemm_v2");
    if (!cublas.create || !cublas.set_stream || !cublas.set_workspace || !cublas.sgemm)
        stop("this cuBLAS lacks a function", "of version 12 or 13");
    void *workspace; /* of its own, so that products can be captured */
    check(cudaMalloc(&workspace, CUBLAS_BYTES), "no memory of the GPU for cuBLAS");
    if (cublas.create(&cublas.handle) || cublas.set_stream(cublas.handle, stream) ||
        cublas.set_workspace(cublas.handle, workspace, CUBLAS_BYTES))
        stop("cuBLAS cannot be used", "on this GPU");
}

/* ------------------------------------------------------------------------------------------------------------- memory -- */

static void *open_gpu(void) {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "there is no GPU to use");
    open_cublas();
    return stream;
}

static void *zeros(size_t bytes) {
    void *made;
    check(cudaMalloc(&made, bytes ? bytes : 1), "the GPU has no memory for it");
    check(cudaMemset(made, 0, bytes), "cannot write memory of the GPU");
    check(cudaDeviceSynchronize(), "cannot write memory of the GPU");
    return made;
}

static void put(void *to, const void *from, size_t bytes) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "cannot copy to the GPU");
}

static void get(void *to, const void *from, size_t bytes) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream), "cannot copy from the GPU");
    check(cudaStreamSynchronize(stream), "the GPU failed");
}

/* ---------------------------------------------------------------------------------------------------------- the model -- */

static __global__ void look_up_rows(float *x, const float *embed, const float *place, const int32_t *ids,
                                    const int32_t *places, int width) {
    const int r = (int)blockIdx.x;
    for (int c = (int)threadIdx.x; c < width; c += THREADS)
        x[r * width + c] = embed[ids[r] * width + c] + place[places[r] * width + c];
}

static void look_up(float *x, const float *embed, const float *place, const int32_t *ids, const int32_t *places, int rows,
                    int width) {
    look_up_rows<<<rows, THREADS, 0, stream>>>(x, embed, place, ids, places, width);
}

/* The sum over the block's threads, for all of them. */
static __device__ float block_sum(float sum) {
    __shared__ float sums[THREADS / 32];
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    __syncthreads();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < THREADS / 32; ++w) sum += sums[w];
    return sum;
}

static __global__ void norm_rows(float *to, const float *x, const int32_t *from, const float *weight, const float *bias,
                                 int width) {
    const int r = (int)blockIdx.x;
    x += (from ? from[r] : r) * width, to += r * width;
    float sum = 0, square = 0;
    for (int c = (int)threadIdx.x; c < width; c += THREADS) sum += x[c];
    const float mean = block_sum(sum) / (float)width;
    for (int c = (int)threadIdx.x; c < width; c += THREADS) square += (x[c] - mean) * (x[c] - mean);
    const float scale = rsqrtf(block_sum(square) / (float)width + 1e-5f);
    for (int c = (int)threadIdx.x; c < width; c += THREADS) to[c] = (x[c] - mean) * scale * weight[c] + bias[c];
}

static void norm(float *to, const float *x, const int32_t *from, const float *const weight_bias[2], int rows, int width) {
    norm_rows<<<rows, THREADS, 0, stream>>>(to, x, from, weight_bias[0], weight_bias[1], width);
}

static __global__ void bias_rows(float *y, const float *bias, int columns, int added) {
    y += (int)blockIdx.x * columns;
    for (int c = (int)threadIdx.x; c < columns; c += THREADS) y[c] = bias[c] + (added ? y[c] : 0);
}

/* cuBLAS counts columns first: to it, rows of x and of the weight are columns. */
static void linear(float *to, const float *x, const float *const weight_bias[2], int rows, int ins, int outs, int added) {
    const float one = 1, old = weight_bias[1] || added ? 1 : 0;
    if (weight_bias[1]) bias_rows<<<rows, THREADS, 0, stream>>>(to, weight_bias[1], outs, added);
    if (cublas.sgemm(cublas.handle, TRANSPOSED, AS_IT_IS, outs, rows, ins, &one, weight_bias[0], ins, x, ins, &old, to,
                     outs))
        stop("cuBLAS failed", "at a product");
}

static __global__ void gelu_all(float *x, size_t count) {
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < count) x[i] *= 0.5f * (1 + erff(x[i] * 0.70710678f));
}

static void gelu(float *x, size_t count) {
    gelu_all<<<(unsigned)((count + THREADS - 1) / THREADS), THREADS, 0, stream>>>(x, count);
}

/* A warp a row. */
static __global__ void largest_of_rows(int32_t *ids, const float *x, int columns) {
    x += (int)blockIdx.x * columns;
    int best = columns;
    float most = -INFINITY;
    for (int c = (int)threadIdx.x; c < columns; c += 32)
        if (x[c] > most) most = x[c], best = c;
    for (int d = 16; d; d /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, most, d);
        const int at = __shfl_xor_sync(0xffffffffu, best, d);
        if (other > most || (other == most && at < best)) most = other, best = at;
    }
    if (threadIdx.x == 0) ids[blockIdx.x] = best < columns ? best : 0;
}

static void largest(int32_t *ids, const float *x, int rows, int columns) {
    largest_of_rows<<<rows, 32, 0, stream>>>(ids, x, columns);
    check(cudaGetLastError(), "a kernel could not be launched");
}

/* ------------------------------------------------------------------------------------------------------------- graphs -- */

static int replay(int number) {
    if (number >= GRAPHS || !graphs[number]) return 0;
    check(cudaGraphLaunch(graphs[number], stream), "a CUDA graph could not be launched");
    return 1;
}

static void record(int number) {
    static int seen[GRAPHS];
    recorded = -1;
    if (number >= GRAPHS || !seen[number]++) return; /* the first time it just runs, which loads its kernels */
    recorded = number;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "a CUDA graph could not be begun");
}

static void end_record(void) {
    cudaGraph_t graph;
    if (recorded < 0) return;
    check(cudaStreamEndCapture(stream, &graph), "a CUDA graph could not be captured");
    check(cudaGraphInstantiate(&graphs[recorded], graph, 0), "a CUDA graph could not be made ready");
    check(cudaGraphDestroy(graph), "a CUDA graph could not be let go");
    replay(recorded);
}

const struct device on_cuda = {STROBE_CUDA, open_gpu, zeros,   put,    get,    look_up,   norm,
                               linear,      gelu,     largest, replay, record, end_record};
