/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tma.h: the tensor copy engine (PTX ISA 9.7.9.25.5, cp.async.bulk.tensor). A box of a tensor that a map describes goes to
 * shared memory, swizzled, out-of-range elements as zeros, and its bytes, those too, are counted by an mbarrier. */
#ifndef STROBE_CUDA_PTX_TMA_H
#define STROBE_CUDA_PTX_TMA_H

#include <cuda.h>

#include "cuda/ptx/mbarrier.h"

/* L2 eviction priorities, as the encoded policies that the hardware takes. */
#define TMA_EVICT_FIRST 0x12F0000000000000ull
#define TMA_EVICT_LAST  0x14F0000000000000ull

static __device__ __forceinline__ void tma_load_4d(void *to, const CUtensorMap *map, uint64_t *barrier, int column, int row,
                                                   int head, int batch, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "r"(head), "r"(batch), "l"(policy)
                 : "memory");
}

/* The box to both CTAs of a pair, at this CTA's addresses of memory and barrier. Of the cluster's CTAs bit n is number n. */
static __device__ __forceinline__ void tma_load_4d_to_pair(void *to, const CUtensorMap *map, uint64_t *barrier, int column,
                                                           int row, int head, int batch, uint64_t policy) {
    asm volatile("{\n"
                 ".reg .b16 both;\n"
                 "mov.b16 both, 3;\n"
                 "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
                 ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], both, %7;\n"
                 "}" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "r"(head), "r"(batch), "l"(policy)
                 : "memory");
}

/* The box to the L2 cache alone. */
static __device__ __forceinline__ void tma_prefetch_4d(const CUtensorMap *map, int column, int row, int head, int batch) {
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(column), "r"(row),
                 "r"(head), "r"(batch)
                 : "memory");
}

static __device__ __forceinline__ void tma_prefetch_map(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

#endif
