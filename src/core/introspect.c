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

static const char *lack_of(const struct kernel *kernel, int32_t index) {
    const struct backend *backend = strobe__backend_of(kernel);
    return backend->lacks ? backend->lacks(kernel->needs, index) : NULL;
}

/* NULL if any device of the kernel's kind can run it, else what the first lacks. */
static const char *lack_of_all(const struct kernel *kernel) {
    const struct backend *backend = strobe__backend_of(kernel);
    strobe_device_info info;
    const char *first = lack_of(kernel, 0);
    for (int32_t index = 1; first && backend->describe((int32_t)kernel->device, index, &info); ++index)
        if (!lack_of(kernel, index)) return NULL;
    return first;
}

static strobe_status give_kernel(int32_t index, const struct kernel *kernel, const char *lack, strobe_kernel_info *info) {
    if (!kernel)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "index is %d; 0 to %d is accepted", index, strobe_kernel_count() - 1);
    if (!info) return strobe__fail(STROBE_INVALID_ARGUMENT, "info is NULL; a strobe_kernel_info is accepted");
    const struct dtypes *d = &kernel->dtypes;
    const strobe_kernel_info ours = {
        .struct_size = sizeof ours,
        .name = kernel->name,
        .summary = kernel->summary,
        .unavailable = lack,
        .operation = (int32_t)kernel->operation,
        .device = (int32_t)kernel->device,
        .chosen_by_name = kernel->by_name_only,
        .features = kernel->features,
        .dtypes = {d->q, d->kv, d->out, d->lse, d->bias, d->sinks, d->dout, d->gradients, d->dbias},
        .dim = kernel->dim,
        .dim_v = kernel->dim_v,
        .scale_block = !(kernel->features & FEATURE(SCALES)) ? 0
                       : kernel->scale_block                 ? kernel->scale_block
                                                             : 1,
        .seq_q = {kernel->seq_q.least, kernel->seq_q.most},
        .seq_k = {kernel->seq_k.least, kernel->seq_k.most},
        .rows = {kernel->rows.least, kernel->rows.most},
        .best_rows = {kernel->best_rows.least, kernel->best_rows.most},
        .limits = kernel->limits,
        .variants = kernel->variants,
    };
    return give(info, &ours, sizeof ours, "info");
}

static const struct kernel *kernel_number(int32_t index) { return index >= 0 ? strobe__kernel((size_t)index) : NULL; }

strobe_status strobe_kernel_at(int32_t index, strobe_kernel_info *info) {
    const struct kernel *kernel = kernel_number(index);
    return give_kernel(index, kernel, kernel ? lack_of_all(kernel) : NULL, info);
}

strobe_status strobe_kernel_on(int32_t index, int32_t device_index, strobe_kernel_info *info) {
    const struct kernel *kernel = kernel_number(index);
    if (device_index < 0 || (kernel && kernel->device == STROBE_CPU && device_index > 0))
        return strobe__fail(STROBE_INVALID_ARGUMENT,
                            "device_index is %d; the number of a device of the kernel's kind is "
                            "accepted (strobe_device_at lists them)",
                            device_index);
    return give_kernel(index, kernel, kernel ? lack_of(kernel, device_index) : NULL, info);
}

const char *strobe_feature_name(int32_t bit) { return strobe__feature_title(bit); }

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
