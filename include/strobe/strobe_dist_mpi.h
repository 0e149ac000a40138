/* SPDX-License-Identifier: BSD-3-Clause
 *
 * strobe_dist_mpi.h: a transport over MPI for strobe_dist.h, libstrobe_dist_mpi: a library of its own, since each MPI has
 * its own binary interface. This header includes no header of MPI. */
#ifndef STROBE_DIST_MPI_H
#define STROBE_DIST_MPI_H

#include "strobe/strobe_dist.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The tag of all messages. */
enum { STROBE_DIST_MPI_TAG = 20805 };

/* Makes a transport over the caller's communicator. communicator: points at an MPI_Comm, which must live as long as the
 * transport; no other is made. Messages are MPI_Isend and MPI_Irecv with one tag, waited for by MPI_Waitall; calls come from
 * the thread that calls libstrobe_dist. An error of MPI comes back as STROBE_DEVICE_ERROR with MPI's text if the
 * communicator has MPI_ERRORS_RETURN; MPI's default is to end the program. Returns INVALID_ARGUMENT for a NULL pointer or
 * before MPI_Init, and OUT_OF_MEMORY.
 *     MPI_Comm comm = MPI_COMM_WORLD;
 *     strobe_transport transport;
 *     if (strobe_dist_mpi_create(&comm, &transport) == STROBE_OK) ...                       // calls of libstrobe_dist
 *     strobe_dist_mpi_destroy(&transport); */
STROBE_API strobe_status strobe_dist_mpi_create(const void *communicator, strobe_transport *transport);

/* The same for tensors of a GPU, over any MPI. One that is built to read and write a GPU's memory, as it says itself
 * (MPIX_Query_cuda_support, MPIX_GPU_query_support), gets the messages where they lie. For any other they go through pinned
 * memory of the host, as many bytes as the largest exchange sends and receives, which the transport takes when an exchange
 * needs it and keeps. The first exchange says which device's context the transport works in.
 * MPI knows no streams: an exchange waits on the host for the call's stream before it sends, and for its messages; what the
 * call has put on the stream meanwhile goes on. A stream that is being captured is refused by the exchange. Calls are
 * compared over the same communicator. Returns, besides what strobe_dist_mpi_create does, UNSUPPORTED where there is no CUDA
 * driver. */
STROBE_API strobe_status strobe_dist_mpi_create_cuda(const void *communicator, strobe_transport *transport);

/* Frees what the transport holds; the communicator stays. */
STROBE_API void strobe_dist_mpi_destroy(strobe_transport *transport);

#ifdef __cplusplus
}
#endif

#endif
