/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_dist.c: attention over many ranks against the oracle of one process: every scheme and layout, forward and backward,
 * feature by feature and for any number of ranks, over threads. A scheme that refuses a problem says so on every rank; how
 * many ways take a problem is said with it, so that a refusal too many shows. */
#include <stdio.h>
#include <string.h>

#include "pretend.h"
#include "ranks.h"
#include "unit/against_oracle.h"
#include "unit/test.h"

#define SIZE   .batch = 2, .seq_q = 29, .seq_k = 37, .heads_q = 4, .heads_kv = 2, .dim = 9, .dim_v = 6
#define SQUARE .batch = 2, .seq_q = 33, .seq_k = 33, .heads_q = 4, .heads_kv = 2, .dim = 9
#define PACKS  .batch = 5, .seq_q = 19, .seq_k = 19, .heads_q = 4, .heads_kv = 4, .dim = 8

static const struct way ways[] = {
    {1, STROBE_DIST_CONTIGUOUS, STROBE_DIST_RING, 0},       {2, STROBE_DIST_CONTIGUOUS, STROBE_DIST_RING, 0},
    {3, STROBE_DIST_CONTIGUOUS, STROBE_DIST_RING, 0},       {4, STROBE_DIST_CONTIGUOUS, STROBE_DIST_RING, 0},
    {2, STROBE_DIST_ZIGZAG, STROBE_DIST_RING, 0},           {3, STROBE_DIST_ZIGZAG, STROBE_DIST_RING, 0},
    {4, STROBE_DIST_ZIGZAG, STROBE_DIST_RING, 0},           {2, STROBE_DIST_STRIPED, STROBE_DIST_RING, 0},
    {3, STROBE_DIST_STRIPED, STROBE_DIST_RING, 0},          {2, STROBE_DIST_CONTIGUOUS, STROBE_DIST_ALL_GATHER, 0},
    {3, STROBE_DIST_CONTIGUOUS, STROBE_DIST_ALL_GATHER, 0}, {4, STROBE_DIST_ZIGZAG, STROBE_DIST_ALL_GATHER, 0},
    {3, STROBE_DIST_STRIPED, STROBE_DIST_ALL_GATHER, 0},    {2, STROBE_DIST_CONTIGUOUS, STROBE_DIST_ULYSSES, 0},
    {4, STROBE_DIST_ZIGZAG, STROBE_DIST_ULYSSES, 0},        {4, STROBE_DIST_STRIPED, STROBE_DIST_ULYSSES, 0},
    {4, STROBE_DIST_CONTIGUOUS, STROBE_DIST_TWO_LEVELS, 2}, {4, STROBE_DIST_ZIGZAG, STROBE_DIST_TWO_LEVELS, 2},
    {2, STROBE_DIST_STRIPED, STROBE_DIST_AUTOMATIC, 0},     {4, STROBE_DIST_ZIGZAG, STROBE_DIST_AUTOMATIC, 2},
};
enum { WAYS = COUNT(ways) };

/* A problem, and the schemes' and layouts' ways that do not take it. */
struct row {
    struct shape shape;
    int refusals;
};

