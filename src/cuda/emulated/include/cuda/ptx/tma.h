/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tma.h: for src/cuda/ptx/tma.h. */
#ifndef STROBE_CUDA_EMULATED_PTX_TMA_H
#define STROBE_CUDA_EMULATED_PTX_TMA_H

#include <cuda.h>

#include "cuda/emulated/tensor_map.h"
#include "cuda/ptx/mbarrier.h"

#define TMA_EVICT_FIRST 0x12F0000000000000ull
#define TMA_EVICT_LAST  0x14F0000000000000ull

struct emulated_box {
    unsigned char *to;
    uint32_t address; /* of `to`, or of the same place in the own CTA's memory where `to` is another CTA's */
    bool other;
    const emulated_tensor_map *map;
    uint64_t *barrier;
    int at[5];
};

/* Where a byte of shared memory lies once swizzled: a span's chunks of 16 bytes change places by the row of the address. */
static inline uint32_t emulated_swizzled(uint32_t address, uint32_t span) {
    return span ? address ^ (address >> 3 & (span - 16)) : address;
}

/* Elements outside of the tensor are 0. Axes from `rank` on have extent 1. For a box with no element of the tensor a Hopper
 * touches the address that the map begins at, as its illegal address errors show where no memory is there. */
static inline void emulated_run_box(void *operands) {
    const emulated_box *o = (const emulated_box *)operands;
    const emulated_tensor_map *m = o->map;
    uint32_t address = o->address, elements = 1;
    int at[5];
    bool any = false;
    for (int axis = 0; axis < m->rank; ++axis) elements *= m->box[axis];
    for (uint32_t n = 0; n < elements; ++n, address += m->element_bytes) {
        const unsigned char *from = (const unsigned char *)m->data;
        bool inside = true;
        uint32_t rest = n;
        for (int axis = 0; axis < m->rank; ++axis) {
            at[axis] = o->at[axis] + (int)(rest % m->box[axis]);
            rest /= m->box[axis];
            inside = inside && at[axis] >= 0 && (uint64_t)at[axis] < m->extent[axis];
            from += (int64_t)at[axis] * (int64_t)m->stride[axis];
        }
        const uint32_t swizzled = emulated_swizzled(address, m->span);
        void *to = o->other ? o->to + (int32_t)(swizzled - o->address) : emulated_shared_pointer(swizzled);
        any = any || inside;
        if (inside)
            memcpy(to, from, m->element_bytes);
        else
            memset(to, 0, m->element_bytes);
    }
    if (!any) (void)*(const volatile unsigned char *)m->data;
    emulated_mbarrier_arrive(o->barrier, 0, 0, (int64_t)elements * m->element_bytes);
}

static inline void emulated_load_box(void *to, const CUtensorMap *map, uint64_t *barrier, const int *at, int rank) {
    emulated_box o = {(unsigned char *)to, shared_address(to), false, (const emulated_tensor_map *)map, barrier,
                      {0, 0, 0, 0, 0}};
    if (o.map->rank != rank) emulated_fault("a box of %d axes of a tensor that has %d", rank, o.map->rank);
    if (shared_address(to) % 128) emulated_fault("a box to %#x, which is no multiple of 128", shared_address(to));
    memcpy(o.at, at, sizeof(int) * rank);
    emulated_later(EMULATED_ENGINE, emulated_run_box, &o, sizeof o);
}

static inline void tma_load_4d(void *to, const CUtensorMap *map, uint64_t *barrier, int column, int row, int head, int batch,
                               uint64_t) {
    const int at[4] = {column, row, head, batch};
    emulated_load_box(to, map, barrier, at, 4);
}
static inline void tma_load_4d_to_pair(void *to, const CUtensorMap *map, uint64_t *barrier, int column, int row, int head,
                                       int batch, uint64_t) {
    for (int rank = 0; rank < 2; ++rank) {
        if (rank == (int)emulated_rank) {
            tma_load_4d(to, map, barrier, column, row, head, batch, 0);
            continue;
        }
        const emulated_box o = {(unsigned char *)emulated_shared_pointer(emulated_cluster_address(shared_address(to), rank)),
                                shared_address(to),
                                true,
                                (const emulated_tensor_map *)map,
                                (uint64_t *)emulated_shared_pointer(emulated_cluster_address(shared_address(barrier), rank)),
                                {column, row, head, batch, 0}};
        emulated_later(EMULATED_ENGINE, emulated_run_box, &o, sizeof o);
    }
}
static inline void tma_prefetch_4d(const CUtensorMap *, int, int, int, int) {}
static inline void tma_prefetch_map(const CUtensorMap *) {}

#endif
