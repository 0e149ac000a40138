/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fake_runtime.c: as much of the CUDA runtime and driver as the library's host side calls, for machines that do not exist:
 * six GPUs, one of each architecture, without memory. A launch is checked and forgotten: whether the device that the call
 * names is current, whether the block's threads, shared memory and grid are what that GPU has, and whether more shared
 * memory than 48 KiB was asked for before. What launch.c and device.c would be told by a real runtime they are told here. */
#include "fake_runtime.h"

#include <cudaTypedefs.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

const struct fake_gpu fake_gpus[FAKE_GPUS] = {{"sm_80", 8, 0, 108, 163 << 10},   {"sm_86", 8, 6, 84, 99 << 10},
                                              {"sm_89", 8, 9, 128, 99 << 10},    {"sm_90", 9, 0, 132, 227 << 10},
                                              {"sm_100", 10, 0, 148, 227 << 10}, {"sm_120", 12, 0, 170, 99 << 10}};

enum { NONE = -1, MOST_REQUESTS = 4096, STATIC_BYTES = 1024 };

_Thread_local struct fake_thread fake_thread = {NONE, 0, {NONE}, 0};
struct fake_launches fake_launches;

static struct {
    const void *function;
    int device, bytes;
} requests[MOST_REQUESTS];
static int request_count;

/* The image, which has all kernels, is a library once it is loaded, in a mode that no capture minds, once for each kind of
 * GPU. */
static int images_loaded[FAKE_GPUS];
_Thread_local enum cudaStreamCaptureMode fake_capture_mode = cudaStreamCaptureModeGlobal;

static cudaError_t refuse(const char *sentence) {
    if (!fake_launches.refusal[0]) snprintf(fake_launches.refusal, sizeof fake_launches.refusal, "%s", sentence);
    return cudaErrorInvalidValue;
}

/* ------------------------------------------------------------------------------------------------------- the runtime -- */

cudaError_t cudaGetDeviceCount(int *count) {
    *count = FAKE_GPUS;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", fake_gpus[device].name);
    p->major = fake_gpus[device].major, p->minor = fake_gpus[device].minor;
    p->multiProcessorCount = fake_gpus[device].multiprocessors;
    p->sharedMemPerBlockOptin = (size_t)fake_gpus[device].shared_bytes;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    *device = fake_thread.current == NONE ? fake_thread.chosen : fake_thread.current;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    fake_thread.current = fake_thread.chosen = device;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void) { return cudaSuccess; }
const char *cudaGetErrorString(cudaError_t error) {
    (void)error;
    return fake_launches.refusal;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *data) {
    const int device = (int)((uintptr_t)data >> FAKE_DEVICE_SHIFT) - 1;
    memset(attributes, 0, sizeof *attributes);
    attributes->type = device < 0 ? cudaMemoryTypeUnregistered : cudaMemoryTypeDevice, attributes->device = device;
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream) {
    (void)byte, (void)bytes, (void)stream;
    return fake_device_of(to) == fake_thread.current ? cudaSuccess : refuse("memory of a device that is not current is set");
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    const enum cudaStreamCaptureMode before = fake_capture_mode;
    if (fake_launches.failing == MODE_FAILS) return refuse("the mode is not exchanged");
    fake_capture_mode = *mode, *mode = before;
    return cudaSuccess;
}

cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *options, void **values,
                                unsigned count, enum cudaLibraryOption *library_options, void **library_values,
                                unsigned library_count) {
    (void)options, (void)values, (void)library_options, (void)library_values;
    if (count || library_count) return refuse("options of an image");
    if (fake_thread.current == NONE) return refuse("an image is loaded, and no device is current");
    if (fake_capture_mode != cudaStreamCaptureModeRelaxed) return refuse("an image is loaded, which a capture forbids");
    if (fake_launches.failing == LOAD_FAILS) return refuse("an image that does not load");
    if (++images_loaded[fake_thread.current] > 1) return refuse("an image is loaded twice");
    if (*(const char *)code != 0) return refuse("an image that was not unpacked");
    *library = (cudaLibrary_t)(uintptr_t)&images_loaded[fake_thread.current];
    return cudaSuccess;
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name) {
    const struct fake_kernel *k = fake_kernels;
    if (!library) return refuse("a kernel of no library");
    if (fake_launches.failing == KERNEL_FAILS) return refuse("a library without the kernel");
    while (k->name && strcmp(k->name, name) != 0) ++k;
    if (!k->name) return refuse("no kernel of the build");
    *kernel = (cudaKernel_t)(uintptr_t)k->function;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int bytes) {
    if (fake_thread.current == NONE) return refuse("no device is current");
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return refuse("another attribute is set");
    if (bytes > fake_gpus[fake_thread.current].shared_bytes)
        return refuse("more shared memory is asked for than a block has");
    int at = 0;
    while (at < request_count && (requests[at].function != function || requests[at].device != fake_thread.current)) ++at;
    if (at == MOST_REQUESTS) return refuse("too many kernels for the test");
    requests[at].function = function, requests[at].device = fake_thread.current, requests[at].bytes = bytes;
    if (at == request_count) ++request_count;
    return cudaSuccess;
}

