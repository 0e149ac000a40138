/* SPDX-License-Identifier: BSD-3-Clause
 *
 * prefetch_masks.h: software prefetching of masks and biases of which each query row has its own. A tile reads some bytes of
 * 32 rows, which lie in as many pages, and then the bytes behind them: no prefetcher of a processor follows so many streams.
 * So the rows' next bytes are prefetched while the tile works on these. */
#ifndef STROBE_CPU_AMX_PREFETCH_MASKS_H
#define STROBE_CPU_AMX_PREFETCH_MASKS_H

#include "core/element.h"
#include "cpu/vector/visible.h"

/* Prefetches `bytes` bytes of each of the rows that begin at data + at[r] elements, from element j on. Addresses wrap
 * around, as nothing has to be there. */
static inline void prefetch_elements(const void *data, const int64_t *at, int64_t rows, int64_t element, int64_t j,
                                     int64_t bytes) {
    enum { LINE_BYTES = 64 };
    for (int64_t r = 0; r < rows; ++r) {
        if (r > 0 && at[r] == at[r - 1]) continue;
        const uintptr_t row = (uintptr_t)data + (uintptr_t)((at[r] + j) * element);
        for (int64_t byte = 0; byte < bytes; byte += LINE_BYTES)
            __builtin_prefetch((const void *)(row + (uintptr_t)byte), 0, 2);
    }
}

/* The boolean mask of keys [j, j + keys). */
static inline void prefetch_mask(const struct tile_rows *t, const struct row_features *f, int64_t j, int64_t keys) {
    const struct problem *p = t->p;
    if (p->a.bool_mask && !f->masks_are_shared) prefetch_elements(p->bool_mask.data, f->bool_mask, t->n, 1, j, keys);
}

/* The bias of keys [j, j + keys). */
static inline void prefetch_bias(const struct tile_rows *t, const struct row_features *f, int64_t j, int64_t keys) {
    const strobe_bias *bias = &t->p->bias;
    if (!t->p->a.bias || f->bias_is_shared) return;
    const int64_t bytes = (int64_t)strobe__dtype_bytes(bias->dtype);
    prefetch_elements(bias->data, f->bias, t->n, bytes, j, keys * bytes);
}

#endif
