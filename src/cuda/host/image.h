/* SPDX-License-Identifier: BSD-3-Clause
 *
 * image.h: the kernels that the build has compiled, and how one becomes something that can be launched. The library holds
 * them as data, in images, each with machine code and PTX of a few kernels; src/cuda/images.cmake makes them, and a handle
 * for each kernel, by whose symbol the tables of the host know it. The driver sees an image when one of its kernels is first
 * launched. */
#ifndef STROBE_CUDA_HOST_IMAGE_H
#define STROBE_CUDA_HOST_IMAGE_H

#include "core/status.h"

struct cuda_image {
    const void *code; /* a fat binary */
    void *library;    /* what the driver made of it; NULL: not loaded yet */
};

struct cuda_kernel {
    const char *name; /* as the image has it */
    struct cuda_image *image;
    _Atomic(const void *) function; /* NULL: nobody has asked for it yet */
};

/* The handle of a kernel: strobe__kernel_<name>. */
#define CUDA_KERNEL(name) extern struct cuda_kernel strobe__kernel_##name

/* What the runtime launches, the same on every device and in every context. The first call of an image loads it, which works
 * in a stream that is captured too, and for which other threads' first calls wait. */
strobe_status strobe__cuda_find_kernel(struct cuda_kernel *kernel, const void **function);

#endif
