/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpu.c: the transport for tensors of a GPU. An MPI that reads and writes a GPU's memory gets the messages as they are, once
 * the call's stream has come there. For any other they pass through pinned memory of the host, on a stream of the
 * transport's own:
 *
 *     the call's stream    ready ............ attention ............ waits for done
 *     the transport's      waits for ready, copies to the host               copies to the GPU, done
 *     the host             waits for the copies | sends | launches attention | waits for MPI
 *
 * The CUDA driver is opened at run time; its calls are declared as its manual has them. */
#include <dlfcn.h>
#include <mpi.h>
#if defined(OPEN_MPI)
#include <mpi-ext.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

enum { NON_BLOCKING = 1, WITHOUT_TIMING = 2, PORTABLE = 1, ALIGNMENT = 256 };

typedef unsigned long long address; /* CUdeviceptr */

struct driver {
    int (*get_context)(void **context);
    int (*push_context)(void *context);
    int (*pop_context)(void **context);
    int (*create_stream)(void **stream, unsigned flags);
    int (*wait_stream)(void *stream);
    int (*destroy_stream)(void *stream);
    int (*is_captured)(void *stream, int *status);
    int (*create_event)(void **event, unsigned flags);
    int (*record_event)(void *event, void *stream);
    int (*stream_wait_event)(void *stream, void *event, unsigned flags);
    int (*destroy_event)(void *event);
    int (*allocate)(void **memory, size_t bytes, unsigned flags);
    int (*release)(void *memory);
    int (*copy)(address to, address from, size_t bytes, void *stream);
    int (*error_name)(int error, const char **name);
};

/* The first exchange makes the stream, the events and the context that is current then. */
struct gpu {
    struct driver driver;
    strobe_transport records;
    void *context, *side, *ready, *done;
    unsigned char *pinned; /* messages that are sent, then those received */
    size_t capacity;
    strobe_message *staged; /* the exchange's messages, where they lie in pinned memory */
    int64_t staged_capacity, send_count, receive_count;
    const strobe_message *receives;
};

static int cuda_failed(struct mpi *s, int error, const char *what) {
    const char *name = NULL;
    if (error == 0) return 0;
    if (s->gpu->driver.error_name(error, &name)) name = NULL;
    snprintf(s->text, sizeof s->text, "CUDA: %s: %s", what, name ? name : "an unknown error");
    return 1;
}

/* The host waits, which no graph can hold. */
static int is_captured(struct mpi *s, void *stream) {
    int status = 0;
    if (cuda_failed(s, s->gpu->driver.is_captured(stream, &status), "a stream")) return 1;
    if (status) snprintf(s->text, sizeof s->text, "the stream is being captured; MPI waits on the host, in no graph");
    return status != 0;
}

/* ---- an MPI that reads and writes a GPU's memory */

/* What is sent must have been computed, and what is received may overwrite what work before reads. */
static int start_direct(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                        int64_t receive_count, void *stream) {
    struct mpi *s = self;
    return is_captured(s, stream) || cuda_failed(s, s->gpu->driver.wait_stream(stream), "a stream") ||
           strobe__mpi_start(s, sends, send_count, receives, receive_count, NULL);
}

/* ---- any other */

static int make_stream(struct mpi *s) {
    struct gpu *g = s->gpu;
    if (g->done) return 0;
    return cuda_failed(s, g->driver.get_context(&g->context), "a context") ||
           cuda_failed(s, g->driver.create_stream(&g->side, NON_BLOCKING), "a stream") ||
           cuda_failed(s, g->driver.create_event(&g->ready, WITHOUT_TIMING), "an event") ||
           cuda_failed(s, g->driver.create_event(&g->done, WITHOUT_TIMING), "an event");
}

