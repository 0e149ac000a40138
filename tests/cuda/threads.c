/* SPDX-License-Identifier: BSD-3-Clause
 *
 * threads.c: a call on a GPU may come from any host thread, one that has made no CUDA call too, with any device or context
 * current; it runs on the device that the descriptor names and leaves what is current as it was. Each case is a thread of
 * its own that has something current and calls a kernel; the outputs must have the bits that the same call gives with its
 * own device current. Cases of two devices need two GPUs. Exit codes: 0 passed, 1 failed, 77 no GPU. */
#include <math.h>
#include <pthread.h>

#include "driver.h"
#include "strobe/strobe_dist.h"

enum { BATCH = 2, ROWS = 130, KEYS = 190, HEADS = 4, HEADS_KV = 2, LARGEST_DIM = 192 };

/* Tensors, each in a slot of device memory of its own; the workspace comes last. */
enum slot { Q, K, V, OUT, LSE, DOUT, DQ, DK, DV, MERGED, MERGED_LSE, SLOTS };
enum { SLOT_BYTES = 4 * BATCH * KEYS * HEADS * LARGEST_DIM, WORKSPACE_BYTES = 32 << 20 };

enum operation { FORWARD, BACKWARD, MERGE, DIST_FORWARD, DIST_BACKWARD }; /* DIST: of libstrobe_dist, by one rank */

static bool is_backward(enum operation operation) { return operation == BACKWARD || operation == DIST_BACKWARD; }

static const struct job {
    const char *kernel;
    enum operation operation;
    int32_t dtype;
    int64_t dim;
} jobs[] = {
    {"cuda_forward_sm90", FORWARD, STROBE_BF16, 64},      {"cuda_forward_sm80", FORWARD, STROBE_FP16, 128},
    {"cuda_forward_fp32", FORWARD, STROBE_FP32, 64},      {"cuda_backward_sm90", BACKWARD, STROBE_FP16, 64},
    {"cuda_backward_sm90", BACKWARD, STROBE_BF16, 192},   {"cuda_backward_sm80", BACKWARD, STROBE_BF16, 128},
    {"cuda_backward_fp32", BACKWARD, STROBE_FP32, 64},    {"merge", MERGE, STROBE_BF16, 64},
#if defined(STROBE_WITH_DIST)
    {"cuda_forward_sm80", DIST_FORWARD, STROBE_FP16, 64}, {"cuda_backward_sm80", DIST_BACKWARD, STROBE_BF16, 64},
#endif
};
enum { JOBS = sizeof jobs / sizeof jobs[0] };

/* Memory on a device, in its primary context or in one of the test's own. */
struct arena {
    int device;
    void *context;
    unsigned long long memory;
};

static void *at(const struct arena *a, enum slot slot) { return (void *)(uintptr_t)(a->memory + slot * (size_t)SLOT_BYTES); }

static struct arena arena_make(int ordinal, bool own_context) {
    struct arena a = {.device = ordinal};
    int device;
    must(driver.get_device(&device, ordinal), "cuDeviceGet");
    if (own_context)
        must(driver.create_context(&a.context, 0, device), "cuCtxCreate");
    else
        must(driver.retain(&a.context, device), "cuDevicePrimaryCtxRetain");
    must(driver.set_context(a.context), "cuCtxSetCurrent");
    must(driver.allocate(&a.memory, SLOTS * (size_t)SLOT_BYTES + WORKSPACE_BYTES), "cuMemAlloc");
    return a;
}

/* ------------------------------------------------------------------------------------------------------------ a call -- */

struct call {
    strobe_attention a;
    strobe_gradients g;
    strobe_partials m;
    strobe_partial parts[2];
    strobe_tuning tuning;
};

