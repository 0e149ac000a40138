/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpu_ranks.c: see gpu_ranks.h. */
#include "gpu_ranks.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "problem/element.h"

#if !defined(STROBE_DIM) /* smaller on a GPU that the host plays */
#define STROBE_DIM 128
#endif
enum { HEADS = 4, HEADS_KV = 2, DIM = STROBE_DIM, WAYS = 8 };

static const struct way {
    const char *name;
    int32_t scheme, layout;
    double bandwidth; /* of links, in bytes a second; 0: the default */
} ways[WAYS] = {{"ring, zigzag", STROBE_DIST_RING, STROBE_DIST_ZIGZAG, 0},
                {"ring, contiguous", STROBE_DIST_RING, STROBE_DIST_CONTIGUOUS, 0},
                {"ring, striped", STROBE_DIST_RING, STROBE_DIST_STRIPED, 0},
                {"all_gather, zigzag", STROBE_DIST_ALL_GATHER, STROBE_DIST_ZIGZAG, 0},
                {"all_gather, zigzag, own block apart", STROBE_DIST_ALL_GATHER, STROBE_DIST_ZIGZAG, 1e3},
                {"ulysses, zigzag", STROBE_DIST_ULYSSES, STROBE_DIST_ZIGZAG, 0},
                {"two_levels, zigzag", STROBE_DIST_TWO_LEVELS, STROBE_DIST_ZIGZAG, 0},
                {"automatic, contiguous", STROBE_DIST_AUTOMATIC, STROBE_DIST_CONTIGUOUS, 0}};

/* What the processes share. Tensors are [seq][heads][DIM], as fp32 here. results: out, dq, dk, dv of each way, then those of
 * one process; the last row of all is the decoded one. */
struct shared {
    int64_t seq;
    float data[];
};

static struct shared *shared;
static int32_t ranks, rank, device; /* device: of this rank */
static const cuda_driver *driver;
static strobe_transport transport;
static bool graphs;
static void *stream;

static int64_t elements(int heads) { return shared->seq * heads * DIM; }
static float *input(int which) { /* q, k, v, dout */
    return shared->data + (which > 0 ? elements(HEADS) : 0) + (which > 1 ? (which - 1) * elements(HEADS_KV) : 0);
}
static int64_t result_elements(void) { return 2 * elements(HEADS) + 2 * elements(HEADS_KV); }
static float *result(int way, int which) { /* out, dq, dk, dv */
    float *at = input(3) + elements(HEADS) + way * result_elements();
    return at + (which > 0 ? elements(HEADS) : 0) + (which > 1 ? elements(HEADS) + (which - 2) * elements(HEADS_KV) : 0);
}
static float *decoded(int32_t of) { return result(WAYS + 2, 0) + of * HEADS * DIM; }
static int heads_of(int which) { return which == 1 || which == 2 ? HEADS_KV : HEADS; }     /* of inputs */
static int result_heads(int which) { return which == 2 || which == 3 ? HEADS_KV : HEADS; } /* of results */

void fail_rank(const char *what, const char *why) {
    fprintf(stderr, "rank %d of %d: %s: %s\n", rank, ranks, what, why);
    _exit(1);
}

static void must(int error, const char *what) {
    if (error) fail_rank(what, "the driver reports an error");
}

static void *device_memory(size_t bytes) {
    device_address memory = 0;
    must(driver->allocate(&memory, bytes ? bytes : 1), "memory");
    must(driver->fill(memory, 0xFF, bytes ? bytes : 1), "memory");
    must(driver->wait(), "waiting"); /* the fill is not the stream's */
    return (void *)(uintptr_t)memory;
}

/* Rows of a shared tensor in bf16 on the GPU, by position. */
static void *to_gpu(const float *from, int heads, int32_t layout, int32_t of, int32_t number, int64_t rows) {
    const int64_t row = (int64_t)heads * DIM;
    uint16_t *host = malloc((size_t)(rows * row) * 2 + 1);
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t x = 0; x < row; ++x)
            element_store(host + i * row + x, STROBE_BF16,
                          from[strobe_dist_position(layout, shared->seq, of, number, i) * row + x]);
    void *memory = device_memory((size_t)(rows * row) * 2);
    must(driver->to_device((uintptr_t)memory, host, (size_t)(rows * row) * 2), "a copy");
    free(host);
    return memory;
}

