/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rank_streams.c: see rank_streams.h. What the ranks tell each other on the host is where a message lies, and the event
 * behind which it is complete, and back the event behind which it has been copied: as small messages of rank_threads.h's
 * transport. */
#include "check/rank_streams.h"

#include "problem/cuda_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DISABLE_TIMING = 2, NON_BLOCKING = 1, EVENTS = 8 };

struct note {
    device_address data;
    size_t bytes;
    void *event;
};

struct lane {
    const cuda_driver *driver;
    strobe_transport host;
    void *stream, *copies;
    void *ready[EVENTS], *done[EVENTS]; /* in turn, so that one which a peer still waits for is not recorded anew */
    int64_t exchanges;
    strobe_message *receives;
    struct note *sent, *received, *copied, *answers; /* of an exchange: each way, and back */
    strobe_message *messages;
    int64_t send_count, receive_count, capacity;
    int32_t *receivers;
    char text[128];
};

struct streams {
    int32_t size;
    struct lane *lanes;
};

static int failed(struct lane *l, int error) {
    if (error) snprintf(l->text, sizeof l->text, "the driver reports error %d", error);
    return error != 0;
}

static int host_failed(struct lane *l, int code) {
    if (code) snprintf(l->text, sizeof l->text, "%s", l->host.error(l->host.self));
    return code;
}

/* Lists for as many messages as there are. */
static void make_room(struct lane *l, int64_t count) {
    if (count <= l->capacity) return;
    l->capacity = count;
    l->receives = realloc(l->receives, (size_t)count * sizeof *l->receives);
    l->messages = realloc(l->messages, (size_t)(2 * count) * sizeof *l->messages);
    l->receivers = realloc(l->receivers, (size_t)count * sizeof *l->receivers);
    struct note **const notes[] = {&l->sent, &l->received, &l->copied, &l->answers};
    for (size_t n = 0; n < 4; ++n) *notes[n] = realloc(*notes[n], (size_t)count * sizeof **notes[n]);
}

static int start(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                 int64_t receive_count, void *stream) {
    struct lane *l = self;
    void *ready = l->ready[++l->exchanges % EVENTS];
    make_room(l, send_count > receive_count ? send_count : receive_count);
    l->send_count = send_count, l->receive_count = receive_count;
    if (failed(l, l->driver->record_event(ready, stream)) ||
        failed(l, l->driver->stream_wait_event(l->copies, ready, 0))) /* memory that is received into is free */
        return 1;
    for (int64_t n = 0; n < send_count; ++n) {
        l->sent[n] = (struct note){(device_address)(uintptr_t)sends[n].data, sends[n].bytes, ready};
        l->messages[n] = (strobe_message){.data = &l->sent[n], .bytes = sizeof *l->sent, .peer = sends[n].peer};
        l->receivers[n] = sends[n].peer;
    }
    for (int64_t n = 0; n < receive_count; ++n) {
        l->receives[n] = receives[n];
        l->messages[send_count + n] = (strobe_message){.data = &l->received[n], .bytes = sizeof *l->received};
        l->messages[send_count + n].peer = receives[n].peer;
    }
    return host_failed(l,
                       l->host.start(l->host.self, l->messages, send_count, l->messages + send_count, receive_count, NULL));
}

static int copy(struct lane *l, int64_t n) {
    const struct note *from = &l->received[n];
    const strobe_message *to = &l->receives[n];
    if (from->bytes != to->bytes) {
        snprintf(l->text, sizeof l->text, "rank %d expects %zu bytes from rank %d, which sends %zu", l->host.rank, to->bytes,
                 to->peer, from->bytes);
        return 1;
    }
    return failed(l, l->driver->stream_wait_event(l->copies, from->event, 0)) ||
           failed(l, l->driver->copy_async((device_address)(uintptr_t)to->data, from->data, to->bytes, l->copies));
}

