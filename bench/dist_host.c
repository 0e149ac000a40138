/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dist_host.c: what a call of libstrobe_dist takes of the host, on one GPU: all ranks are this process's, over copy engines,
 * and one thread makes their calls one after the other, since no call waits. The GPU is idle before each round. For every
 * scheme, forward and backward, printed are the microseconds until the call returns, median of rounds and ranks, and what of
 * them the transport takes and the calls of libstrobe, with their numbers; the query of the workspace beside it; then what a
 * graph of the call would hold. Before it stands what each rank takes alone, forward and backward, with messages that cost
 * nothing: by a graph, which is the GPU's time, and in turns with the host. What would have come is random, like the rest.
 *
 *     bench_dist_host [RANKS [TOKENS [HEADS [HEADS_KV [KIND]]]]]      4 8192 32 8 causal
 *
 * KIND is causal, window (of 4096 keys), documents (those of dist_peers.py, of 65536 tokens), or ordered, the same in the
 * order of strobe_dist_order; of all but causal only what ranks take alone is measured, contiguous.
 *
 * Exit code 77: no GPU. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <strobe/strobe_dist_copies.h>

#include "median.h"

enum { MOST_RANKS = 8, ROUNDS = 31, DIM = 128, RECORD = 4096, DOCUMENTS = 20, WINDOW = 4096, LONGEST = 15282 };
enum problem { CAUSAL, WINDOWED, PACKED, ORDERED, PROBLEMS };
static const char *const scheme_names[] = {"automatic", "ring", "all_gather", "ulysses"};
static const char *const problem_names[PROBLEMS] = {"causal", "window", "documents", "ordered"};

static double microseconds(void) { return seconds_by(CLOCK_MONOTONIC) * 1e6; }

static void require(int failed, const char *what, const char *why) {
    if (!failed) return;
    fprintf(stderr, "bench_dist_host: %s: %s\n", what, why);
    exit(1);
}

static void require_cuda(cudaError_t error, const char *what) {
    require(error != cudaSuccess, what, cudaGetErrorString(error));
}

/* ---- what is counted: the transport's functions, and those of libstrobe, which this program stands before */

enum kind { TRANSPORT, WORKSPACE, ATTENTION, MERGE, KINDS };
static const char *const kind_names[KINDS] = {"transport", "strobe_workspace", "strobe_forward, _backward", "strobe_merge"};
static struct {
    double time;
    int calls;
} spent[KINDS];

static void spend(enum kind kind, double since) { spent[kind].time += microseconds() - since, ++spent[kind].calls; }

static void find(void *function, const char *name) {
    void *const found = dlsym(RTLD_NEXT, name);
    require(!found, name, "libstrobe has it not");
    memcpy(function, &found, sizeof found);
}

strobe_status strobe_forward(const strobe_attention *a, void *workspace, size_t bytes, void *stream) {
    static strobe_status (*own)(const strobe_attention *, void *, size_t, void *);
    if (!own) find(&own, "strobe_forward");
    const double since = microseconds();
    const strobe_status status = own(a, workspace, bytes, stream);
    spend(ATTENTION, since);
    return status;
}

strobe_status strobe_backward(const strobe_attention *a, const strobe_gradients *g, void *workspace, size_t bytes,
                              void *stream) {
    static strobe_status (*own)(const strobe_attention *, const strobe_gradients *, void *, size_t, void *);
    if (!own) find(&own, "strobe_backward");
    const double since = microseconds();
    const strobe_status status = own(a, g, workspace, bytes, stream);
    spend(ATTENTION, since);
    return status;
}

strobe_status strobe_merge(const strobe_partials *p, void *stream) {
    static strobe_status (*own)(const strobe_partials *, void *);
    if (!own) find(&own, "strobe_merge");
    const double since = microseconds();
    const strobe_status status = own(p, stream);
    spend(MERGE, since);
    return status;
}

strobe_status strobe_workspace(const strobe_attention *a, const strobe_gradients *g, size_t *bytes) {
    static strobe_status (*own)(const strobe_attention *, const strobe_gradients *, size_t *);
    if (!own) find(&own, "strobe_workspace");
    const double since = microseconds();
    const strobe_status status = own(a, g, bytes);
    spend(WORKSPACE, since);
    return status;
}

/* ---- ranks */

static struct box {
    _Atomic int full;
    unsigned char record[RECORD];
} boxes[MOST_RANKS][MOST_RANKS];

