/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rank_threads.c: see rank_threads.h. */
#define _POSIX_C_SOURCE 200809L
#include "check/rank_threads.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_WAITING = 1024 };

/* Messages from one rank to another, sent and not yet received, oldest first. */
struct channel {
    strobe_message waiting[MOST_WAITING];
    int64_t sent, received;
};

struct member {
    struct world *world;
    int32_t rank;
    strobe_message *receives;
    int64_t receive_count, capacity;
    int64_t exchanges, breaks_at, bytes;
    char text[128];
};

struct world {
    int32_t size, milliseconds; /* that a rank waits at most */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct channel *channels; /* [from][to] */
    struct member *members;
};

static struct channel *channel(struct world *w, int32_t from, int32_t to) { return &w->channels[from * w->size + to]; }

struct world *world_make(int32_t size) {
    struct world *w = calloc(1, sizeof *w);
    w->size = size, w->milliseconds = 60000;
    w->channels = calloc((size_t)size * (size_t)size, sizeof *w->channels);
    w->members = calloc((size_t)size, sizeof *w->members);
    pthread_mutex_init(&w->lock, NULL), pthread_cond_init(&w->changed, NULL);
    for (int32_t r = 0; r < size; ++r) w->members[r] = (struct member){.world = w, .rank = r, .breaks_at = -1};
    return w;
}

void world_free(struct world *w) {
    for (int32_t r = 0; r < w->size; ++r) free(w->members[r].receives);
    pthread_mutex_destroy(&w->lock), pthread_cond_destroy(&w->changed);
    free(w->members), free(w->channels), free(w);
}

void world_break(struct world *w, int32_t rank, int64_t exchange) {
    w->members[rank].breaks_at = exchange;
    w->milliseconds = 250; /* the others wait in vain */
}

int64_t world_sent(const struct world *w, int32_t rank) { return w->members[rank].bytes; }

static int start(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                 int64_t receive_count, void *stream) {
    struct member *m = self;
    (void)stream;
    if (m->breaks_at >= 0 && m->exchanges >= m->breaks_at) {
        snprintf(m->text, sizeof m->text, "exchange %lld of rank %d is broken", (long long)m->exchanges, m->rank);
        return 1;
    }
    ++m->exchanges;
    if (receive_count > m->capacity) {
        m->receives = realloc(m->receives, (size_t)receive_count * sizeof *m->receives);
        m->capacity = receive_count;
    }
    if (receive_count > 0) memcpy(m->receives, receives, (size_t)receive_count * sizeof *receives);
    m->receive_count = receive_count;
    pthread_mutex_lock(&m->world->lock);
    for (int64_t n = 0; n < send_count; ++n) {
        struct channel *c = channel(m->world, m->rank, sends[n].peer);
        if (c->sent - c->received >= MOST_WAITING || sends[n].peer == m->rank || sends[n].bytes == 0) abort();
        c->waiting[c->sent++ % MOST_WAITING] = sends[n];
        m->bytes += (int64_t)sends[n].bytes;
    }
    pthread_cond_broadcast(&m->world->changed);
    pthread_mutex_unlock(&m->world->lock);
    return 0;
}

/* Waits for a change; false when it takes too long. The lock is held. */
static int waits(struct member *m, const struct timespec *until, const char *what) {
    if (pthread_cond_timedwait(&m->world->changed, &m->world->lock, until) == 0) return 1;
    snprintf(m->text, sizeof m->text, "rank %d has waited too long for %s", m->rank, what);
    return 0;
}

static int receive(struct member *m, const strobe_message *message, const struct timespec *until) {
    struct channel *c = channel(m->world, message->peer, m->rank);
    while (c->sent == c->received)
        if (!waits(m, until, "a message")) return 1;
    const strobe_message *from = &c->waiting[c->received % MOST_WAITING];
    if (from->bytes != message->bytes) {
        snprintf(m->text, sizeof m->text, "rank %d expects %zu bytes from rank %d, which sends %zu", m->rank, message->bytes,
                 message->peer, from->bytes);
        return 1;
    }
    memcpy(message->data, from->data, message->bytes);
    ++c->received;
    pthread_cond_broadcast(&m->world->changed);
    return 0;
}

static int wait_for(void *self, void *stream) {
    struct member *m = self;
    struct world *w = m->world;
    struct timespec until;
    int failed = 0;
    (void)stream;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += w->milliseconds % 1000 * 1000000L;
    until.tv_sec += w->milliseconds / 1000 + until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&w->lock);
    for (int64_t n = 0; n < m->receive_count && !failed; ++n) failed = receive(m, &m->receives[n], &until);
    for (int32_t to = 0; to < w->size && !failed; ++to) {
        const struct channel *c = channel(w, m->rank, to);
        while (c->received < c->sent && !failed) failed = !waits(m, &until, "somebody to receive");
    }
    pthread_mutex_unlock(&w->lock);
    return failed;
}

static const char *text_of(void *self) { return ((struct member *)self)->text; }

strobe_transport world_transport(struct world *w, int32_t rank) {
    return (strobe_transport){.struct_size = sizeof(strobe_transport),
                              .rank = rank,
                              .size = w->size,
                              .self = &w->members[rank],
                              .start = start,
                              .wait = wait_for,
                              .error = text_of};
}

struct body {
    void (*run)(void *context, const strobe_transport *transport);
    void *context;
    strobe_transport transport;
};

static void *thread(void *argument) {
    const struct body *b = argument;
    b->run(b->context, &b->transport);
    return NULL;
}

void world_run(struct world *w, void (*run)(void *context, const strobe_transport *transport), void *context) {
    pthread_t *threads = calloc((size_t)w->size, sizeof *threads);
    struct body *bodies = calloc((size_t)w->size, sizeof *bodies);
    for (int32_t r = 0; r < w->size; ++r) {
        bodies[r] = (struct body){run, context, world_transport(w, r)};
        if (pthread_create(&threads[r], NULL, thread, &bodies[r])) abort();
    }
    for (int32_t r = 0; r < w->size; ++r) pthread_join(threads[r], NULL);
    free(threads), free(bodies);
}
