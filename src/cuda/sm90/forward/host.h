/* SPDX-License-Identifier: BSD-3-Clause
 *
 * host.h: the Hopper forward, in 16 bits and in FP8, as their records in the table need it. */
#ifndef STROBE_CUDA_SM90_FORWARD_HOST_H
#define STROBE_CUDA_SM90_FORWARD_HOST_H

#include "core/kernel.h"

enum {
    SCALED_KEYS = 128,       /* of a block of sm90/fp8, which share their scales */
    MOST_POSITIONS = 1 << 28 /* that kernels count without overflow */
};

extern const char strobe__sm90_forward_variants[], strobe__sm90_fp8_variants[];

const char *strobe__sm90_forward_reject(const struct problem *problem);
const char *strobe__sm90_fp8_reject(const struct problem *problem);
bool strobe__sm90_forward_choose(struct plan *plan);
size_t strobe__sm90_forward_workspace(const struct plan *plan);
strobe_status strobe__sm90_forward_prepare(const struct plan *plan);
strobe_status strobe__sm90_forward(const struct plan *plan, const struct execution *execution);

#endif