static void from_gpu(float *to, const void *from, int heads, int32_t layout, int32_t of, int32_t number, int64_t rows) {
    const int64_t row = (int64_t)heads * DIM;
    uint16_t *host = malloc((size_t)(rows * row) * 2 + 1);
    must(driver->to_host(host, (uintptr_t)from, (size_t)(rows * row) * 2), "a copy");
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t x = 0; x < row; ++x)
            to[strobe_dist_position(layout, shared->seq, of, number, i) * row + x] = (float)element_load(host + i * row + x,
                                                                                                         STROBE_BF16);
    free(host);
}

struct problem_of_rank {
    strobe_attention a;
    strobe_gradients g;
    strobe_dist d;
    strobe_dist_rates rates;
    void *tensor[4], *result[4];
    size_t bytes[2];
    void *workspace;
};

static void make(struct problem_of_rank *p, const struct way *way) {
    memset(p, 0, sizeof *p);
    const int32_t of = way ? ranks : 1, number = way ? rank : 0, layout = way ? way->layout : 0;
    const int64_t rows = strobe_dist_rows(layout, shared->seq, of, number);
    p->a = (strobe_attention){.struct_size = sizeof p->a, .batch = 1, .seq_q = shared->seq, .seq_k = shared->seq};
    p->a.heads_q = HEADS, p->a.heads_kv = HEADS_KV, p->a.dim = DIM, p->a.dtype = STROBE_BF16, p->a.device = STROBE_CUDA;
    p->a.device_index = device;
    p->a.mask = STROBE_MASK_CAUSAL_TOP_LEFT;
    for (int n = 0; n < 4; ++n) p->tensor[n] = to_gpu(input(n), heads_of(n), layout, of, number, rows);
    for (int n = 0; n < 4; ++n) p->result[n] = device_memory((size_t)(rows * result_heads(n) * DIM) * 2);
    p->a.q.data = p->tensor[0], p->a.k.data = p->tensor[1], p->a.v.data = p->tensor[2], p->a.out.data = p->result[0];
    p->a.lse.data = device_memory((size_t)(rows * HEADS) * sizeof(float));
    p->g = (strobe_gradients){.struct_size = sizeof p->g};
    p->g.dout.data = p->tensor[3], p->g.dq.data = p->result[1], p->g.dk.data = p->result[2], p->g.dv.data = p->result[3];
    if (!way) return;
    p->d = (strobe_dist){.struct_size = sizeof p->d, .attention = &p->a, .transport = &transport, .layout = layout};
    p->d.rows_q = p->d.rows_k = rows, p->d.scheme = way->scheme;
    p->rates = (strobe_dist_rates){.struct_size = sizeof p->rates, .bandwidth = way->bandwidth};
    p->d.rates = &p->rates;
    p->d.group = way->scheme == STROBE_DIST_TWO_LEVELS ? 2 : 0;
}

static void take(const struct problem_of_rank *p, const struct way *way, int slot) {
    const int64_t rows = strobe_dist_rows(way ? way->layout : 0, shared->seq, way ? ranks : 1, way ? rank : 0);
    must(driver->wait(), "waiting");
    for (int n = 0; n < 4; ++n)
        from_gpu(result(slot, n), p->result[n], result_heads(n), way ? way->layout : 0, way ? ranks : 1, way ? rank : 0,
                 rows);
}

/* A transport that waits on the host says so, and the capture can end; a call without messages is captured all the same. */
static void refuse_graph(struct problem_of_rank *p, const struct way *way) {
    void *graph = NULL;
    p->d.flags = STROBE_DIST_UNCOMPARED;
    must(driver->begin_capture(stream, 1), "to capture");
    const strobe_status status = strobe_dist_forward(&p->d, p->workspace, p->bytes[0], stream);
    (void)driver->end_capture(stream, &graph);
    if (graph) driver->destroy_graph(graph);
    if (ranks > 1 && (status != STROBE_DEVICE_ERROR || !strstr(strobe_dist_last_error(), "the stream is being captured")))
        fail_rank(way->name, "is captured, though the host waits");
}