static const struct row rows[] = {
    {{"plain", SIZE, .features = WITH_DLSE}, 0},
    {{"causal, top left", SQUARE, .mask = STROBE_MASK_CAUSAL_TOP_LEFT}, 0},
    {{"causal, top left, more keys", SIZE, .mask = STROBE_MASK_CAUSAL_TOP_LEFT, .features = WITH_DLSE}, 0},
    {{"causal, bottom right", SIZE, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = WITH_DLSE}, 0},
    {{"causal, rows that see nothing", .batch = 2, .seq_q = 41, .seq_k = 22, .heads_q = 4, .heads_kv = 2, .dim = 9,
      .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT},
     0},
    {{"window, top left", SIZE, .mask = STROBE_MASK_WINDOW_TOP_LEFT, .left = 7, .right = 2}, 0},
    {{"window, bottom right", SQUARE, .mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT, .left = 3, .right = 0}, 0},
    {{"window, open on the right", SQUARE, .mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT, .left = 2, .right = -1}, 0},
    {{"window, open on the left", SQUARE, .mask = STROBE_MASK_WINDOW_TOP_LEFT, .left = -1, .right = 4}, 0},
    {{"starts, causal", SIZE, .mask = STROBE_MASK_CAUSAL_TOP_LEFT, .features = STARTS}, 0},
    {{"boolean mask", SIZE, .features = BOOL_MASK | PER_SCORE}, 9},
    {{"boolean mask of keys", SIZE, .features = BOOL_MASK}, 9},
    {{"bias", SIZE, .features = BIAS | PER_SCORE | HOLES}, 9},
    {{"bias for all batch entries and heads, causal", SQUARE, .mask = STROBE_MASK_CAUSAL_TOP_LEFT,
      .features = BIAS | PER_ROW},
     9},
    {{"ALiBi", SIZE, .features = ALIBI | WITH_DLSE}, 3},
    {{"ALiBi, causal", SQUARE, .mask = STROBE_MASK_CAUSAL_TOP_LEFT, .features = ALIBI}, 3},
    {{"ALiBi, causal, bottom right, starts", SIZE, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = ALIBI | STARTS}, 3},
    {{"ALiBi, window, bottom right", SIZE, .mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT, .left = 9, .right = 1,
      .features = ALIBI},
     3},
    {{"ALiBi beside another diagonal", SIZE, .mask = STROBE_MASK_CAUSAL_TOP_LEFT, .features = ALIBI}, 14},
    {{"softcap, negative scale", SQUARE, .features = SOFTCAP | NEGATIVE_SCALE}, 0},
    {{"sinks", SIZE, .features = SINKS | WITH_DLSE}, 0},
    {{"sinks, causal, rows that see nothing", .batch = 2, .seq_q = 41, .seq_k = 22, .heads_q = 4, .heads_kv = 2, .dim = 9,
      .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = SINKS | NO_SINKS | WITH_DLSE},
     0},
    {{"dropout", SIZE, .features = DROPOUT}, 3},
    {{"dropout, causal", SQUARE, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = DROPOUT}, 3},
    {{"packed", PACKS, .features = PACKED | WITH_DLSE}, 3},
    {{"packed, causal, sinks", PACKS, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = PACKED | SINKS | INDEX64}, 3},
    {{"packed, window, ALiBi", PACKS, .mask = STROBE_MASK_WINDOW_TOP_LEFT, .left = 5, .right = 3,
      .features = PACKED | ALIBI},
     3},
    {{"packed, more keys, dropout", .batch = 4, .seq_q = 13, .seq_k = 21, .heads_q = 4, .heads_kv = 1, .dim = 8,
      .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = PACKED | DROPOUT},
     3},
    {{"without lse", SQUARE, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = NO_LSE}, 0},
    {{"one K/V head", .batch = 1, .seq_q = 30, .seq_k = 30, .heads_q = 8, .heads_kv = 1, .dim = 16,
      .mask = STROBE_MASK_CAUSAL_TOP_LEFT},
     0},
    {{"a group that Ulysses cuts", .batch = 1, .seq_q = 30, .seq_k = 30, .heads_q = 12, .heads_kv = 4, .dim = 5,
      .mask = STROBE_MASK_CAUSAL_TOP_LEFT, .features = ALIBI | DROPOUT | SINKS},
     3},
    {{"fewer rows than ranks", .batch = 2, .seq_q = 2, .seq_k = 3, .heads_q = 4, .dim = 7,
      .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = SINKS},
     0},
    {{"no keys", .batch = 2, .seq_q = 5, .seq_k = 0, .heads_q = 4, .dim = 7, .features = SINKS}, 0},
    {{"no rows", .batch = 2, .seq_q = 0, .seq_k = 6, .heads_q = 4, .dim = 7}, 0},
    {{"no batch entry", .batch = 0, .seq_q = 5, .seq_k = 6, .heads_q = 4, .dim = 7}, 0},
    {{"heads that do not divide", .batch = 1, .seq_q = 20, .seq_k = 20, .heads_q = 3, .dim = 8,
      .mask = STROBE_MASK_CAUSAL_TOP_LEFT},
     5},
};

