/* SPDX-License-Identifier: BSD-3-Clause
 *
 * nccl.h: the calls of NCCL that the transport makes, declared as NCCL's manual has them (2.7 and later) and found at run
 * time. Every call returns 0 or an error. */
#ifndef STROBE_DIST_NCCL_NCCL_H
#define STROBE_DIST_NCCL_NCCL_H

#include <cuda_runtime_api.h>
#include <stddef.h>

typedef struct ncclComm *nccl_communicator;

enum { NCCL_BYTES = 0 /* ncclInt8 */, NCCL_IN_PROGRESS = 7 };

struct nccl {
    int (*group_start)(void);
    int (*group_end)(void);
    int (*send)(const void *from, size_t count, int type, int peer, nccl_communicator, cudaStream_t);
    int (*receive)(void *to, size_t count, int type, int peer, nccl_communicator, cudaStream_t);
    int (*rank)(nccl_communicator, int *rank);
    int (*count)(nccl_communicator, int *count);
    int (*device)(nccl_communicator, int *device);
    int (*async_error)(nccl_communicator, int *error);
    const char *(*error_string)(int error);
    const char *(*last_error)(nccl_communicator); /* NULL before NCCL 2.13 */
};

/* NULL where there is none. */
const struct nccl *strobe__nccl(void);

#endif
