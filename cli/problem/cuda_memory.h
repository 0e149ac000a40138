/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_memory.h: memory of a GPU, for calls with device=cuda. */
#ifndef STROBE_CLI_CUDA_MEMORY_H
#define STROBE_CLI_CUDA_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* Opens the driver and its first device, once. False, with a sentence, if there is none. */
bool cuda_memory_open(char *message, size_t capacity);

/* From now on, pieces are cut from one allocation of so many bytes for as long as they fit; all of it is free again when
 * every piece has been freed. For many small calls: an allocation of the driver's takes longer than they do. */
void cuda_memory_use_arena(size_t bytes);

/* Bytes of device memory outside of the arena, with anything in them. NULL if there is none to be had. */
void *cuda_memory_allocated(size_t bytes);

/* As cuda_memory_copied, on the device of that number; the first is current afterwards. */
void *cuda_memory_copied_to(int device, const void *from, size_t bytes);

/* Bytes of device memory with a copy of the host's in them; from NULL: bytes 0xFF. NULL if there is none to be had. */
void *cuda_memory_copied(const void *from, size_t bytes);
bool cuda_memory_copy_back(void *to, const void *from, size_t bytes);
/* From the host's memory into the device's. */
bool cuda_memory_copy_over(void *to, const void *from, size_t bytes);
void cuda_memory_free(void *memory);

/* Bytes 0xFF. False if the device met an error. */
bool cuda_memory_poison(void *memory, size_t bytes);

/* Waits for everything. False, with a sentence, if the device met an error. */
bool cuda_memory_wait(char *message, size_t capacity);

/* Whether a wait has met an error, such as an illegal address: no call of this process can use the GPU any more. */
bool cuda_memory_is_lost(void);

#endif