static int allowed_bytes(const void *function) {
    for (int at = 0; at < request_count; ++at)
        if (requests[at].function == function && requests[at].device == fake_thread.current) return requests[at].bytes;
    return 48 << 10;
}

static void report(const char *what, const struct fake_kernel *k, const cudaLaunchConfig_t *c) {
    char sentence[sizeof fake_launches.refusal];
    snprintf(sentence, sizeof sentence, "%s: %s, %u blocks of %u threads with %zu bytes", what, k ? k->name : "?",
             c->gridDim.x, c->blockDim.x, c->dynamicSmemBytes);
    (void)refuse(sentence);
}

/* Registers: 64 Ki on each of these GPUs for a block of threads; the compiler keeps to them for as many threads as the
 * kernel's launch bounds say, whatever the architecture, and these many are what the build's list of variants has. */
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *function, void **arguments) {
    const struct fake_kernel *k = fake_kernels;
    while (k->name && k->function != function) ++k;
    if (!k->name) k = NULL;
    if (!arguments[0]) report("no parameters", k, c);
    if (!k) return report("no kernel of the build", k, c), cudaErrorInvalidValue;
    if (fake_capture_mode != cudaStreamCaptureModeGlobal) report("a capture may not be told of it", k, c);
    if (fake_thread.current != fake_launches.device) report("not on the device that is named", k, c);
    const struct fake_gpu *gpu = &fake_gpus[fake_thread.current == NONE ? 0 : fake_thread.current];
    const size_t own = k->is_hopper ? 0 : STATIC_BYTES;
    if (k->is_hopper && gpu->major != 9) report("instructions that this GPU does not have", k, c);
    if (c->gridDim.x == 0 || c->gridDim.x > INT32_MAX) report("no grid", k, c);
    if (c->blockDim.x == 0 || c->blockDim.x > 1024 || c->blockDim.x % 32) report("no block of warps", k, c);
    if (k->threads && (int)c->blockDim.x != k->threads) report("other threads than its launch bounds", k, c);
    if (c->dynamicSmemBytes > 0 && c->dynamicSmemBytes + own > (size_t)gpu->shared_bytes)
        report("too much for a block", k, c);
    if (c->dynamicSmemBytes + own > (size_t)allowed_bytes(function) + own) report("shared memory not asked for", k, c);
    if (c->numAttrs > 0 && gpu->major < 9) report("a launch that begins early", k, c);
    ++fake_launches.count, fake_launches.used[k - fake_kernels] |= 1u << (gpu - fake_gpus);
    return fake_launches.refusal[0] ? cudaErrorInvalidValue : cudaSuccess;
}

/* -------------------------------------------------------------------------------------------------------- the driver -- */

