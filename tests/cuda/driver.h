/* SPDX-License-Identifier: BSD-3-Clause
 *
 * driver.h: the calls of the CUDA driver that the tests of this folder make, opened at run time: they build without CUDA,
 * and exit with 77 where there is no GPU. The runtime is not used, so that a thread has a context only where a test gives it
 * one. */
#ifndef STROBE_TESTS_CUDA_DRIVER_H
#define STROBE_TESTS_CUDA_DRIVER_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SKIPPED = 77 };

static struct {
    int (*init)(unsigned flags);
    int (*count)(int *devices);
    int (*get_device)(int *device, int ordinal);
    int (*retain)(void **context, int device);
    int (*create_context)(void **context, unsigned flags, int device);
    int (*destroy_context)(void *context);
    int (*set_context)(void *context);
    int (*get_context)(void **context);
    int (*allocate)(unsigned long long *memory, size_t bytes);
    int (*release)(unsigned long long memory);
    int (*fill)(unsigned long long to, unsigned char byte, size_t bytes);
    int (*to_device)(unsigned long long to, const void *from, size_t bytes);
    int (*to_host)(void *to, unsigned long long from, size_t bytes);
    int (*wait)(void);
    int (*create_stream)(void **stream, unsigned flags);
    int (*destroy_stream)(void *stream);
    int (*begin_capture)(void *stream, int mode);
    int (*end_capture)(void *stream, void **graph);
    int (*instantiate)(void **runnable, void *graph, unsigned long long flags);
    int (*launch_graph)(void *runnable, void *stream);
} driver;

/* False without a driver or a GPU. */
static inline bool driver_open(void) {
    const struct {
        void *function;
        const char *name;
    } wanted[] = {{&driver.init, "cuInit"},
                  {&driver.count, "cuDeviceGetCount"},
                  {&driver.get_device, "cuDeviceGet"},
                  {&driver.retain, "cuDevicePrimaryCtxRetain"},
                  {&driver.create_context, "cuCtxCreate_v2"},
                  {&driver.destroy_context, "cuCtxDestroy_v2"},
                  {&driver.set_context, "cuCtxSetCurrent"},
                  {&driver.get_context, "cuCtxGetCurrent"},
                  {&driver.allocate, "cuMemAlloc_v2"},
                  {&driver.release, "cuMemFree_v2"},
                  {&driver.fill, "cuMemsetD8_v2"},
                  {&driver.to_device, "cuMemcpyHtoD_v2"},
                  {&driver.to_host, "cuMemcpyDtoH_v2"},
                  {&driver.wait, "cuCtxSynchronize"},
                  {&driver.create_stream, "cuStreamCreate"},
                  {&driver.destroy_stream, "cuStreamDestroy_v2"},
                  {&driver.begin_capture, "cuStreamBeginCapture_v2"},
                  {&driver.end_capture, "cuStreamEndCapture"},
                  {&driver.instantiate, "cuGraphInstantiateWithFlags"},
                  {&driver.launch_graph, "cuGraphLaunch"}};
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    int devices = 0;
    for (size_t i = 0; library && i < sizeof wanted / sizeof wanted[0]; ++i) {
        void *found = dlsym(library, wanted[i].name);
        if (!found) return false;
        memcpy(wanted[i].function, &found, sizeof found);
    }
    return library && driver.init(0) == 0 && driver.count(&devices) == 0 && devices > 0;
}

/* Stops the program where a call of the driver, which is no part of the test, fails. */
static inline void must(int error, const char *what) {
    if (!error) return;
    fprintf(stderr, "%s: the driver's error %d\n", what, error);
    exit(EXIT_FAILURE);
}

#endif