struct rank {
    int32_t rank, size;
    strobe_message receives[MOST_RANKS];
    int64_t receive_count;
    strobe_transport base, records, copies, timed;
    cudaStream_t stream;
    strobe_attention a;
    strobe_gradients g;
    strobe_dist d;
    void *workspace[2];
    size_t bytes[2];
};
static struct rank ranks[MOST_RANKS];

/* Records alone go by the transport below, while the one over copy engines is made. */
static int start_records(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                         int64_t receive_count, void *stream) {
    struct rank *r = self;
    (void)stream;
    for (int64_t n = 0; n < send_count; ++n) {
        struct box *box = &boxes[r->rank][sends[n].peer];
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
        struct box *box = &boxes[r->receives[n].peer][r->rank];
        while (!box->full) sched_yield();
        memcpy(r->receives[n].data, box->record, r->receives[n].bytes);
        box->full = 0;
    }
    return 0;
}

static int start(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                 int64_t receive_count, void *stream) {
    const struct rank *r = self;
    const double since = microseconds();
    const int failed = r->copies.start(r->copies.self, sends, send_count, receives, receive_count, stream);
    spend(TRANSPORT, since);
    return failed;
}

static int move(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                int64_t receive_count, void *stream) {
    const struct rank *r = self;
    const double since = microseconds();
    const int failed = r->copies.move(r->copies.self, sends, send_count, receives, receive_count, stream);
    spend(TRANSPORT, since);
    return failed;
}

static int wait_for(void *self, void *stream) {
    const struct rank *r = self;
    const double since = microseconds();
    const int failed = r->copies.wait(r->copies.self, stream);
    spend(TRANSPORT, since);
    return failed;
}

static const char *error_of(void *self) {
    const struct rank *r = self;
    return r->copies.error(r->copies.self);
}

static void *meet(void *of) {
    struct rank *r = of;
    r->records = (strobe_transport){.struct_size = sizeof r->records, .rank = r->rank, .size = r->size, .self = r};
    r->records.start = start_records, r->records.wait = wait_for_records;
    r->base = r->records;
    r->base.device = STROBE_CUDA, r->base.records = &r->records;
    require_cuda(cudaSetDevice(0), "cudaSetDevice");
    require_cuda(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking), "a stream");
    require(strobe_dist_copies_create(&r->base, 0, &r->copies), "strobe_dist_copies_create",
            strobe_dist_copies_last_error());
    r->timed = r->copies;
    r->timed.self = r, r->timed.start = start, r->timed.wait = wait_for, r->timed.move = move, r->timed.error = error_of;
    return NULL;
}

static void make_transports(int32_t size) {
    pthread_t threads[MOST_RANKS];
    for (int32_t n = 0; n < size; ++n) {
        ranks[n].rank = n, ranks[n].size = size;
        require(pthread_create(&threads[n], NULL, meet, &ranks[n]), "a thread", "is not made");
    }
    for (int32_t n = 0; n < size; ++n) pthread_join(threads[n], NULL);
}

/* Messages that cost nothing: a rank by itself. */
static int move_nothing(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                        int64_t receive_count, void *stream) {
    (void)self, (void)sends, (void)send_count, (void)receives, (void)receive_count, (void)stream;
    return 0;
}

static int wait_for_nothing(void *self, void *stream) {
    (void)self, (void)stream;
    return 0;
}

/* Memory of bf16 from -1 to 1, the same million again and again. */
static void *memory(size_t bytes) {
    enum { COUNT = 1 << 20 };
    static uint16_t block[COUNT];
    static int made;
    unsigned char *data;
    unsigned state = 12345;
    for (int n = 0; n < COUNT && !made; ++n)
        state = state * 1664525u + 1013904223u, block[n] = (uint16_t)(0x3f00u | (state >> 25) | (state >> 16 & 0x8000u));
    made = 1;
    require_cuda(cudaMalloc((void **)&data, bytes + 64), "memory");
    for (size_t at = 0; at < bytes; at += sizeof block)
        require_cuda(cudaMemcpy(data + at, block, bytes - at < sizeof block ? bytes - at : sizeof block, cudaMemcpyDefault),
                     "a copy");
    return data;
}

static void *numbers(int64_t rows, int64_t heads, int64_t dim, size_t size) {
    return memory((size_t)(rows * heads * dim) * size);
}

