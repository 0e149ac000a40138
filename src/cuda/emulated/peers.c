/* SPDX-License-Identifier: BSD-3-Clause
 *
 * peers.c: what ranks of one host share on the emulated GPU: memory of a device between processes, memory of the host that a
 * GPU may use, and values in either that streams wait for and write.
 *
 *   STROBE_EMULATED_PEERS   0: no device reaches another's memory; default 1 */
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <pthread.h>

#include "cuda/emulated/driver.h"

enum { MOST_REGISTERED = 64 };

/* What a handle says: pages of a process, as a file that it has open. */
struct handle {
    int32_t process, file, device;
    uint32_t begin; /* of the memory in the pages */
    uint64_t pages_bytes, bytes;
};
_Static_assert(sizeof(struct handle) <= sizeof(cudaIpcMemHandle_t), "it is kept in the runtime's structure");

static bool reaches(int device, int other) { return device == other || emulated_setting("STROBE_EMULATED_PEERS", 1) != 0; }

SEEN cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int other) {
    *can = device != other && reaches(device, other);
    return cudaSuccess;
}
SEEN cudaError_t cudaDeviceEnablePeerAccess(int other, unsigned flags) {
    static __thread unsigned enabled[8];
    const int device = emulated_current_device();
    if (flags || other == device || !reaches(device, other)) return cudaErrorInvalidValue;
    if (enabled[device % 8] >> other & 1) return cudaErrorPeerAccessAlreadyEnabled;
    enabled[device % 8] |= 1u << other;
    return cudaSuccess;
}

/* ---- memory of a device between processes */

SEEN cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *data) {
    struct emulated_pages pages;
    if (!emulated_share(data, &pages)) return cudaErrorInvalidValue;
    const struct handle h = {(int32_t)getpid(),     pages.file,        emulated_device_of(data),
                             (uint32_t)pages.begin, pages.pages_bytes, pages.bytes};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &h, sizeof h);
    return cudaSuccess;
}

SEEN cudaError_t cudaIpcOpenMemHandle(void **data, cudaIpcMemHandle_t handle, unsigned flags) {
    struct handle h;
    char name[64];
    (void)flags;
    memcpy(&h, &handle, sizeof h);
    if (h.process == (int32_t)getpid()) return cudaErrorInvalidResourceHandle;
    if (!reaches(emulated_current_device(), h.device)) return cudaErrorPeerAccessUnsupported;
    snprintf(name, sizeof name, "/proc/%d/fd/%d", h.process, h.file);
    const int file = open(name, O_RDWR | O_CLOEXEC);
    if (file < 0) return cudaErrorInvalidResourceHandle;
    void *pages = mmap(NULL, h.pages_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    (void)close(file);
    if (pages == MAP_FAILED) return cudaErrorMemoryAllocation;
    *data = emulated_adopt(pages, h.pages_bytes, h.begin, h.bytes, h.device);
    return *data ? cudaSuccess : cudaErrorMemoryAllocation;
}

SEEN cudaError_t cudaIpcCloseMemHandle(void *data) { return emulated_release(data) ? cudaSuccess : cudaErrorInvalidValue; }

/* ---- memory of the host */

static struct registered {
    unsigned char *data;
    size_t bytes;
} registered[MOST_REGISTERED];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The entry in which a byte lies; NULL: the free one. */
static struct registered *find(const void *data) {
    const unsigned char *p = data;
    for (int n = 0; n < MOST_REGISTERED; ++n)
        if (p ? registered[n].data && p >= registered[n].data && p < registered[n].data + registered[n].bytes
              : !registered[n].data)
            return &registered[n];
    return NULL;
}

SEEN cudaError_t cudaHostRegister(void *data, size_t bytes, unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    struct registered *entry = find(data) ? NULL : find(NULL);
    if (entry) *entry = (struct registered){data, bytes};
    pthread_mutex_unlock(&lock);
    return entry ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered;
}
SEEN cudaError_t cudaHostUnregister(void *data) {
    pthread_mutex_lock(&lock);
    struct registered *entry = find(data);
    if (entry) *entry = (struct registered){NULL, 0};
    pthread_mutex_unlock(&lock);
    return entry ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
}
SEEN cudaError_t cudaHostGetDevicePointer(void **on_device, void *data, unsigned flags) {
    pthread_mutex_lock(&lock);
    const bool known = find(data) != NULL;
    pthread_mutex_unlock(&lock);
    return *on_device = data, known && !flags ? cudaSuccess : cudaErrorInvalidValue;
}

/* ---- values */

static bool is_for_streams(const void *data) {
    pthread_mutex_lock(&lock);
    const bool known = find(data) != NULL;
    pthread_mutex_unlock(&lock);
    return (uintptr_t)data % 4 == 0 && (known || emulated_device_of(data) != EMULATED_NOBODY);
}

SEEN CUresult cuStreamBatchMemOp(CUstream stream, unsigned count, CUstreamBatchMemOpParams *values, unsigned flags) {
    for (unsigned n = 0; n < count; ++n) {
        const CUstreamBatchMemOpParams *p = &values[n];
        const bool waits = p->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32;
        unsigned char *at = (unsigned char *)(uintptr_t)(waits ? p->waitValue.address : p->writeValue.address);
        const struct step s = {
            .what = waits ? AWAIT_VALUE : STORE_VALUE, .to = at, .number = waits ? p->waitValue.value : p->writeValue.value};
        if (flags || !is_for_streams(at)) return CUDA_ERROR_INVALID_VALUE;
        if (!waits && (p->operation != CU_STREAM_MEM_OP_WRITE_VALUE_32 || p->writeValue.flags))
            return CUDA_ERROR_NOT_SUPPORTED;
        if (waits && p->waitValue.flags != CU_STREAM_WAIT_VALUE_EQ) return CUDA_ERROR_NOT_SUPPORTED;
        const int error = emulated_submit(stream, &s);
        if (error) return (CUresult)error;
    }
    return CUDA_SUCCESS;
}
