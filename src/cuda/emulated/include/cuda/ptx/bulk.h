/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bulk.h: for src/cuda/ptx/bulk.h. */
#ifndef STROBE_CUDA_EMULATED_PTX_BULK_H
#define STROBE_CUDA_EMULATED_PTX_BULK_H

#include "cuda/ptx/mbarrier.h"

struct emulated_bulk_load {
    void *to;
    const void *from;
    uint64_t bytes;
    uint64_t *barrier;
};

static inline void emulated_run_bulk_load(void *operands) {
    const emulated_bulk_load *o = (const emulated_bulk_load *)operands;
    memcpy(o->to, o->from, o->bytes);
    emulated_mbarrier_arrive(o->barrier, 0, 0, (int64_t)o->bytes);
}

static inline void emulated_check_bulk(const void *a, const void *b, uint32_t bytes) {
    if ((uintptr_t)a % 16 || (uintptr_t)b % 16 || bytes % 16)
        emulated_fault("a bulk copy of %u bytes from or to an address that is no multiple of 16", bytes);
}

static inline void bulk_load(void *to, const void *from, uint32_t bytes, uint64_t *barrier) {
    emulated_check_bulk(to, from, bytes);
    const emulated_bulk_load o = {to, from, bytes, barrier};
    emulated_later(EMULATED_ENGINE, emulated_run_bulk_load, &o, sizeof o);
}

struct emulated_bulk_add {
    float *to;
    const float *from;
    uint64_t count;
    uint32_t stores;
};

static inline void emulated_run_bulk_add(void *operands) {
    const emulated_bulk_add *o = (const emulated_bulk_add *)operands;
    if (o->stores) memset(o->to, 0, o->count * sizeof *o->to);
    for (uint64_t n = 0; n < o->count; ++n) atomicAdd(o->to + n, o->from[n]);
}

static inline void bulk_add(float *to, const void *from, uint32_t bytes, uint32_t stores) {
    emulated_check_bulk(to, from, bytes);
    const emulated_bulk_add o = {to, (const float *)from, bytes / 4, stores};
    emulated_later(EMULATED_BULK, emulated_run_bulk_add, &o, sizeof o);
    emulated_commit(EMULATED_BULK);
}

static inline void bulk_wait_read(void) { emulated_wait_groups(EMULATED_BULK, 0); }
static inline void bulk_wait(void) { emulated_wait_groups(EMULATED_BULK, 0); }

static inline void red_add_4(float *to, float a, float b, float c, float d) {
    if ((uintptr_t)to % 16) emulated_fault("red.v4 to an address that is no multiple of 16");
    atomicAdd(to, a), atomicAdd(to + 1, b), atomicAdd(to + 2, c), atomicAdd(to + 3, d);
}

static inline void red_add_or_store_4(float *to, float a, float b, float c, float d, uint32_t stores) {
    if (stores) to[0] = to[1] = to[2] = to[3] = 0;
    red_add_4(to, a, b, c, d);
}

#endif