static strobe_varlen varlen;
static int64_t offsets[DOCUMENTS + 1];

/* The documents of dist_peers.py. */
static void pack(int32_t size, int64_t tokens, enum problem kind) {
    static const int64_t lengths[DOCUMENTS] = {263, 1356, 15282, 289,  2176, 3704, 2167, 238,  2054, 11377,
                                               472, 5701, 478,   1211, 5293, 1465, 210,  5113, 6315, 372};
    int64_t order[DOCUMENTS];
    double balance[2];
    for (int n = 0; n < DOCUMENTS; ++n) offsets[n + 1] = offsets[n] + lengths[n], order[n] = n;
    require(offsets[DOCUMENTS] != tokens, "documents", "take 65536 tokens");
    varlen = (strobe_varlen){.struct_size = sizeof varlen, .cu_seqlens_q = offsets, .cu_seqlens_k = offsets};
    varlen.index_bits = 64, varlen.total_q = varlen.total_k = tokens;
    const strobe_transport nowhere = {.struct_size = sizeof nowhere, .size = size};
    const strobe_attention a = {.struct_size = sizeof a,
                                .batch = DOCUMENTS,
                                .seq_q = LONGEST,
                                .seq_k = LONGEST,
                                .mask = STROBE_MASK_CAUSAL_TOP_LEFT,
                                .varlen = &varlen};
    const strobe_dist d = {.struct_size = sizeof d, .attention = &a, .transport = &nowhere};
    if (kind == ORDERED) {
        require(strobe_dist_order(&d, order, balance), "strobe_dist_order", strobe_dist_last_error());
        printf("the most pairs of a rank are %.3f times the mean, %.3f as given\n", balance[1], balance[0]);
    }
    for (int n = 0; n < DOCUMENTS; ++n) offsets[n + 1] = offsets[n] + lengths[order[n]];
}

static void describe(struct rank *r, int64_t seq, int64_t heads, int64_t heads_kv, enum problem kind) {
    strobe_attention *a = &r->a;
    const int32_t layout = kind == CAUSAL ? STROBE_DIST_ZIGZAG : STROBE_DIST_CONTIGUOUS;
    const int64_t rows = strobe_dist_rows(layout, seq, r->size, r->rank);
    *a = (strobe_attention){.struct_size = sizeof *a, .batch = 1, .seq_q = seq, .seq_k = seq, .heads_q = heads};
    a->heads_kv = heads_kv, a->dim = DIM, a->dtype = STROBE_BF16, a->mask = STROBE_MASK_CAUSAL_TOP_LEFT;
    if (kind == WINDOWED) a->mask = STROBE_MASK_WINDOW_TOP_LEFT, a->window_left = WINDOW - 1, a->window_right = 0;
    if (kind >= PACKED) a->batch = DOCUMENTS, a->varlen = &varlen, a->seq_q = a->seq_k = LONGEST;
    a->device = STROBE_CUDA;
    a->q.data = numbers(rows, heads, DIM, 2), a->k.data = numbers(rows, heads_kv, DIM, 2);
    a->v.data = numbers(rows, heads_kv, DIM, 2), a->out.data = numbers(rows, heads, DIM, 2);
    a->lse.data = numbers(rows, heads, 1, 4);
    r->g = (strobe_gradients){.struct_size = sizeof r->g, .dout.data = numbers(rows, heads, DIM, 2)};
    r->g.dq.data = numbers(rows, heads, DIM, 2), r->g.dk.data = numbers(rows, heads_kv, DIM, 2);
    r->g.dv.data = numbers(rows, heads_kv, DIM, 2);
    r->d = (strobe_dist){.struct_size = sizeof r->d, .attention = a, .transport = &r->timed, .layout = layout};
    r->d.rows_q = r->d.rows_k = rows, r->d.flags = STROBE_DIST_UNCOMPARED;
}

/* ---- calls */

static void call(struct rank *r, int backward) {
    const strobe_status status = backward ? strobe_dist_backward(&r->d, &r->g, r->workspace[1], r->bytes[1], r->stream)
                                          : strobe_dist_forward(&r->d, r->workspace[0], r->bytes[0], r->stream);
    require(status != STROBE_OK, "a call", strobe_dist_last_error());
}

/* What the graph of a call holds, the transport's streams too. All ranks make one, so that they agree on whose slots are
 * next. */
