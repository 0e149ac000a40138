/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_clock.h: how fast the GPU is clocked while it is measured, and what holds it back, as NVML says: a figure taken while
 * the card is hot or out of power is not the kernel's. */
#ifndef STROBE_CLI_CUDA_CLOCK_H
#define STROBE_CLI_CUDA_CLOCK_H

#include <stddef.h>

/* What was seen so far; all zero to begin with. */
typedef struct cuda_clocks {
    unsigned low_mhz, high_mhz, most_mhz; /* of the multiprocessors; low and high 0: NVML is not here */
    unsigned long long reasons;           /* NVML's bits */
} cuda_clocks;

/* A look at the card, to be taken while it works. */
void cuda_clock_look(cuda_clocks *seen);

/* "power cap, heat", or "nothing"; "unknown" without NVML. */
const char *cuda_clock_reasons(const cuda_clocks *seen, char *text, size_t capacity);

#endif
