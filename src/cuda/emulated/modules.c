/* SPDX-License-Identifier: BSD-3-Clause
 *
 * modules.c: the driver's calls for code that is loaded: a shared object of the host, made by compiler.c, as NVRTC makes
 * machine code; or the word that image.cmake writes, for kernels that the program has. Machine code of a GPU is not
 * understood. */
#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/emulated/driver.h"

/* Its kernels are `first` and those behind it up to `end` in the machine's list, to which they stay. */
struct CUlib_st {
    const struct emulated_kernel *first, *end;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The driver is not told how long an image is; 0: it is no shared object. */
static size_t bytes_of(const void *image) {
    Elf64_Ehdr head;
    if (memcmp(image, ELFMAG, SELFMAG) != 0) return 0;
    memcpy(&head, image, sizeof head);
    if (head.e_machine != EM_X86_64 || head.e_type != ET_DYN) return 0;
    return head.e_shoff + (size_t)head.e_shnum * head.e_shentsize; /* the linker puts this table last */
}

/* A file of its own, as the loader takes two of a name for one. */
static void *open_image(const void *image, size_t bytes) {
    const char *folder = getenv("TMPDIR");
    char path[512];
    snprintf(path, sizeof path, "%s/strobe-kernel-XXXXXX", folder && *folder ? folder : "/tmp");
    const int file = mkstemp(path);
    void *library = NULL;
    if (file < 0) return NULL;
    if (write(file, image, bytes) == (ssize_t)bytes) library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fprintf(stderr, "emulated GPU: code could not be loaded: %s\n", dlerror());
    close(file), unlink(path);
    return library;
}

static CUresult load(struct CUlib_st **loaded, const void *image) {
    const bool is_word = memcmp(image, "emulated", 8) == 0;
    const size_t bytes = is_word ? 0 : bytes_of(image);
    struct CUlib_st *made = bytes || is_word ? malloc(sizeof *made) : NULL;
    if (!bytes && !is_word) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    if (is_word) return made->first = emulated_kernels(), made->end = NULL, *loaded = made, CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    made->end = emulated_kernels();
    void *library = open_image(image, bytes);
    made->first = emulated_kernels();
    pthread_mutex_unlock(&lock);
    if (!library) return free(made), CUDA_ERROR_INVALID_IMAGE;
    return *loaded = made, CUDA_SUCCESS;
}

static const struct emulated_kernel *kernel_of(const struct CUlib_st *library, const char *name) {
    for (const struct emulated_kernel *k = library->first; k != library->end; k = k->next)
        if (strcmp(k->name, name) == 0) return k;
    return NULL;
}

SEEN CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *options, void **values, unsigned count,
                                CUlibraryOption *library_options, void **library_values, unsigned library_count) {
    (void)options, (void)values, (void)count, (void)library_options, (void)library_values, (void)library_count;
    return load(library, code);
}
SEEN CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    *kernel = (CUkernel)(uintptr_t)kernel_of(library, name);
    return *kernel ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
SEEN CUresult cuLibraryUnload(CUlibrary library) { return free(library), CUDA_SUCCESS; }
SEEN CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    if (!emulated_current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    return *function = (CUfunction)(void *)kernel, CUDA_SUCCESS;
}

SEEN CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    return load((struct CUlib_st **)(void *)module, image);
}
SEEN CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    *function = (CUfunction)(uintptr_t)kernel_of((const struct CUlib_st *)(void *)module, name);
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

SEEN CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    struct emulated_kernel *kernel = (struct emulated_kernel *)(void *)function;
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value > EMULATED_SHARED_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    return kernel->most_shared_bytes = value, CUDA_SUCCESS;
}
SEEN CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                             unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void **arguments,
                             void **extra) {
    const struct emulated_index ctas = {grid_x, grid_y, grid_z}, threads = {block_x, block_y, block_z};
    (void)extra;
    if (!emulated_current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    return (CUresult)emulated_launch((const struct emulated_kernel *)(void *)function, ctas, threads, arguments,
                                     shared_bytes, stream);
}
SEEN CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
    return cuLaunchKernel(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                          config->blockDimY, config->blockDimZ, config->sharedMemBytes, config->hStream, arguments, extra);
}
