/* SPDX-License-Identifier: BSD-3-Clause
 *
 * barriers.c: barriers of a CTA and of a cluster, copies in the background, mbarriers; see machine.h. */
#include <stdlib.h>
#include <string.h>

#include "cuda/emulated/worker.h"

/* ---- barriers */

static void barrier_check(struct barrier *b, int id) {
    const int wanted = b->threads ? b->threads : (int)self->alive;
    if (b->here == 0 || b->here < wanted) return;
    if (b->here > wanted) emulated_fault("barrier %d of %d threads was reached by %d", id, wanted, b->here);
    b->here = b->threads = 0;
    b->or_of[(b->generation + 1) % 2] = 0;
    ++b->generation;
}

static void arrive(struct barrier *b, int id, int threads) {
    if (id < 0 || id >= BARRIERS) emulated_fault("there is no barrier %d", id);
    if (b->here && b->threads != threads)
        emulated_fault("barrier %d is awaited by %d threads and by %d", id, b->threads, threads);
    b->threads = threads;
    ++b->here;
}

struct barrier_wait {
    const struct barrier *barrier;
    unsigned generation;
};

static bool is_passed(void *of) {
    const struct barrier_wait *wait = of;
    return wait->barrier->generation != wait->generation;
}

static unsigned barrier_wait(int id, int threads) {
    struct barrier *b = &self->barriers[id];
    struct barrier_wait wait = {b, b->generation};
    arrive(b, id, threads);
    barrier_check(b, id);
    emulated_wait(is_passed, &wait, id ? "a named barrier" : "__syncthreads");
    return wait.generation;
}

void emulated_barrier_arrive(int id, int threads) {
    arrive(&self->barriers[id], id, threads);
    barrier_check(&self->barriers[id], id);
}

void emulated_barrier_wait(int id, int threads) { (void)barrier_wait(id, threads); }

int emulated_barrier_or(int value) {
    struct barrier *b = &self->barriers[0];
    b->or_of[b->generation % 2] |= value != 0;
    return b->or_of[barrier_wait(0, 0) % 2];
}

struct cluster_wait {
    _Atomic unsigned *arrived;
    unsigned until;
};

static bool all_arrived(void *of) {
    const struct cluster_wait *wait = of;
    return (int)(*wait->arrived - wait->until) >= 0;
}

void emulated_cluster_barrier(void) {
    const unsigned all = self->count * self->cluster_size, before = self->cluster->arrived++;
    struct cluster_wait wait = {&self->cluster->arrived, before / all * all + all};
    emulated_wait(all_arrived, &wait, "the cluster's barrier");
}

void emulated_thread_ended(void) { barrier_check(&self->barriers[0], 0); }

/* ---- copies in the background */

static void take_out(struct operation **place) {
    struct operation *done = *place;
    *place = done->next;
    if (!done->next) self->last = place;
    done->run(done->operands);
    free(done);
    self->progress = true;
}

void emulated_later(enum emulated_kind kind, void (*run)(void *operands), const void *operands, size_t bytes) {
    struct worker *w = self;
    struct operation *made = malloc(sizeof *made);
    if (!made || bytes > sizeof made->operands) emulated_fault("no memory for a copy");
    *made = (struct operation){.kind = kind, .thread = w->current, .run = run};
    if (kind != EMULATED_ENGINE) made->group = w->threads[w->current].group[kind];
    memcpy(made->operands, operands, bytes);
    if (emulated_random() % 2) {
        run(made->operands);
        free(made);
        return;
    }
    *w->last = made;
    w->last = &made->next;
}

void emulated_commit(enum emulated_kind kind) { ++self->threads[self->current].group[kind]; }

void emulated_wait_groups(enum emulated_kind kind, int pending) {
    const unsigned thread = self->current;
    const int before = self->threads[thread].group[kind] - pending;
    for (struct operation **place = &self->first; *place;) {
        const struct operation *o = *place;
        if (o->kind == kind && o->thread == thread && o->group < before)
            take_out(place);
        else
            place = &(*place)->next;
    }
}

bool emulated_run_engine(void) {
    for (struct operation **place = &self->first; *place; place = &(*place)->next)
        if ((*place)->kind == EMULATED_ENGINE) return take_out(place), true;
    return false;
}

/* ---- mbarriers: bit 63 is the phase, then 23 bits of bytes on their way (signed), 20 of arrivals to come, 20 of all */

struct mbarrier_state {
    int64_t bytes;
    uint32_t coming, all, phase;
};

static struct mbarrier_state unpack(uint64_t x) {
    const struct mbarrier_state s = {(int64_t)(x << 1) >> 41, (uint32_t)(x >> 20 & 0xfffff), (uint32_t)(x & 0xfffff),
                                     (uint32_t)(x >> 63)};
    return s;
}

static uint64_t packed(struct mbarrier_state s) {
    return (uint64_t)s.phase << 63 | ((uint64_t)s.bytes & 0x7fffff) << 40 | (uint64_t)s.coming << 20 | s.all;
}

void emulated_mbarrier_init(uint64_t *barrier, uint32_t arrivals) {
    const struct mbarrier_state s = {0, arrivals, arrivals, 0};
    __atomic_store_n(barrier, packed(s), __ATOMIC_SEQ_CST);
}

void emulated_mbarrier_arrive(uint64_t *barrier, uint32_t arrivals, int64_t expected_bytes, int64_t arrived_bytes) {
    uint64_t before = __atomic_load_n(barrier, __ATOMIC_SEQ_CST), after;
    do {
        struct mbarrier_state s = unpack(before);
        if (s.all == 0 || s.all == 0xfffff || s.coming > s.all)
            emulated_fault("an mbarrier is used that was not made: %#llx", (unsigned long long)before);
        if (s.coming < arrivals) emulated_fault("an mbarrier of %u arrivals has more in a phase", s.all);
        s.coming -= arrivals;
        s.bytes += expected_bytes - arrived_bytes;
        if (s.coming == 0 && s.bytes == 0) s.phase ^= 1, s.coming = s.all;
        after = packed(s);
    } while (!__atomic_compare_exchange_n(barrier, &before, after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
}

struct mbarrier_wait {
    const uint64_t *barrier;
    uint32_t parity;
};

static bool is_over(void *of) {
    const struct mbarrier_wait *wait = of;
    return __atomic_load_n(wait->barrier, __ATOMIC_SEQ_CST) >> 63 != wait->parity;
}

void emulated_mbarrier_wait(uint64_t *barrier, uint32_t parity) {
    struct mbarrier_wait wait = {barrier, parity};
    emulated_wait(is_over, &wait, "an mbarrier");
}
