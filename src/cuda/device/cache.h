/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cache.h: where the keys of a cache lie in device memory, and the scales of a quantised one; part of what kernels are
 * given. Read by C on the host and by CUDA C on the device. */
#ifndef STROBE_CUDA_DEVICE_CACHE_H
#define STROBE_CUDA_DEVICE_CACHE_H

#include <stdint.h>

struct cache {
    const int32_t
        *page_table;      /* NULL: K and V are contiguous or packed. With pages, the batch strides of K and V are pages' */
    int64_t table_stride; /* entries from one sequence to the next */
    int32_t page_size, pages; /* an entry of the table outside [0, pages) is not followed: its keys are invisible */

    const void *leftpad; /* keys before key 0 of each sequence, integers of the other lengths' bits; NULL: none */

    /* Of K and V in int8 or e4m3, true value = scale * stored; NULL: none. The strides are those of [sequence, -, head] with
     * scale_block 0, and with 1, a scale a key, those of K and V: [page or sequence, slot or key, head]. */
    const float *k_scale, *v_scale;
    int64_t k_scale_stride[3], v_scale_stride[3];
    int32_t scale_block;
};

#endif
