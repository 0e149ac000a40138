/* SPDX-License-Identifier: BSD-3-Clause
 *
 * device.c: queries of the CUDA runtime, which is linked statically and finds the driver when first asked; see device.h. */
#include "cuda/host/device.h"

#include <cudaTypedefs.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { MOST_DEVICES = 64, LEAST_MAJOR = 8 };

/* The driver's own calls, of which the runtime has none: which context is current, and another one for a while. */
static struct {
    PFN_cuPointerGetAttributes_v7000 pointer_attributes;
    PFN_cuDeviceGet_v2000 get_device;
    PFN_cuCtxGetCurrent_v4000 current_context;
    PFN_cuCtxGetDevice_v2000 current_device;
    PFN_cuCtxGetId_v12000 context_id;
    PFN_cuCtxPushCurrent_v4000 push;
    PFN_cuCtxPopCurrent_v4000 pop;
    PFN_cuDevicePrimaryCtxRetain_v7000 retain;
    PFN_cuDevicePrimaryCtxRelease_v11000 release;
    PFN_cuDevicePrimaryCtxGetState_v7000 state;
} driver;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const char *lack;
static int device_count;
static struct {
    char name[256], level[16];
    int64_t memory_bytes;
    struct cuda_limits limits;
    CUdevice handle; /* the driver's */
} devices[MOST_DEVICES];
static int architectures[MOST_DEVICES], architecture_count; /* the different ones */

bool strobe__cuda_driver_function(const char *name, unsigned version, void *function) {
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult result;
    if (cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result) != cudaSuccess ||
        result != cudaDriverEntryPointSuccess)
        return false;
    memcpy(function, &found, sizeof found); /* ISO C has no cast from an object to a function pointer */
    return true;
}

static bool find_driver(void) {
    return strobe__cuda_driver_function("cuPointerGetAttributes", 7000, &driver.pointer_attributes) &&
           strobe__cuda_driver_function("cuDeviceGet", 2000, &driver.get_device) &&
           strobe__cuda_driver_function("cuCtxGetCurrent", 4000, &driver.current_context) &&
           strobe__cuda_driver_function("cuCtxGetDevice", 2000, &driver.current_device) &&
           strobe__cuda_driver_function("cuCtxGetId", 12000, &driver.context_id) &&
           strobe__cuda_driver_function("cuCtxPushCurrent", 4000, &driver.push) &&
           strobe__cuda_driver_function("cuCtxPopCurrent", 4000, &driver.pop) &&
           strobe__cuda_driver_function("cuDevicePrimaryCtxRetain", 7000, &driver.retain) &&
           strobe__cuda_driver_function("cuDevicePrimaryCtxRelease", 11000, &driver.release) &&
           strobe__cuda_driver_function("cuDevicePrimaryCtxGetState", 7000, &driver.state);
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
    if (!find_driver()) {
        lack = "the NVIDIA driver is older than the CUDA this was built with";
        device_count = 0;
        return;
    }
    bool any = false;
    if (device_count > MOST_DEVICES) device_count = MOST_DEVICES;
    for (int i = 0; i < device_count; ++i) {
        struct cudaDeviceProp properties;
        if (cudaGetDeviceProperties(&properties, i) != cudaSuccess ||
            driver.get_device(&devices[i].handle, i) != CUDA_SUCCESS)
            continue;
        snprintf(devices[i].name, sizeof devices[i].name, "%s", properties.name);
        snprintf(devices[i].level, sizeof devices[i].level, "sm_%d%d", properties.major, properties.minor);
        devices[i].memory_bytes = (int64_t)properties.totalGlobalMem;
        devices[i].limits = (struct cuda_limits){properties.multiProcessorCount, (int)properties.sharedMemPerBlockOptin,
                                                 properties.major, 10 * properties.major + properties.minor,
                                                 properties.memoryBusWidth};
        any = any || properties.major >= LEAST_MAJOR;
        int place = 0;
        while (place < architecture_count && architectures[place] != devices[i].limits.architecture) ++place;
        if (place == architecture_count) architectures[architecture_count++] = devices[i].limits.architecture;
    }
    if (!any) lack = "no GPU here has compute capability 8.0 or later";
}

/* Whether this build has code for the GPU: PTX of 8.0, or machine code of its major version and no later a minor one. */
static bool has_code(int architecture) {
#if defined(STROBE_CUDA_MACHINE_CODE)
    static const int built[] = {STROBE_CUDA_MACHINE_CODE};
    for (size_t n = 0; n < sizeof built / sizeof built[0]; ++n)
        if (built[n] / 10 == architecture / 10 && built[n] <= architecture) return true;
    return false;
#else
    return architecture >= 80;
#endif
}

