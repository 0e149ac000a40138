/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_dist_copies.c: the transport over copy engines by itself, between ranks that are processes, and that are threads of
 * one: messages of many sizes in exchanges that differ from rank to rank, twice by a graph; a process that ends while
 * others wait for it; refusals, which are the same on all ranks. Each part has processes of its own. What lies below the
 * transport is a test's own, for records alone. Exit codes: 0 passed, 1 failed, 77 no GPU. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "problem/cuda_driver.h"
#include "strobe/strobe_dist_copies.h"

enum { SKIPPED = 77, MOST_RANKS = 4, MOST_MESSAGES = 64, ROUNDS = 6, RECORD = 2048, PATIENCE = 60 };
#if !defined(STROBE_MOST_BYTES) /* several slots on a GPU; less on one that the host plays */
#define STROBE_MOST_BYTES (100 << 20)
#endif

/* ---- the transport below */

struct box {
    _Atomic int full;
    unsigned char record[RECORD];
};
static struct shared {
    struct box box[MOST_RANKS][MOST_RANKS];
    _Atomic int arrived;
} * shared;

struct rank {
    int32_t rank, ranks, device, failed;
    const cuda_driver *driver;
    void *stream;
    strobe_message receives[MOST_RANKS];
    int64_t receive_count;
    strobe_transport base, records, transport;
};

static void fail(struct rank *r, const char *what, const char *why) {
    fprintf(stderr, "rank %d of %d: %s: %s\n", r->rank, r->ranks, what, why);
    r->failed = 1;
}

static int start_records(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                         int64_t receive_count, void *stream) {
    struct rank *r = self;
    (void)stream;
    for (int64_t n = 0; n < send_count; ++n) {
        struct box *box = &shared->box[r->rank][sends[n].peer];
        while (box->full) sched_yield();
        memcpy(box->record, sends[n].data, sends[n].bytes);
        box->full = 1;
    }
    memcpy(r->receives, receives, (size_t)receive_count * sizeof *receives);
    r->receive_count = receive_count;
    return 0;
}

static int wait_for_records(void *self, void *stream) {
    struct rank *r = self;
    (void)stream;
    for (int64_t n = 0; n < r->receive_count; ++n) {
        struct box *box = &shared->box[r->receives[n].peer][r->rank];
        while (!box->full) sched_yield();
        memcpy(r->receives[n].data, box->record, r->receives[n].bytes);
        box->full = 0;
    }
    return 0;
}

static int start_nothing(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                         int64_t receive_count, void *stream) {
    (void)self, (void)sends, (void)send_count, (void)receives, (void)receive_count, (void)stream;
    return 1; /* all ranks are near */
}

static void make_base(struct rank *r) {
    r->records = (strobe_transport){.struct_size = sizeof r->records, .rank = r->rank, .size = r->ranks, .self = r};
    r->base = r->records;
    r->records.start = start_records, r->records.wait = wait_for_records;
    r->base.start = start_nothing, r->base.wait = wait_for_records;
    r->base.device = STROBE_CUDA, r->base.records = &r->records;
}

/* The process's driver, the rank's device and stream. */
static void enter(struct rank *r) {
    char text[256];
    r->driver = cuda_driver_open(text, sizeof text);
    if (!r->driver || cuda_driver_devices() <= 0) _exit(SKIPPED);
    r->device = r->rank % cuda_driver_devices();
    if (!cuda_driver_use(r->device) || r->driver->create_stream(&r->stream, 1)) _exit(1);
    make_base(r);
}

static bool create(struct rank *r) {
    if (strobe_dist_copies_create(&r->base, r->device, &r->transport) == STROBE_OK) return true;
    fail(r, "strobe_dist_copies_create", strobe_dist_copies_last_error());
    return false;
}

/* ---- messages */

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

