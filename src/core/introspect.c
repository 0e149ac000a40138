/* SPDX-License-Identifier: BSD-3-Clause
 *
 * introspect.c: what this build and this machine have: kernels, devices, versions. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/kernel.h"

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

/* Fills in a caller's structure of its own struct_size: no more bytes than the caller knows, and zeros where the caller's is
 * the newer one. */
static strobe_status give(void *caller, const void *ours, size_t our_bytes, const char *name) {
    size_t size;
    memcpy(&size, caller, sizeof size);
    if (size < sizeof size || size > 65536)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "%s.struct_size is %zu; sizeof the structure, %zu, is accepted", name,
                            size, our_bytes);
    memset(caller, 0, size);
    memcpy(caller, ours, size < our_bytes ? size : our_bytes);
    memcpy(caller, &size, sizeof size);
    return STROBE_OK;
}

int32_t strobe_kernel_count(void) {
    int32_t count = 0;
    while (strobe__kernel((size_t)count)) ++count;
    return count;
}

/* NULL if any device of the kernel's kind can run it, else what the first lacks. */
static const char *unavailable(const struct kernel *kernel) {
    const struct backend *backend = strobe__backend_of(kernel);
    strobe_device_info info;
    const char *first = backend->lacks ? backend->lacks(kernel->needs, 0) : NULL;
    for (int32_t index = 1; first && backend->describe((int32_t)kernel->device, index, &info); ++index)
        if (!backend->lacks(kernel->needs, index)) return NULL;
    return first;
}

strobe_status strobe_kernel_at(int32_t index, strobe_kernel_info *info) {
    const struct kernel *kernel = index >= 0 ? strobe__kernel((size_t)index) : NULL;
    if (!kernel)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "index is %d; 0 to %d is accepted", index, strobe_kernel_count() - 1);
    if (!info) return strobe__fail(STROBE_INVALID_ARGUMENT, "info is NULL; a strobe_kernel_info is accepted");
    const strobe_kernel_info ours = {
        .struct_size = sizeof ours,
        .name = kernel->name,
        .summary = kernel->summary,
        .unavailable = unavailable(kernel),
        .operation = (int32_t)kernel->operation,
        .device = (int32_t)kernel->device,
        .chosen_by_name = kernel->by_name_only,
    };
    return give(info, &ours, sizeof ours, "info");
}

static bool describe(int32_t device, int32_t index, strobe_device_info *info) {
    const struct backend *backend;
    for (size_t b = 0; (backend = strobe__backend(b)) != NULL; ++b)
        if (backend->describe && backend->describe(device, index, info)) return true;
    return false;
}

strobe_status strobe_device_at(int32_t device, int32_t index, strobe_device_info *info) {
    if (!info) return strobe__fail(STROBE_INVALID_ARGUMENT, "info is NULL; a strobe_device_info is accepted");
    strobe_device_info ours = {.struct_size = sizeof ours};
    if (describe(device, index, &ours)) return give(info, &ours, sizeof ours, "info");
    if (device != STROBE_CPU && device != STROBE_CUDA)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "device is %d; 0 (the CPU) or 1 (CUDA) is accepted", device);
    int32_t count = 0;
    while (describe(device, count, &ours)) ++count;
    if (count == 0)
        return strobe__fail(STROBE_INVALID_ARGUMENT,
                            "device is %d (CUDA), of which this build or machine has none; 0 (the CPU) is accepted", device);
    return strobe__fail(STROBE_INVALID_ARGUMENT, "index is %d; 0 to %d is accepted", index, count - 1);
}

const char *strobe_version(void) {
    return TEXT(STROBE_VERSION_MAJOR) "." TEXT(STROBE_VERSION_MINOR) "." TEXT(STROBE_VERSION_PATCH);
}

#if defined(_OPENMP)
#define THREADS "OpenMP"
#else
#define THREADS "no OpenMP"
#endif

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

#if !defined(STROBE_CUDA_BUILD)
#define STROBE_CUDA_BUILD "not built"
#endif

/* A constant: the table of backends is fixed at build time. */
const char *strobe_build_info(void) {
    return "strobe " TEXT(STROBE_VERSION_MAJOR) "." TEXT(STROBE_VERSION_MINOR) "." TEXT(
        STROBE_VERSION_PATCH) ", " COMPILER ", " THREADS ", CPU levels: " STROBE_CPU_LEVELS ", CUDA: " STROBE_CUDA_BUILD;
}
