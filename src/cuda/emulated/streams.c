/* SPDX-License-Identifier: BSD-3-Clause
 *
 * streams.c: streams of the emulated driver; events and graphs are in events.c. By default work is done when it is asked
 * for, and events have nothing to tell. With STROBE_EMULATED_LATE=1 each stream has a thread, which does what the stream was
 * given in its order, and tarries at random; what lacks an event between two streams, or reads results before they are
 * there, computes something else now and then. The default stream is the legacy one: it waits for the blocking streams, and
 * is never late itself. */
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/emulated/streams.h"

enum { MOST_MICROSECONDS = 400 };

pthread_mutex_t emulated_streams_lock = PTHREAD_MUTEX_INITIALIZER;
#define lock emulated_streams_lock
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct CUstream_st *streams;
static uint64_t made;

static bool is_late(void) { return emulated_setting("STROBE_EMULATED_LATE", 0) != 0; }
bool emulated_is_capturing(const struct CUstream_st *stream) { return !is_default(stream) && stream->capture; }

/* ---- steps */

void emulated_release_event(struct CUevent_st *event) {
    if (--event->holders == 0) free(event);
}

static void free_step(struct step *s) {
    for (unsigned n = 0; s->kernel && n < s->kernel->arguments; ++n) free(s->arguments[n]);
    if (s->event) emulated_release_event(s->event);
    if (s->graph) emulated_release_graph(s->graph);
    free(s);
}

void emulated_release_graph(struct CUgraph_st *graph) {
    if (--graph->holders) return;
    for (struct step *s = graph->first, *next; s; s = next) next = s->next, free_step(s);
    free(graph);
}

/* The lock is held. */
static bool append(struct step ***last, const struct step *s) {
    struct step *kept = malloc(sizeof *kept);
    if (!kept) return false;
    *kept = *s, kept->next = NULL;
    for (unsigned n = 0; s->kernel && n < s->kernel->arguments; ++n) {
        kept->arguments[n] = malloc(s->kernel->argument_bytes[n]);
        if (kept->arguments[n]) memcpy(kept->arguments[n], s->arguments[n], s->kernel->argument_bytes[n]);
    }
    if (kept->event) ++kept->event->holders;
    if (kept->graph) ++kept->graph->holders;
    **last = kept, *last = &kept->next;
    return true;
}

void emulated_await(const struct step *s) {
    pthread_mutex_lock(&lock);
    while (s->event->done < s->number) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static void run_step(const struct step *s) {
    switch (s->what) {
    case LAUNCH: emulated_run(s->kernel, s->arguments, s->ctas, s->threads, s->shared_bytes); break;
    case FILL:
        for (size_t row = 0; row < s->rows; ++row) memset(s->to + row * s->pitch, s->byte, s->bytes);
        break;
    case COPY: memcpy(s->to, s->from, s->bytes); break;
    case CALL: s->function(s->data); break;
    case GRAPH:
        for (const struct step *n = s->graph->first; n; n = n->next) run_step(n);
        break;
    case RECORD:
        pthread_mutex_lock(&lock);
        if (s->event->done < s->number) s->event->done = s->number;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        break;
    case AWAIT: emulated_await(s); break;
    case AWAIT_VALUE:
        while (atomic_load((_Atomic uint32_t *)(void *)s->to) != s->number) sched_yield();
        break;
    case STORE_VALUE: atomic_store((_Atomic uint32_t *)(void *)s->to, (uint32_t)s->number); break;
    }
}

static void tarry(struct CUstream_st *stream) {
    stream->random = stream->random * 6364136223846793005u + 1442695040888963407u;
    const unsigned drawn = (unsigned)(stream->random >> 33);
    if (drawn % 2) usleep(drawn / 2 % MOST_MICROSECONDS);
}

static void *serve(void *of) {
    struct CUstream_st *stream = of;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!stream->first && !stream->ending) pthread_cond_wait(&changed, &lock);
        struct step *s = stream->first;
        if (!s) break;
        pthread_mutex_unlock(&lock);
        tarry(stream);
        run_step(s);
        pthread_mutex_lock(&lock);
        stream->first = s->next;
        if (!stream->first) stream->last = &stream->first;
        free_step(s);
        pthread_cond_broadcast(&changed);
    }
    struct CUstream_st **place = &streams;
    while (*place != stream) place = &(*place)->next;
    *place = stream->next;
    pthread_mutex_unlock(&lock);
    free(stream);
    return NULL;
}

/* Of the host, and not pinned: such memory is read or written before the call returns. */
static bool is_pageable(const void *data) { return emulated_device_of(data) == EMULATED_NOBODY; }

