/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_fence.h: memory of a GPU that ends, or begins, where mapped pages do: the addresses beside it are mapped to nothing,
 * so that a kernel that reads or writes there is stopped with an error, which no guard band sees of a read.
 *
 * Each piece has a place of its own, a range of addresses of which the middle is mapped. Places are used again by the next
 * call, and grow; nothing is unmapped before the program ends, so that a piece costs a copy and no more. */
#ifndef STROBE_CLI_CUDA_FENCE_H
#define STROBE_CLI_CUDA_FENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum fence_side { FENCE_BEHIND, FENCE_BEFORE } fence_side; /* where the pages that are mapped to nothing are */

/* Device memory with a copy of the host's bytes, or of 0xFF from NULL. Behind it are at most `unit` - 1 bytes that are
 * mapped, and before it at most as many: its address is `address` modulo `unit`, a power of two, as kernels may ask of a
 * tensor's. NULL where the driver maps no pages, where it is larger than a place can be, or memory is short. */
void *cuda_fence_copied(const void *from, size_t bytes, fence_side side, uintptr_t address, size_t unit);

/* All pieces are free again; what is in them may be overwritten from now on. */
void cuda_fence_reuse(void);

#endif
