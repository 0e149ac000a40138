/* SPDX-License-Identifier: BSD-3-Clause
 *
 * unpack.h: what src/cuda/packed/pack.c has packed, as it was. */
#ifndef STROBE_CUDA_HOST_UNPACK_H
#define STROBE_CUDA_HOST_UNPACK_H

#include <stdbool.h>
#include <stddef.h>

struct packed {
    const unsigned char *stream;
    size_t bytes, unpacked; /* of the stream, and of what it was packed from */
};

/* The last of some codes, each packed as what follows those before it: machine code, or a text of PTX, which ends with a 0
 * byte, in memory that the caller frees; NULL where it is damaged or no memory is left. */
void *strobe__unpack(const struct packed *codes, int count, bool text);

/* An image's code for an architecture such as 90: machine code of its major version and the last minor one that the image
 * has, else PTX that is not of a later one; else NULL, as from strobe__unpack. base: the image as what follows which it is
 * packed, or NULL. */
struct packed_image {
    const unsigned char *at;
    size_t bytes;
};
void *strobe__unpack_image(const struct packed_image *image, const struct packed_image *base, int architecture);

/* A text whose registers were renamed, see packed/model.h. */
char *strobe__unpack_registers(const unsigned char *text, size_t bytes);

#endif