static int refused;
static int32_t ranks_here; /* of MPI's world; 0: threads, any number */
static const struct row *row_at_hand;

/* Sanitizers take ten times as long: they have a third of the ways, other ones for the next row, and one dtype. Processes of
 * MPI all compute what is compared with, and have one dtype too. */
#if defined(STROBE_SANITIZED) || defined(STROBE_OVER_MPI)
enum { DTYPES = 1, EVERY = STROBE_EVERY };
#else
enum { DTYPES = 2, EVERY = 1 };
#endif

static bool run_way_of(struct fixture *f, strobe_operation operation, int way, char *name, size_t capacity) {
    char sentence[768];
    const struct way *w = &ways[way];
    if ((way + (row_at_hand - rows)) % EVERY != 0 || (ranks_here && w->size != ranks_here)) return false;
    snprintf(name, capacity, "%s, %d ranks, layout %d, scheme %d", operation == STROBE_BACKWARD ? "backward" : "forward",
             w->size, w->layout, w->scheme);
    const strobe_status status = ranks_run(f, operation, w, sentence, sizeof sentence, NULL);
    if (status == STROBE_UNSUPPORTED && strstr(sentence, "does not take")) {
        refused += operation == STROBE_BACKWARD;
        return false;
    }
    if (status) fail_msg("%s: %s", name, sentence);
    return true;
}

static void test_row(void **state) {
    static const int32_t dtypes[] = {STROBE_FP32, STROBE_BF16, STROBE_FP16};
    row_at_hand = *state;
    const size_t number = (size_t)(row_at_hand - rows);
    for (size_t n = 0; n < DTYPES; ++n) { /* fp32, and one of the others */
        struct shape shape = row_at_hand->shape;
        shape.dtype = dtypes[n == 0 ? (DTYPES == 1 ? number % 3 : 0) : 1 + number % 2];
        refused = 0;
        check_ways_against_oracle(&shape, WAYS, run_way_of);
        if (EVERY == 1 && !ranks_here && refused != row_at_hand->refusals)
            fail_msg("%d ways refuse; %d are to", refused, row_at_hand->refusals);
    }
}

#if defined(STROBE_OVER_MPI)
#include <mpi.h>

#include "strobe/strobe_dist_mpi.h"

static void run_over_mpi(void (*body)(void *context, const strobe_transport *transport), void *context) {
    MPI_Comm comm = MPI_COMM_WORLD;
    strobe_transport transport;
    if (strobe_dist_mpi_create(&comm, &transport)) fail_msg("no transport");
    body(context, &transport);
    strobe_dist_mpi_destroy(&transport);
}

/* A transport for tensors of GPUs is there, or refused. */
static bool says_whether_it_reads_gpus(void) {
    MPI_Comm comm = MPI_COMM_WORLD;
    strobe_transport transport = {.size = -1};
    const strobe_status status = strobe_dist_mpi_create_cuda(&comm, &transport);
    if (status) return status == STROBE_UNSUPPORTED && transport.size == -1;
    const bool sound = transport.device == STROBE_CUDA && transport.records && transport.size == ranks_here;
    strobe_dist_mpi_destroy(&transport);
    return sound;
}

static void share(void *data, size_t bytes, int32_t rank) { MPI_Bcast(data, (int)bytes, MPI_BYTE, rank, MPI_COMM_WORLD); }
#endif

int main(int count, char **arguments) {
    struct CMUnitTest tests[COUNT(rows)];
    for (size_t n = 0; n < COUNT(rows); ++n) tests[n] = test_of_row(rows[n].shape.name, test_row, &rows[n]);
#if defined(STROBE_OVER_MPI)
    MPI_Init(&count, &arguments);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_here);
    ranks_run_by(run_over_mpi, share);
    if (!says_whether_it_reads_gpus()) return 1;
#endif
#if defined(STROBE_PRETENDED)
    ranks_run_on_gpu(pretend_stream());
#endif
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
#if defined(STROBE_OVER_MPI)
    MPI_Finalize();
#endif
    (void)count, (void)arguments;
    return failed;
}
