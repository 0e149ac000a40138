/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tensor_map.h: what the emulated driver keeps in a CUtensorMap. Axis 0 has the elements of a row. */
#ifndef STROBE_CUDA_EMULATED_TENSOR_MAP_H
#define STROBE_CUDA_EMULATED_TENSOR_MAP_H

#include <stdint.h>

struct emulated_tensor_map {
    void *data;
    uint64_t extent[5];
    uint64_t stride[5]; /* bytes */
    uint16_t box[5];
    uint8_t rank, element_bytes;
    uint16_t span; /* of the swizzle: bytes, 0 for none */
};

#endif
