/* SPDX-License-Identifier: BSD-3-Clause
 *
 * device.h: GPUs as the runtime sees them. Nothing is remembered but what cannot change: whether there is a driver, and the
 * names and limits of devices. */
#ifndef STROBE_CUDA_DEVICE_H
#define STROBE_CUDA_DEVICE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "core/kernel.h"

/* What a kernel needs of a device: compute capability 8.0 or later, by machine code or by what the driver makes of PTX; or
 * 9.0 and no other, for Hopper's own instructions, which later GPUs do not have. */
enum cuda_need { CUDA_SM80 = 80, CUDA_SM90 = 90 };

/* NULL, or what device number index lacks of it, or that there is no such device. */
const char *strobe__cuda_lacks(int32_t need, int32_t index);

/* Multiprocessors, bytes of shared memory that a block may have, and the compute capability of a device: its first number,
 * and both of them, such as 90; the width of its memory's bus in bits, 0 if it is not known. */
struct cuda_limits {
    int multiprocessors, shared_bytes, major, architecture, memory_bits;
};
struct cuda_limits strobe__cuda_limits(int32_t device_index);

/* The compute capability of the current device, such as 90, and its place among the different ones of this machine's
 * devices, from 0 on; false where none is current, or more than MOST_ARCHITECTURES differ. */
enum { MOST_ARCHITECTURES = 8 };
bool strobe__cuda_architecture(int *architecture, int *place);

bool strobe__cuda_describe(int32_t device, int32_t index, strobe_device_info *info);

/* *function, a pointer to a function, from the driver, which nothing links against; false if it has none. */
bool strobe__cuda_driver_function(const char *name, unsigned version, void *function);

/* A call on a device, whatever the thread has current: nothing, when no CUDA call was made on it, or another device. A
 * context of the device itself that is current is used as it is, be it the primary one or the caller's own; else the primary
 * one is current during the call. Afterwards the thread's current device and context are as before, but for a thread that
 * had no context: it keeps the primary one of the device that the runtime had chosen for it. */
struct cuda_visit {
    int32_t index;
    bool pushed, releases;
};
strobe_status strobe__cuda_enter(int32_t index, struct cuda_visit *visit);
void strobe__cuda_leave(const struct cuda_visit *visit);

/* A number of the current context that no other has in this process, UINT64_MAX if none is current. */
uint64_t strobe__cuda_context(void);

/* STROBE_OK, or STROBE_DEVICE_ERROR with the runtime's sentence. */
strobe_status strobe__cuda_check(cudaError_t error, const char *what);

/* Whether the device can use a pointer; refuses memory of the host and of another device. NULL is fine. */
strobe_status strobe__cuda_check_pointer(const char *name, const void *data, int32_t index);

#endif
