/* SPDX-License-Identifier: BSD-3-Clause
 *
 * functions.c: NVRTC takes every kernel that calls with a function of a score compile, forward and backward, on an Ampere
 * and on a Hopper GPU, of every head dim, dtype and feature. Calls are made over a runtime without a GPU (fake_runtime.c),
 * and what they have compiled is noted. All of it is then looked at by NVRTC's front end, which is another one than nvcc's;
 * what SAMPLES names becomes machine code. Exit code 0 passed, 1 failed, 77 there is no NVRTC. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/host/nvrtc.h"
#include "fake_calls.h"
#include "fake_runtime.h"

enum { MOST_JOBS = 4096, MOST_OPTIONS = 24, MOST_THREADS = 64, AMPERE = 0, HOPPER = 3 };

/* ---- what calls have compiled */

struct noted {
    char *text, *options[MOST_OPTIONS];
    struct nvrtc_job job;
    bool is_sample;
    char name[512], error[1024];
};

static struct noted jobs[MOST_JOBS];
static int job_count;
static bool is_sample; /* what the next call has compiled */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

strobe_status __wrap_strobe__nvrtc_compile(const struct nvrtc_job *job, void **code, size_t *bytes);
strobe_status __real_strobe__nvrtc_compile(const struct nvrtc_job *job, void **code, size_t *bytes);

static void note(const struct nvrtc_job *job) {
    struct noted *n = &jobs[job_count++];
    if (job_count == MOST_JOBS || job->option_count > MOST_OPTIONS - 1) fprintf(stderr, "too many for the test\n"), exit(1);
    n->job = *job, n->text = strdup(job->text), n->is_sample = is_sample;
    n->job.text = n->text, n->job.options = (const char *const *)n->options;
    int at = snprintf(n->name, sizeof n->name, "%s sm_%d", job->source, job->architecture);
    for (int o = 0; o < job->option_count; ++o) {
        n->options[o] = strdup(job->options[o]);
        if (at < (int)sizeof n->name) at += snprintf(n->name + at, sizeof n->name - (size_t)at, " %s", job->options[o] + 2);
    }
}

/* Takes the place of the compiler while calls are made. */
strobe_status __wrap_strobe__nvrtc_compile(const struct nvrtc_job *job, void **code, size_t *bytes) {
    pthread_mutex_lock(&lock);
    note(job);
    pthread_mutex_unlock(&lock);
    *code = calloc(1, 1), *bytes = 1;
    return STROBE_OK;
}

/* ---- the calls */

static const int32_t dtypes[] = {STROBE_BF16, STROBE_FP16, STROBE_FP32};
static const int64_t dims[][2] = {{64, 64}, {40, 40}, {96, 96}, {128, 128}, {192, 128}, {192, 192}, {256, 256}, {320, 320}};
static const int64_t sizes[][4] = {/* batch, rows, keys, query heads of a K/V head */
                                   {1, 1000, 700, 1},
                                   {1, 1, 4096, 8}};
static const unsigned features[] = {0,
                                    CAUSAL,
                                    BOOL,
                                    BLOCK,
                                    BIAS,
                                    BIAS | BOOL | BLOCK | ALIBI | DROPOUT | SINKS | SOFTCAP | USED | CAUSAL,
                                    SOFTCAP,
                                    ALIBI,
                                    DROPOUT,
                                    PACKED | CAUSAL,
                                    FIXED_ORDER,
                                    WIDE,
                                    WIDE | BOOL,
                                    TF32_PARTS,
                                    TF32_PARTS | BIAS,
                                    PAGED,
                                    PAGED | SOFTCAP,
                                    INT8_CACHE,
                                    FP8_CACHE | PAGED};

/* The functions: a table at a distance, of which there is a gradient too; documents, and a score that is read; ALiBi's own
 * value with steps that are none. */
static const struct {
    const char *score, *visible;
    int rank;
    int32_t dtype;
} functions[] = {{"score + table[h][i - j + 4999]", NULL, 2, STROBE_FP32},
                 {"score * (1.5 - tanh(score / 20))", "table[min(i, 99)] == table[min(j, 99)]", 1, STROBE_INT32},
                 {"score - 0.125 * abs(i - j) + exp(-abs(score))", NULL, 0, STROBE_FP32}};
enum { FUNCTIONS = sizeof functions / sizeof functions[0] };
static strobe_score *made[FUNCTIONS];

static void make_functions(void) {
    for (int n = 0; n < FUNCTIONS; ++n) {
        const strobe_score_array array = {"table", functions[n].rank, functions[n].dtype};
        const strobe_score_source source = {.struct_size = sizeof source,
                                            .score = functions[n].score,
                                            .visible = functions[n].visible,
                                            .arrays = &array,
                                            .array_count = functions[n].rank > 0};
        if (strobe_score_create(&source, &made[n])) fprintf(stderr, "%s\n", strobe_last_error()), exit(1);
    }
}

static void add_function(struct call *c, strobe_score_gradients *d, int n, bool wants_gradients, bool is_dense) {
    const int64_t extent[SCORE_MOST_RANK] = {functions[n].rank == 2 ? 8 : 100, 10000};
    c->array = (strobe_score_elements){.data = fake_place(c->a.device_index)};
    memcpy(c->array.extent, extent, sizeof extent);
    if (!is_dense) c->array.stride[0] = 20000, c->array.stride[1] = 2;
    c->score = (strobe_score_arguments){.struct_size = sizeof c->score, .function = made[n]};
    if (functions[n].rank > 0) c->score.arrays = &c->array, c->score.array_count = 1;
    c->a.score = &c->score;
    *d = (strobe_score_gradients){.struct_size = sizeof *d, .arrays = &c->array, .array_count = 1};
    if (wants_gradients) c->g.dscore = d;
}

