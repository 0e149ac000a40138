/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_dist_memory.c: every allocation that libstrobe_dist makes on one rank fails in turn: all ranks return the same
 * sentence, and nothing is written. Linked with -Wl,--wrap, so that what the libraries' objects call comes here; what the
 * transport allocates is its own affair. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/rank_threads.h"
#include "unit/test.h"

enum { RANKS = 4, SEQ = 37, HEADS = 4, DIM = 4, ELEMENTS = SEQ * HEADS * DIM };

/* Of this thread: allocations so far, and the one that fails; none is counted when `counts` is false. */
static _Thread_local int allocations, failing;
static _Thread_local bool counts;

static bool fails(void) { return counts && allocations++ == failing; }

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);

void *__wrap_malloc(size_t bytes) { return fails() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t count, size_t bytes) { return fails() ? NULL : __real_calloc(count, bytes); }
void *__wrap_realloc(void *memory, size_t bytes) { return fails() ? NULL : __real_realloc(memory, bytes); }
void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
    return fails() ? NULL : __real_aligned_alloc(alignment, bytes);
}

struct problem {
    const char *name;
    int32_t scheme, layout, group, failing_rank;
    bool backward, packed;
};

static const struct problem problems[] = {
    {"a ring forward, zigzag", STROBE_DIST_RING, STROBE_DIST_ZIGZAG, 0, 2, false, false},
    {"a ring backward, packed", STROBE_DIST_RING, STROBE_DIST_CONTIGUOUS, 0, 0, true, true},
    {"an all-gather backward, striped", STROBE_DIST_ALL_GATHER, STROBE_DIST_STRIPED, 0, 3, true, false},
    {"an all-gather forward, packed", STROBE_DIST_ALL_GATHER, STROBE_DIST_ZIGZAG, 0, 1, false, true},
    {"Ulysses backward", STROBE_DIST_ULYSSES, STROBE_DIST_ZIGZAG, 0, 1, true, false},
    {"two levels forward", STROBE_DIST_TWO_LEVELS, STROBE_DIST_ZIGZAG, 2, 2, false, false},
    {"two levels backward", STROBE_DIST_TWO_LEVELS, STROBE_DIST_CONTIGUOUS, 2, 0, true, false},
    {"whatever is cheapest", STROBE_DIST_AUTOMATIC, STROBE_DIST_ZIGZAG, 2, 3, true, false},
};

struct rank {
    float in[4][ELEMENTS], out[4][ELEMENTS], lse[SEQ * HEADS]; /* q, k, v, dout; out, dq, dk, dv */
    strobe_status status;
    char sentence[768];
    int allocations;
};

struct job {
    const struct problem *problem;
    int failing;
    struct rank ranks[RANKS];
};

static int start_uncounted(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                           int64_t receive_count, void *stream) {
    const strobe_transport *t = self;
    const bool counted = counts;
    counts = false;
    const int code = t->start(t->self, sends, send_count, receives, receive_count, stream);
    counts = counted;
    return code;
}

static int wait_uncounted(void *self, void *stream) {
    const strobe_transport *t = self;
    return t->wait(t->self, stream);
}

static void run_rank(void *context, const strobe_transport *transport) {
    static const int32_t cu[] = {0, 5, 30, SEQ};
    struct job *j = context;
    const struct problem *p = j->problem;
    struct rank *r = &j->ranks[transport->rank];
    strobe_transport wrapped = *transport;
    wrapped.self = (void *)(uintptr_t)transport, wrapped.start = start_uncounted, wrapped.wait = wait_uncounted;
    wrapped.error = NULL;
    strobe_attention a = {.struct_size = sizeof a, .batch = 1, .seq_q = SEQ, .seq_k = SEQ, .heads_q = HEADS, .dim = DIM};
    strobe_varlen varlen = {.struct_size = sizeof varlen, .cu_seqlens_q = cu, .cu_seqlens_k = cu};
    if (p->packed) a.varlen = &varlen, a.batch = 3;
    a.mask = STROBE_MASK_CAUSAL_TOP_LEFT;
    a.q.data = r->in[0], a.k.data = r->in[1], a.v.data = r->in[2], a.out.data = r->out[0], a.lse.data = r->lse;
    strobe_gradients g = {.struct_size = sizeof g, .dout.data = r->in[3]};
    g.dq.data = r->out[1], g.dk.data = r->out[2], g.dv.data = r->out[3];
    strobe_dist d = {.struct_size = sizeof d, .attention = &a, .transport = &wrapped, .layout = p->layout};
    d.scheme = p->scheme, d.group = p->group;
    d.rows_q = d.rows_k = strobe_dist_rows(p->layout, SEQ, RANKS, transport->rank);
    allocations = 0, failing = transport->rank == p->failing_rank ? j->failing : -1, counts = true;
    r->status = p->backward ? strobe_dist_backward(&d, &g, NULL, 0, NULL) : strobe_dist_forward(&d, NULL, 0, NULL);
    counts = false;
    r->allocations = allocations;
    snprintf(r->sentence, sizeof r->sentence, "%s", r->status ? strobe_dist_last_error() : "");
}

static void run(struct job *j, const struct problem *p, int failing_number) {
    memset(j, 0, sizeof *j);
    j->problem = p, j->failing = failing_number;
    struct world *world = world_make(RANKS);
    world_run(world, run_rank, j);
    world_free(world);
}

static void test_each_allocation(void **state) {
    static struct job j;
    const struct problem *p = *state;
    run(&j, p, -1);
    const int count = j.ranks[p->failing_rank].allocations;
    assert_int_equal(j.ranks[p->failing_rank].status, STROBE_OK);
    assert_true(count > 10);
    for (int n = 0; n < count; ++n) {
        char beginning[16];
        run(&j, p, n);
        snprintf(beginning, sizeof beginning, "rank %d: ", p->failing_rank);
        for (int32_t rank = 0; rank < RANKS; ++rank) {
            const struct rank *r = &j.ranks[rank];
            if (r->status != STROBE_OUT_OF_MEMORY || strncmp(r->sentence, beginning, strlen(beginning)) != 0)
                fail_msg("allocation %d: rank %d says %d, \"%s\"", n, rank, r->status, r->sentence);
            assert_string_equal(r->sentence, j.ranks[0].sentence);
            for (int e = 0; e < 4 * ELEMENTS; ++e) assert_true((&r->out[0][0])[e] == 0);
        }
    }
}

int main(void) {
    struct CMUnitTest tests[COUNT(problems)];
    for (size_t n = 0; n < COUNT(problems); ++n)
        tests[n] = test_of_row(problems[n].name, test_each_allocation, &problems[n]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
