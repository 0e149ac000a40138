/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ring_mpi.c: one causal sequence over the processes of MPI: mpirun -n 4 example_ring_mpi. Each process makes its own rows
 * of q, k and v, and gets its rows of the result and of the gradients; here it also computes the whole by itself, to
 * compare. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include <strobe/strobe_dist_mpi.h>

enum { SEQ = 1003, HEADS = 8, HEADS_KV = 2, DIM = 32 };

/* Row number `position` of a tensor is the same whoever makes it. */
static void fill(float *row, int64_t count, int64_t position, int64_t tensor) {
    for (int64_t x = 0; x < count; ++x)
        row[x] = (float)sin((double)(position * 31 + x * 17 + tensor * 7 + position * x % 13));
}

/* Rows of a rank; of the whole with size 1. */
struct shard {
    int64_t rows;
    float *q, *k, *v, *out, *lse, *dout, *dq, *dk, *dv;
};

static float *rows_of(int32_t size, int32_t rank, int64_t rows, int64_t width, int64_t tensor) {
    float *data = calloc((size_t)(rows * width), sizeof *data);
    for (int64_t i = 0; data && tensor >= 0 && i < rows; ++i)
        fill(data + i * width, width, strobe_dist_position(STROBE_DIST_ZIGZAG, SEQ, size, rank, i), tensor);
    return data;
}

static struct shard make(int32_t size, int32_t rank) {
    const int64_t rows = strobe_dist_rows(STROBE_DIST_ZIGZAG, SEQ, size, rank), wide = HEADS * DIM, narrow = HEADS_KV * DIM;
    return (struct shard){.rows = rows,
                          .q = rows_of(size, rank, rows, wide, 0),
                          .k = rows_of(size, rank, rows, narrow, 1),
                          .v = rows_of(size, rank, rows, narrow, 2),
                          .dout = rows_of(size, rank, rows, wide, 3),
                          .out = rows_of(size, rank, rows, wide, -1),
                          .lse = rows_of(size, rank, rows, HEADS, -1),
                          .dq = rows_of(size, rank, rows, wide, -1),
                          .dk = rows_of(size, rank, rows, narrow, -1),
                          .dv = rows_of(size, rank, rows, narrow, -1)};
}

/* Forward and backward of the shard, over all ranks. */
static strobe_status attend(const struct shard *s, const strobe_transport *transport) {
    strobe_attention a = {.struct_size = sizeof a, .batch = 1, .seq_q = SEQ, .seq_k = SEQ, .heads_q = HEADS, .dim = DIM};
    a.heads_kv = HEADS_KV, a.mask = STROBE_MASK_CAUSAL_TOP_LEFT;                                 /* the whole problem ... */
    a.q.data = s->q, a.k.data = s->k, a.v.data = s->v, a.out.data = s->out, a.lse.data = s->lse; /* ... and its shard */
    strobe_gradients g = {.struct_size = sizeof g};
    g.dout.data = s->dout, g.dq.data = s->dq, g.dk.data = s->dk, g.dv.data = s->dv;
    const strobe_dist d = {.struct_size = sizeof d,
                           .attention = &a,
                           .transport = transport,
                           .rows_q = s->rows,
                           .rows_k = s->rows,
                           .layout = STROBE_DIST_ZIGZAG};
    char text[1024];
    if (transport->rank == 0 && transport->size > 1 && strobe_dist_explain(&d, &g, text, sizeof text, NULL) == STROBE_OK)
        fputs(text, stdout);
    const strobe_status status = strobe_dist_forward(&d, NULL, 0, NULL);
    return status ? status : strobe_dist_backward(&d, &g, NULL, 0, NULL);
}

static double worst(const float *own, const float *whole, const strobe_transport *t, int64_t rows, int64_t width) {
    double most = 0;
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t x = 0; x < width; ++x) {
            const int64_t position = strobe_dist_position(STROBE_DIST_ZIGZAG, SEQ, t->size, t->rank, i);
            most = fmax(most, fabs((double)own[i * width + x] - (double)whole[position * width + x]));
        }
    return most;
}

int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    MPI_Comm comm = MPI_COMM_WORLD;
    strobe_transport transport;
    const strobe_transport alone = {.struct_size = sizeof alone, .rank = 0, .size = 1};
    if (strobe_dist_mpi_create(&comm, &transport)) return 1;
    const struct shard own = make(transport.size, transport.rank), whole = make(1, 0);
    int failed = attend(&own, &transport) || attend(&whole, &alone);
    if (failed) {
        fprintf(stderr, "%s\n", strobe_dist_last_error());
    } else {
        const double errors[] = {worst(own.out, whole.out, &transport, own.rows, HEADS * DIM),
                                 worst(own.dq, whole.dq, &transport, own.rows, HEADS * DIM),
                                 worst(own.dk, whole.dk, &transport, own.rows, HEADS_KV * DIM),
                                 worst(own.dv, whole.dv, &transport, own.rows, HEADS_KV * DIM)};
        printf("rank %d of %d: %lld rows; differs from one process by %.1e (out), %.1e, %.1e, %.1e (dq, dk, dv)\n",
               transport.rank, transport.size, (long long)own.rows, errors[0], errors[1], errors[2], errors[3]);
    }
    const struct shard shards[] = {own, whole};
    for (int n = 0; n < 2; ++n) {
        const struct shard *s = &shards[n];
        free(s->q), free(s->k), free(s->v), free(s->out), free(s->lse), free(s->dout), free(s->dq), free(s->dk), free(s->dv);
    }
    strobe_dist_mpi_destroy(&transport);
    MPI_Finalize();
    return failed;
}
