/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dist_ranks.c: what a ring over processes costs beside one process with as many threads: mpirun -n 2 bench_dist_ranks
 * [SECONDS [TOKENS ...]]. Each process has one thread. In turns, the processes compute a problem together, and the first
 * computes it alone on as many threads while the others sleep. Printed are medians of both, and the ratio, 1 being ideal: no
 * process waits, and nothing is spent on messages. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <strobe/strobe_dist_mpi.h>

#include "median.h"

enum { HEADS = 32, HEADS_KV = 8, DIM = 128, MOST_ROUNDS = 512 };

struct side {
    strobe_attention a;
    strobe_gradients g;
    strobe_dist d;
    strobe_parallel parallel;
    void *workspace[2]; /* of the forward, of the backward */
    size_t bytes[2];
    double seconds[2][MOST_ROUNDS];
};

static double now(void) { return seconds_by(CLOCK_MONOTONIC); }

static void *numbers(int64_t rows, int64_t heads, int64_t dim) {
    const size_t count = (size_t)(rows * heads * dim);
    uint16_t *data = aligned_alloc(64, (count * sizeof *data + 63) / 64 * 64);
    unsigned state = 12345;
    for (size_t n = 0; data && n < count; ++n) /* bf16 from -1 to 1 */
        state = state * 1664525u + 1013904223u, data[n] = (uint16_t)(0x3f00u | (state >> 25) | (state >> 16 & 0x8000u));
    if (!data) exit(1);
    return data;
}

static void make(struct side *s, const strobe_transport *transport, int64_t seq, int32_t threads, int32_t scheme) {
    const int32_t layout = STROBE_DIST_ZIGZAG;
    strobe_attention *a = &s->a;
    const int64_t rows = strobe_dist_rows(layout, seq, transport->size, transport->rank);
    *a = (strobe_attention){.struct_size = sizeof *a, .batch = 1, .seq_q = seq, .seq_k = seq, .heads_q = HEADS};
    a->heads_kv = HEADS_KV, a->dim = DIM, a->dtype = STROBE_BF16, a->mask = STROBE_MASK_CAUSAL_TOP_LEFT;
    a->q.data = numbers(rows, HEADS, DIM), a->k.data = numbers(rows, HEADS_KV, DIM),
    a->v.data = numbers(rows, HEADS_KV, DIM);
    a->out.data = numbers(rows, HEADS, DIM), a->lse.data = numbers(rows, HEADS, 2);
    s->g = (strobe_gradients){.struct_size = sizeof s->g};
    s->g.dout.data = numbers(rows, HEADS, DIM), s->g.dq.data = numbers(rows, HEADS, DIM);
    s->g.dk.data = numbers(rows, HEADS_KV, DIM), s->g.dv.data = numbers(rows, HEADS_KV, DIM);
    s->parallel = (strobe_parallel){.struct_size = sizeof s->parallel, .threads = threads};
    a->parallel = &s->parallel;
    s->d = (strobe_dist){.struct_size = sizeof s->d, .attention = a, .transport = transport, .layout = layout};
    s->d.scheme = scheme;
    s->d.rows_q = s->d.rows_k = rows;
    for (int b = 0; b < 2; ++b) {
        if (strobe_dist_workspace(&s->d, b ? &s->g : NULL, &s->bytes[b])) exit(1);
        s->workspace[b] = aligned_alloc(64, s->bytes[b] + 64);
    }
}

static void release(struct side *s) {
    void *const memory[] = {s->a.q.data,  s->a.k.data,  s->a.v.data,  s->a.out.data,   s->a.lse.data,  s->g.dout.data,
                            s->g.dq.data, s->g.dk.data, s->g.dv.data, s->workspace[0], s->workspace[1]};
    for (size_t n = 0; n < sizeof memory / sizeof memory[0]; ++n) free(memory[n]);
}

static void call(struct side *s, int backward, int round) {
    const double start = now();
    const strobe_status status = backward ? strobe_dist_backward(&s->d, &s->g, s->workspace[1], s->bytes[1], NULL)
                                          : strobe_dist_forward(&s->d, s->workspace[0], s->bytes[0], NULL);
    s->seconds[backward][round] = now() - start;
    if (!status) return;
    fprintf(stderr, "%s\n", strobe_dist_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* A barrier that leaves the cores to the first process. */
static void wait_asleep(MPI_Comm comm) {
    const struct timespec pause = {.tv_nsec = 200000};
    MPI_Request request;
    int done = 0;
    MPI_Ibarrier(comm, &request);
    for (;;) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (done) return;
        nanosleep(&pause, NULL);
    }
}

static void compare(MPI_Comm comm, const strobe_transport *transport, int64_t seq, int32_t scheme, double seconds) {
    static const char *const names[] = {"automatic", "ring", "all_gather", "ulysses"};
    static struct side together, alone;
    const strobe_transport one = {.struct_size = sizeof one, .size = 1};
    make(&together, transport, seq, 1, scheme);
    if (transport->rank == 0) make(&alone, &one, seq, transport->size, STROBE_DIST_RING);
    const double start = now();
    int rounds = 0, goes_on = 1;
    while (goes_on && rounds < MOST_ROUNDS) {
        for (int b = 0; b < 2; ++b) {
            wait_asleep(comm);
            call(&together, b, rounds);
        }
        for (int b = 0; b < 2 && transport->rank == 0; ++b) call(&alone, b, rounds);
        ++rounds, goes_on = rounds < 5 || now() - start < seconds;
        wait_asleep(comm);
        MPI_Bcast(&goes_on, 1, MPI_INT, 0, comm);
    }
    for (int b = 0; b < 2 && transport->rank == 0; ++b) {
        const double t = median(together.seconds[b], rounds), a = median(alone.seconds[b], rounds);
        printf("%-8s  %6lld tokens  %-10s  %9.2f ms over %d processes  %9.2f ms in one  share of ideal %.3f  (%d rounds)\n",
               b ? "backward" : "forward", (long long)seq, names[scheme], t * 1e3, transport->size, a * 1e3, a / t, rounds);
        fflush(stdout);
    }
    release(&together);
    if (transport->rank == 0) release(&alone);
}

int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    MPI_Comm comm = MPI_COMM_WORLD;
    const double seconds = count > 1 ? atof(arguments[1]) : 20;
    strobe_transport transport;
    if (strobe_dist_mpi_create(&comm, &transport)) return 1;
    static const int64_t lengths[] = {1024, 4096, 8192};
    const int given = count > 2 ? count - 2 : 0;
    for (int n = 0; n < (given ? given : 3); ++n)
        for (int32_t scheme = STROBE_DIST_RING; scheme <= STROBE_DIST_ULYSSES; ++scheme)
            compare(comm, &transport, given ? atoll(arguments[n + 2]) : lengths[n], scheme, seconds);
    strobe_dist_mpi_destroy(&transport);
    MPI_Finalize();
    return 0;
}
