/* SPDX-License-Identifier: BSD-3-Clause
 *
 * host.h: the Hopper backward, as its record in the table needs it. */
#ifndef STROBE_CUDA_SM90_BACKWARD_HOST_H
#define STROBE_CUDA_SM90_BACKWARD_HOST_H

#include "core/kernel.h"

extern const char strobe__sm90_backward_variants[];

const char *strobe__sm90_backward_reject(const struct problem *problem);
bool strobe__sm90_backward_choose(struct plan *plan);
size_t strobe__sm90_backward_workspace(const struct plan *plan);
strobe_status strobe__sm90_backward_prepare(const struct plan *plan);
strobe_status strobe__sm90_backward(const struct plan *plan, const struct execution *execution);

#endif
