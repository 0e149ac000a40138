/* SPDX-License-Identifier: BSD-3-Clause
 *
 * host.h: decoding of latent attention on Hopper, as its record in the table needs it. */
#ifndef STROBE_CUDA_SM90_LATENT_HOST_H
#define STROBE_CUDA_SM90_LATENT_HOST_H

#include "core/kernel.h"

extern const char strobe__sm90_latent_variants[];

const char *strobe__sm90_latent_reject(const struct problem *problem);
bool strobe__sm90_latent_choose(struct plan *plan);
size_t strobe__sm90_latent_workspace(const struct plan *plan);
strobe_status strobe__sm90_latent(const struct plan *plan, const struct execution *execution);

#endif