static void wait_until_empty(const struct CUstream_st *stream) {
    pthread_mutex_lock(&lock);
    while (stream->first) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

void emulated_drain(const struct CUctx_st *context, int device, bool blocking_alone) {
    if (!is_late()) return;
    pthread_mutex_lock(&lock);
    for (const struct CUstream_st *s = streams; s;) {
        const bool counts = (context ? s->context == context : emulated_device_of_context(s->context) == device) &&
                            (s->blocking || !blocking_alone);
        if (!counts || !s->first) {
            s = s->next;
            continue;
        }
        pthread_cond_wait(&changed, &lock);
        s = streams;
    }
    pthread_mutex_unlock(&lock);
}

void emulated_drain_blocking(void) {
    if (emulated_current_context()) emulated_drain(emulated_current_context(), 0, true);
}

static int enqueue(struct CUstream_st *stream, const struct step *s) {
    pthread_t thread;
    pthread_mutex_lock(&lock);
    if (!stream->has_thread && pthread_create(&thread, NULL, serve, stream)) emulated_fault("no thread can be started");
    if (!stream->has_thread) pthread_detach(thread);
    stream->has_thread = true;
    const bool ok = append(&stream->last, s);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static int capture(struct CUstream_st *stream, const struct step *s) {
    pthread_mutex_lock(&lock);
    const bool ok = append(&stream->capture->last, s);
    stream->captured = ++stream->capture->count;
    pthread_mutex_unlock(&lock);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

int emulated_submit(struct CUstream_st *stream, const struct step *s) {
    if (s->what == LAUNCH && !is_default(stream) && stream->context != emulated_current_context())
        return CUDA_ERROR_INVALID_HANDLE; /* another device's, or another context's */
    if (emulated_is_capturing(stream)) return capture(stream, s);
    if (is_default(stream)) emulated_drain_blocking();
    if (!is_late() || is_default(stream)) return run_step(s), CUDA_SUCCESS;
    if (s->what != COPY || !(is_pageable(s->to) || is_pageable(s->from))) return enqueue(stream, s);
    return wait_until_empty(stream), run_step(s), CUDA_SUCCESS;
}

int emulated_launch(const struct emulated_kernel *kernel, struct emulated_index ctas, struct emulated_index threads,
                    void **arguments, size_t shared_bytes, struct CUstream_st *stream) {
    if (!ctas.x || !ctas.y || !ctas.z || !threads.x || !threads.y || !threads.z ||
        shared_bytes > (size_t)kernel->most_shared_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    struct step s = {.what = LAUNCH, .kernel = kernel, .ctas = ctas, .threads = threads, .shared_bytes = shared_bytes};
    memcpy(s.arguments, arguments, kernel->arguments * sizeof arguments[0]);
    return emulated_submit(stream, &s);
}

/* ---- streams */

SEEN CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    *stream = emulated_current_context() ? calloc(1, sizeof **stream) : NULL;
    if (!*stream) return emulated_current_context() ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    (*stream)->context = emulated_current_context(), (*stream)->blocking = !(flags & CU_STREAM_NON_BLOCKING);
    (*stream)->random = (uint64_t)emulated_setting("STROBE_EMULATED_SEED", 1) * 0x9e3779b97f4a7c15u + ++made;
    (*stream)->last = &(*stream)->first;
    (*stream)->next = streams, streams = *stream;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

/* It ends when its work is done. */
SEEN CUresult cuStreamDestroy_v2(CUstream stream) {
    pthread_mutex_lock(&lock);
    const bool has_thread = stream->has_thread;
    stream->ending = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    if (!has_thread) (void)serve(stream);
    return CUDA_SUCCESS;
}

static CUresult refuse_in_capture(struct CUgraph_st *graph) {
    return graph->invalid = true, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

SEEN CUresult cuStreamSynchronize(CUstream stream) {
    if (emulated_is_capturing(stream)) return refuse_in_capture(stream->capture);
    if (is_default(stream))
        emulated_drain_blocking();
    else
        wait_until_empty(stream);
    return CUDA_SUCCESS;
}
SEEN CUresult cuCtxSynchronize(void) {
    if (!emulated_current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    return emulated_drain(emulated_current_context(), 0, false), CUDA_SUCCESS;
}
SEEN CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    *status = emulated_is_capturing(stream) ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return emulated_current_context() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
SEEN CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
    *context = is_default(stream) ? emulated_current_context() : stream->context;
    return *context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
SEEN CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data) {
    const struct step s = {.what = CALL, .function = function, .data = data};
    return (CUresult)emulated_submit(stream, &s);
}
SEEN CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    const struct step s = {
        .what = COPY, .to = (unsigned char *)(uintptr_t)to, .from = (const unsigned char *)(uintptr_t)from, .bytes = bytes};
    return (CUresult)emulated_submit(stream, &s);
}
SEEN CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char byte, size_t bytes, CUstream stream) {
    const struct step s = {.what = FILL, .to = (unsigned char *)(uintptr_t)to, .bytes = bytes, .rows = 1, .byte = byte};
    return (CUresult)emulated_submit(stream, &s);
}