static size_t size_of(int round, int32_t from, int32_t to, int n) {
    uint64_t state = 88172645463325252u + (uint64_t)(((round * 8 + from) * 8 + to) * 64 + n) * 0x9e3779b97f4a7c15u;
    for (int k = 0; k < 4; ++k) next(&state);
    static const size_t least[] = {1, 200, 256, 4096};
    const size_t most = round == 1 ? STROBE_MOST_BYTES : 70000; /* round 1: long ones */
    const size_t kind = next(&state) % 5;
    return kind < 4 ? least[kind] + next(&state) % 3 : 1 + next(&state) % most;
}

/* How many messages go from one to another: some pairs have none, and in round 2 all goes one way. */
static int count_of(int round, int32_t from, int32_t to) {
    if (from == to || (round == 2 && from > to)) return 0;
    return round == 1 ? 3 : (int)((unsigned)(round * 5 + from * 3 + to) % 4 * 3);
}

static unsigned char byte_of(int round, int32_t from, int32_t to, int n, size_t at, int launch) {
    return (unsigned char)(at * 7 + at / 251 + (size_t)(round * 31 + from * 13 + to * 5 + n * 3 + launch * 101));
}

struct list {
    strobe_message at[MOST_MESSAGES];
    int numbers[MOST_MESSAGES];
    int64_t count;
};

static void add_messages(struct rank *r, struct list *list, int round, int32_t peer, bool sends) {
    const int32_t from = sends ? r->rank : peer, to = sends ? peer : r->rank;
    for (int n = 0; n < count_of(round, from, to); ++n) {
        device_address memory = 0;
        const size_t bytes = size_of(round, from, to, n);
        if (r->driver->allocate(&memory, bytes)) fail(r, "memory", "there is none");
        list->numbers[list->count] = n;
        list->at[list->count++] = (strobe_message){(void *)(uintptr_t)memory, bytes, peer, 0};
    }
}

static void fill(struct rank *r, const struct list *sends, const struct list *receives, int round, int launch) {
    for (int64_t k = 0; k < sends->count; ++k) {
        const strobe_message *m = &sends->at[k];
        unsigned char *host = malloc(m->bytes);
        for (size_t at = 0; at < m->bytes; ++at) host[at] = byte_of(round, r->rank, m->peer, sends->numbers[k], at, launch);
        if (r->driver->to_device((uintptr_t)m->data, host, m->bytes)) fail(r, "a copy", "failed");
        free(host);
    }
    for (int64_t k = 0; k < receives->count; ++k)
        if (r->driver->fill_async((uintptr_t)receives->at[k].data, 0xEE, receives->at[k].bytes, r->stream))
            fail(r, "a fill", "failed");
    if (r->driver->wait_stream(NULL)) fail(r, "waiting", "failed");
}

static void check(struct rank *r, const struct list *receives, int round, int launch) {
    if (r->driver->wait_stream(r->stream)) fail(r, "the stream", "has failed");
    for (int64_t k = 0; k < receives->count && !r->failed; ++k) {
        const strobe_message *m = &receives->at[k];
        unsigned char *host = malloc(m->bytes);
        if (r->driver->to_host(host, (uintptr_t)m->data, m->bytes)) fail(r, "a copy", "failed");
        for (size_t at = 0; at < m->bytes && !r->failed; ++at)
            if (host[at] != byte_of(round, m->peer, r->rank, receives->numbers[k], at, launch)) {
                fprintf(stderr, "round %d, launch %d, from %d, message %d of %zu bytes: byte %zu\n", round, launch, m->peer,
                        receives->numbers[k], m->bytes, at);
                fail(r, "a message", "is wrong");
            }
        free(host);
    }
}

/* moves: at once, which a rank may do while others do not. */
static int exchange_on(const strobe_transport *t, const struct list *sends, const struct list *receives, bool moves,
                       void *stream) {
    if (moves) return t->move(t->self, sends->at, sends->count, receives->at, receives->count, stream);
    return t->start(t->self, sends->at, sends->count, receives->at, receives->count, stream) || t->wait(t->self, stream);
}

