/* SPDX-License-Identifier: BSD-3-Clause
 *
 * device.h: GPUs as the runtime sees them. Nothing is remembered but what cannot change: whether there is a driver, and the
 * names and limits of devices. */
#ifndef STROBE_CUDA_DEVICE_H
#define STROBE_CUDA_DEVICE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "core/kernel.h"

/* NULL, or why this machine has no GPU that kernels of this build run on. */
const char *strobe__cuda_lacks(void);

/* Multiprocessors, bytes of shared memory that a block may have, and the first number of the compute capability, of a
 * device. */
struct cuda_limits {
    int multiprocessors, shared_bytes, major;
};
struct cuda_limits strobe__cuda_limits(int32_t device_index);

bool strobe__cuda_describe(int32_t device, int32_t index, strobe_device_info *info);

/* *function, a pointer to a function, from the driver, which nothing links against; false if it has none. */
bool strobe__cuda_driver_function(const char *name, unsigned version, void *function);

/* Makes device `index` current for a call, and the one before it again. */
strobe_status strobe__cuda_enter(int32_t index, int *before);
void strobe__cuda_leave(int before);

/* STROBE_OK, or STROBE_DEVICE_ERROR with the runtime's sentence. */
strobe_status strobe__cuda_check(cudaError_t error, const char *what);

/* Whether the device can use a pointer; refuses memory of the host and of another device. NULL is fine. */
strobe_status strobe__cuda_check_pointer(const char *name, const void *data, int32_t index);

#endif
