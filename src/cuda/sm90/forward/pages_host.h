/* SPDX-License-Identifier: BSD-3-Clause
 *
 * pages_host.h: the host's part of K and V in pages, see pages.h; and of left padding, which needs none. */
#ifndef STROBE_CUDA_SM90_FORWARD_PAGES_HOST_H
#define STROBE_CUDA_SM90_FORWARD_PAGES_HOST_H

#include "core/kernel.h"
#include "cuda/sm90/forward/params.h"

/* What is refused of a problem with pages or left padding: NULL, or a sentence. */
const char *strobe__sm90_cache_reject(const struct problem *problem);

/* The cache, and in which pieces a block of so many keys is copied. */
void strobe__sm90_set_cache(struct sm90_forward_params *to, const struct problem *problem, int64_t block_keys);

/* The maps of K and V, after strobe__sm90_set_cache(), for a variant of so many columns. False if the driver refuses. */
bool strobe__sm90_encode_pages(struct sm90_forward_params *to, const struct problem *problem, int64_t columns);

#endif
