/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward_host.h: the forward for any GPU, as its records in the table need it: which variant, how many splits, the
 * launches.
 */
#ifndef STROBE_CUDA_SM80_FORWARD_HOST_H
#define STROBE_CUDA_SM80_FORWARD_HOST_H

#include "core/kernel.h"

extern const char strobe__sm80_forward_variants[], strobe__sm80_forward_variants_fp32[],
    strobe__sm80_forward_variants_tf32x3[];

const char *strobe__sm80_forward_reject(const struct problem *problem);
bool strobe__sm80_forward_choose(struct plan *plan);
size_t strobe__sm80_forward_workspace(const struct plan *plan);
strobe_status strobe__sm80_forward_prepare(const struct plan *plan);
strobe_status strobe__sm80_forward(const struct plan *plan, const struct execution *execution);

#endif
