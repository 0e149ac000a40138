/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fake_runtime.h: a CUDA runtime over GPUs that are not there; see fake_runtime.c. Launches are one thread's. */
#ifndef STROBE_TESTS_CUDA_FAKE_RUNTIME_H
#define STROBE_TESTS_CUDA_FAKE_RUNTIME_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

enum { FAKE_GPUS = 6, FAKE_DEVICE_SHIFT = 48, FAKE_DEPTH = 4, FAKE_KERNELS = 1024 };

/* Multiprocessors, and bytes of shared memory that a block may have at most. */
extern const struct fake_gpu {
    const char *name;
    int major, minor, multiprocessors, shared_bytes;
} fake_gpus[FAKE_GPUS];

/* The kernels of the build: stand-ins of their names. threads: of its launch bounds; 0: as the host says. */
extern const struct fake_kernel {
    const char *name;
    const void *function;
    int threads;
    bool is_hopper;
    bool with_functions; /* launched by functions.c, not by launches.c */
} fake_kernels[];

/* Devices: whose context is current, -1 none; what the runtime would choose; contexts below on the stack; primary contexts
 * held and not released. */
extern _Thread_local struct fake_thread { int current, chosen, below[FAKE_DEPTH], held; } fake_thread;

/* What this thread may do during a capture. */
extern _Thread_local enum cudaStreamCaptureMode fake_capture_mode;

/* device: which launches are to be on; which step of loading code fails, if one does. */
extern struct fake_launches {
    int device;
    enum { ALL_WORKS, LOAD_FAILS, KERNEL_FAILS, MODE_FAILS } failing;
    int64_t count;
    char refusal[256];           /* the first; empty: none */
    uint32_t used[FAKE_KERNELS]; /* a bit for each GPU that the kernel was launched on */
} fake_launches;

/* Memory of a device, by an address that nobody may follow. */
static inline void *fake_memory(int device, uintptr_t offset) {
    return (void *)(((uintptr_t)device + 1) << FAKE_DEVICE_SHIFT | offset);
}
static inline int fake_device_of(const void *data) { return (int)((uintptr_t)data >> FAKE_DEVICE_SHIFT) - 1; }

#endif
