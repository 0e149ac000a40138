/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode_host.h: the kernels of sm80/decode.cu, over elements and over bytes, as the table has them. */
#ifndef STROBE_CUDA_SM80_DECODE_HOST_H
#define STROBE_CUDA_SM80_DECODE_HOST_H

#include "core/kernel.h"

const char *strobe__sm80_decode_reject(const struct problem *problem);
bool strobe__sm80_decode_choose(struct plan *plan);
extern const char strobe__sm80_decode_variants[], strobe__sm80_decode_bytes_variants[];
size_t strobe__sm80_decode_workspace(const struct plan *plan);
strobe_status strobe__sm80_decode(const struct plan *plan, const struct execution *execution);

/* Of sm80/decode_cluster.cu. */
const char *strobe__sm80_decode_cluster_reject(const struct problem *problem);
bool strobe__sm80_decode_cluster_choose(struct plan *plan);
extern const char strobe__sm80_decode_cluster_variants[], strobe__sm80_decode_cluster_bytes_variants[];
size_t strobe__sm80_decode_cluster_workspace(const struct plan *plan);
strobe_status strobe__sm80_decode_cluster(const struct plan *plan, const struct execution *execution);

#endif
