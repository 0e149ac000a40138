/* SPDX-License-Identifier: BSD-3-Clause
 *
 * compiled.h: kernels that are compiled at run time, with a user's function of a score, and kept: in the process for as long
 * as it lives, and on disk (disk_cache.h). They are found by the text that is compiled, the options, the architecture, and
 * the versions of the library and of the compiler; lengths, data and scalars are no part of it. */
#ifndef STROBE_CUDA_HOST_COMPILED_H
#define STROBE_CUDA_HOST_COMPILED_H

#include "core/kernel.h"
#include "cuda/device/score_values.h"

enum { MOST_COMPILED_KERNELS = 3, MOST_COMPILED_OPTIONS = 24 };

/* An embedded file, compiled for the device of a problem and with its function. options: such as "DIM=64", up to a NULL.
 * names: of its kernels, up to a NULL. */
struct compiled_text {
    const char *source;
    bool is_hopper; /* with instructions of sm_90a */
    const char *options[MOST_COMPILED_OPTIONS + 1];
    const char *names[MOST_COMPILED_KERNELS + 1];
};

/* A kernel as the driver has it; it goes with every device of the architecture. */
typedef struct CUkern_st *compiled_kernel;

/* NULL, or why the problem's function cannot be compiled here; NULL without one. */
const char *strobe__compiled_reject(const struct problem *problem);

/* The kernels of a text, compiled if they have not been: which a stream that is captured cannot wait for, and is refused. */
strobe_status strobe__compiled(const struct problem *problem, const struct compiled_text *text, void *stream,
                               compiled_kernel kernels[MOST_COMPILED_KERNELS]);

/* The same for texts up to a NULL, of which those that have not been compiled are at once, a thread each. */
strobe_status strobe__compiled_all(const struct problem *problem, const struct compiled_text *const texts[], void *stream);

/* The same ahead of a call; nothing without a function that changes scores. */
strobe_status strobe__compiled_prepare(const struct problem *problem, const struct compiled_text *const texts[]);

/* What strobe__cuda_launch does, of a compiled kernel. params: `bytes` of the kernel's parameters without a function, which
 * `values` follow. */
strobe_status strobe__compiled_launch(compiled_kernel kernel, int64_t blocks, int32_t threads, int32_t shared_bytes,
                                      const void *params, size_t bytes, const struct score_values *values, void *stream,
                                      bool early);

/* What a call gives to the function, but for gradients. */
struct score_values strobe__score_values(const struct problem *problem);

#endif
