/* SPDX-License-Identifier: BSD-3-Clause
 *
 * device.c: queries of the CUDA runtime, which is linked statically and finds the driver when first asked; see device.h. */
#include "cuda/host/device.h"

#include <cudaTypedefs.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { MOST_DEVICES = 64, LEAST_MAJOR = 8 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const char *lack;
static int device_count;
static struct {
    char name[256], level[16];
    int64_t memory_bytes;
    struct cuda_limits limits;
} devices[MOST_DEVICES];
static PFN_cuPointerGetAttributes_v7000 pointer_attributes;

bool strobe__cuda_driver_function(const char *name, unsigned version, void *function) {
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult result;
    if (cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result) != cudaSuccess ||
        result != cudaDriverEntryPointSuccess)
        return false;
    memcpy(function, &found, sizeof found); /* ISO C has no cast from an object to a function pointer */
    return true;
}

static void look(void) {
    const cudaError_t error = cudaGetDeviceCount(&device_count);
    if (error != cudaSuccess || device_count == 0) {
        (void)cudaGetLastError(); /* not the caller's business */
        device_count = 0;
        lack = error == cudaErrorInsufficientDriver
                   ? "the NVIDIA driver is missing or older than the CUDA this was built with"
                   : "there is no NVIDIA GPU that CUDA can use";
        return;
    }
    bool any = false;
    if (device_count > MOST_DEVICES) device_count = MOST_DEVICES;
    for (int i = 0; i < device_count; ++i) {
        struct cudaDeviceProp properties;
        if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
        snprintf(devices[i].name, sizeof devices[i].name, "%s", properties.name);
        snprintf(devices[i].level, sizeof devices[i].level, "sm_%d%d", properties.major, properties.minor);
        devices[i].memory_bytes = (int64_t)properties.totalGlobalMem;
        devices[i].limits = (struct cuda_limits){properties.multiProcessorCount, (int)properties.sharedMemPerBlockOptin,
                                                 properties.major};
        any = any || properties.major >= LEAST_MAJOR;
    }
    if (!any) lack = "no GPU here has compute capability 8.0 or later";
    (void)strobe__cuda_driver_function("cuPointerGetAttributes", 7000, &pointer_attributes);
}

const char *strobe__cuda_lacks(void) {
    pthread_once(&once, look);
    return lack;
}

struct cuda_limits strobe__cuda_limits(int32_t index) {
    const struct cuda_limits none = {0};
    pthread_once(&once, look);
    return index >= 0 && index < device_count ? devices[index].limits : none;
}

bool strobe__cuda_describe(int32_t device, int32_t index, strobe_device_info *info) {
    if (device != STROBE_CUDA) return false;
    pthread_once(&once, look);
    if (index < 0 || index >= device_count) return false;
    info->name = devices[index].name;
    info->level = devices[index].level;
    info->memory_bytes = devices[index].memory_bytes;
    return true;
}

strobe_status strobe__cuda_check(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return STROBE_OK;
    (void)cudaGetLastError(); /* reported here, once */
    return strobe__fail(STROBE_DEVICE_ERROR, "%s: %s", what, cudaGetErrorString(error));
}

strobe_status strobe__cuda_enter(int32_t index, int *before) {
    *before = -1;
    if (index >= device_count)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "device_index is %d; 0 to %d is accepted", index, device_count - 1);
    if (devices[index].limits.major < LEAST_MAJOR)
        return strobe__fail(STROBE_UNSUPPORTED, "device %d is %s; compute capability 8.0 or later is taken", index,
                            devices[index].level);
    int current = 0;
    strobe_status status = strobe__cuda_check(cudaGetDevice(&current), "cudaGetDevice");
    if (status || current == index) return status;
    status = strobe__cuda_check(cudaSetDevice(index), "cudaSetDevice");
    if (!status) *before = current;
    return status;
}

void strobe__cuda_leave(int before) {
    if (before >= 0) (void)cudaSetDevice(before);
}

/* The driver's answer takes half the time of the runtime's, and a call asks for six pointers: where it is the usual one,
 * that will do. */
static bool is_memory_of(const void *data, int32_t index) {
    CUpointer_attribute wanted[2] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    unsigned type = 0;
    int owner = -1;
    void *answers[2] = {&type, &owner};
    return pointer_attributes && pointer_attributes(2, wanted, answers, (CUdeviceptr)(uintptr_t)data) == CUDA_SUCCESS &&
           type == CU_MEMORYTYPE_DEVICE && owner == index;
}

strobe_status strobe__cuda_check_pointer(const char *name, const void *data, int32_t index) {
    struct cudaPointerAttributes attributes;
    if (!data || is_memory_of(data, index)) return STROBE_OK;
    const strobe_status status = strobe__cuda_check(cudaPointerGetAttributes(&attributes, data), name);
    if (status) return status;
    if (attributes.type == cudaMemoryTypeUnregistered)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "%s is %p, memory of the host; memory of device %d is accepted", name,
                            data, index);
    if (attributes.type == cudaMemoryTypeDevice && attributes.device != index)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "%s is %p, memory of device %d; memory of device %d is accepted", name,
                            data, attributes.device, index);
    return STROBE_OK;
}