static void exchange(struct rank *r, const struct list *sends, const struct list *receives, bool moves) {
    if (sends->count + receives->count == 0) return;
    if (exchange_on(&r->transport, sends, receives, moves, r->stream))
        fail(r, "an exchange", r->transport.error(r->transport.self));
}

/* Once at once, then twice by a graph. Memory stays: to give it back waits for all streams of the device, those of ranks of
 * the same process too, which wait for this one. */
static void run_round(struct rank *r, int round) {
    struct list sends = {.count = 0}, receives = {.count = 0};
    void *graph = NULL, *runnable = NULL;
    for (int32_t peer = 0; peer < r->ranks; ++peer)
        add_messages(r, &sends, round, peer, true), add_messages(r, &receives, round, peer, false);
    fill(r, &sends, &receives, round, 0);
    exchange(r, &sends, &receives, (round + r->rank) % 2 == 0);
    check(r, &receives, round, 0);
    if (r->driver->begin_capture(r->stream, 1)) fail(r, "a capture", "does not begin");
    exchange(r, &sends, &receives, (round / 2 + r->rank) % 2 == 0);
    if (r->driver->end_capture(r->stream, &graph) || r->driver->instantiate(&runnable, graph, 0))
        fail(r, "a capture", "does not end");
    for (int launch = 1; launch < 3 && !r->failed; ++launch) {
        fill(r, &sends, &receives, round, launch);
        if (r->driver->launch_graph(runnable, r->stream)) fail(r, "a graph", "is not launched");
        check(r, &receives, round, launch);
    }
    if (runnable) r->driver->destroy_runnable(runnable), r->driver->destroy_graph(graph);
}

/* Exchanges on streams in turns, between which nothing waits: more of them than a pair has slots. What rank 0 puts
 * on the first stream before an exchange keeps that busy for a while: others must not go before. */
static void run_streams(struct rank *r) {
    enum { EXCHANGES = 9, BUSY_BYTES = 64 << 20 };
    device_address busy = 0;
    struct list sends[EXCHANGES] = {{.count = 0}}, receives[EXCHANGES] = {{.count = 0}};
    void *other = NULL, *const first = r->stream;
    if (r->driver->create_stream(&other, 1)) fail(r, "a stream", "is not made");
    for (int n = 0; n < EXCHANGES; ++n) {
        for (int32_t peer = 0; peer < r->ranks; ++peer)
            add_messages(r, &sends[n], 3, peer, true), add_messages(r, &receives[n], 3, peer, false);
        fill(r, &sends[n], &receives[n], 3, n);
        if (r->driver->wait_stream(first)) fail(r, "waiting", "failed");
    }
    if (r->driver->allocate(&busy, BUSY_BYTES)) fail(r, "memory", "there is none");
    for (int n = 0; n < EXCHANGES && !r->failed; ++n) {
        r->stream = n % 4 ? other : first;
        for (int k = 0; k < 20 && n % 4 == 0 && r->rank == 0; ++k)
            if (r->driver->fill_async(busy, (unsigned char)k, BUSY_BYTES, first)) fail(r, "a fill", "failed");
        exchange(r, &sends[n], &receives[n], n % 3 != 1);
    }
    for (int n = 0; n < EXCHANGES && !r->failed; ++n) {
        r->stream = n % 4 ? other : first;
        check(r, &receives[n], 3, n);
    }
    r->stream = first;
}

static void *run_rank(void *of) {
    struct rank *r = of;
    enter(r);
    if (!create(r)) return NULL;
    if (!(r->transport.flags & STROBE_TRANSPORT_BESIDE_KERNELS)) fail(r, "flags", "do not say how it moves");
    for (int round = 0; round < ROUNDS && !r->failed; ++round) run_round(r, round);
    if (!r->failed) run_streams(r);
    strobe_dist_copies_destroy(&r->transport);
    return NULL;
}

