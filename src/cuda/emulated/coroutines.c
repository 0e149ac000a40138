/* SPDX-License-Identifier: BSD-3-Clause
 *
 * coroutines.c: the threads of a CTA as coroutines, what they see of shared memory, and where the lanes of a warp converge;
 * see machine.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "cuda/emulated/worker.h"

enum {
    STACK_BYTES = 256 * 1024,
    SHARED_BASE = 1024, /* the address of shared memory's first byte: 0 would hide a forgotten address */
};

__thread struct emulated_index emulated_thread, emulated_cta, emulated_threads, emulated_ctas;
__thread unsigned emulated_rank;
__thread struct worker *emulated_worker;

__attribute__((visibility("default"))) __thread unsigned char memory[EMULATED_SHARED_BYTES] __attribute__((aligned(1024)));

uint32_t emulated_random(void) {
    self->random = self->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(self->random >> 33);
}

EMULATED_NEVER_RETURNS void emulated_fault(const char *format, ...) {
    va_list arguments;
    if (self)
        fprintf(stderr, "emulated GPU: %s, CTA %u, thread %u: ", self->kernel->name, self->cta, self->current);
    else
        fprintf(stderr, "emulated GPU: ");
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    abort();
}

/* ---- shared memory */

/* Dynamic memory from SHARED_BASE on, of another CTA of the cluster with its rank + 1 from bit RANK_SHIFT on. A kernel's own
 * variables lie at the same distance from it in every thread, if they are of the same object file's thread-local memory:
 * with OWN_BIT set the offset is that distance, modulo 2^RANK_SHIFT. Of another object file's, with FAR_BIT too, there is an
 * address in the CTA alone. */
#define RANK_SHIFT 24
#define OWN_BIT    0x80000000u
#define FAR_BIT    0x40000000u

/* The number of so many bits that an address ends with. */
static int64_t distance_of(uint32_t address, int bits) { return (int32_t)(address << (32 - bits)) >> (32 - bits); }

uint32_t emulated_shared_address(const void *pointer) {
    const int64_t distance = (const unsigned char *)pointer - memory;
    if (distance >= 0 && distance <= EMULATED_SHARED_BYTES) return (uint32_t)(SHARED_BASE + distance);
    const uint32_t near = OWN_BIT | ((uint32_t)distance & ((1u << RANK_SHIFT) - 1));
    if (distance == distance_of(near, RANK_SHIFT)) return near;
    const uint32_t far = OWN_BIT | FAR_BIT | ((uint32_t)distance & (FAR_BIT - 1));
    if (distance != distance_of(far, 30)) emulated_fault("%p is no address in shared memory", pointer);
    return far;
}

static int rank_of(uint32_t address) { return (int)((address & ~(OWN_BIT | FAR_BIT)) >> RANK_SHIFT) - 1; }

uint32_t emulated_cluster_address(uint32_t address, int rank) {
    if (address & FAR_BIT || rank_of(address) >= 0 || rank < 0 || (unsigned)rank >= self->cluster_size)
        emulated_fault("address %#x of CTA %d is not in the cluster's shared memory", address, rank);
    return address | (uint32_t)(rank + 1) << RANK_SHIFT;
}

void *emulated_shared_pointer(uint32_t address) {
    if (address & FAR_BIT) return memory + distance_of(address, 30);
    unsigned char *const base = rank_of(address) >= 0 ? self->peers[rank_of(address)]->shared : memory;
    if (address & OWN_BIT) return base + distance_of(address, RANK_SHIFT);
    const uint32_t offset = (address & ((1u << RANK_SHIFT) - 1)) - SHARED_BASE;
    if (offset >= self->shared_bytes)
        emulated_fault("address %#x lies outside the %zu bytes of shared memory that were asked for", address,
                       self->shared_bytes);
    return base + offset;
}

/* ---- coroutines */