static void call_make(struct call *c, const struct job *job, const struct arena *arena) {
    memset(c, 0, sizeof *c);
    c->tuning = (strobe_tuning){.struct_size = sizeof c->tuning, .kernel = job->kernel};
    c->a = (strobe_attention){.struct_size = sizeof c->a, .batch = BATCH, .seq_q = ROWS, .seq_k = KEYS, .heads_q = HEADS};
    c->a.heads_kv = HEADS_KV, c->a.dim = job->dim, c->a.dtype = job->dtype, c->a.flags = STROBE_DETERMINISTIC;
    c->a.mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, c->a.device = STROBE_CUDA, c->a.device_index = arena->device;
    c->a.tuning = job->operation == MERGE ? NULL : &c->tuning;
    c->a.q.data = at(arena, Q), c->a.k.data = at(arena, K), c->a.v.data = at(arena, V);
    c->a.out.data = at(arena, OUT), c->a.lse.data = at(arena, LSE);
    c->g = (strobe_gradients){.struct_size = sizeof c->g};
    c->g.dout.data = at(arena, DOUT);
    c->g.dq.data = at(arena, DQ), c->g.dk.data = at(arena, DK), c->g.dv.data = at(arena, DV);
    for (int n = 0; n < 2; ++n) c->parts[n].out.data = at(arena, OUT), c->parts[n].lse.data = at(arena, LSE);
    c->m = (strobe_partials){.struct_size = sizeof c->m, .batch = BATCH, .seq_q = ROWS, .heads_q = HEADS, .dim_v = job->dim};
    c->m.count = 2, c->m.parts = c->parts, c->m.dtype = job->dtype;
    c->m.device = STROBE_CUDA, c->m.device_index = arena->device;
    c->m.out.data = at(arena, MERGED), c->m.lse.data = at(arena, MERGED_LSE);
}

#if defined(STROBE_WITH_DIST)
static int no_exchange(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                       int64_t receive_count, void *stream) {
    (void)self, (void)sends, (void)send_count, (void)receives, (void)receive_count, (void)stream;
    return 1; /* one rank has nobody to exchange with */
}
static int no_wait(void *self, void *stream) { return (void)self, (void)stream, 1; }

static strobe_status dist_run(const struct call *c, enum operation operation, const struct arena *arena, void *stream) {
    const strobe_transport one = {
        .struct_size = sizeof one, .size = 1, .start = no_exchange, .wait = no_wait, .device = STROBE_CUDA};
    const strobe_dist d = {.struct_size = sizeof d,
                           .attention = &c->a,
                           .transport = &one,
                           .rows_q = ROWS,
                           .rows_k = KEYS,
                           .scheme = STROBE_DIST_RING,
                           .flags = STROBE_DIST_UNCOMPARED};
    const strobe_gradients *g = is_backward(operation) ? &c->g : NULL;
    size_t bytes = 0;
    strobe_status status = strobe_dist_workspace(&d, g, &bytes);
    must(bytes > WORKSPACE_BYTES, "the workspace is larger than the test's");
    if (!status)
        status = g ? strobe_dist_backward(&d, g, at(arena, SLOTS), bytes, stream)
                   : strobe_dist_forward(&d, at(arena, SLOTS), bytes, stream);
    return status;
}
#endif

static const char *why(enum operation operation) {
#if defined(STROBE_WITH_DIST)
    if (operation >= DIST_FORWARD) return strobe_dist_last_error();
#endif
    return (void)operation, strobe_last_error();
}

static strobe_status call_run(const struct call *c, enum operation operation, const struct arena *arena, void *stream) {
    size_t bytes = 0;
    void *workspace = at(arena, SLOTS);
    if (operation == MERGE) return strobe_merge(&c->m, stream);
#if defined(STROBE_WITH_DIST)
    if (operation >= DIST_FORWARD) return dist_run(c, operation, arena, stream);
#endif
    const strobe_status status = strobe_workspace(&c->a, operation == BACKWARD ? &c->g : NULL, &bytes);
    if (status) return status;
    must(bytes > WORKSPACE_BYTES, "the workspace is larger than the test's");
    return operation == BACKWARD ? strobe_backward(&c->a, &c->g, workspace, bytes, stream)
                                 : strobe_forward(&c->a, workspace, bytes, stream);
}

/* -------------------------------------------------------------------------------------------------- inputs, outputs -- */

static unsigned char host[SLOTS][SLOT_BYTES], expected[JOBS][SLOTS][SLOT_BYTES];

static void fill_host(enum slot slot, int32_t dtype) {
    uint32_t state = 7 + (uint32_t)slot;
    for (size_t n = 0; n < SLOT_BYTES / 4; ++n) {
        state = state * 1664525u + 1013904223u;
        const float x = (float)(state >> 8) * 0x1p-23f - 1;
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        if (dtype == STROBE_FP32)
            memcpy(host[slot] + 4 * n, &bits, 4);
        else if (dtype == STROBE_BF16) /* two numbers in a word, the lower one of few digits */
            bits = (bits & 0xffff0000u) | 0x3e80u, memcpy(host[slot] + 4 * n, &bits, 4);
        else /* fp16 from 1 to 2, either sign */
            bits = (state & 0x83ff83ffu) | 0x3c003c00u, memcpy(host[slot] + 4 * n, &bits, 4);
    }
}