static int failures;

static void fail(const char *what, const char *sentence) {
    if (++failures <= 20) fprintf(stderr, "FAILED: %s: %s\n", what, sentence);
}

static int calls;

static void run(int device, int32_t dtype, const int64_t *dim, const int64_t *size, unsigned with, int function,
                bool backward, bool wants_gradients) {
    struct call c;
    strobe_score_gradients d;
    size_t bytes = 0;
    fake_call(&c, device, dtype, dim, size, with);
    add_function(&c, &d, function, wants_gradients, function == 0 || !backward);
    fake_thread.current = fake_thread.chosen = device, fake_launches.device = device, fake_launches.refusal[0] = 0;
    strobe_status status = strobe_workspace(&c.a, backward ? &c.g : NULL, &bytes);
    void *workspace = fake_memory(device, (uintptr_t)1 << 46);
    if (!status)
        status = backward ? strobe_backward(&c.a, &c.g, workspace, bytes, NULL)
                          : strobe_forward(&c.a, workspace, bytes, NULL);
    ++calls;
    if (status) fail(functions[function].score, strobe_last_error());
    if (fake_launches.refusal[0]) fail(functions[function].score, fake_launches.refusal);
}

/* What becomes machine code, which takes seconds each: of 64 columns in bf16 a forward and a backward on each GPU, on Hopper
 * with gradients of a table and with documents. */
static bool becomes_code(int device, int32_t dtype, int64_t dim, int size, unsigned with, int function, int pass) {
    if (dtype != STROBE_BF16 || dim != 64 || size > 0 || with > 0) return false;
    if (device == AMPERE) return function == pass; /* the forward with a table, the backward with documents */
    return function == 1 || (function == 0 && pass == 2);
}

static void make_calls(int device) {
    for (size_t t = 0; t < sizeof dtypes / sizeof dtypes[0]; ++t)
        for (size_t d = 0; d < sizeof dims / sizeof dims[0]; ++d)
            for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; ++s)
                for (size_t f = 0; f < sizeof features / sizeof features[0]; ++f)
                    for (int n = 0; n < FUNCTIONS; ++n)
                        for (int pass = 0; pass < 3; ++pass) { /* forward, backward, and with gradients of the table */
                            if (pass > 0 && features[f] & CACHES) continue;
                            if (dtypes[t] == STROBE_FP16 && dims[d][0] != 128) continue; /* bf16's text, but for a word */
                            if (n == 2 && features[f] & ~(unsigned)BIAS) continue;
                            if (pass > 1 && (n > 0 || features[f] & FIXED_ORDER)) continue;
                            is_sample = becomes_code(device, dtypes[t], dims[d][0], (int)s, features[f], n, pass);
                            run(device, dtypes[t], dims[d], sizes[s], features[f], n, pass > 0, pass > 1);
                        }
}

/* ---- the compiler */

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* By the front end alone there is no code to be had, which is said after the text was taken. */
static void compile(struct noted *n) {
    void *code = NULL;
    size_t bytes = 0;
    struct nvrtc_job job = n->job;
    if (!n->is_sample) n->options[job.option_count++] = (char *)"--fdevice-syntax-only";
    const strobe_status status = __real_strobe__nvrtc_compile(&job, &code, &bytes);
    if (status) snprintf(n->error, sizeof n->error, "%s", strobe_last_error());
    if (!status && n->is_sample && (bytes < 4 || memcmp(code, "\177ELF", 4) != 0))
        snprintf(n->error, sizeof n->error, "NVRTC made %zu bytes that are no machine code", bytes);
    free(code);
}

/* Machine code first, as it takes longest. */
static void *worker(void *next) {
    for (;;) {
        pthread_mutex_lock(&lock);
        const int at = (*(int *)next)++;
        pthread_mutex_unlock(&lock);
        if (at >= 2 * job_count) return NULL;
        struct noted *n = &jobs[at % job_count];
        if (n->is_sample == (at < job_count)) compile(n);
    }
}

static void compile_all(int threads) {
    pthread_t others[MOST_THREADS];
    int next = 0;
    for (int n = 0; n < threads; ++n)
        if (pthread_create(&others[n], NULL, worker, &next)) fprintf(stderr, "no thread\n"), exit(1);
    for (int n = 0; n < threads; ++n) pthread_join(others[n], NULL);
}

/* Whether a text that is no C is refused by the front end too: else nothing above was looked at. */
static void check_refusal(void) {
    struct noted bad = jobs[0];
    bad.job.text = "no C at all\n", bad.is_sample = false, bad.error[0] = 0;
    compile(&bad);
    if (!strstr(bad.error, "could not be compiled")) fail("a text that is no C", "it was taken");
}

int main(int count, char **arguments) {
    const int threads = count > 1 ? atoi(arguments[1]) : 2;
    const double start = seconds();
    int samples = 0;
    if (strobe__nvrtc_lacks()) {
        printf("skipped: %s\n", strobe__nvrtc_lacks());
        return 77;
    }
    setenv("STROBE_DISK_CACHE", "0", 1);
    make_functions();
    make_calls(AMPERE), make_calls(HOPPER);
    if (job_count == 0) fail("all calls", "nothing was compiled");
    if (job_count > 0) check_refusal();
    compile_all(threads < 1 ? 1 : threads > MOST_THREADS ? MOST_THREADS : threads);
    for (int n = 0; n < job_count; ++n) {
        samples += jobs[n].is_sample;
        if (jobs[n].error[0]) fail(jobs[n].name, jobs[n].error);
    }
    printf("%d calls; %d kernels that they compile, %d of them to machine code, in %.0f s; %d failed\n", calls, job_count,
           samples, seconds() - start, failures);
    return failures > 0;
}
