/* SPDX-License-Identifier: BSD-3-Clause
 *
 * device_on_host.h: enough of CUDA C for headers of kernels that only count to be compiled as C and run by threads of the
 * host, one for each thread of a block: what they decide can be tested without a GPU. Set THREADS before. */
#ifndef STROBE_TESTS_DEVICE_ON_HOST_H
#define STROBE_TESTS_DEVICE_ON_HOST_H

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define __device__      __attribute__((unused))
#define __forceinline__ inline
#define __noinline__
#define asm __asm__ /* which strict C does not know */

typedef struct {
    unsigned x;
} index_of_dimension;
static _Thread_local index_of_dimension threadIdx;
static index_of_dimension blockIdx, gridDim;

typedef struct {
    float x, y, z, w;
} float4;
typedef struct {
    unsigned x, y, z, w;
} uint4;
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return (uint4){x, y, z, w}; }

static pthread_barrier_t block_barrier;
static void __syncthreads(void) { pthread_barrier_wait(&block_barrier); }

/* The value of the lane `distance` before, or the own one. Every thread of the block takes part. */
static unsigned __shfl_up_sync(unsigned lanes, unsigned value, int distance) {
    static unsigned values[THREADS];
    const int thread = (int)threadIdx.x;
    (void)lanes;
    values[thread] = value;
    __syncthreads();
    const unsigned got = thread % 32 >= distance ? values[thread - distance] : value;
    __syncthreads();
    return got;
}

static void *run_thread(void *function) {
    void (*body)(void);
    static pthread_mutex_t numbering = PTHREAD_MUTEX_INITIALIZER;
    static unsigned next;
    pthread_mutex_lock(&numbering);
    threadIdx.x = next++ % THREADS;
    pthread_mutex_unlock(&numbering);
    memcpy(&body, function, sizeof body);
    body();
    return NULL;
}

/* Runs a block of THREADS threads. */
static void run_block(void (*body)(void)) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&block_barrier, NULL, THREADS);
    for (int n = 0; n < THREADS; ++n) assert(pthread_create(&threads[n], NULL, run_thread, &body) == 0);
    for (int n = 0; n < THREADS; ++n) pthread_join(threads[n], NULL);
    pthread_barrier_destroy(&block_barrier);
}

#endif
