/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward.h: attention on the GPU: which variant, how many splits, the launches. */
#ifndef STROBE_CUDA_FORWARD_H
#define STROBE_CUDA_FORWARD_H

#include "core/kernel.h"

/* NULL, or why this build or the device has no variant for a problem that strobe__cuda_refuses lets pass. */
const char *strobe__cuda_forward_lacks(const struct problem *problem);
size_t strobe__cuda_forward_workspace(const struct problem *problem);
strobe_status strobe__cuda_forward(const struct problem *problem, const struct execution *execution);

#endif