static size_t bytes_of(const strobe_message *list, int64_t count) {
    size_t bytes = 0;
    for (int64_t n = 0; n < count; ++n) bytes += (list[n].bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return bytes;
}

/* Room for an exchange, when that before has left pinned memory. */
static int make_room(struct mpi *s, int64_t messages, size_t bytes) {
    struct gpu *g = s->gpu;
    if (cuda_failed(s, g->driver.wait_stream(g->side), "copies to the GPU")) return 1;
    if (messages > g->staged_capacity) {
        strobe_message *more = realloc(g->staged, (size_t)messages * sizeof *more);
        if (!more) return snprintf(s->text, sizeof s->text, "no memory for %lld messages", (long long)messages), 1;
        g->staged = more, g->staged_capacity = messages;
    }
    if (bytes <= g->capacity) return 0;
    void *memory = NULL;
    if (g->pinned) (void)g->driver.release(g->pinned);
    g->pinned = NULL, g->capacity = 0;
    if (cuda_failed(s, g->driver.allocate(&memory, bytes, PORTABLE), "pinned memory of the host")) return 1;
    g->pinned = memory, g->capacity = bytes;
    return 0;
}

static unsigned char *stage(strobe_message *staged, const strobe_message *list, int64_t count, unsigned char *at) {
    for (int64_t n = 0; n < count; ++n) {
        staged[n] = list[n], staged[n].data = at;
        at += bytes_of(&list[n], 1);
    }
    return at;
}

static int copy_all(struct mpi *s, const strobe_message *to, const strobe_message *from, int64_t count) {
    for (int64_t n = 0; n < count; ++n)
        if (cuda_failed(s,
                        s->gpu->driver.copy((address)(uintptr_t)to[n].data, (address)(uintptr_t)from[n].data, to[n].bytes,
                                            s->gpu->side),
                        "a copy"))
            return 1;
    return 0;
}

static int start_staged(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                        int64_t receive_count, void *stream) {
    struct mpi *s = self;
    struct gpu *g = s->gpu;
    if (is_captured(s, stream) || make_stream(s) ||
        make_room(s, send_count + receive_count, bytes_of(sends, send_count) + bytes_of(receives, receive_count)))
        return 1;
    strobe_message *const landing = g->staged + send_count;
    (void)stage(landing, receives, receive_count, stage(g->staged, sends, send_count, g->pinned));
    g->send_count = send_count, g->receive_count = receive_count, g->receives = receives;
    return cuda_failed(s, g->driver.record_event(g->ready, stream), "an event") ||
           cuda_failed(s, g->driver.stream_wait_event(g->side, g->ready, 0), "an event") ||
           copy_all(s, g->staged, sends, send_count) ||
           (send_count && cuda_failed(s, g->driver.wait_stream(g->side), "copies to the host")) ||
           strobe__mpi_start(s, g->staged, send_count, landing, receive_count, NULL);
}

static int wait_staged(void *self, void *stream) {
    struct mpi *s = self;
    struct gpu *g = s->gpu;
    return strobe__mpi_wait(s, NULL) || copy_all(s, g->receives, g->staged + g->send_count, g->receive_count) ||
           cuda_failed(s, g->driver.record_event(g->done, g->side), "an event") ||
           cuda_failed(s, g->driver.stream_wait_event(stream, g->done, 0), "an event");
}

/* ---- the transport */

static int find(void *library, const char *name, void *function) {
    void *const found = dlsym(library, name);
    memcpy(function, &found, sizeof found); /* ISO C has no cast from an object to a function pointer */
    return found != NULL;
}

static int open_driver(struct driver *d) {
    void *const library = dlopen("libcuda.so.1", RTLD_NOW);
    return library && find(library, "cuCtxGetCurrent", &d->get_context) &&
           find(library, "cuCtxPushCurrent_v2", &d->push_context) && find(library, "cuCtxPopCurrent_v2", &d->pop_context) &&
           find(library, "cuStreamCreate", &d->create_stream) && find(library, "cuStreamSynchronize", &d->wait_stream) &&
           find(library, "cuStreamDestroy_v2", &d->destroy_stream) &&
           find(library, "cuStreamIsCapturing", &d->is_captured) && find(library, "cuEventCreate", &d->create_event) &&
           find(library, "cuEventRecord", &d->record_event) && find(library, "cuStreamWaitEvent", &d->stream_wait_event) &&
           find(library, "cuEventDestroy_v2", &d->destroy_event) && find(library, "cuMemHostAlloc", &d->allocate) &&
           find(library, "cuMemFreeHost", &d->release) && find(library, "cuMemcpyAsync", &d->copy) &&
           find(library, "cuGetErrorName", &d->error_name);
}

static int reads_gpus(void) {
#if defined(MPIX_CUDA_AWARE_SUPPORT)
    return MPIX_Query_cuda_support();
#elif defined(MPIX_GPU_SUPPORT_CUDA)
    int is_there = 0;
    return MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &is_there) == MPI_SUCCESS && is_there;
#else
    return 0;
#endif
}

strobe_status strobe_dist_mpi_create_cuda(const void *communicator, strobe_transport *transport) {
    strobe_transport host;
    const strobe_status status = transport ? strobe_dist_mpi_create(communicator, &host) : STROBE_INVALID_ARGUMENT;
    if (status) return status;
    struct mpi *s = host.self;
    struct gpu *g = s->gpu = calloc(1, sizeof *g);
    if (!g || !open_driver(&g->driver)) {
        const strobe_status lack = g ? STROBE_UNSUPPORTED : STROBE_OUT_OF_MEMORY;
        strobe_dist_mpi_destroy(&host);
        return lack;
    }
    const int direct = reads_gpus();
    g->records = host;
    *transport = host;
    transport->start = direct ? start_direct : start_staged, transport->wait = direct ? strobe__mpi_wait : wait_staged;
    transport->device = STROBE_CUDA, transport->records = &g->records;
    transport->flags = STROBE_TRANSPORT_BESIDE_KERNELS;
    return STROBE_OK;
}

void strobe__mpi_release_gpu(struct gpu *g) {
    const struct driver *d = &g->driver;
    void *context;
    if (g->context && d->push_context(g->context) == 0) {
        if (g->side) (void)d->wait_stream(g->side), (void)d->destroy_stream(g->side);
        if (g->ready) (void)d->destroy_event(g->ready);
        if (g->done) (void)d->destroy_event(g->done);
        if (g->pinned) (void)d->release(g->pinned);
        (void)d->pop_context(&context);
    }
    free(g->staged);
    free(g);
}
