/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_bench.c: times and peaks on a GPU, by events of the driver; see cuda_bench.h. */
#include "bench/cuda_bench.h"

#include "problem/cuda_driver.h"
#include "problem/cuda_memory.h"
#include "problem/cuda_trial.h"

#include <stdio.h>
#include <strobe/strobe.h>
#if defined(STROBE_CUDA_PEAKS)
#include "cuda_peaks_image.h"
#else
static const unsigned char cuda_peaks_image[1]; /* a library without CUDA has no such device, and nobody comes here */
#endif

enum { LEAST_SAMPLES = 5, MOST_SAMPLES = 1000, PEAK_SAMPLES = 5, LOOK_AT = 3 };
static const size_t copied_bytes = (size_t)512 << 20;

static const cuda_driver *driver;

/* The loops: threads a block, blocks a multiprocessor, operations of a block in a round, rounds of some milliseconds. */
typedef struct loop {
    const char *level, *name;
    unsigned threads, blocks;
    double operations;
    int rounds;
} loop;

static const loop loops[] = {{"fp32 fma", "peak_fma", 256, 4, 64.0 * 256, 60000},
                             {"bf16 mma.sync", "peak_mma", 256, 2, 8 * 4096.0 * 8, 20000},
                             {"bf16 wgmma", "peak_wgmma", 256, 1, 2.0 * 16 * 2 * 64 * 256 * 16, 1000}};

static const loop *loop_of(int64_t dtype) {
    if (dtype == STROBE_FP32) return &loops[0];
    return cuda_driver_attribute(DEVICE_MAJOR) == 9 ? &loops[2] : &loops[1];
}

const char *cuda_bench_level(int64_t dtype) { return loop_of(dtype)->level; }

/* What is to be timed. */
typedef struct task {
    bool (*start)(void *context); /* enqueues */
    void *context;
    device_address swept; /* memory that is written before each sample, so that L2 holds nothing else; 0: none */
    size_t swept_bytes;
} task;

static bool sample(const task *w, void *const events[2], double *seconds, cuda_clocks *look) {
    float ms;
    if (w->swept && driver->fill_async(w->swept, 0, w->swept_bytes, NULL)) return false;
    if (driver->record_event(events[0], NULL) || !w->start(w->context) || driver->record_event(events[1], NULL))
        return false;
    if (look) cuda_clock_look(look); /* while it runs */
    if (driver->wait_event(events[1]) || driver->elapsed(&ms, events[0], events[1])) return false;
    *seconds = 1e-3 * (double)ms;
    return true;
}

static bool measure(const task *w, double budget, size_t least, timing *t, cuda_clocks *clocks) {
    double samples[MOST_SAMPLES];
    size_t count = 0;
    void *events[2] = {NULL, NULL};
    bool ok = !driver->create_event(&events[0], 0) && !driver->create_event(&events[1], 0);
    ok = ok && sample(w, events, &samples[0], NULL); /* code, clocks */
    const double start = timing_now();
    while (ok && count < MOST_SAMPLES && (count < least || timing_now() - start < budget)) {
        ok = sample(w, events, &samples[count], count == LOOK_AT ? clocks : NULL);
        ++count;
    }
    for (int i = 0; i < 2; ++i)
        if (events[i]) driver->destroy_event(events[i]);
    *t = timing_of(samples, count);
    return ok;
}

typedef struct library_call {
    call c;
    void *workspace;
    size_t bytes;
} library_call;

static bool start_call(void *context) {
    const library_call *l = context;
    return (l->c.backward ? strobe_backward(&l->c.attention, &l->c.gradients, l->workspace, l->bytes, NULL)
                          : strobe_forward(&l->c.attention, l->workspace, l->bytes, NULL)) == STROBE_OK;
}

bool cuda_bench_time(const inputs *in, const outputs *out, double budget, timing *t, cuda_clocks *clocks, char *message,
                     size_t capacity) {
    device_copies copies;
    library_call l = {0};
    void *swept = NULL;
    task w = {.start = start_call, .context = &l};
    bool ok = device_copies_create(&copies, in, out, false, message, capacity);
    if (ok) {
        driver = cuda_driver_open(message, capacity);
        w.swept_bytes = (size_t)cuda_driver_attribute(DEVICE_L2_BYTES) * 4;
        call_prepare(&l.c, &copies.in, &copies.out);
        ok = !strobe_workspace(&l.c.attention, call_gradients(&l.c), &l.bytes) &&
             (l.workspace = cuda_memory_copied(NULL, l.bytes)) && (swept = cuda_memory_copied(NULL, w.swept_bytes));
        w.swept = (uintptr_t)swept;
        snprintf(message, capacity, "the GPU has no memory for the workspace, or it failed: %s", strobe_last_error());
        ok = ok && measure(&w, budget, LEAST_SAMPLES, t, clocks);
    }
    cuda_memory_free(l.workspace);
    cuda_memory_free(swept);
    device_copies_free(&copies);
    return ok;
}

typedef struct launch {
    void *function;
    unsigned blocks, threads;
    void **arguments;
} launch;

static bool start_launch(void *context) {
    const launch *l = context;
    return !driver->launch(l->function, l->blocks, 1, 1, l->threads, 1, 1, 0, NULL, l->arguments, NULL);
}

static bool find(void **function, const char *name) {
    static void *module;
    if (!module && driver->load_module(&module, cuda_peaks_image)) module = NULL;
    return module && !driver->get_function(function, module, name);
}

static bool measure_operations(const loop *which, double *rate, device_address memory, cuda_clocks *clocks) {
    int rounds = which->rounds;
    timing t;
    launch l = {.blocks = which->blocks * (unsigned)cuda_driver_attribute(DEVICE_MULTIPROCESSORS),
                .threads = which->threads,
                .arguments = (void *[]){&rounds, &memory}};
    const task w = {.start = start_launch, .context = &l};
    if (!find(&l.function, which->name) || !measure(&w, 0, PEAK_SAMPLES, &t, clocks)) return false;
    *rate = which->operations * rounds * l.blocks / t.median;
    return true;
}

static bool measure_copy(double *rate, device_address memory) {
    size_t chunks = copied_bytes / 2 / 16;
    device_address to = memory, from = memory + copied_bytes / 2;
    timing t;
    launch l = {.blocks = 4 * (unsigned)cuda_driver_attribute(DEVICE_MULTIPROCESSORS),
                .threads = 512,
                .arguments = (void *[]){&to, &from, &chunks}};
    const task w = {.start = start_launch, .context = &l};
    if (!find(&l.function, "peak_copy") || !measure(&w, 0, 4 * PEAK_SAMPLES, &t, NULL)) return false;
    *rate = (double)copied_bytes / t.median;
    return true;
}

bool cuda_bench_peak(int64_t dtype, peak *now, cuda_clocks *clocks, char *message, size_t capacity) {
    driver = cuda_driver_open(message, capacity);
    if (!driver) return false;
    void *memory = cuda_memory_open(message, capacity) ? cuda_memory_copied(NULL, copied_bytes) : NULL;
    const bool ok = memory && measure_operations(loop_of(dtype), &now->flops, (uintptr_t)memory, clocks) &&
                    measure_copy(&now->bytes, (uintptr_t)memory);
    cuda_memory_free(memory);
    if (!ok) snprintf(message, capacity, "the loops that measure the GPU's peak could not run");
    return ok;
}
