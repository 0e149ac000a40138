/* SPDX-License-Identifier: BSD-3-Clause
 *
 * strobe_dist_copies.h: a transport for GPUs of one host whose copy engines move the messages, through memory that the ranks
 * share: attention keeps all multiprocessors, of which NCCL's kernels want some. It lies over another transport for GPUs,
 * such as strobe_dist_nccl.h's, which moves what goes to other hosts. Part of libstrobe_dist_nccl, but without need of
 * NCCL. This header includes no header of CUDA. */
#ifndef STROBE_DIST_COPIES_H
#define STROBE_DIST_COPIES_H

#include "strobe/strobe_dist.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a transport over `base`, whose device is CUDA and which must live as long. Every rank of base makes this call at the
 * same point; they tell each other by base->records who is where. Between ranks of one host, processes or threads, whose
 * GPUs reach each other's memory (or are the same), messages then go by copy engines, those of an exchange beside which
 * nothing goes by kernels up to 96 MB a rank (strobe_transport.move), and what calls are compared by goes through memory of
 * the host; between all others by base. device_index: the rank's GPU, where its tensors lie.
 * A rank sends into 96 MB that each other rank of its host keeps on its GPU for it, in pieces, and that rank copies them on
 * to where they belong. Streams wait for each other by values in memory that the processes share; the host waits for
 * nothing, and a captured graph keeps all of it. Ranks in threads of one process that share a GPU need
 * CUDA_DEVICE_MAX_CONNECTIONS=32 and CUDA_MODULE_LOADING=EAGER in the environment before the process's first CUDA call: a
 * stream that waits would keep another rank's from going on, for ever. Without, they do not reach each other. When the
 * process of a rank of the host ends, streams that wait for it go on within a second, with results that mean nothing; calls
 * from then on return STROBE_DEVICE_ERROR with a sentence that names it. A rank that lives but does not make the call that
 * others make is waited for. Returns UNSUPPORTED, on all ranks, where there are several and no two of them reach each other;
 * *transport is as it was then, and base can be used. Further INVALID_ARGUMENT, OUT_OF_MEMORY, DEVICE_ERROR: the same on all
 * ranks. strobe_transport nccl, transport; strobe_dist_nccl_create(&comm, &nccl); const strobe_transport *best =
 * strobe_dist_copies_create(&nccl, device, &transport) == STROBE_OK ? &transport : &nccl;
 */
STROBE_API strobe_status strobe_dist_copies_create(const strobe_transport *base, int32_t device_index,
                                                   strobe_transport *transport);

/* Waits for the transport's exchanges and frees what it holds; base stays. */
STROBE_API void strobe_dist_copies_destroy(strobe_transport *transport);

/* The sentence of this thread's last strobe_dist_copies_create that did not return STROBE_OK; "" before the first. */
STROBE_API const char *strobe_dist_copies_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
