/* SPDX-License-Identifier: BSD-3-Clause
 *
 * driver.c: the calls of the CUDA driver that the library, the command and the tests open, for devices of which the host
 * plays the threads (machine.h): devices, contexts, memory. Streams are in streams.c.
 *
 * Memory of a device ends where a page begins that nobody may touch, and is NaN at first; bytes between its end and the page
 * are watched. Memory that was given back may not be touched either.
 *
 *   STROBE_EMULATED_DEVICES           default 1
 *   STROBE_EMULATED_SM                compute capability, 80 to 90, default 90
 *   STROBE_EMULATED_MULTIPROCESSORS   default 4 */
#include "cuda/emulated/driver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda/emulated/tensor_map.h"

enum { MOST_DEVICES = 8, MOST_CONTEXTS = 32, SLACK_BYTE = 0xff };

int emulated_device_count(void) {
    const int count = (int)emulated_setting("STROBE_EMULATED_DEVICES", 1);
    return count < 0 ? 0 : count > MOST_DEVICES ? MOST_DEVICES : count;
}

/* ---- contexts, on a stack of each thread's */

struct CUctx_st {
    int device, holders;
    unsigned long long id;
};

static struct CUctx_st primary[MOST_DEVICES];
static __thread struct CUctx_st *stack[MOST_CONTEXTS];
static __thread int depth;
__thread int emulated_chosen_device;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned long long ids;

struct CUctx_st *emulated_primary_context(int device) {
    pthread_mutex_lock(&lock);
    if (!primary[device].id) primary[device].id = ++ids, primary[device].device = device;
    pthread_mutex_unlock(&lock);
    return &primary[device];
}

struct CUctx_st *emulated_current_context(void) {
    return depth ? stack[depth - 1] : NULL;
}

void emulated_set_context(struct CUctx_st *context) {
    if (!context) {
        depth = depth ? depth - 1 : 0;
        return;
    }
    if (!depth) depth = 1;
    stack[depth - 1] = context;
}

int emulated_current_device(void) {
    if (!emulated_current_context()) emulated_set_context(emulated_primary_context(emulated_chosen_device));
    return emulated_current_context()->device;
}

int emulated_device_of_context(const struct CUctx_st *context) { return context->device; }

SEEN CUresult cuInit(unsigned flags) {
    return flags ? CUDA_ERROR_INVALID_VALUE : emulated_device_count() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}
SEEN CUresult cuDeviceGetCount(int *count) { return *count = emulated_device_count(), CUDA_SUCCESS; }
SEEN CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    if (ordinal < 0 || ordinal >= emulated_device_count()) return CUDA_ERROR_INVALID_DEVICE;
    return *device = ordinal, CUDA_SUCCESS;
}
SEEN CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    *context = emulated_primary_context(device);
    return ++primary[device].holders, CUDA_SUCCESS;
}
SEEN CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { return --primary[device].holders, CUDA_SUCCESS; }
SEEN CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    return *flags = 0, *active = primary[device].holders > 0, CUDA_SUCCESS;
}
SEEN CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    (void)flags;
    struct CUctx_st *made = malloc(sizeof *made);
    if (!made || depth == MOST_CONTEXTS) return free(made), CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    *made = (struct CUctx_st){device, 1, ++ids};
    pthread_mutex_unlock(&lock);
    stack[depth++] = made;
    return *context = made, CUDA_SUCCESS;
}
SEEN CUresult cuCtxDestroy_v2(CUcontext context) {
    if (emulated_current_context() == context) --depth;
    return free(context), CUDA_SUCCESS;
}
SEEN CUresult cuCtxSetCurrent(CUcontext context) { return emulated_set_context(context), CUDA_SUCCESS; }
SEEN CUresult cuCtxGetCurrent(CUcontext *context) { return *context = emulated_current_context(), CUDA_SUCCESS; }
SEEN CUresult cuCtxGetDevice(CUdevice *device) {
    if (!emulated_current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    return *device = emulated_current_context()->device, CUDA_SUCCESS;
}
SEEN CUresult cuCtxGetId(CUcontext context, unsigned long long *id) {
    if (!context) context = emulated_current_context();
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    return *id = context->id, CUDA_SUCCESS;
}
SEEN CUresult cuCtxPushCurrent_v2(CUcontext context) {
    if (depth == MOST_CONTEXTS) return CUDA_ERROR_OUT_OF_MEMORY;
    return stack[depth++] = context, CUDA_SUCCESS;
}
SEEN CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    if (!depth) return CUDA_ERROR_INVALID_CONTEXT;
    --depth;
    if (context) *context = stack[depth];
    return CUDA_SUCCESS;
}
SEEN CUresult cuGetErrorName(CUresult error, const char **name) {
    return *name = error ? "an error of the emulated driver" : "CUDA_SUCCESS", CUDA_SUCCESS;
}