static CUresult CUDAAPI get_device(CUdevice *device, int ordinal) {
    *device = 100 + ordinal; /* a handle is no ordinal */
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI current_context(CUcontext *context) {
    *context = (CUcontext)(uintptr_t)(fake_thread.current + 1);
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI current_device(CUdevice *device) {
    if (fake_thread.current == NONE) refuse("no context is current whose device is asked for");
    if (fake_thread.current == NONE) return CUDA_ERROR_INVALID_CONTEXT;
    return get_device(device, fake_thread.current);
}

static CUresult CUDAAPI context_id(CUcontext context, unsigned long long *id) {
    if (context || fake_thread.current == NONE) return CUDA_ERROR_INVALID_CONTEXT;
    *id = 1000 + (unsigned long long)fake_thread.current;
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI retain(CUcontext *context, CUdevice device) {
    *context = (CUcontext)(uintptr_t)(device - 99);
    ++fake_thread.held;
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI release(CUdevice device) {
    (void)device;
    --fake_thread.held;
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI state(CUdevice device, unsigned *flags, int *active) {
    (void)device;
    *flags = 0, *active = 1;
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI push(CUcontext context) {
    for (int n = FAKE_DEPTH - 1; n > 0; --n) fake_thread.below[n] = fake_thread.below[n - 1];
    fake_thread.below[0] = fake_thread.current, fake_thread.current = (int)(uintptr_t)context - 1;
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI pop(CUcontext *context) {
    *context = (CUcontext)(uintptr_t)(fake_thread.current + 1);
    fake_thread.current = fake_thread.below[0];
    for (int n = 0; n + 1 < FAKE_DEPTH; ++n) fake_thread.below[n] = fake_thread.below[n + 1];
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI pointer_attributes(unsigned count, CUpointer_attribute *wanted, void **answers, CUdeviceptr data) {
    (void)count, (void)wanted;
    *(unsigned *)answers[0] = CU_MEMORYTYPE_DEVICE, *(int *)answers[1] = fake_device_of((const void *)(uintptr_t)data);
    return CUDA_SUCCESS;
}

/* The driver's rules, as its manual has them, and that it needs a context. */
static CUresult CUDAAPI encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *data,
                               const cuuint64_t *extent, const cuuint64_t *stride, const cuuint32_t *box,
                               const cuuint32_t *step, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                               CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    (void)type, (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    bool ok = fake_thread.current != NONE && data && (uintptr_t)data % 16 == 0 && rank >= 4 && rank <= 5;
    for (unsigned n = 0; n < rank; ++n)
        ok = ok && extent[n] > 0 && extent[n] <= (cuuint64_t)1 << 32 && box[n] > 0 && box[n] <= 256 && step[n] == 1;
    for (unsigned n = 0; n + 1 < rank; ++n)
        ok = ok && stride[n] % 16 == 0 && stride[n] > 0 && stride[n] < (cuuint64_t)1 << 40;
    memset(map, 0, sizeof *map);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- libraries of kernels that were compiled: whoever calls made the code, whose only kernels are these of any name ----
 */

static CUresult CUDAAPI load_code(CUlibrary *library, const void *code, CUjit_option *options, void **values, unsigned count,
                                  CUlibraryOption *library_options, void **library_values, unsigned library_count) {
    (void)options, (void)values, (void)library_options, (void)library_values;
    *library = (CUlibrary)(uintptr_t)&fake_launches;
    return code && count == 0 && library_count == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult CUDAAPI unload_code(CUlibrary library) { return library ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

static CUresult CUDAAPI kernel_of_code(CUkernel *kernel, CUlibrary library, const char *name) {
    *kernel = (CUkernel)(uintptr_t)library;
    return name[0] ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static CUresult CUDAAPI function_of_kernel(CUfunction *function, CUkernel kernel) {
    *function = (CUfunction)(uintptr_t)kernel;
    return fake_thread.current == NONE ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

static CUresult CUDAAPI set_attribute(CUfunction function, CUfunction_attribute attribute, int bytes) {
    const bool fits = fake_thread.current != NONE && bytes <= fake_gpus[fake_thread.current].shared_bytes;
    return function && attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && fits ? CUDA_SUCCESS
                                                                                            : CUDA_ERROR_INVALID_VALUE;
}

static CUresult CUDAAPI launch_function(const CUlaunchConfig *c, CUfunction function, void **arguments, void **extra) {
    const bool ok = fake_thread.current == fake_launches.device && function && arguments[0] && !extra && c->gridDimX > 0 &&
                    c->blockDimX > 0 && c->blockDimX <= 1024 && c->blockDimX % 32 == 0 &&
                    c->sharedMemBytes <= (unsigned)fake_gpus[fake_launches.device].shared_bytes;
    ++fake_launches.count;
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult CUDAAPI is_capturing(CUstream stream, CUstreamCaptureStatus *status) {
    (void)stream;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return fake_thread.current == NONE ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

#define ENTRY(name, function) \
    { name, (void (*)(void))(function) }

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result) {
    static const struct {
        const char *name;
        void (*function)(void);
    } entries[] = {
        ENTRY("cuDeviceGet", get_device),
        ENTRY("cuCtxGetCurrent", current_context),
        ENTRY("cuCtxGetDevice", current_device),
        ENTRY("cuCtxGetId", context_id),
        ENTRY("cuDevicePrimaryCtxRetain", retain),
        ENTRY("cuDevicePrimaryCtxRelease", release),
        ENTRY("cuDevicePrimaryCtxGetState", state),
        ENTRY("cuCtxPushCurrent", push),
        ENTRY("cuCtxPopCurrent", pop),
        ENTRY("cuPointerGetAttributes", pointer_attributes),
        ENTRY("cuTensorMapEncodeTiled", encode),
        ENTRY("cuLibraryLoadData", load_code),
        ENTRY("cuLibraryUnload", unload_code),
        ENTRY("cuLibraryGetKernel", kernel_of_code),
        ENTRY("cuKernelGetFunction", function_of_kernel),
        ENTRY("cuFuncSetAttribute", set_attribute),
        ENTRY("cuLaunchKernelEx", launch_function),
        ENTRY("cuStreamIsCapturing", is_capturing),
    };
    (void)version, (void)flags;
    *result = cudaDriverEntryPointSymbolNotFound;
    for (size_t n = 0; n < sizeof entries / sizeof entries[0]; ++n)
        if (strcmp(entries[n].name, name) == 0) {
            memcpy(found, &entries[n].function, sizeof *found);
            *result = cudaDriverEntryPointSuccess;
        }
    return *result == cudaDriverEntryPointSuccess ? cudaSuccess : cudaErrorInvalidValue;
}
