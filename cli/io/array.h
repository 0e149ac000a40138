/* SPDX-License-Identifier: BSD-3-Clause
 *
 * array.h: a tensor in a file's bytes: what npy.c and safetensors.c read. Row-major, without gaps, not aligned to anything.
 */
#ifndef STROBE_CLI_ARRAY_H
#define STROBE_CLI_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ARRAY_RANK = 8, ARRAY_NAME = 128 };

typedef struct array {
    char name[ARRAY_NAME];
    int64_t dtype; /* a strobe_dtype; STROBE_DTYPE_DEFAULT: a type that attention has no use for */
    int64_t rank;
    int64_t shape[ARRAY_RANK];
    const unsigned char *data; /* inside the bytes that were parsed; NULL for no elements */
    size_t bytes;
} array;

/* Bytes of an array of this shape with elements of this size. False if they overflow. */
bool array_bytes(const array *a, size_t element, size_t *bytes);

#endif
