/* SPDX-License-Identifier: BSD-3-Clause
 *
 * first_calls.c: a kernel is loaded by the call that first needs it, whichever that is: one whose stream is being captured,
 * one beside which another thread captures, or several at once, on two devices if there are two. A process meets each kernel
 * in one of these ways; outputs must have the bits of a call made later. Exit codes: 0 passed, 1 failed, 77 no GPU. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"
#include "strobe/strobe.h"

enum { ROWS = 130, HEADS = 4, MOST_DIM = 128, THREADS = 4, MOST_DEVICES = 2 };
enum { BYTES = 4 * ROWS * HEADS * MOST_DIM, WORKSPACE_BYTES = 8 << 20 };
enum slot { Q, K, V, OUT, LSE, DOUT, DQ, DK, DV, SLOTS };
enum way { CAPTURED, BESIDE_A_CAPTURE, AT_ONCE, WAYS };
static const char *const ways[WAYS] = {"in a capture", "beside a capture", "by four threads at once"};

/* Kernels that lie in images of their own. */
static const struct job {
    const char *kernel;
    int32_t dtype;
    int64_t dim;
    bool is_backward;
} jobs[] = {
    {"cuda_forward_sm90", STROBE_BF16, 64, false},  {"cuda_forward_sm90", STROBE_FP16, 128, false},
    {"cuda_backward_sm90", STROBE_BF16, 64, true},  {"cuda_backward_sm90", STROBE_FP16, 128, true},
    {"cuda_forward_sm80", STROBE_BF16, 128, false}, {"cuda_forward_sm80", STROBE_BF16, 64, false},
    {"cuda_backward_sm80", STROBE_FP16, 128, true}, {"cuda_forward_fp32", STROBE_FP32, 64, false},
    {"cuda_backward_fp32", STROBE_FP32, 128, true},
};
enum { JOBS = sizeof jobs / sizeof jobs[0] };

/* A thread's memory, on a device whose primary context it has. */
struct caller {
    const struct job *job;
    int device;
    void *context, *stream;
    unsigned long long memory;
    pthread_barrier_t *start;
    pthread_t thread;
    strobe_status status;
    char message[256];
};

static void *at(const struct caller *c, enum slot slot) { return (void *)(uintptr_t)(c->memory + slot * (size_t)BYTES); }

static void call(struct caller *c) {
    const struct job *job = c->job;
    const strobe_tuning tuning = {.struct_size = sizeof tuning, .kernel = job->kernel};
    strobe_attention a = {.struct_size = sizeof a, .batch = 1, .seq_q = ROWS, .seq_k = ROWS, .heads_q = HEADS};
    strobe_gradients g = {.struct_size = sizeof g};
    size_t bytes = 0;
    a.dim = job->dim, a.dtype = job->dtype, a.flags = STROBE_DETERMINISTIC, a.tuning = &tuning;
    a.device = STROBE_CUDA, a.device_index = c->device;
    a.q.data = at(c, Q), a.k.data = at(c, K), a.v.data = at(c, V), a.out.data = at(c, OUT), a.lse.data = at(c, LSE);
    g.dout.data = at(c, DOUT), g.dq.data = at(c, DQ), g.dk.data = at(c, DK), g.dv.data = at(c, DV);
    c->status = strobe_workspace(&a, job->is_backward ? &g : NULL, &bytes);
    must(bytes > WORKSPACE_BYTES, "the workspace is larger than the test's");
    if (!c->status)
        c->status = job->is_backward ? strobe_backward(&a, &g, at(c, SLOTS), bytes, c->stream)
                                     : strobe_forward(&a, at(c, SLOTS), bytes, c->stream);
    snprintf(c->message, sizeof c->message, "%s", c->status ? strobe_last_error() : "");
}

static const enum slot results[2][3] = {{OUT, LSE, LSE}, {DQ, DK, DV}};

/* Outputs are NaN before each call. */
static void clear(const struct caller *c) {
    for (int n = 0; n < 3; ++n)
        must(driver.fill((uintptr_t)at(c, results[c->job->is_backward][n]), 0xff, BYTES), "cuMemsetD8");
    must(driver.wait(), "cuCtxSynchronize");
}

/* The same inputs for all: numbers in [0.5, 2) in each dtype, with a lse near that of such scores. */
static void make(struct caller *c, const struct job *job, int ordinal) {
    static unsigned char host[BYTES];
    int device;
    *c = (struct caller){.job = job, .device = ordinal};
    must(driver.get_device(&device, ordinal), "cuDeviceGet");
    must(driver.retain(&c->context, device), "cuDevicePrimaryCtxRetain");
    must(driver.set_context(c->context), "cuCtxSetCurrent");
    must(driver.allocate(&c->memory, SLOTS * (size_t)BYTES + WORKSPACE_BYTES), "cuMemAlloc");
    must(driver.create_stream(&c->stream, 1), "cuStreamCreate");
    unsigned random = 1;
    for (int slot = 0; slot < SLOTS; ++slot) {
        const bool is_fp32 = job->dtype == STROBE_FP32 || slot == LSE;
        for (size_t n = 0; n < BYTES; n += 2) {
            random = random * 1664525 + 1013904223;
            const unsigned one = is_fp32 || job->dtype == STROBE_BF16 ? 0x3f00 : 0x3800;
            const unsigned element = is_fp32 && n % 4 == 0 ? random >> 16 : one | (random >> 24 & 0x7f);
            host[n] = (unsigned char)element, host[n + 1] = (unsigned char)(element >> 8);
        }
        must(driver.to_device((uintptr_t)at(c, (enum slot)slot), host, BYTES), "cuMemcpyHtoD");
    }
    clear(c);
}

