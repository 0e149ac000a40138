/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tma_5d.h: tensor copies, as in tma.h, of a tensor of five axes. */
#ifndef STROBE_CUDA_PTX_TMA_5D_H
#define STROBE_CUDA_PTX_TMA_5D_H

#include "cuda/ptx/tma.h"

static __device__ __forceinline__ void tma_load_5d(void *to, const CUtensorMap *map, uint64_t *barrier, const int (&at)[5],
                                                   uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]),
                 "l"(policy)
                 : "memory");
}

#endif
