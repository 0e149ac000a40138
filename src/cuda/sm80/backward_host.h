/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward.h: gradients on the GPU: which variants, the workspace, the launches. */
#ifndef STROBE_CUDA_BACKWARD_H
#define STROBE_CUDA_BACKWARD_H

#include "core/kernel.h"

/* NULL, or why this build or the device has no variant for a problem that strobe__cuda_refuses lets pass. */
const char *strobe__cuda_backward_lacks(const struct problem *problem);
size_t strobe__cuda_backward_workspace(const struct problem *problem);
strobe_status strobe__cuda_backward(const struct problem *problem, const struct execution *execution);

#endif
