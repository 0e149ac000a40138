/* SPDX-License-Identifier: BSD-3-Clause
 *
 * image.h: the kernels that the build has compiled, and how one becomes something that can be launched. The library holds
 * them as data, in packed images, each with machine code and PTX of a few kernels; src/cuda/images.cmake makes them, and a
 * handle for each kernel, by whose symbol the tables of the host know it. What an image has for a GPU is unpacked, and the
 * driver sees it, when one of its kernels is first launched on a GPU of this architecture. */
#ifndef STROBE_CUDA_HOST_IMAGE_H
#define STROBE_CUDA_HOST_IMAGE_H

#include "core/status.h"
#include "cuda/host/device.h"
#include "cuda/host/unpack.h"

struct cuda_image {
    struct packed_image packed;
    const struct cuda_image *base;     /* as what follows whose code this one's is packed; NULL: by itself */
    void *library[MOST_ARCHITECTURES]; /* what the driver made of its code for one; NULL: not loaded yet */
};

struct cuda_kernel {
    const char *name; /* as the image has it */
    struct cuda_image *image;
    _Atomic(const void *) function[MOST_ARCHITECTURES]; /* NULL: nobody has asked for it yet */
};

/* The handle of a kernel: strobe__kernel_<name>. */
#define CUDA_KERNEL(name) extern struct cuda_kernel strobe__kernel_##name

/* What the runtime launches, the same in every context of the current device and of others like it. The first call of an
 * image loads it, which works in a stream that is captured too, and for which other threads' first calls wait. */
strobe_status strobe__cuda_find_kernel(struct cuda_kernel *kernel, const void **function);

#endif