static void print_graph(struct rank *r, int backward) {
    enum { KNOWN = 3 };
    static const enum cudaGraphNodeType types[KNOWN] = {cudaGraphNodeTypeKernel, cudaGraphNodeTypeMemcpy,
                                                        cudaGraphNodeTypeMemset};
    cudaGraph_t graph;
    size_t count = 0, of[KNOWN + 1] = {0};
    require_cuda(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal), "a capture");
    call(r, backward);
    require_cuda(cudaStreamEndCapture(r->stream, &graph), "a capture");
    require_cuda(cudaGraphGetNodes(graph, NULL, &count), "nodes");
    cudaGraphNode_t *nodes = calloc(count + 1, sizeof *nodes);
    require(!nodes, "nodes", "no memory");
    require_cuda(cudaGraphGetNodes(graph, nodes, &count), "nodes");
    for (size_t n = 0; n < count; ++n) {
        enum cudaGraphNodeType type;
        size_t k = 0;
        const bool is_known = cudaGraphNodeGetType(nodes[n], &type) == cudaSuccess; /* the runtime does not know values */
        while (k < KNOWN && !(is_known && types[k] == type)) ++k;
        ++of[k];
    }
    if (r->rank == 0)
        printf("    a graph has %zu kernels, %zu copies, %zu memsets, %zu others, most of them values\n", of[0], of[1],
               of[2], of[3]);
    (void)cudaGetLastError();
    free(nodes);
    require_cuda(cudaGraphDestroy(graph), "a graph");
}

static void time_calls(int32_t size, int32_t scheme, int backward) {
    static double times[ROUNDS * MOST_RANKS], parts[KINDS][ROUNDS * MOST_RANKS], queries[ROUNDS * MOST_RANKS];
    int calls[KINDS] = {0}, count = 0;
    for (int round = -2; round < ROUNDS; ++round) {
        require_cuda(cudaDeviceSynchronize(), "waiting");
        for (int32_t n = 0; n < size; ++n) {
            struct rank *r = &ranks[n];
            size_t bytes;
            const double asked = microseconds();
            require(strobe_dist_workspace(&r->d, backward ? &r->g : NULL, &bytes), "a query", strobe_dist_last_error());
            memset(spent, 0, sizeof spent);
            const double since = microseconds();
            call(r, backward);
            if (round < 0) continue;
            times[count] = microseconds() - since, queries[count] = since - asked;
            for (int k = 0; k < KINDS; ++k) parts[k][count] = spent[k].time, calls[k] = spent[k].calls;
            ++count;
        }
    }
    printf("%-10s %-8s %6.0f us, query of the workspace %.0f;", scheme_names[scheme], backward ? "backward" : "forward",
           median(times, count), median(queries, count));
    for (int k = 0; k < KINDS; ++k) printf(" %s %.0f in %d,", kind_names[k], median(parts[k], count), calls[k]);
    printf(" of the last rank\n");
}

/* Milliseconds of a forward and backward of one rank, with messages that cost nothing: of the GPU, and with the host. */
static void time_alone(struct rank *r, double *on_gpu, double *in_turns) {
    double gpu[ROUNDS], turns[ROUNDS];
    cudaGraph_t graph;
    cudaGraphExec_t runnable;
    cudaEvent_t begin, end;
    strobe_transport nothing = {.struct_size = sizeof nothing, .rank = r->rank, .size = r->size, .device = STROBE_CUDA};
    nothing.flags = STROBE_TRANSPORT_BESIDE_KERNELS;
    nothing.start = nothing.move = move_nothing, nothing.wait = wait_for_nothing;
    r->d.transport = &nothing;
    require_cuda(cudaEventCreate(&begin), "an event"), require_cuda(cudaEventCreate(&end), "an event");
    for (int n = -2; n < ROUNDS; ++n) {
        require_cuda(cudaDeviceSynchronize(), "waiting");
        const double since = microseconds();
        call(r, 0), call(r, 1);
        require_cuda(cudaStreamSynchronize(r->stream), "waiting");
        if (n >= 0) turns[n] = microseconds() - since;
    }
    require_cuda(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal), "a capture");
    call(r, 0), call(r, 1);
    require_cuda(cudaStreamEndCapture(r->stream, &graph), "a capture");
    require_cuda(cudaGraphInstantiate(&runnable, graph, 0), "a graph");
    for (int n = -2; n < ROUNDS; ++n) {
        float took;
        require_cuda(cudaEventRecord(begin, r->stream), "an event");
        require_cuda(cudaGraphLaunch(runnable, r->stream), "a graph");
        require_cuda(cudaEventRecord(end, r->stream), "an event");
        require_cuda(cudaStreamSynchronize(r->stream), "waiting");
        require_cuda(cudaEventElapsedTime(&took, begin, end), "events");
        if (n >= 0) gpu[n] = took;
    }
    require_cuda(cudaGraphExecDestroy(runnable), "a graph"), require_cuda(cudaGraphDestroy(graph), "a graph");
    require_cuda(cudaEventDestroy(begin), "an event"), require_cuda(cudaEventDestroy(end), "an event");
    *on_gpu = median(gpu, ROUNDS), *in_turns = median(turns, ROUNDS) / 1e3;
    r->d.transport = &r->timed;
}

