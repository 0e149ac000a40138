/* SPDX-License-Identifier: BSD-3-Clause
 *
 * nvrtc.h: NVIDIA's run-time compiler, opened when it is first needed, and the kernels' own text, which the build has put
 * into the library (cuda/embed.cmake). Nothing links against the compiler. STROBE_NVRTC in the environment may name its
 * file. */
#ifndef STROBE_CUDA_HOST_NVRTC_H
#define STROBE_CUDA_HOST_NVRTC_H

#include "core/kernel.h"

/* NULL, or the sentence that nothing can be compiled here. */
const char *strobe__nvrtc_lacks(void);

/* 1000 major + 10 minor; 0 without one. */
int strobe__nvrtc_version(void);

/* A number of the kernels' text: another text has another. */
uint64_t strobe__cuda_sources_number(void);

/* Compiles an embedded file. text: the function's, which device/score_function.h includes. architecture: such as 90, is_own:
 * with the instructions that no later GPU has. options: others, such as -DDIM=64. code: machine code, or PTX where the
 * compiler is older than the architecture; free() it. */
struct nvrtc_job {
    const char *source, *text;
    int architecture;
    bool is_own;
    const char *const *options;
    int option_count;
};
strobe_status strobe__nvrtc_compile(const struct nvrtc_job *job, void **code, size_t *bytes);

#endif