static void release(struct caller *c) {
    must(driver.set_context(c->context), "cuCtxSetCurrent");
    must(driver.destroy_stream(c->stream), "cuStreamDestroy");
    must(driver.release(c->memory), "cuMemFree");
}

static void take(const struct caller *c, unsigned char (*to)[BYTES]) {
    must(driver.set_context(c->context), "cuCtxSetCurrent");
    must(driver.wait(), "the kernel");
    for (int n = 0; n < 3; ++n)
        must(driver.to_host(to[n], (uintptr_t)at(c, results[c->job->is_backward][n]), BYTES), "cuMemcpyDtoH");
}

/* -------------------------------------------------------------------------------------------------------------- ways -- */

static void *begin_with_others(void *argument) {
    struct caller *c = argument;
    pthread_barrier_wait(c->start);
    call(c);
    return NULL;
}

static void call_captured(struct caller *c) {
    void *graph = NULL, *runnable = NULL;
    must(driver.begin_capture(c->stream, 0), "cuStreamBeginCapture");
    call(c);
    const int error = driver.end_capture(c->stream, &graph);
    if (c->status) return;
    must(error, "cuStreamEndCapture");
    must(driver.instantiate(&runnable, graph, 0), "cuGraphInstantiate");
    must(driver.launch_graph(runnable, c->stream), "cuGraphLaunch");
    must(driver.wait(), "the graph");
}

/* While `other`, another stream, is being captured by this thread, in the mode that minds all threads. */
static void call_beside_capture(struct caller *c, void *other) {
    pthread_barrier_t alone;
    void *graph = NULL;
    pthread_barrier_init(&alone, NULL, 1);
    c->start = &alone;
    must(driver.begin_capture(other, 0), "cuStreamBeginCapture");
    must(pthread_create(&c->thread, NULL, begin_with_others, c), "pthread_create");
    must(pthread_join(c->thread, NULL), "pthread_join");
    const int error = driver.end_capture(other, &graph);
    if (!c->status) must(error, "cuStreamEndCapture");
    pthread_barrier_destroy(&alone);
}

static void call_at_once(struct caller callers[THREADS]) {
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, THREADS);
    for (int n = 0; n < THREADS; ++n) {
        callers[n].start = &start;
        must(pthread_create(&callers[n].thread, NULL, begin_with_others, &callers[n]), "pthread_create");
    }
    for (int n = 0; n < THREADS; ++n) must(pthread_join(callers[n].thread, NULL), "pthread_join");
    pthread_barrier_destroy(&start);
}

static int runs, failures;

static void judge(struct caller *c, enum way way) {
    static unsigned char first[3][BYTES], later[3][BYTES];
    if (c->status == STROBE_UNSUPPORTED) return; /* a kernel that this GPU or this build has not */
    ++runs;
    if (!c->status) {
        take(c, first);
        clear(c);
        call(c);
        take(c, later);
    }
    if (!c->status && memcmp(first, later, sizeof first) == 0) return;
    printf("FAILED: %s, first called %s on device %d: %s\n", c->job->kernel, ways[way], c->device,
           c->status ? c->message : "other bits than later");
    ++failures;
}

static void run(const struct job *job, enum way way, int devices) {
    struct caller callers[THREADS];
    for (int n = 0; n < THREADS; ++n) make(&callers[n], job, n % devices);
    must(driver.set_context(callers[0].context), "cuCtxSetCurrent");
    switch (way) {
    case CAPTURED: call_captured(&callers[0]); break;
    case BESIDE_A_CAPTURE: call_beside_capture(&callers[0], callers[devices].stream); break;
    default: call_at_once(callers);
    }
    for (int n = 0; n < (way == AT_ONCE ? THREADS : 1); ++n) judge(&callers[n], way);
    for (int n = 0; n < THREADS; ++n) release(&callers[n]);
}

/* A process in which job n is met in way n + shift. */
static int run_process(int shift) {
    strobe_device_info info = {.struct_size = sizeof info};
    int devices = 0;
    if (strobe_device_at(STROBE_CUDA, 0, &info) || !driver_open()) return SKIPPED;
    must(driver.count(&devices), "cuDeviceGetCount");
    for (int n = 0; n < JOBS; ++n)
        run(&jobs[n], (enum way)((n + shift) % WAYS), devices < MOST_DEVICES ? devices : MOST_DEVICES);
    printf("%d first calls, %d failed\n", runs, failures);
    return failures || !runs ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(void) {
    for (int shift = 0; shift < WAYS; ++shift) {
        int status = 0;
        const pid_t process = fork();
        if (process == 0) exit(run_process(shift));
        if (process < 0 || waitpid(process, &status, 0) != process || !WIFEXITED(status)) return EXIT_FAILURE;
        if (WEXITSTATUS(status)) {
            if (WEXITSTATUS(status) == SKIPPED) puts("there is no GPU here that this build can use");
            return WEXITSTATUS(status);
        }
    }
    return EXIT_SUCCESS;
}
