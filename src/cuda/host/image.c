/* SPDX-License-Identifier: BSD-3-Clause
 *
 * image.c: see image.h. Loaded images stay, as those that a program registers when it starts would: no context owns them,
 * and code on its way to a GPU, or in a graph, may still need them. The driver keeps its own copy of what is unpacked. */
#include "cuda/host/image.h"

#include <pthread.h>
#include <stdlib.h>

#include "cuda/host/unpack.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Under the lock. */
static strobe_status find(struct cuda_kernel *k, int architecture, int place) {
    cudaLibrary_t library = k->image->library[place];
    cudaKernel_t kernel = NULL;
    cudaError_t error = cudaSuccess;
    if (!library) {
        const struct cuda_image *base = k->image->base;
        void *code = strobe__unpack_image(&k->image->packed, base ? &base->packed : NULL, architecture);
        if (!code)
            return strobe__fail(STROBE_DEVICE_ERROR,
                                "%s: no code for compute capability %d.%d, or no host memory to unpack it", k->name,
                                architecture / 10, architecture % 10);
        error = cudaLibraryLoadData(&library, code, NULL, NULL, 0, NULL, NULL, 0);
        free(code);
    }
    if (!error) {
        k->image->library[place] = library;
        error = cudaLibraryGetKernel(&kernel, library, k->name);
    }
    if (!error) k->function[place] = kernel;
    return strobe__cuda_check(error, k->name);
}

strobe_status strobe__cuda_find_kernel(struct cuda_kernel *k, const void **function) {
    int architecture, place;
    if (!strobe__cuda_architecture(&architecture, &place))
        return strobe__fail(STROBE_DEVICE_ERROR,
                            "%s: no device is current, or GPUs of more than %d compute capabilities are visible", k->name,
                            MOST_ARCHITECTURES);
    *function = k->function[place];
    if (*function) return STROBE_OK;
    /* A capture, of this thread or of another one, lets nobody load code who has not said that it is none of the capture's.
     */
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    pthread_mutex_lock(&lock);
    strobe_status status = strobe__cuda_check(cudaThreadExchangeStreamCaptureMode(&mode), k->name);
    if (!status) {
        if (!k->function[place]) status = find(k, architecture, place);
        (void)cudaThreadExchangeStreamCaptureMode(&mode);
    }
    *function = k->function[place];
    pthread_mutex_unlock(&lock);
    return status;
}
