/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ring_mpi.c: one causal sequence over the processes of MPI: mpirun -n 4 example_ring_mpi [--device cuda]. Each process
 * makes its own rows of q, k and v, and gets its rows of the result and of the gradients; here it also computes the whole by
 * itself, on the CPU, to compare. With --device cuda its rows lie on a GPU, process r having number r, counted around. */
#include <math.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(WITH_CUDA)
#include <cuda_runtime_api.h>
#endif

#include <strobe/strobe_dist_mpi.h>

#if !defined(POSITIONS)
#define POSITIONS 1003
#endif
enum { SEQ = POSITIONS, HEADS = 8, HEADS_KV = 2, DIM = 32 };

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

static void release(const struct shard *s) {
    float *const all[] = {s->q, s->k, s->v, s->out, s->lse, s->dout, s->dq, s->dk, s->dv};
    for (size_t n = 0; n < sizeof all / sizeof all[0]; ++n) free(all[n]);
}

/* Forward and backward of the shard, over all ranks. workspace(bytes): memory that the calls may use, NULL on the CPU, where
 * they find it themselves. */
static strobe_status attend(const struct shard *s, const strobe_transport *transport, int32_t device_index,
                            void *(*workspace)(size_t bytes)) {
    strobe_attention a = {.struct_size = sizeof a, .batch = 1, .seq_q = SEQ, .seq_k = SEQ, .heads_q = HEADS, .dim = DIM};
    a.heads_kv = HEADS_KV, a.mask = STROBE_MASK_CAUSAL_TOP_LEFT;                                 /* the whole problem ... */
    a.q.data = s->q, a.k.data = s->k, a.v.data = s->v, a.out.data = s->out, a.lse.data = s->lse; /* ... and its shard */
    a.device = transport->device, a.device_index = device_index;
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
    if (!workspace) {
        const strobe_status status = strobe_dist_forward(&d, NULL, 0, NULL);
        return status ? status : strobe_dist_backward(&d, &g, NULL, 0, NULL);
    }
    size_t forward, backward;
    strobe_status status = strobe_dist_workspace(&d, NULL, &forward);
    if (!status) status = strobe_dist_workspace(&d, &g, &backward);
    if (status) return status;
    const size_t bytes = forward > backward ? forward : backward;
    void *memory = workspace(bytes);
    if (!memory) return strobe_dist_refuse(transport, STROBE_OUT_OF_MEMORY, "no device memory for the workspace");
    status = strobe_dist_forward(&d, memory, bytes, NULL); /* NULL: the default stream */
    return status ? status : strobe_dist_backward(&d, &g, memory, bytes, NULL);
}

#if defined(WITH_CUDA)
static void *device_memory(size_t bytes) {
    void *memory = NULL;
    return cudaMalloc(&memory, bytes ? bytes : 1) == cudaSuccess ? memory : NULL;
}

/* The shard's rows go to the GPU, its results come back. */
static int attend_on_gpu(const struct shard *s, const strobe_transport *transport) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return fprintf(stderr, "no GPU here\n"), 1;
    if (cudaSetDevice(transport->rank % devices) != cudaSuccess) return 1;
    struct shard there = {.rows = s->rows};
    const int64_t wide = s->rows * HEADS * DIM, narrow = s->rows * HEADS_KV * DIM;
    const struct {
        float *own, **there;
        int64_t count;
        bool is_result;
    } all[] = {{s->q, &there.q, wide, false},
               {s->k, &there.k, narrow, false},
               {s->v, &there.v, narrow, false},
               {s->out, &there.out, wide, true},
               {s->lse, &there.lse, s->rows * HEADS, true},
               {s->dout, &there.dout, wide, false},
               {s->dq, &there.dq, wide, true},
               {s->dk, &there.dk, narrow, true},
               {s->dv, &there.dv, narrow, true}};
    for (size_t n = 0; n < sizeof all / sizeof all[0]; ++n) {
        *all[n].there = device_memory((size_t)all[n].count * sizeof(float));
        if (!*all[n].there) return strobe_dist_refuse(transport, STROBE_OUT_OF_MEMORY, "no device memory for the rows") != 0;
        if (cudaMemcpy(*all[n].there, all[n].own, (size_t)all[n].count * sizeof(float), cudaMemcpyHostToDevice)) return 1;
    }
    if (attend(&there, transport, transport->rank % devices, device_memory)) return 1;
    for (size_t n = 0; n < sizeof all / sizeof all[0]; ++n) /* the copies wait for the default stream */
        if (all[n].is_result &&
            cudaMemcpy(all[n].own, *all[n].there, (size_t)all[n].count * sizeof(float), cudaMemcpyDeviceToHost))
            return 1;
    return 0;
}
#else
static int attend_on_gpu(const struct shard *s, const strobe_transport *transport) {
    (void)s, (void)transport;
    return fprintf(stderr, "this program was built without CUDA\n"), 1;
}
#endif

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
    const bool gpu = count > 2 && strcmp(arguments[1], "--device") == 0 && strcmp(arguments[2], "cuda") == 0;
    if (gpu ? strobe_dist_mpi_create_cuda(&comm, &transport) : strobe_dist_mpi_create(&comm, &transport))
        return fprintf(stderr, "no transport over MPI%s\n", gpu ? ": there is no CUDA driver" : ""), 1;
    const struct shard own = make(transport.size, transport.rank), whole = make(1, 0);
    int failed = gpu ? attend_on_gpu(&own, &transport) : attend(&own, &transport, 0, NULL) != STROBE_OK;
    if (failed || attend(&whole, &alone, 0, NULL)) {
        fprintf(stderr, "%s\n", strobe_dist_last_error());
        failed = 1;
    } else {
        const double errors[] = {worst(own.out, whole.out, &transport, own.rows, HEADS * DIM),
                                 worst(own.dq, whole.dq, &transport, own.rows, HEADS * DIM),
                                 worst(own.dk, whole.dk, &transport, own.rows, HEADS_KV * DIM),
                                 worst(own.dv, whole.dv, &transport, own.rows, HEADS_KV * DIM)};
        printf("rank %d of %d: %lld rows; differs from one process by %.1e (out), %.1e, %.1e, %.1e (dq, dk, dv)\n",
               transport.rank, transport.size, (long long)own.rows, errors[0], errors[1], errors[2], errors[3]);
        for (int n = 0; n < 4; ++n) failed |= !(errors[n] < 1e-3);
    }
    release(&own), release(&whole);
    strobe_dist_mpi_destroy(&transport);
    MPI_Finalize();
    return failed;
}
