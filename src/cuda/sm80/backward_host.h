/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward_host.h: the backward for any GPU, as its records in the table need it: which variants, the workspace, the
 * launches.
 */
#ifndef STROBE_CUDA_SM80_BACKWARD_HOST_H
#define STROBE_CUDA_SM80_BACKWARD_HOST_H

#include "core/kernel.h"

extern const char strobe__sm80_backward_variants[], strobe__sm80_backward_variants_fp32[],
    strobe__sm80_backward_variants_tf32x3[];

bool strobe__sm80_backward_choose(struct plan *plan);
size_t strobe__sm80_backward_workspace(const struct plan *plan);
const char *strobe__sm80_backward_reject(const struct problem *problem);
strobe_status strobe__sm80_backward_prepare(const struct plan *plan);
strobe_status strobe__sm80_backward(const struct plan *plan, const struct execution *execution);

#endif
