/* SPDX-License-Identifier: BSD-3-Clause
 *
 * image.c: see image.h. Loaded images stay, as those that a program registers when it starts would: no context owns them,
 * and code on its way to a GPU, or in a graph, may still need them. */
#include "cuda/host/image.h"

#include <pthread.h>

#include "cuda/host/device.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Under the lock. */
static cudaError_t find(struct cuda_kernel *k) {
    cudaLibrary_t library = k->image->library;
    cudaKernel_t kernel = NULL;
    cudaError_t error = cudaSuccess;
    if (!library) error = cudaLibraryLoadData(&library, k->image->code, NULL, NULL, 0, NULL, NULL, 0);
    if (error) return error;
    k->image->library = library;
    error = cudaLibraryGetKernel(&kernel, library, k->name);
    if (!error) k->function = kernel;
    return error;
}

strobe_status strobe__cuda_find_kernel(struct cuda_kernel *k, const void **function) {
    *function = k->function;
    if (*function) return STROBE_OK;
    /* A capture, of this thread or of another one, lets nobody load code who has not said that it is none of the capture's.
     */
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    pthread_mutex_lock(&lock);
    cudaError_t error = cudaThreadExchangeStreamCaptureMode(&mode);
    if (!error) {
        if (!k->function) error = find(k);
        (void)cudaThreadExchangeStreamCaptureMode(&mode);
    }
    *function = k->function;
    pthread_mutex_unlock(&lock);
    return strobe__cuda_check(error, k->name);
}