SEEN CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    (void)device;
    const int sm = (int)emulated_setting("STROBE_EMULATED_SM", 90);
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = 1000000; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = (int)emulated_setting("STROBE_EMULATED_MULTIPROCESSORS", 4);
        break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = 1 << 20; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = sm / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = sm % 10; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}
SEEN CUresult cuDeviceGetPCIBusId(char *text, int capacity, CUdevice device) {
    return snprintf(text, (size_t)capacity, "0000:00:%02d.0", device), CUDA_SUCCESS;
}

/* ---- memory */

struct allocation {
    unsigned char *pages, *data; /* front: bytes before the pages, of which none can be touched; a page behind them */
    size_t front, pages_bytes, bytes;
    int device, file; /* file: of the pages, where other processes may have them, else -1 */
    struct allocation *next;
};
static struct allocation *allocations;

static struct allocation *find(const void *pointer) {
    const unsigned char *p = pointer;
    for (struct allocation *a = allocations; a; a = a->next)
        if (p >= a->data && p < a->data + (a->bytes ? a->bytes : 1)) return a;
    return NULL;
}

static void *add(struct allocation *made) {
    pthread_mutex_lock(&lock);
    made->next = allocations, allocations = made;
    pthread_mutex_unlock(&lock);
    return made->data;
}

void *emulated_allocate(size_t bytes, int device) {
    enum { FRONT = 1 << 20 };
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), rounded = (bytes + 255) / 256 * 256,
                 begin = (page - rounded % page) % page;
    struct allocation *made = malloc(sizeof *made);
    if (!made || rounded < bytes) return free(made), NULL;
    const size_t all = begin + rounded + page;
    unsigned char *front = mmap(NULL, FRONT + all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0),
                  *pages = front + FRONT;
    if (front == MAP_FAILED) return free(made), NULL;
    if (begin + rounded > 0) mprotect(pages, begin + rounded, PROT_READ | PROT_WRITE);
    *made = (struct allocation){pages, pages + begin, FRONT, all, bytes, device, -1, NULL};
    memset(made->data, SLACK_BYTE, rounded);
    return add(made);
}

bool emulated_share(const void *data, struct emulated_pages *pages) {
    pthread_mutex_lock(&lock);
    struct allocation *a = find(data);
    const size_t bytes = a ? a->pages_bytes - (size_t)sysconf(_SC_PAGESIZE) : 0;
    if (a && a->file < 0) { /* the same pages, of a file from here on */
        a->file = memfd_create("strobe-emulated", MFD_CLOEXEC);
        if (a->file >= 0 &&
            (write(a->file, a->pages, bytes) != (ssize_t)bytes ||
             mmap(a->pages, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, a->file, 0) == MAP_FAILED))
            (void)close(a->file), a->file = -1;
    }
    const bool is_shared = a && a->file >= 0;
    if (is_shared) *pages = (struct emulated_pages){a->file, (size_t)(a->data - a->pages), a->bytes, bytes};
    pthread_mutex_unlock(&lock);
    return is_shared;
}

void *emulated_adopt(void *pages, size_t pages_bytes, size_t begin, size_t bytes, int device) {
    struct allocation *made = malloc(sizeof *made);
    if (!made) return munmap(pages, pages_bytes), NULL;
    *made = (struct allocation){pages, (unsigned char *)pages + begin, 0, pages_bytes, bytes, device, -1, NULL};
    return add(made);
}