/* Captures both calls, poisons the results, and launches the graph. */
static void run_graph(struct problem_of_rank *p, const struct way *way) {
    void *graph = NULL, *runnable = NULL;
    const int64_t rows = p->d.rows_q;
    uint16_t *before = malloc((size_t)(rows * HEADS * DIM) * 2 + 1), *after = malloc((size_t)(rows * HEADS * DIM) * 2 + 1);
    must(driver->to_host(before, (uintptr_t)p->result[0], (size_t)(rows * HEADS * DIM) * 2), "a copy");
    p->d.flags = STROBE_DIST_UNCOMPARED;
    must(driver->begin_capture(stream, 1), "to capture");
    const strobe_status forward = strobe_dist_forward(&p->d, p->workspace, p->bytes[0], stream);
    const strobe_status backward = forward ? forward : strobe_dist_backward(&p->d, &p->g, p->workspace, p->bytes[1], stream);
    const int ended = driver->end_capture(stream, &graph);
    if (backward) fail_rank(way->name, strobe_dist_last_error());
    must(ended || driver->instantiate(&runnable, graph, 0), "a captured graph");
    for (int launch = 0; launch < 2; ++launch) {
        must(driver->fill((uintptr_t)p->result[0], 0xFF, (size_t)(rows * HEADS * DIM) * 2), "memory");
        must(driver->wait(), "waiting"); /* the fill is not the stream's */
        must(driver->launch_graph(runnable, stream) || driver->wait_stream(stream), "to launch a graph");
        must(driver->to_host(after, (uintptr_t)p->result[0], (size_t)(rows * HEADS * DIM) * 2), "a copy");
        if (memcmp(before, after, (size_t)(rows * HEADS * DIM) * 2) != 0) fail_rank(way->name, "a graph gives other bits");
    }
    driver->destroy_runnable(runnable), driver->destroy_graph(graph);
    free(before), free(after);
}

static void run_way(int n) {
    struct problem_of_rank p;
    make(&p, &ways[n]);
    const strobe_status asked = strobe_dist_workspace(&p.d, NULL, &p.bytes[0]);
    if (asked || strobe_dist_workspace(&p.d, &p.g, &p.bytes[1])) {
        if (strobe_dist_forward(&p.d, NULL, 0, stream) == STROBE_OK) fail_rank(ways[n].name, "is refused and works");
        if (ranks % 2 == 0 || ways[n].scheme < STROBE_DIST_ULYSSES) fail_rank(ways[n].name, strobe_dist_last_error());
        return; /* heads or groups that do not divide */
    }
    p.workspace = device_memory(p.bytes[0] > p.bytes[1] ? p.bytes[0] : p.bytes[1]);
    if (strobe_dist_forward(&p.d, p.workspace, p.bytes[0], stream) ||
        strobe_dist_backward(&p.d, &p.g, p.workspace, p.bytes[1], stream))
        fail_rank(ways[n].name, strobe_dist_last_error());
    take(&p, &ways[n], n);
    if (graphs)
        run_graph(&p, &ways[n]);
    else
        refuse_graph(&p, &ways[n]);
}

/* Ranks that disagree, on which all return the same sentence. */
static void disagree(void) {
    struct problem_of_rank p;
    make(&p, &ways[0]);
    if (rank == ranks - 1) p.a.softcap = 10;
    if (strobe_dist_workspace(&p.d, NULL, &p.bytes[0])) fail_rank("workspace", strobe_dist_last_error());
    p.workspace = device_memory(p.bytes[0]);
    const strobe_status status = strobe_dist_forward(&p.d, p.workspace, p.bytes[0], stream);
    if (status != (ranks > 1 ? STROBE_INVALID_ARGUMENT : STROBE_OK))
        fail_rank("other arguments on one rank", "are not refused");
    if (ranks > 1 && !strstr(strobe_dist_last_error(), "softcap (its bits) is 0 on rank 0 and"))
        fail_rank("other arguments on one rank", strobe_dist_last_error());
}

/* The last rank gives a stream of another GPU, if there is one. */
static void use_stream_of_another(void) {
    const int devices = cuda_driver_devices(), other = (device + 1) % devices;
    struct problem_of_rank p;
    void *far = stream;
    if (devices < 2) return;
    make(&p, &ways[0]);
    if (strobe_dist_workspace(&p.d, NULL, &p.bytes[0])) fail_rank("workspace", strobe_dist_last_error());
    p.workspace = device_memory(p.bytes[0]);
    if (rank == ranks - 1)
        must(!cuda_driver_use(other) || driver->create_stream(&far, 1) || !cuda_driver_use(device), "another GPU's stream");
    const strobe_status status = strobe_dist_forward(&p.d, p.workspace, p.bytes[0], far);
    if (status != STROBE_INVALID_ARGUMENT || !strstr(strobe_dist_last_error(), "stream is one of device "))
        fail_rank("another GPU's stream", status ? strobe_dist_last_error() : "is taken");
    if (far != stream) driver->destroy_stream(far);
}