static void expect(struct rank *r, strobe_status status, strobe_status right, const char *sentence) {
    if (status != right) fail(r, sentence, "another status");
    if (!strstr(strobe_dist_copies_last_error(), sentence)) fail(r, sentence, strobe_dist_copies_last_error());
}

/* ---- parts */

static int as_process(int32_t rank, int32_t ranks) {
    struct rank r = {.rank = rank, .ranks = ranks};
    run_rank(&r);
    return r.failed;
}

static int run_threads(int32_t ranks, void *(*run)(void *rank)) {
    struct rank r[MOST_RANKS] = {{.rank = 0}};
    pthread_t threads[MOST_RANKS];
    int failed = 0;
    char text[256];
    if (!cuda_driver_open(text, sizeof text)) return SKIPPED;
    for (int32_t n = 0; n < ranks; ++n) {
        r[n].rank = n, r[n].ranks = ranks;
        if (pthread_create(&threads[n], NULL, run, &r[n])) return 1;
    }
    for (int32_t n = 0; n < ranks; ++n) pthread_join(threads[n], NULL), failed |= r[n].failed;
    return failed;
}

/* Where they share a GPU, the streams of each are to go by themselves, and the driver is to have loaded what they launch:
 * what include/strobe/strobe_dist_copies.h says. */
static int as_threads(int32_t rank, int32_t ranks) {
    if (rank > 0) return 0; /* this process has them all */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1), setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    return run_threads(ranks, run_rank);
}

/* Without what such threads need they are told, all alike, before anything can wait. */
static void *refuse_rank(void *of) {
    struct rank *r = of;
    strobe_transport t = {0};
    enter(r);
    expect(r, strobe_dist_copies_create(&r->base, 0, &t), STROBE_UNSUPPORTED,
           "rank 0 does not reach rank 1: they are threads of a process and share a GPU, for which "
           "CUDA_DEVICE_MAX_CONNECTIONS=32 in the environment is accepted");
    if (t.self || t.start) fail(r, "a refusal", "has changed the transport");
    return NULL;
}

static int as_threads_without_connections(int32_t rank, int32_t ranks) {
    if (rank > 0) return 0;
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS"), setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    return run_threads(ranks, refuse_rank);
}

/* The last rank ends without a word; the others' streams and calls come to an end, with a sentence. */
static int die(int32_t rank, int32_t ranks, bool moves) {
    struct rank r = {.rank = rank, .ranks = ranks};
    struct list sends = {.count = 0}, receives = {.count = 0};
    enter(&r);
    if (!create(&r)) return 1;
    for (int32_t peer = 0; peer < ranks; ++peer)
        add_messages(&r, &sends, !moves, peer, true), add_messages(&r, &receives, !moves, peer, false);
    if (rank == ranks - 1) {
        while (shared->arrived < ranks - 1) sched_yield();
        usleep(100000); /* they wait by now */
        kill(getpid(), SIGKILL);
    }
    const strobe_transport *t = &r.transport;
    const time_t began = time(NULL);
    ++shared->arrived;
    const int failed = exchange_on(t, &sends, &receives, moves, r.stream);
    (void)r.driver->wait_stream(r.stream);
    if (time(NULL) - began > 5) fail(&r, "a death", "takes too long");
    while (!failed && time(NULL) - began < 10 && !t->start(t->self, NULL, 0, NULL, 0, r.stream)) usleep(1000);
    char expected[64];
    snprintf(expected, sizeof expected, "the process of rank %d has ended", ranks - 1);
    if (!strstr(t->error(t->self), expected)) fail(&r, "a death", t->error(t->self));
    strobe_dist_copies_destroy(&r.transport);
    return r.failed;
}

static int with_a_death(int32_t rank, int32_t ranks) { return die(rank, ranks, false); }
static int with_a_death_at_once(int32_t rank, int32_t ranks) { return die(rank, ranks, true); }