static int wait_for(void *self, void *stream) {
    struct lane *l = self;
    void *done = l->done[l->exchanges % EVENTS];
    if (host_failed(l, l->host.wait(l->host.self, NULL))) return 1;
    for (int64_t n = 0; n < l->receive_count; ++n)
        if (copy(l, n)) return 1;
    if (failed(l, l->driver->record_event(done, l->copies)) || failed(l, l->driver->stream_wait_event(stream, done, 0)))
        return 1;
    for (int64_t n = 0; n < l->receive_count; ++n) {
        l->copied[n] = (struct note){.event = done};
        l->messages[n] = (strobe_message){.data = &l->copied[n], .bytes = sizeof *l->copied, .peer = l->receives[n].peer};
    }
    for (int64_t n = 0; n < l->send_count; ++n)
        l->messages[l->receive_count + n] = (strobe_message){
            .data = &l->answers[n], .bytes = sizeof *l->answers, .peer = l->receivers[n]};
    if (host_failed(l, l->host.start(l->host.self, l->messages, l->receive_count, l->messages + l->receive_count,
                                     l->send_count, NULL)) ||
        host_failed(l, l->host.wait(l->host.self, NULL)))
        return 1;
    for (int64_t n = 0; n < l->send_count; ++n)
        if (failed(l, l->driver->stream_wait_event(stream, l->answers[n].event, 0))) return 1;
    return 0;
}

static const char *text_of(void *self) { return ((struct lane *)self)->text; }

int streams_device(int32_t rank) {
    const int devices = cuda_driver_devices();
    return devices > 0 ? rank % devices : 0;
}

struct streams *streams_make(struct world *world, int32_t size, char *message, size_t capacity) {
    const cuda_driver *driver = cuda_driver_open(message, capacity);
    if (!driver) return NULL;
    struct streams *s = calloc(1, sizeof *s);
    s->size = size, s->lanes = calloc((size_t)size, sizeof *s->lanes);
    int error = 0;
    for (int32_t r = 0; r < size; ++r) {
        struct lane *l = &s->lanes[r];
        l->driver = driver, l->host = world_transport(world, r);
        error = error || !cuda_driver_use(streams_device(r)) || driver->create_stream(&l->stream, NON_BLOCKING) ||
                driver->create_stream(&l->copies, NON_BLOCKING);
        for (int e = 0; e < EVENTS; ++e)
            error = error || driver->create_event(&l->ready[e], DISABLE_TIMING) ||
                    driver->create_event(&l->done[e], DISABLE_TIMING);
    }
    if (!error && cuda_driver_enter()) return s;
    snprintf(message, capacity, "the driver refused streams or events");
    streams_free(s);
    return NULL;
}

void streams_free(struct streams *s) {
    if (!s) return;
    for (int32_t r = 0; r < s->size; ++r) {
        struct lane *l = &s->lanes[r];
        if (l->stream) l->driver->destroy_stream(l->stream);
        if (l->copies) l->driver->destroy_stream(l->copies);
        for (int e = 0; e < EVENTS; ++e) {
            if (l->ready[e]) l->driver->destroy_event(l->ready[e]);
            if (l->done[e]) l->driver->destroy_event(l->done[e]);
        }
        free(l->receives), free(l->messages), free(l->receivers);
        free(l->sent), free(l->received), free(l->copied), free(l->answers);
    }
    free(s->lanes), free(s);
}

strobe_transport streams_transport(struct streams *s, const strobe_transport *host) {
    return (strobe_transport){.struct_size = sizeof(strobe_transport),
                              .rank = host->rank,
                              .size = host->size,
                              .self = &s->lanes[host->rank],
                              .start = start,
                              .wait = wait_for,
                              .error = text_of,
                              .device = STROBE_CUDA,
                              .flags = STROBE_TRANSPORT_BESIDE_KERNELS, /* copy engines move them */
                              .records = host};
}

void *streams_of_rank(const struct streams *s, int32_t rank) { return s->lanes[rank].stream; }
