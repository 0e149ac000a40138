/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cp_async.h: for src/cuda/ptx/cp_async.h. */
#ifndef STROBE_CUDA_EMULATED_PTX_CP_ASYNC_H
#define STROBE_CUDA_EMULATED_PTX_CP_ASYNC_H

#include <stdint.h>

#include "cuda/emulated/machine.h"

struct emulated_cp_async {
    void *to;
    const void *from;
    int bytes, size;
};

static inline void emulated_run_cp_async(void *operands) {
    const emulated_cp_async *o = (const emulated_cp_async *)operands;
    memcpy(o->to, o->from, (size_t)o->bytes);
    memset((unsigned char *)o->to + o->bytes, 0, (size_t)(o->size - o->bytes));
}

static inline void emulated_start_cp_async(uint32_t shared, const void *global, int bytes, int size) {
    if (shared % size || (bytes && (uintptr_t)global % size) || bytes < 0 || bytes > size)
        emulated_fault("cp.async of %d of %d bytes from %p to %#x", bytes, size, global, shared);
    const emulated_cp_async o = {emulated_shared_pointer(shared), global, bytes, size};
    emulated_later(EMULATED_LANE, emulated_run_cp_async, &o, sizeof o);
}

static inline void cp_async_16(uint32_t shared, const void *global, int bytes) {
    emulated_start_cp_async(shared, global, bytes, 16);
}
static inline void cp_async_commit(void) { emulated_commit(EMULATED_LANE); }
#define cp_async_wait(pending) emulated_wait_groups(EMULATED_LANE, pending)

#endif
