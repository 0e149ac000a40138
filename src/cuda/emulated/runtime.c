/* SPDX-License-Identifier: BSD-3-Clause
 *
 * runtime.c: the calls of the CUDA runtime that the library makes, over driver.c. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/emulated/driver.h"

static __thread cudaError_t last_error;

static cudaError_t failed(cudaError_t error) { return last_error = error; }

SEEN cudaError_t cudaGetDeviceCount(int *count) {
    return *count = emulated_device_count(), *count ? cudaSuccess : failed(cudaErrorNoDevice);
}
SEEN cudaError_t cudaGetDevice(int *device) {
    return *device = emulated_current_context() ? emulated_current_device() : emulated_chosen_device, cudaSuccess;
}
SEEN cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= emulated_device_count()) return failed(cudaErrorInvalidDevice);
    emulated_chosen_device = device;
    return emulated_set_context(emulated_primary_context(device)), cudaSuccess;
}
SEEN cudaError_t cudaGetLastError(void) {
    const cudaError_t error = last_error;
    return last_error = cudaSuccess, error;
}
SEEN const char *cudaGetErrorString(cudaError_t error) { return error ? "an error of the emulated runtime" : "no error"; }

SEEN cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
    const int sm = (int)emulated_setting("STROBE_EMULATED_SM", 90);
    if (device < 0 || device >= emulated_device_count()) return failed(cudaErrorInvalidDevice);
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "a GPU that the host plays");
    properties->major = sm / 10, properties->minor = sm % 10;
    properties->multiProcessorCount = (int)emulated_setting("STROBE_EMULATED_MULTIPROCESSORS", 4);
    properties->sharedMemPerBlockOptin = sm == 80 ? 166912 : sm < 90 ? 101376 : EMULATED_SHARED_BYTES;
    properties->totalGlobalMem = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE) / 2;
    return cudaSuccess;
}

/* All GPUs of a process are one, since its kernels run one after the other: none may wait for another. */
SEEN cudaError_t cudaDeviceGetPCIBusId(char *text, int capacity, int device) {
    (void)device;
    return snprintf(text, (size_t)capacity, "process %d", (int)getpid()), cudaSuccess;
}

SEEN cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                                  unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
    (void)version, (void)flags;
    char newest[128];
    snprintf(newest, sizeof newest, "%s_v2", symbol);
    *function = dlsym(RTLD_DEFAULT, symbol);
    if (!*function) *function = dlsym(RTLD_DEFAULT, newest);
    *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

SEEN cudaError_t cudaMalloc(void **data, size_t bytes) {
    *data = bytes ? emulated_allocate(bytes, emulated_current_device()) : NULL;
    return *data || !bytes ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
SEEN cudaError_t cudaFree(void *data) {
    return !data || emulated_release(data) ? cudaSuccess : failed(cudaErrorInvalidValue);
}
SEEN cudaError_t cudaHostAlloc(void **data, size_t bytes, unsigned flags) {
    *data = emulated_allocate(bytes, EMULATED_PINNED);
    return (void)flags, *data ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
SEEN cudaError_t cudaFreeHost(void *data) { return cudaFree(data); }
SEEN cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
    const int device = emulated_device_of(pointer);
    memset(attributes, 0, sizeof *attributes);
    attributes->type = device == EMULATED_NOBODY ? cudaMemoryTypeUnregistered
                       : device < 0              ? cudaMemoryTypeHost
                                                 : cudaMemoryTypeDevice;
    attributes->device = device < 0 ? -2 : device;
    return cudaSuccess;
}

SEEN cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream) {
    const struct step s = {.what = FILL, .to = to, .bytes = bytes, .rows = 1, .byte = byte};
    return failed((cudaError_t)emulated_submit(stream, &s));
}
SEEN cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int byte, size_t width, size_t rows, cudaStream_t stream) {
    const struct step s = {.what = FILL, .to = to, .bytes = width, .pitch = pitch, .rows = rows, .byte = byte};
    return failed((cudaError_t)emulated_submit(stream, &s));
}
SEEN cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind;
    const struct step s = {.what = COPY, .to = to, .from = from, .bytes = bytes};
    return failed((cudaError_t)emulated_submit(stream, &s));
}

SEEN cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    (void)kind, (void)emulated_current_device();
    return emulated_drain_blocking(), memcpy(to, from, bytes), cudaSuccess;
}

SEEN cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    (void)priority;
    (void)emulated_current_device();
    return failed((cudaError_t)cuStreamCreate(stream, flags));
}
SEEN cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = *greatest = 0, cudaSuccess; }
SEEN cudaError_t cudaStreamDestroy(cudaStream_t stream) { return failed((cudaError_t)cuStreamDestroy(stream)); }
SEEN cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return failed((cudaError_t)cuStreamSynchronize(stream)); }
SEEN cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    *status = emulated_is_capturing(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
SEEN cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    return failed((cudaError_t)cuStreamWaitEvent(stream, event, flags));
}
SEEN cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    (void)emulated_current_device();
    return failed((cudaError_t)cuEventCreate(event, flags));
}
SEEN cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    (void)emulated_current_device();
    return failed((cudaError_t)cuEventRecord(event, stream));
}
SEEN cudaError_t cudaEventQuery(cudaEvent_t event) { return failed((cudaError_t)cuEventQuery(event)); }
SEEN cudaError_t cudaEventDestroy(cudaEvent_t event) { return failed((cudaError_t)cuEventDestroy(event)); }

SEEN cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    static __thread enum cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
    const enum cudaStreamCaptureMode before = current;
    current = *mode, *mode = before;
    return cudaSuccess;
}
SEEN cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *options, void **values,
                                     unsigned count, enum cudaLibraryOption *library_options, void **library_values,
                                     unsigned library_count) {
    (void)options, (void)values, (void)count, (void)library_options, (void)library_values, (void)library_count;
    return failed((cudaError_t)cuLibraryLoadData((CUlibrary *)library, code, NULL, NULL, 0, NULL, NULL, 0));
}
/* A kernel's function stands for it, here as in the calls below. */
SEEN cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name) {
    CUkernel found = NULL;
    const cudaError_t error = (cudaError_t)cuLibraryGetKernel(&found, (CUlibrary)library, name);
    if (error) return failed(error);
    *kernel = (cudaKernel_t)(uintptr_t)((const struct emulated_kernel *)(void *)found)->function;
    return cudaSuccess;
}

SEEN cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value) {
    struct emulated_kernel *kernel = emulated_find(function);
    if (!kernel) return failed(cudaErrorInvalidDeviceFunction);
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value > EMULATED_SHARED_BYTES)
        return failed(cudaErrorInvalidValue);
    return kernel->most_shared_bytes = value, cudaSuccess;
}

SEEN cudaError_t cudaLaunchKernel(const void *function, dim3 ctas, dim3 threads, void **arguments, size_t shared_bytes,
                                  cudaStream_t stream) {
    const struct emulated_kernel *kernel = emulated_find(function);
    (void)emulated_current_device();
    if (!kernel) return failed(cudaErrorInvalidDeviceFunction);
    const struct emulated_index grid = {ctas.x, ctas.y, ctas.z}, block = {threads.x, threads.y, threads.z};
    return failed((cudaError_t)emulated_launch(kernel, grid, block, arguments, shared_bytes, stream));
}
SEEN cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
    return cudaLaunchKernel(function, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes,
                            config->stream);
}
