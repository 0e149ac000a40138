/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_memory.c: the few calls of the CUDA driver that the command makes, declared here as the driver's manual has them; see
 * cuda_memory.h. */
#include "cuda_memory.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef unsigned long long device_address; /* CUdeviceptr */

static struct {
    int (*init)(unsigned flags);
    int (*get_device)(int *device, int ordinal);
    int (*retain_context)(void **context, int device);
    int (*set_context)(void *context);
    int (*allocate)(device_address *memory, size_t bytes);
    int (*release)(device_address memory);
    int (*to_device)(device_address to, const void *from, size_t bytes);
    int (*to_host)(void *to, device_address from, size_t bytes);
    int (*fill)(device_address to, unsigned char byte, size_t bytes);
    int (*wait)(void);
    int (*error_name)(int error, const char **name);
} driver;

static bool find(void *library, void *function, const char *name) {
    void *found = dlsym(library, name);
    memcpy(function, &found, sizeof found); /* a pointer to a function, as POSIX wants it */
    return found != NULL;
}

static bool find_all(void *library) {
    return find(library, &driver.init, "cuInit") && find(library, &driver.get_device, "cuDeviceGet") &&
           find(library, &driver.retain_context, "cuDevicePrimaryCtxRetain") &&
           find(library, &driver.set_context, "cuCtxSetCurrent") && find(library, &driver.allocate, "cuMemAlloc_v2") &&
           find(library, &driver.release, "cuMemFree_v2") && find(library, &driver.to_device, "cuMemcpyHtoD_v2") &&
           find(library, &driver.to_host, "cuMemcpyDtoH_v2") && find(library, &driver.fill, "cuMemsetD8_v2") &&
           find(library, &driver.wait, "cuCtxSynchronize") && find(library, &driver.error_name, "cuGetErrorName");
}

bool cuda_memory_open(char *message, size_t capacity) {
    static bool is_open;
    if (is_open) return true;
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
    int device;
    if (!library || !find_all(library))
        snprintf(message, capacity, "there is no NVIDIA driver here");
    else if (driver.init(0) || driver.get_device(&device, 0) || driver.retain_context(&context, device) ||
             driver.set_context(context))
        snprintf(message, capacity, "the NVIDIA driver finds no GPU");
    else
        is_open = true;
    return is_open;
}

void *cuda_memory_copied(const void *from, size_t bytes) {
    device_address memory;
    if (driver.allocate(&memory, bytes ? bytes : 1)) return NULL;
    if (bytes && (from ? driver.to_device(memory, from, bytes) : driver.fill(memory, 0xFF, bytes))) {
        driver.release(memory);
        return NULL;
    }
    return (void *)(uintptr_t)memory;
}

bool cuda_memory_copy_back(void *to, const void *from, size_t bytes) {
    return bytes == 0 || driver.to_host(to, (uintptr_t)from, bytes) == 0;
}

void cuda_memory_free(void *memory) {
    if (memory) driver.release((uintptr_t)memory);
}

bool cuda_memory_wait(char *message, size_t capacity) {
    const int error = driver.wait();
    const char *name = "an unknown error";
    if (!error) return true;
    driver.error_name(error, &name);
    snprintf(message, capacity, "the GPU reports %s", name);
    return false;
}
