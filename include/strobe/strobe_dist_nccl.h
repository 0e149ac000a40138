/* SPDX-License-Identifier: BSD-3-Clause
 *
 * strobe_dist_nccl.h: a transport over NCCL for strobe_dist.h, libstrobe_dist_nccl: a library of its own, which is part of
 * builds with CUDA. NCCL itself is looked for at run time: in the program, which has made the communicator by it, else as
 * libnccl.so.2. This header includes no header of NCCL or CUDA. */
#ifndef STROBE_DIST_NCCL_H
#define STROBE_DIST_NCCL_H

#include "strobe/strobe_dist.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a transport over the caller's communicator, for tensors on its device. communicator: points at an ncclComm_t, which
 * must live as long as the transport; no other is made. An exchange is one group of ncclSend and ncclRecv on a stream of the
 * transport's own, which begins when the call's stream has come there, and for which the call's stream waits where its data
 * are needed; the host waits for nothing, and a captured graph keeps it. The communicator must not be used elsewhere while
 * a call is being made. An error of NCCL, the death of a peer too once NCCL knows of it, comes back as STROBE_DEVICE_ERROR
 * with NCCL's text, from the call that finds it or from the next.
 * The ranks compare their calls (strobe_transport.records) over the same communicator: about a kilobyte goes through the
 * device, and the host waits for it, and so for exchanges of calls before. STROBE_DIST_UNCOMPARED leaves it out.
 * Returns INVALID_ARGUMENT for a NULL pointer, OUT_OF_MEMORY, UNSUPPORTED where there is no NCCL, and DEVICE_ERROR.
 *     strobe_transport transport;
 *     if (strobe_dist_nccl_create(&comm, &transport) == STROBE_OK) ...                      // calls of libstrobe_dist
 *     strobe_dist_nccl_destroy(&transport); */
STROBE_API strobe_status strobe_dist_nccl_create(const void *communicator, strobe_transport *transport);

/* Waits for the transport's exchanges and frees what it holds; the communicator stays. */
STROBE_API void strobe_dist_nccl_destroy(strobe_transport *transport);

/* The sentence of this thread's last strobe_dist_nccl_create that did not return STROBE_OK; "" before the first. */
STROBE_API const char *strobe_dist_nccl_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