static void take_workspaces(struct rank *r, int32_t scheme) {
    r->d.scheme = scheme;
    for (int b = 0; b < 2; ++b) {
        require(strobe_dist_workspace(&r->d, b ? &r->g : NULL, &r->bytes[b]), "a query", strobe_dist_last_error());
        r->workspace[b] = memory(r->bytes[b]);
    }
}

static void give_workspaces(struct rank *r) {
    for (int b = 0; b < 2; ++b) require_cuda(cudaFree(r->workspace[b]), "memory");
}

static void time_ranks_alone(int32_t size) {
    for (int32_t scheme = STROBE_DIST_RING; scheme <= STROBE_DIST_ULYSSES; ++scheme) {
        double most_gpu = 0, most_turns = 0;
        printf("%-10s alone, ms of the GPU (with the host):", scheme_names[scheme]);
        for (int32_t n = 0; n < size; ++n) {
            double gpu, turns;
            take_workspaces(&ranks[n], scheme);
            time_alone(&ranks[n], &gpu, &turns);
            give_workspaces(&ranks[n]);
            printf(" %.3f (%.3f)", gpu, turns);
            most_gpu = gpu > most_gpu ? gpu : most_gpu, most_turns = turns > most_turns ? turns : most_turns;
        }
        printf("; most %.3f (%.3f)\n", most_gpu, most_turns);
    }
}

int main(int count, char **arguments) {
    const int32_t size = count > 1 ? atoi(arguments[1]) : 4;
    const int64_t tokens = count > 2 ? atoll(arguments[2]) : 8192, heads = count > 3 ? atoll(arguments[3]) : 32,
                  heads_kv = count > 4 ? atoll(arguments[4]) : 8;
    enum problem kind = CAUSAL;
    while (count > 5 && kind < PROBLEMS && strcmp(arguments[5], problem_names[kind]) != 0) ++kind;
    int devices = 0;
    require(size < 1 || size > MOST_RANKS || tokens < 1 || kind == PROBLEMS, "arguments",
            "the head of dist_host.c says which are accepted");
    /* Streams of all ranks are to go by themselves: one that waits must not keep another rank's from going on. Nor may the
     * driver load kernels while one waits: it would wait for that stream. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1), setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return 77;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("%d ranks, %lld tokens, %lld/%lld heads, %s\n", size, (long long)tokens, (long long)heads, (long long)heads_kv,
           problem_names[kind]);
    if (kind >= PACKED) pack(size, tokens, kind);
    make_transports(size);
    for (int32_t n = 0; n < size; ++n) describe(&ranks[n], tokens, heads, heads_kv, kind);
    time_ranks_alone(size); /* by which all of libstrobe's kernels are loaded */
    for (int32_t scheme = STROBE_DIST_AUTOMATIC; scheme <= STROBE_DIST_ULYSSES && kind == CAUSAL; ++scheme) {
        for (int32_t n = 0; n < size; ++n) take_workspaces(&ranks[n], scheme);
        for (int b = 0; b < 2; ++b) {
            time_calls(size, scheme, b);
            require_cuda(cudaDeviceSynchronize(), "waiting");
            for (int32_t n = 0; n < size && scheme != STROBE_DIST_AUTOMATIC; ++n) print_graph(&ranks[n], b);
        }
        require_cuda(cudaDeviceSynchronize(), "waiting");
        for (int32_t n = 0; n < size; ++n) give_workspaces(&ranks[n]);
    }
    for (int32_t n = 0; n < size; ++n) strobe_dist_copies_destroy(&ranks[n].copies);
    return 0;
}