/* The last row over the keys, of which each rank has a part. */
static void decode(void) {
    const int64_t keys = strobe_dist_rows(STROBE_DIST_CONTIGUOUS, shared->seq, ranks, rank), row = HEADS * DIM;
    strobe_attention a = {.struct_size = sizeof a, .batch = 1, .seq_q = 1, .seq_k = keys, .heads_q = HEADS};
    a.heads_kv = HEADS_KV, a.dim = DIM, a.dtype = STROBE_BF16, a.device = STROBE_CUDA, a.device_index = device;
    void *q = to_gpu(input(0), HEADS, 0, 1, 0, shared->seq);
    a.q.data = (uint16_t *)q + (shared->seq - 1) * row, a.out.data = device_memory((size_t)row * 2);
    a.k.data = to_gpu(input(1), HEADS_KV, 0, ranks, rank, keys), a.v.data = to_gpu(input(2), HEADS_KV, 0, ranks, rank, keys);
    size_t bytes;
    if (strobe_dist_decode_workspace(&a, &transport, &bytes)) fail_rank("decode", strobe_dist_last_error());
    void *workspace = device_memory(bytes);
    if (strobe_dist_decode(&a, &transport, 0, workspace, bytes, stream)) fail_rank("decode", strobe_dist_last_error());
    must(driver->wait(), "waiting");
    uint16_t host[HEADS * DIM];
    must(driver->to_host(host, (uintptr_t)a.out.data, sizeof host), "a copy");
    for (int64_t x = 0; x < row; ++x) decoded(rank)[x] = (float)element_load(&host[x], STROBE_BF16);
}

static void run_alone(void) {
    struct problem_of_rank p;
    make(&p, NULL);
    if (strobe_workspace(&p.a, NULL, &p.bytes[0]) || strobe_workspace(&p.a, &p.g, &p.bytes[1]))
        fail_rank("one process", strobe_last_error());
    p.workspace = device_memory(p.bytes[0] > p.bytes[1] ? p.bytes[0] : p.bytes[1]);
    if (strobe_forward(&p.a, p.workspace, p.bytes[0], NULL) || strobe_backward(&p.a, &p.g, p.workspace, p.bytes[1], NULL))
        fail_rank("one process", strobe_last_error());
    take(&p, NULL, WAYS);
}

bool gpu_rank_open(struct gpu_rank *r, int32_t number, int32_t count) {
    char text[256];
    *r = (struct gpu_rank){.rank = number, .ranks = count, .driver = cuda_driver_open(text, sizeof text)};
    const int devices = r->driver ? cuda_driver_devices() : 0;
    r->device = devices > 0 ? number % devices : 0;
    rank = number, ranks = count;
    return devices > 0 && cuda_driver_use(r->device);
}

void gpu_rank_run(const struct gpu_rank *r) {
    rank = r->rank, ranks = r->ranks, device = r->device;
    driver = r->driver, transport = r->transport, graphs = r->graphs;
    must(driver->create_stream(&stream, 1), "a stream");
    for (int n = 0; n < WAYS; ++n)
        if (ways[n].scheme != STROBE_DIST_TWO_LEVELS || ranks % 2 == 0) run_way(n);
    disagree();
    use_stream_of_another();
    decode();
    if (rank == 0) run_alone();
}

void gpu_rank_outlive(const struct gpu_rank *r, const char *expected) {
    struct problem_of_rank p;
    rank = r->rank, ranks = r->ranks, device = r->device;
    driver = r->driver, transport = r->transport;
    must(driver->create_stream(&stream, 1), "a stream");
    make(&p, &ways[0]);
    if (strobe_dist_workspace(&p.d, NULL, &p.bytes[0])) fail_rank("workspace", strobe_dist_last_error());
    p.workspace = device_memory(p.bytes[0]);
    strobe_status status = STROBE_OK;
    for (int call = 0; call < 2 && !status; ++call) status = strobe_dist_forward(&p.d, p.workspace, p.bytes[0], stream);
    if (status || driver->wait_stream(stream)) fail_rank("all are there", strobe_dist_last_error());
    if (rank == ranks - 1) kill(getpid(), SIGKILL);
    for (int call = 0; call < 100 && !status; ++call) { /* messages may have gone before the peer did */
        status = strobe_dist_forward(&p.d, p.workspace, p.bytes[0], stream);
        usleep(10000);
    }
    if (status != STROBE_DEVICE_ERROR || !strstr(strobe_dist_last_error(), expected))
        fail_rank("a peer that has ended", status ? strobe_dist_last_error() : "is not noticed");
    fprintf(stderr, "rank %d of %d: %s\n", rank, ranks, strobe_dist_last_error());
}

