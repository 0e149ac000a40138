/* SPDX-License-Identifier: BSD-3-Clause
 *
 * state.h: what mpi.c, exchanges of memory that MPI itself reads and writes, and gpu.c, those of a GPU's memory, share. */
#ifndef STROBE_DIST_MPI_STATE_H
#define STROBE_DIST_MPI_STATE_H

#include <mpi.h>

#include "strobe/strobe_dist_mpi.h"

struct gpu;

/* What a transport over MPI points at. */
struct mpi {
    MPI_Comm comm;
    MPI_Request *requests;
    int count, capacity;
    struct gpu *gpu; /* NULL: tensors of the CPU */
    char text[MPI_MAX_ERROR_STRING + 64];
};

/* strobe_transport's start and wait, of memory that MPI reads and writes. */
int strobe__mpi_start(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                      int64_t receive_count, void *stream);
int strobe__mpi_wait(void *self, void *stream);

/* Frees what a transport for GPUs holds, without the state itself. */
void strobe__mpi_release_gpu(struct gpu *gpu);

#endif