bool emulated_release(void *data) {
    emulated_drain(NULL, emulated_device_of(data), false);
    pthread_mutex_lock(&lock);
    struct allocation **place = &allocations;
    while (*place && (*place)->data != data) place = &(*place)->next;
    struct allocation *a = *place;
    if (a) *place = a->next;
    pthread_mutex_unlock(&lock);
    if (!a) return false;
    for (size_t n = a->bytes; n < (a->bytes + 255) / 256 * 256; ++n)
        if (a->data[n] != SLACK_BYTE)
            emulated_fault("%zu bytes past the end of %zu were written", n - a->bytes + 1, a->bytes);
    munmap(a->pages - a->front, a->front + a->pages_bytes);
    if (a->file >= 0) (void)close(a->file);
    free(a);
    return true;
}

int emulated_device_of(const void *pointer) {
    pthread_mutex_lock(&lock);
    const struct allocation *a = find(pointer);
    const int device = a ? a->device : EMULATED_NOBODY;
    pthread_mutex_unlock(&lock);
    return device;
}

SEEN CUresult cuMemAlloc_v2(CUdeviceptr *memory, size_t bytes) {
    if (!emulated_current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    void *data = emulated_allocate(bytes, emulated_current_context()->device);
    return *memory = (CUdeviceptr)(uintptr_t)data, data ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
SEEN CUresult cuMemFree_v2(CUdeviceptr memory) {
    return !memory || emulated_release((void *)(uintptr_t)memory) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
SEEN CUresult cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) {
    if (!emulated_current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    return (void)flags, (*memory = emulated_allocate(bytes, EMULATED_PINNED)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
SEEN CUresult cuMemFreeHost(void *memory) {
    if (!emulated_current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    return emulated_release(memory) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
SEEN CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *wanted, void **answers, CUdeviceptr pointer) {
    const int device = emulated_device_of((const void *)(uintptr_t)pointer);
    for (unsigned n = 0; n < count; ++n)
        if (wanted[n] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
            *(unsigned *)answers[n] = device == EMULATED_NOBODY ? 0 : device < 0 ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        else if (wanted[n] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            *(int *)answers[n] = device < 0 ? -2 : device;
        else
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}
SEEN CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    return emulated_drain_blocking(), memcpy((void *)(uintptr_t)to, from, bytes), CUDA_SUCCESS;
}
SEEN CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    return emulated_drain_blocking(), memcpy(to, (const void *)(uintptr_t)from, bytes), CUDA_SUCCESS;
}
SEEN CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char byte, size_t bytes) {
    return emulated_drain_blocking(), memset((void *)(uintptr_t)to, byte, bytes), CUDA_SUCCESS;
}

SEEN CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                     const cuuint64_t *extent, const cuuint64_t *stride, const cuuint32_t *box,
                                     const cuuint32_t *step, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                     CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    (void)promotion;
    _Static_assert(sizeof(struct emulated_tensor_map) <= sizeof *map, "it is kept in the driver's structure");
    const unsigned bytes = type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1 : type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 2;
    struct emulated_tensor_map to = {.data = address, .rank = (uint8_t)rank, .element_bytes = (uint8_t)bytes};
    if (rank < 3 || rank > 5 || (uintptr_t)address % 16 || interleave || fill) return CUDA_ERROR_INVALID_VALUE;
    to.span = swizzle == CU_TENSOR_MAP_SWIZZLE_128B  ? 128
              : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64
              : swizzle == CU_TENSOR_MAP_SWIZZLE_32B ? 32
                                                     : 0;
    for (cuuint32_t axis = 0; axis < rank; ++axis) {
        if (extent[axis] == 0 || extent[axis] > (cuuint64_t)1 << 32 || box[axis] == 0 || box[axis] > 256 || step[axis] != 1)
            return CUDA_ERROR_INVALID_VALUE;
        if (axis && (stride[axis - 1] % 16 || stride[axis - 1] >= (cuuint64_t)1 << 40)) return CUDA_ERROR_INVALID_VALUE;
        to.extent[axis] = extent[axis], to.box[axis] = (uint16_t)box[axis];
        to.stride[axis] = axis ? stride[axis - 1] : bytes;
    }
    if (to.span && box[0] * bytes > to.span) return CUDA_ERROR_INVALID_VALUE;
    memset(map, 0, sizeof *map);
    memcpy(map, &to, sizeof to);
    return CUDA_SUCCESS;
}