/* Square root of the mean squared difference. */
static double error_of(const float *x, const float *right, int64_t count) {
    double sum = 0;
    for (int64_t n = 0; n < count; ++n) sum += ((double)x[n] - right[n]) * ((double)x[n] - right[n]);
    return sqrt(sum / (double)count);
}

/* The right results, in fp32 on the CPU, from inputs that bf16 holds exactly. */
static void compute_right(float *last) {
    strobe_attention a = {.struct_size = sizeof a, .batch = 1, .seq_q = shared->seq, .seq_k = shared->seq};
    a.heads_q = HEADS, a.heads_kv = HEADS_KV, a.dim = DIM, a.mask = STROBE_MASK_CAUSAL_TOP_LEFT;
    float *lse = malloc((size_t)(shared->seq * HEADS) * sizeof *lse);
    a.q.data = input(0), a.k.data = input(1), a.v.data = input(2), a.out.data = result(WAYS + 1, 0), a.lse.data = lse;
    strobe_gradients g = {.struct_size = sizeof g, .dout = {.data = input(3)}};
    g.dq.data = result(WAYS + 1, 1), g.dk.data = result(WAYS + 1, 2), g.dv.data = result(WAYS + 1, 3);
    if (strobe_forward(&a, NULL, 0, NULL) || strobe_backward(&a, &g, NULL, 0, NULL))
        fail_rank("the CPU", strobe_last_error());
    memcpy(last, result(WAYS + 1, 0) + (shared->seq - 1) * HEADS * DIM, HEADS * DIM * sizeof *last);
    free(lse);
}

int gpu_ranks_judge(int32_t count) {
    static const char *const names[] = {"out", "dq", "dk", "dv"};
    int failed = 0;
    float last[HEADS * DIM];
    ranks = count;
    compute_right(last);
    for (int way = 0; way < WAYS; ++way) {
        if (ranks % 2 && ways[way].scheme == STROBE_DIST_TWO_LEVELS) continue;
        if (ranks % 2 && ways[way].scheme == STROBE_DIST_ULYSSES && ranks > 1) continue;
        printf("%-22s", ways[way].name);
        for (int n = 0; n < 4; ++n) {
            const int64_t count = elements(result_heads(n));
            const double one = error_of(result(WAYS, n), result(WAYS + 1, n), count),
                         own = error_of(result(way, n), result(WAYS + 1, n), count);
            printf("  %s %.3g of %.3g", names[n], own, one);
            if (!(own <= 1.1 * one)) failed = 1, printf(" WRONG");
        }
        printf("\n");
    }
    for (int32_t r = 0; r < ranks; ++r) {
        const double own = error_of(decoded(r), last, HEADS * DIM);
        if (!(own < 2e-3)) failed = 1, printf("decode: rank %d is wrong by %.3g\n", r, own);
        if (memcmp(decoded(r), decoded(0), HEADS * DIM * sizeof(float)) != 0) failed = 1, printf("decode: other bits\n");
    }
    return failed;
}

void gpu_ranks_fill(void) {
    uint64_t state = 88172645463325252u;
    for (int n = 0; n < 4; ++n)
        for (int64_t x = 0; x < elements(heads_of(n)); ++x) {
            double sum = -6; /* of twelve uniform numbers: nearly normal */
            for (int u = 0; u < 12; ++u) {
                state ^= state << 13, state ^= state >> 7, state ^= state << 17;
                sum += (double)(state >> 11) * 0x1p-53;
            }
            uint16_t bits;
            element_store(&bits, STROBE_BF16, sum);
            input(n)[x] = (float)element_load(&bits, STROBE_BF16);
        }
}

size_t gpu_ranks_bytes(int64_t seq) {
    const size_t tensors = (size_t)(seq * (2 * HEADS + 2 * HEADS_KV) * DIM) * sizeof(float);
    return sizeof *shared + (WAYS + 4) * tensors + sizeof(float) * MOST_RANKS * HEADS * DIM;
}

void gpu_ranks_share(void *memory, int64_t seq) { shared = memory, shared->seq = seq; }
