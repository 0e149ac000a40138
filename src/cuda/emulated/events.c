/* SPDX-License-Identifier: BSD-3-Clause
 *
 * events.c: events of the emulated driver, and graphs. A graph keeps steps in the order in which they were captured. Other
 * streams take part in a capture by events, and must have come back by events when it ends. */
#include <stdlib.h>

#include "cuda/emulated/streams.h"

#define lock emulated_streams_lock

SEEN CUresult cuEventCreate(CUevent *event, unsigned flags) {
    (void)flags;
    *event = calloc(1, sizeof **event);
    if (!*event) return CUDA_ERROR_OUT_OF_MEMORY;
    return (*event)->context = emulated_current_context(), (*event)->holders = 1, CUDA_SUCCESS;
}
SEEN CUresult cuEventDestroy_v2(CUevent event) {
    pthread_mutex_lock(&lock);
    if (event->capture) emulated_release_graph(event->capture);
    event->capture = NULL;
    emulated_release_event(event);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

SEEN CUresult cuEventRecord(CUevent event, CUstream stream) {
    const struct CUctx_st *context = is_default(stream) ? emulated_current_context() : stream->context;
    if (context != event->context) return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    if (event->capture) emulated_release_graph(event->capture);
    event->capture = is_default(stream) ? NULL : stream->capture;
    if (event->capture) ++event->capture->holders, event->member = stream, event->position = stream->captured;
    const struct step s = {.what = RECORD, .event = event, .number = event->capture ? 0 : ++event->recorded};
    pthread_mutex_unlock(&lock);
    return event->capture ? CUDA_SUCCESS : (CUresult)emulated_submit(stream, &s);
}

/* A stream waits for an event that was recorded in a capture: it takes part in it, if it did not yet. */
static CUresult join(struct CUstream_st *stream, struct CUevent_st *event) {
    struct CUgraph_st *graph = event->capture;
    if (!graph->capturing) return CUDA_ERROR_CAPTURED_EVENT;
    if (is_default(stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (stream->capture && stream->capture != graph) return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    if (!stream->capture) {
        if (graph->member_count == MOST_MEMBERS) return CUDA_ERROR_OUT_OF_MEMORY;
        graph->members[graph->member_count++] = stream;
        stream->capture = graph, stream->captured = ++graph->count, stream->joined = 0;
    }
    if (event->member != stream && event->member->joined < event->position) event->member->joined = event->position;
    return CUDA_SUCCESS;
}

SEEN CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    (void)flags;
    if (event->capture) return join(stream, event);
    if (event->recorded == 0) return CUDA_SUCCESS;
    if (emulated_is_capturing(stream)) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    const struct step s = {.what = AWAIT, .event = event, .number = event->recorded};
    return (CUresult)emulated_submit(stream, &s);
}
SEEN CUresult cuEventQuery(CUevent event) {
    if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
    pthread_mutex_lock(&lock);
    const bool done = event->done == event->recorded;
    pthread_mutex_unlock(&lock);
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
SEEN CUresult cuEventSynchronize(CUevent event) {
    const struct step s = {.what = AWAIT, .event = event, .number = event->recorded};
    return event->capture ? CUDA_ERROR_CAPTURED_EVENT : (emulated_await(&s), CUDA_SUCCESS);
}
SEEN CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) {
    return (void)from, (void)to, *milliseconds = 1, CUDA_SUCCESS;
}

/* ---- graphs */

SEEN CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    (void)mode;
    if (is_default(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    struct CUgraph_st *graph = calloc(1, sizeof *graph);
    if (!graph) return CUDA_ERROR_OUT_OF_MEMORY;
    graph->last = &graph->first, graph->holders = 1, graph->capturing = true;
    graph->members[graph->member_count++] = stream;
    return stream->capture = graph, stream->captured = stream->joined = 0, CUDA_SUCCESS;
}

SEEN CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    *graph = NULL;
    if (is_default(stream) || !stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    struct CUgraph_st *ended = stream->capture;
    if (ended->members[0] != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    CUresult error = ended->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
    for (unsigned n = 0; n < ended->member_count; ++n) {
        struct CUstream_st *member = ended->members[n];
        if (n > 0 && member->captured > member->joined && !error) error = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        member->capture = NULL;
    }
    ended->capturing = false;
    if (!error) return *graph = ended, CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    emulated_release_graph(ended);
    pthread_mutex_unlock(&lock);
    return error;
}

SEEN CUresult cuGraphInstantiateWithFlags(CUgraphExec *runnable, CUgraph graph, unsigned long long flags) {
    pthread_mutex_lock(&lock);
    ++graph->holders;
    pthread_mutex_unlock(&lock);
    return (void)flags, *runnable = (CUgraphExec)(void *)graph, CUDA_SUCCESS;
}
SEEN CUresult cuGraphLaunch(CUgraphExec runnable, CUstream stream) {
    const struct step s = {.what = GRAPH, .graph = (struct CUgraph_st *)(void *)runnable};
    return (CUresult)emulated_submit(stream, &s);
}
SEEN CUresult cuGraphDestroy(CUgraph graph) {
    pthread_mutex_lock(&lock);
    emulated_release_graph(graph);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
SEEN CUresult cuGraphExecDestroy(CUgraphExec runnable) { return cuGraphDestroy((CUgraph)(void *)runnable); }