static void suspend(void) {
    struct coroutine *mine = &self->threads[self->current];
    if (!_setjmp(mine->where)) _longjmp(self->home, 1);
}

static void try_convergences(unsigned warp);

/* A coroutine's whole life: a CTA's thread, then the same thread of another CTA. */
static void live(void) {
    for (;;) {
        self->kernel->call(self->arguments);
        struct worker *w = self;
        const unsigned thread = w->current, warp = thread / EMULATED_LANES;
        w->threads[thread].ended = true;
        w->ended[warp] |= 1u << thread % EMULATED_LANES;
        --w->alive;
        try_convergences(warp);
        emulated_thread_ended();
        suspend();
    }
}

struct emulated_index emulated_index_of(unsigned n, struct emulated_index size) {
    return (struct emulated_index){n % size.x, n / size.x % size.y, n / size.x / size.y};
}

void emulated_resume(unsigned thread) {
    struct worker *w = self;
    struct coroutine *to = &w->threads[thread];
    w->current = thread;
    emulated_thread = emulated_index_of(thread, emulated_threads);
    w->progress = true;
    if (_setjmp(w->home)) return;
    if (to->started) _longjmp(to->where, 1);
    to->started = true;
    ucontext_t context;
    to->stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (to->stack == MAP_FAILED || getcontext(&context)) emulated_fault("no memory for a thread's stack");
    context.uc_stack.ss_sp = to->stack;
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = NULL;
    makecontext(&context, live, 0);
    setcontext(&context);
    abort();
}

void emulated_wait(bool (*ready)(void *of), void *of, const char *what) {
    struct coroutine *mine = &self->threads[self->current];
    if (ready(of)) return;
    mine->ready = ready, mine->of = of, mine->what = what;
    suspend();
    mine->ready = NULL;
}

static bool at_once(void *of) {
    (void)of;
    return true;
}

void emulated_yield(void) {
    struct coroutine *mine = &self->threads[self->current];
    mine->ready = at_once, mine->of = NULL, mine->what = "yield";
    suspend();
    mine->ready = NULL;
}

/* ---- where a warp's lanes converge */

static bool is_complete(const struct convergence *m, uint32_t ended) { return m->here && m->here == (m->lanes & ~ended); }

static void try_convergences(unsigned warp) {
    for (int n = 0; n < CONVERGENCES; ++n) {
        struct convergence *m = &self->convergences[warp][n];
        if (!is_complete(m, self->ended[warp])) continue;
        m->operate(m->arguments);
        for (unsigned lane = 0; lane < EMULATED_LANES; ++lane)
            if (m->here >> lane & 1) self->threads[warp * EMULATED_LANES + lane].parked = false;
        memset(m, 0, sizeof *m);
    }
}

void emulated_converge(uint32_t lanes, void (*operate)(void *arguments[EMULATED_LANES]), void *mine, const char *what) {
    struct worker *w = self;
    const unsigned thread = w->current, warp = thread / EMULATED_LANES, lane = thread % EMULATED_LANES;
    struct convergence *found = NULL;
    if (!(lanes >> lane & 1)) emulated_fault("%s: the mask %#x lacks the calling lane", what, lanes);
    for (int n = 0; n < CONVERGENCES && !found; ++n) {
        struct convergence *m = &w->convergences[warp][n];
        if (m->here && m->lanes == lanes && m->operate == operate) found = m;
    }
    for (int n = 0; n < CONVERGENCES && !found; ++n)
        if (!w->convergences[warp][n].here) found = &w->convergences[warp][n];
    if (!found) emulated_fault("%s: the warp's lanes wait for each other in %d places", what, CONVERGENCES);
    found->lanes = lanes, found->operate = operate;
    found->here |= 1u << lane;
    found->arguments[lane] = mine;
    w->threads[thread].parked = true, w->threads[thread].what = what;
    try_convergences(warp);
    if (w->threads[thread].parked) suspend();
}
