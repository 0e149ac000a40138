/* SPDX-License-Identifier: BSD-3-Clause
 *
 * watch.c: a thread of each rank that sleeps until the process of a near rank ends. It then gives this rank's streams, again
 * and again, the values that they wait for, so that they come to their end and not to a halt. */
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "copies.h"

enum { MILLISECONDS = 1 }; /* between gifts */

static void set_all(_Atomic uint32_t value[SLOTS]) {
    for (int slot = 0; slot < SLOTS; ++slot) atomic_store(&value[slot], 1);
}

static void *watch(void *of) {
    struct copies *c = of;
    struct pollfd ends[MOST_NEAR + 1] = {{.fd = c->wake, .events = POLLIN}};
    bool has_ended[MOST_NEAR] = {false}, any = false;
    for (int32_t k = 0; k < c->near_count; ++k)
        ends[k + 1] = (struct pollfd){.fd = c->near[k].descriptor, .events = POLLIN}; /* -1 is passed over */
    for (;;) {
        if (poll(ends, (nfds_t)c->near_count + 1, any ? MILLISECONDS : -1) < 0) continue;
        if (ends[0].revents) return NULL;
        for (int32_t k = 0; k < c->near_count; ++k) {
            if (ends[k + 1].revents) {
                ends[k + 1].fd = -1, ends[k + 1].revents = 0;
                if (atomic_load(&c->shared->has_left[c->near[k].number])) continue;
                atomic_store(&c->gone, c->near[k].rank + 1);
                has_ended[k] = any = true;
            }
            if (!has_ended[k]) continue;
            set_all(c->shared->channel[c->near[k].number][c->number].full);
            set_all(c->shared->channel[c->number][c->near[k].number].empty);
        }
    }
}

int strobe__copies_watch(struct copies *c) {
    bool needed = false;
    for (int32_t k = 0; k < c->near_count; ++k) needed |= c->near[k].descriptor >= 0;
    if (!needed) return 0;
    sigset_t all, before; /* signals are for the caller's threads */
    (void)sigfillset(&all), (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    c->wake = eventfd(0, EFD_CLOEXEC);
    const int failed = c->wake < 0 || pthread_create(&c->watcher, NULL, watch, c);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) return strobe__copies_fail(c, "a thread that watches the other processes could not be started");
    c->watches = true;
    return 0;
}

void strobe__copies_watch_no_more(struct copies *c) {
    const uint64_t one = 1;
    if (c->watches && write(c->wake, &one, sizeof one) == (ssize_t)sizeof one) pthread_join(c->watcher, NULL);
    if (c->wake >= 0) (void)close(c->wake);
    c->watches = false, c->wake = -1;
}
