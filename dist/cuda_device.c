/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_device.c: a device made current for a call, as libstrobe does it, so that the thread has what it had before: its own
 * context, another device, or nothing. cudaSetDevice() would replace a context that the caller has made, and to give back
 * what was chosen before would make a context on a GPU that the caller does not use. */
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <string.h>

#include "cuda_memory.h"

enum { NOTHING, PUSHED, RETAINED };

static struct {
    PFN_cuDeviceGet_v2000 get_device;
    PFN_cuCtxGetCurrent_v4000 current_context;
    PFN_cuCtxGetDevice_v2000 current_device;
    PFN_cuCtxPushCurrent_v4000 push;
    PFN_cuCtxPopCurrent_v4000 pop;
    PFN_cuDevicePrimaryCtxRetain_v7000 retain;
    PFN_cuDevicePrimaryCtxRelease_v11000 release;
    PFN_cuDevicePrimaryCtxGetState_v7000 state;
    PFN_cuStreamGetCtx_v9020 stream_context;
    PFN_cuPointerGetAttributes_v7000 pointer_attributes;
} driver;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int devices;
static const char *lack;

static bool find(void *function, const char *name, unsigned version) {
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult result;
    if (cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result) != cudaSuccess ||
        result != cudaDriverEntryPointSuccess)
        return false;
    memcpy(function, &found, sizeof found); /* ISO C has no cast from an object to a function pointer */
    return true;
}

static void look(void) {
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess) {
        (void)cudaGetLastError(); /* the next call is not to find it */
        lack = cudaGetErrorString(error);
    } else if (!find(&driver.get_device, "cuDeviceGet", 2000) || !find(&driver.current_context, "cuCtxGetCurrent", 4000) ||
               !find(&driver.current_device, "cuCtxGetDevice", 2000) || !find(&driver.push, "cuCtxPushCurrent", 4000) ||
               !find(&driver.pop, "cuCtxPopCurrent", 4000) || !find(&driver.retain, "cuDevicePrimaryCtxRetain", 7000) ||
               !find(&driver.release, "cuDevicePrimaryCtxRelease", 11000) ||
               !find(&driver.state, "cuDevicePrimaryCtxGetState", 7000) ||
               !find(&driver.stream_context, "cuStreamGetCtx", 9020) ||
               !find(&driver.pointer_attributes, "cuPointerGetAttributes", 7000)) {
        lack = "the NVIDIA driver is older than the CUDA this was built with";
    }
}

/* A primary context that nobody holds yet stays, for kernels run in it. */
static const char *push_primary(CUdevice device, int *entered) {
    CUcontext context;
    unsigned flags;
    int active = 0;
    if (driver.state(device, &flags, &active) || driver.retain(&context, device) || driver.push(context))
        return "the primary context of the device cannot be made current";
    *entered = active ? RETAINED : PUSHED;
    return NULL;
}

const char *strobe__dist_cuda_enter(int32_t index, int *entered) {
    CUcontext context = NULL;
    CUdevice device, current;
    int chosen;
    *entered = NOTHING;
    pthread_once(&once, look);
    if (lack) return lack;
    if (index < 0 || index >= devices) return "device_index is none of this machine's GPUs";
    if (driver.get_device(&device, index)) return "the driver does not know the device";
    if (driver.current_context(&context) == CUDA_SUCCESS && context) {
        if (driver.current_device(&current) == CUDA_SUCCESS && current == device) return NULL;
    } else if (cudaGetDevice(&chosen) == cudaSuccess && chosen == index) {
        const cudaError_t error = cudaSetDevice(index); /* as the thread's first call of the runtime would */
        if (error != cudaSuccess) (void)cudaGetLastError();
        return error == cudaSuccess ? NULL : cudaGetErrorString(error);
    }
    return push_primary(device, entered);
}

void strobe__dist_cuda_leave(int32_t index, int entered) {
    CUcontext context;
    CUdevice device;
    if (entered == NOTHING) return;
    (void)driver.pop(&context);
    if (entered == RETAINED && driver.get_device(&device, index) == CUDA_SUCCESS) (void)driver.release(device);
}

/* The driver's answer takes half the time of the runtime's, and a call asks for a dozen pointers: the usual one first. */
static bool is_memory_of(const void *data, int32_t index) {
    CUpointer_attribute wanted[2] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    unsigned type = 0;
    int owner = -1;
    void *answers[2] = {&type, &owner};
    return driver.pointer_attributes(2, wanted, answers, (CUdeviceptr)(uintptr_t)data) == CUDA_SUCCESS &&
           type == CU_MEMORYTYPE_DEVICE && owner == index;
}

int strobe__dist_cuda_owner(const void *data, int32_t index) {
    struct cudaPointerAttributes attributes;
    if (is_memory_of(data, index)) return index;
    if (cudaPointerGetAttributes(&attributes, data) != cudaSuccess) {
        (void)cudaGetLastError();
        return MEMORY_OF_THE_HOST;
    }
    if (attributes.type == cudaMemoryTypeUnregistered) return MEMORY_OF_THE_HOST;
    return attributes.type == cudaMemoryTypeDevice ? attributes.device : MEMORY_OF_ANY;
}

int strobe__dist_cuda_stream_owner(void *stream) {
    CUcontext context, current = NULL;
    CUdevice device = MEMORY_OF_ANY;
    if ((uintptr_t)stream <= 2) return MEMORY_OF_ANY; /* the default streams' names */
    if (driver.stream_context(stream, &context)) return MEMORY_OF_ANY;
    const bool is_other = driver.current_context(&current) || current != context;
    if (is_other && driver.push(context)) return MEMORY_OF_ANY;
    if (driver.current_device(&device)) device = MEMORY_OF_ANY;
    if (is_other) (void)driver.pop(&current);
    return device;
}