/* With the arena's context current: inputs, the forward's results where the job reads them, and outputs of NaN. */
static bool job_prepare(const struct job *job, const struct arena *arena) {
    static const enum slot inputs[] = {Q, K, V, DOUT};
    const struct job before = {NULL, FORWARD, job->dtype, job->dim};
    struct call c;
    must(driver.set_context(arena->context), "cuCtxSetCurrent");
    must(driver.fill(arena->memory, 0xff, SLOTS * (size_t)SLOT_BYTES), "cuMemsetD8");
    for (size_t n = 0; n < sizeof inputs / sizeof inputs[0]; ++n) {
        fill_host(inputs[n], job->dtype);
        must(driver.to_device((uintptr_t)at(arena, inputs[n]), host[inputs[n]], SLOT_BYTES), "cuMemcpyHtoD");
    }
    call_make(&c, &before, arena);
    const bool ok = job->operation == FORWARD || job->operation == DIST_FORWARD ||
                    call_run(&c, FORWARD, arena, NULL) == STROBE_OK;
    must(driver.wait(), "cuCtxSynchronize");
    return ok;
}

/* Outputs of the job to the host. */
static bool job_results(const struct arena *arena, unsigned char (*to)[SLOT_BYTES]) {
    must(driver.set_context(arena->context), "cuCtxSetCurrent");
    if (driver.wait()) return false;
    for (enum slot slot = 0; slot < SLOTS; ++slot)
        must(driver.to_host(to[slot], (uintptr_t)at(arena, slot), SLOT_BYTES), "cuMemcpyDtoH");
    return true;
}

/* --------------------------------------------------------------------------------------------------- another thread -- */

struct caller {
    const struct job *job;
    const struct arena *arena;
    void *context; /* current before the call, NULL: none */
    void *stream;
    pthread_barrier_t *start; /* NULL: at once */
    strobe_status status;
    char message[256];
    void *after;
};

static void *call_from_here(void *argument) {
    struct caller *t = argument;
    struct call c;
    call_make(&c, t->job, t->arena);
    if (t->context) must(driver.set_context(t->context), "cuCtxSetCurrent");
    if (t->start) pthread_barrier_wait(t->start);
    t->status = call_run(&c, t->job->operation, t->arena, t->stream);
    snprintf(t->message, sizeof t->message, "%s", t->status ? why(t->job->operation) : "");
    must(driver.get_context(&t->after), "cuCtxGetCurrent");
    return NULL;
}

static int failures, runs;

static void fail(const char *name, const struct job *job, const char *message) {
    fprintf(stderr, "FAILED: %s: %s, d %d: %s\n", name, job->kernel, (int)job->dim, message);
    ++failures;
}

/* after: the context that may be current afterwards where none was before. */
static void judge(const char *name, const struct caller *t, void *after) {
    const long n = t->job - jobs;
    ++runs;
    if (t->status) {
        fail(name, t->job, t->message);
        return;
    }
    if (t->after != t->context && (t->context || t->after != after))
        fail(name, t->job, "another context is current than before");
    if (!job_results(t->arena, host)) {
        fail(name, t->job, "the GPU reports an error");
        return;
    }
    for (enum slot slot = 0; slot < SLOTS; ++slot)
        if (memcmp(host[slot], expected[n][slot], SLOT_BYTES) != 0) {
            fail(name, t->job, "other bits than before");
            return;
        }
}

/* What this GPU can run, with the arena's own device current. Some output must have been written. */
static bool run_before(const struct job *job, const struct arena *arena) {
    const long n = job - jobs;
    struct call c;
    if (!job_prepare(job, arena)) return false;
    job_results(arena, host);
    call_make(&c, job, arena);
    const strobe_status status = call_run(&c, job->operation, arena, NULL);
    if (status == STROBE_UNSUPPORTED)
        printf("left out: %s\n", why(job->operation));
    else if (status)
        fail("its own device current", job, why(job->operation));
    if (status) return false;
    const enum slot written = is_backward(job->operation) ? DQ : job->operation == MERGE ? MERGED : OUT;
    const bool there = job_results(arena, expected[n]) && memcmp(host[written], expected[n][written], SLOT_BYTES) != 0;
    if (!there) fail("its own device current", job, "nothing was written");
    return there;
}