const char *strobe__cuda_lacks(int32_t need, int32_t index) {
    pthread_once(&once, look);
    if (lack) return lack;
    if (index < 0 || index >= device_count) return "device_index names no GPU of this machine; strobe_device_at lists them";
    const int major = devices[index].limits.major;
    if (major < LEAST_MAJOR) return "this GPU's compute capability is below 8.0; 8.0 or later is taken";
    if (!has_code(devices[index].limits.architecture))
        return "this build has no code for this GPU (STROBE_CUDA_ARCHITECTURES)";
    return need == CUDA_SM90 && major != 9 ? "this GPU's compute capability is not 9.0; 9.0 is taken" : NULL;
}

struct cuda_limits strobe__cuda_limits(int32_t index) {
    const struct cuda_limits none = {0};
    pthread_once(&once, look);
    return index >= 0 && index < device_count ? devices[index].limits : none;
}

bool strobe__cuda_architecture(int *architecture, int *place) {
    int index = 0;
    pthread_once(&once, look);
    *place = 0;
    if (architecture_count > 1) { /* with one, no launch has to ask */
        if (cudaGetDevice(&index) != cudaSuccess || index < 0 || index >= device_count) return false;
        while (*place < architecture_count && architectures[*place] != devices[index].limits.architecture) ++*place;
    }
    if (*place >= architecture_count || *place >= MOST_ARCHITECTURES) return false;
    *architecture = architectures[*place];
    return true;
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

static strobe_status check_device(int32_t index) {
    if (index >= device_count)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "device_index is %d; 0 to %d is accepted", index, device_count - 1);
    if (devices[index].limits.major < LEAST_MAJOR)
        return strobe__fail(STROBE_UNSUPPORTED, "device %d is %s; compute capability 8.0 or later is taken", index,
                            devices[index].level);
    return STROBE_OK;
}

/* Another context is current, or none, and the runtime would choose another device: the named device's primary context for
 * the call alone. The runtime follows it, and its own choice is left alone, unlike by cudaSetDevice(), which would also
 * replace a context that the caller has made. A primary context that nobody holds yet stays, for kernels run in it. */
static strobe_status push_primary(struct cuda_visit *visit) {
    CUcontext context;
    unsigned flags;
    int active = 0;
    CUresult error = driver.state(devices[visit->index].handle, &flags, &active);
    if (!error) error = driver.retain(&context, devices[visit->index].handle);
    if (!error) error = driver.push(context);
    if (error)
        return strobe__fail(STROBE_DEVICE_ERROR, "the primary context of device %d cannot be made current: CUresult %d",
                            visit->index, (int)error);
    visit->pushed = true, visit->releases = active;
    return STROBE_OK;
}

/* The device of the thread's current context. A thread without one is asked about the context first: the question for its
 * device would be an error, which compute-sanitizer reports. */
static bool has_context(CUdevice *device) {
    CUcontext context = NULL;
    return driver.current_context(&context) == CUDA_SUCCESS && context && driver.current_device(device) == CUDA_SUCCESS;
}

strobe_status strobe__cuda_enter(int32_t index, struct cuda_visit *visit) {
    CUdevice current;
    int chosen;
    *visit = (struct cuda_visit){.index = index};
    const strobe_status status = check_device(index);
    if (status) return status;
    const bool found = has_context(&current);
    if (found && current == devices[index].handle) return STROBE_OK;
    if (!found && cudaGetDevice(&chosen) == cudaSuccess && chosen == index)
        return strobe__cuda_check(cudaSetDevice(index), "cudaSetDevice"); /* as the thread's first runtime call would */
    return push_primary(visit);
}

void strobe__cuda_leave(const struct cuda_visit *visit) {
    CUcontext context;
    if (!visit->pushed) return;
    (void)driver.pop(&context);
    if (visit->releases) (void)driver.release(devices[visit->index].handle);
}

uint64_t strobe__cuda_context(void) {
    unsigned long long id;
    return driver.context_id(NULL, &id) == CUDA_SUCCESS ? id : UINT64_MAX;
}

/* The driver's answer takes half the time of the runtime's, and a call asks for six pointers: where it is the usual one,
 * that will do. */
static bool is_memory_of(const void *data, int32_t index) {
    CUpointer_attribute wanted[2] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    unsigned type = 0;
    int owner = -1;
    void *answers[2] = {&type, &owner};
    return driver.pointer_attributes(2, wanted, answers, (CUdeviceptr)(uintptr_t)data) == CUDA_SUCCESS &&
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
