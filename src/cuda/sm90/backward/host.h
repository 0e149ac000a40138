/* SPDX-License-Identifier: BSD-3-Clause
 *
 * host.h: the Hopper backward, as its record in the table needs it. */
#ifndef STROBE_CUDA_SM90_BACKWARD_HOST_H
#define STROBE_CUDA_SM90_BACKWARD_HOST_H

#include "core/kernel.h"

const char *strobe__sm90_backward_reject(const struct problem *problem);
size_t strobe__sm90_backward_workspace(const struct problem *problem);
strobe_status strobe__sm90_backward(const struct problem *problem, const struct execution *execution);

#endif