static int with_bad_input(int32_t rank, int32_t ranks) {
    struct rank r = {.rank = rank, .ranks = ranks};
    enter(&r);
    strobe_transport t = {0}, bad = r.base;
    expect(&r, strobe_dist_copies_create(NULL, 0, &t), STROBE_INVALID_ARGUMENT, "base is NULL");
    expect(&r, strobe_dist_copies_create(&r.base, 0, NULL), STROBE_INVALID_ARGUMENT, "transport is NULL");
    bad.device = STROBE_CPU;
    expect(&r, strobe_dist_copies_create(&bad, 0, &t), STROBE_INVALID_ARGUMENT, "no transport for GPUs");
    bad = r.base, bad.records = NULL;
    expect(&r, strobe_dist_copies_create(&bad, 0, &t), STROBE_INVALID_ARGUMENT, "base has no records");
    expect(&r, strobe_dist_copies_create(&r.base, rank == 1 ? 99 : r.device, &t), STROBE_INVALID_ARGUMENT,
           "rank 1: device_index is 99; ");
    if (t.self || t.start) fail(&r, "a refusal", "has changed the transport");
    if (!create(&r)) return 1; /* and then it works */
    strobe_dist_copies_destroy(&r.transport);
    return r.failed;
}

/* Devices that do not reach each other, which an emulated GPU can play. */
static int without_peers(int32_t rank, int32_t ranks) {
    struct rank r = {.rank = rank, .ranks = ranks};
    setenv("STROBE_EMULATED_PEERS", "0", 1);
    enter(&r);
    strobe_transport t = {0};
    if (cuda_driver_devices() < ranks || !getenv("STROBE_EMULATED_DEVICES")) return 0;
    expect(&r, strobe_dist_copies_create(&r.base, r.device, &t), STROBE_UNSUPPORTED, "rank 0 does not reach rank 1: ");
    return r.failed;
}

static int run(const char *name, int32_t ranks, int (*part)(int32_t rank, int32_t ranks), int32_t dies) {
    int code = 0;
    memset((void *)shared, 0, sizeof *shared);
    pid_t children[MOST_RANKS];
    for (int32_t rank = 0; rank < ranks; ++rank)
        if ((children[rank] = fork()) == 0) {
            alarm(PATIENCE);
            _exit(part(rank, ranks));
        }
    for (int32_t rank = 0; rank < ranks; ++rank) {
        int status = 0;
        while (waitpid(children[rank], &status, 0) < 0 && errno == EINTR) {
        }
        const int own = rank == dies && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL ? 0
                        : WIFEXITED(status)                                                ? WEXITSTATUS(status)
                                                                                           : 1;
        if (own && WIFSIGNALED(status)) fprintf(stderr, "rank %d ended by signal %d\n", rank, WTERMSIG(status));
        if (own && code != 1) code = own;
    }
    printf("%s, %d ranks: %s\n", name, ranks, code == SKIPPED ? "skipped: no GPU" : code ? "FAILED" : "passed");
    return code;
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0); /* what is kept would be printed by each child */
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    const int first = run("processes", 2, as_process, -1);
    if (first == SKIPPED) return SKIPPED;
    int failed = first;
    failed |= run("processes", 3, as_process, -1);
    failed |= run("processes", 4, as_process, -1); /* copies to three at once */
    failed |= run("processes", 1, as_process, -1);
    failed |= run("threads of a process", 3, as_threads, -1);
    failed |= run("threads that share a GPU, with few connections", 2, as_threads_without_connections, -1);
    failed |= run("a process that ends", 3, with_a_death, 2);
    failed |= run("a process that ends", 2, with_a_death, 1);
    failed |= run("a process that ends, of an exchange at once", 3, with_a_death_at_once, 2);
    failed |= run("bad input", 2, with_bad_input, -1);
    failed |= run("GPUs that do not reach each other", 2, without_peers, -1);
    return failed != 0;
}