static void run_one(const char *name, const struct job *job, const struct arena *arena, void *context, void *stream,
                    void *after) {
    struct caller t = {.job = job, .arena = arena, .context = context, .stream = stream};
    pthread_t thread;
    if (!job_prepare(job, arena)) {
        fail(name, job, "the forward before it failed");
        return;
    }
    must(driver.set_context(NULL), "cuCtxSetCurrent");
    must(pthread_create(&thread, NULL, call_from_here, &t), "pthread_create");
    pthread_join(thread, NULL);
    judge(name, &t, after);
}

static void run_two(const struct job *job, const struct arena arenas[2]) {
    struct caller t[2] = {{.job = job, .arena = &arenas[0]}, {.job = job, .arena = &arenas[1]}};
    pthread_barrier_t start;
    pthread_t threads[2];
    pthread_barrier_init(&start, NULL, 2);
    for (int n = 0; n < 2; ++n)
        if (!job_prepare(job, &arenas[n])) {
            fail("two threads", job, "the forward before it failed");
            return;
        }
    for (int n = 0; n < 2; ++n) {
        t[n].start = &start;
        must(pthread_create(&threads[n], NULL, call_from_here, &t[n]), "pthread_create");
    }
    for (int n = 0; n < 2; ++n) pthread_join(threads[n], NULL);
    for (int n = 0; n < 2; ++n) judge("two threads that have made no CUDA call", &t[n], arenas[n].context);
    pthread_barrier_destroy(&start);
}

static void run_on_two_devices(const struct job *job, const struct arena arenas[2]) {
    void *stream;
    run_one("device 1 current, tensors on device 0", job, &arenas[0], arenas[1].context, NULL, NULL);
    run_one("device 0 current, tensors on device 1", job, &arenas[1], arenas[0].context, NULL, NULL);
    run_one("no CUDA call, tensors on device 1", job, &arenas[1], NULL, NULL, NULL);
    must(driver.set_context(arenas[1].context), "cuCtxSetCurrent");
    must(driver.create_stream(&stream, 0), "cuStreamCreate");
    run_one("device 0 current, a stream of device 1", job, &arenas[1], arenas[0].context, stream, NULL);
    must(driver.destroy_stream(stream), "cuStreamDestroy");
    /* Memory of another device than the descriptor names can be told without waiting, and is refused. */
    const struct arena wrong = {.device = 0, .context = arenas[0].context, .memory = arenas[1].memory};
    struct caller t = {.job = job, .arena = &wrong, .context = arenas[0].context};
    call_from_here(&t);
    if (t.status != STROBE_INVALID_ARGUMENT || !strstr(t.message, "memory of device 1; memory of device 0 is accepted"))
        fail("tensors on device 1, device_index 0", job, t.status ? t.message : "not refused");
}

int main(void) {
    strobe_device_info info = {.struct_size = sizeof info};
    int devices = 0;
    if (strobe_device_at(STROBE_CUDA, 0, &info) || !driver_open()) {
        puts("there is no GPU here that this build can use");
        return SKIPPED;
    }
    must(driver.count(&devices), "cuDeviceGetCount");
    const struct arena own = arena_make(0, true), first[2] = {arena_make(0, false), arena_make(0, false)};
    const struct arena both[2] = {first[0], devices > 1 ? arena_make(1, false) : first[0]};
    if (devices < 2) puts("one GPU here: the tests of two devices are left out");
    for (const struct job *job = jobs; job < jobs + JOBS; ++job) {
        if (!run_before(job, &first[0])) continue;
        run_one("a thread that has made no CUDA call", job, &first[0], NULL, NULL, first[0].context);
        run_one("the device's primary context current", job, &first[0], first[0].context, NULL, NULL);
        run_one("a context of the caller's own", job, &own, own.context, NULL, NULL);
        run_two(job, first);
        if (devices > 1) run_on_two_devices(job, both);
    }
    must(driver.set_context(NULL), "cuCtxSetCurrent");
    must(driver.destroy_context(own.context), "cuCtxDestroy");
    printf("%d calls, %d failed\n", runs, failures);
    return failures || runs == 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
