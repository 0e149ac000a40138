/* SPDX-License-Identifier: BSD-3-Clause
 *
 * compiled.c: see compiled.h. An entry of the process's list is made by the first thread that asks for it, which compiles
 * without holding the lock; others that ask for the same wait for it, and those that ask for another do not. */
#include "cuda/host/compiled.h"

#include <cudaTypedefs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/score/text.h"
#include "cuda/device/params.h"
#include "cuda/host/device.h"
#include "cuda/host/disk_cache.h"
#include "cuda/host/nvrtc.h"

_Static_assert((int)SCORE_ARRAYS == (int)SCORE_MOST_ARRAYS && (int)SCORE_SCALARS == (int)SCORE_MOST_SCALARS &&
                   (int)SCORE_AXES == (int)SCORE_MOST_RANK,
               "the device has room for all arguments");

enum entry_state { IN_WORK, READY, FAILED };

struct entry {
    char *key; /* the text and all that it is compiled for */
    enum entry_state state;
    compiled_kernel kernels[MOST_COMPILED_KERNELS];
    struct entry *next;
};

static struct entry *entries;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t done = PTHREAD_COND_INITIALIZER;

/* ------------------------------------------------------------------------------------------------------------- driver -- */

static struct {
    PFN_cuLibraryLoadData_v12000 load;
    PFN_cuLibraryGetKernel_v12000 kernel;
    PFN_cuLibraryUnload_v12000 unload;
    PFN_cuKernelGetFunction_v12000 function;
    PFN_cuFuncSetAttribute_v9000 set;
    PFN_cuLaunchKernelEx_v11060 launch;
    PFN_cuStreamIsCapturing_v10000 is_capturing;
} driver;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool has_driver;

static void find_driver(void) {
    has_driver = strobe__cuda_driver_function("cuLibraryLoadData", 12000, &driver.load) &&
                 strobe__cuda_driver_function("cuLibraryGetKernel", 12000, &driver.kernel) &&
                 strobe__cuda_driver_function("cuLibraryUnload", 12000, &driver.unload) &&
                 strobe__cuda_driver_function("cuKernelGetFunction", 12000, &driver.function) &&
                 strobe__cuda_driver_function("cuFuncSetAttribute", 9000, &driver.set) &&
                 strobe__cuda_driver_function("cuLaunchKernelEx", 11060, &driver.launch) &&
                 strobe__cuda_driver_function("cuStreamIsCapturing", 10000, &driver.is_capturing);
}

const char *strobe__compiled_reject(const struct problem *p) {
    if (!(p->features & FEATURE(SCORE))) return NULL;
    if (strobe__cuda_lacks(CUDA_SM80, p->a.device_index)) return NULL; /* nothing runs here; the planner says why */
    pthread_once(&once, find_driver);
    if (!has_driver)
        return "score.function changes scores, for which the driver is too old; one of CUDA 12.0 or later is taken";
    return strobe__nvrtc_lacks();
}

/* ---------------------------------------------------------------------------------------------------------------- key -- */

/* A bit for each array whose elements along the last axis are neighbours. */
static unsigned dense_arrays(const struct score_call *call) {
    unsigned dense = 0;
    for (int n = 0; n < call->function->array_count; ++n)
        if (call->array[n].stride[call->function->array_rank[n] - 1] == 1) dense |= 1u << n;
    return dense;
}

static bool wants_gradients(const struct problem *p) {
    return p->operation == STROBE_BACKWARD && p->score_call.wants_gradients;
}

/* The key: what the kernel is compiled for, a line, then the function's text. */
static char *key_of(const struct problem *p, const struct compiled_text *text, int architecture, size_t *function_at) {
    struct score_text t = {.text = NULL};
    strobe__score_print(&t, "%s %d %016llx %s %d%s", strobe_version(), strobe__nvrtc_version(),
                        (unsigned long long)strobe__cuda_sources_number(), text->source, architecture,
                        text->is_hopper ? "a" : "");
    for (int n = 0; text->options[n]; ++n) strobe__score_print(&t, " %s", text->options[n]);
    strobe__score_print(&t, "\n");
    *function_at = t.length;
    strobe__score_print(&t, "#define SCORE_WANTS_GRADIENTS %d\n", wants_gradients(p));
    strobe__score_write(&t, p->score_call.function, dense_arrays(&p->score_call));
    if (t.full) free(t.text), t.text = NULL;
    return t.text;
}

/* ------------------------------------------------------------------------------------------------------- known calls -- */

/* What calls asked for before, in one of a few places that others may take over: writing a text takes longer than a launch.
 */
struct known {
    uint64_t serial; /* of the function; 0: nobody */
    uint64_t asked;  /* for what it is compiled, but for the function */
    compiled_kernel kernels[MOST_COMPILED_KERNELS];
};
static struct known known[64];

/* The texts' strings are literals, of which the addresses tell. */
static uint64_t asked_of(const struct problem *p, const struct compiled_text *text, int architecture) {
    const int numbers[3] = {architecture, (int)dense_arrays(&p->score_call), wants_gradients(p)};
    const uint64_t asked = strobe__hash(4, numbers, sizeof numbers);
    return strobe__hash(strobe__hash(asked, text->options, sizeof text->options), &text->source, sizeof text->source);
}

static struct known *place_of(uint64_t serial, uint64_t asked) {
    return &known[(asked ^ serial * 0x9e3779b97f4a7c15u) >> 58];
}

static bool is_known(uint64_t serial, uint64_t asked, compiled_kernel kernels[MOST_COMPILED_KERNELS]) {
    const struct known *k = place_of(serial, asked);
    pthread_mutex_lock(&lock);
    const bool found = k->serial == serial && k->asked == asked;
    if (found) memcpy(kernels, k->kernels, sizeof k->kernels);
    pthread_mutex_unlock(&lock);
    return found;
}

static void remember(uint64_t serial, uint64_t asked, const compiled_kernel kernels[MOST_COMPILED_KERNELS]) {
    struct known *k = place_of(serial, asked);
    pthread_mutex_lock(&lock);
    k->serial = serial, k->asked = asked;
    memcpy(k->kernels, kernels, sizeof k->kernels);
    pthread_mutex_unlock(&lock);
}

/* ------------------------------------------------------------------------------------------------------------- making -- */

static bool load(const void *code, const struct compiled_text *text, compiled_kernel kernels[MOST_COMPILED_KERNELS]) {
    CUlibrary library;
    if (driver.load(&library, code, NULL, NULL, 0, NULL, NULL, 0)) return false;
    bool ok = true;
    for (int n = 0; text->names[n] && ok; ++n) ok = driver.kernel(&kernels[n], library, text->names[n]) == CUDA_SUCCESS;
    if (!ok) (void)driver.unload(library);
    return ok;
}

static strobe_status compile(const struct compiled_text *text, int architecture, const char *function, void **code,
                             size_t *bytes) {
    char options[MOST_COMPILED_OPTIONS][64];
    const char *list[MOST_COMPILED_OPTIONS];
    int count = 0;
    for (; text->options[count]; ++count) {
        snprintf(options[count], sizeof options[count], "-D%s", text->options[count]);
        list[count] = options[count];
    }
    const struct nvrtc_job job = {.source = text->source,
                                  .text = function,
                                  .architecture = architecture,
                                  .is_own = text->is_hopper,
                                  .options = list,
                                  .option_count = count};
    return strobe__nvrtc_compile(&job, code, bytes);
}

/* From the disk, or compiled. */
static strobe_status make(struct entry *e, const struct compiled_text *text, int architecture, size_t function_at) {
    void *code = NULL;
    size_t bytes = 0;
    if (strobe__disk_cache_read(e->key, &code, &bytes)) {
        const bool ok = load(code, text, e->kernels);
        free(code);
        if (ok) return STROBE_OK;
    }
    strobe_status status = compile(text, architecture, e->key + function_at, &code, &bytes);
    if (status) return status;
    if (load(code, text, e->kernels))
        strobe__disk_cache_write(e->key, code, bytes);
    else
        status = strobe__fail(STROBE_DEVICE_ERROR, "%s with a score function was compiled, and the driver could not load it",
                              text->source);
    free(code);
    return status;
}

/* The entry of a key, under the lock; a failed one is tried again. *is_new: it is this thread's to make. */
static struct entry *find_entry(char *key, bool *is_new) {
    struct entry *e = entries;
    while (e && strcmp(e->key, key) != 0) e = e->next;
    *is_new = !e || e->state == FAILED;
    if (!e) {
        e = calloc(1, sizeof *e);
        if (!e) return NULL;
        e->key = key, e->next = entries, entries = e;
    }
    if (*is_new) e->state = IN_WORK;
    return e;
}

static bool is_capturing(void *stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return driver.is_capturing((CUstream)stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

strobe_status strobe__compiled(const struct problem *p, const struct compiled_text *text, void *stream,
                               compiled_kernel kernels[MOST_COMPILED_KERNELS]) {
    const int architecture = strobe__cuda_limits(p->a.device_index).architecture;
    const uint64_t serial = p->score_call.function->serial, asked = asked_of(p, text, architecture);
    size_t function_at;
    bool is_new;
    if (is_known(serial, asked, kernels)) return STROBE_OK;
    char *key = key_of(p, text, architecture, &function_at);
    if (!key) return strobe__fail(STROBE_OUT_OF_MEMORY, "the text of a score function could not be allocated");
    pthread_once(&once, find_driver);
    pthread_mutex_lock(&lock);
    struct entry *e = find_entry(key, &is_new);
    const bool refused = e && e->state == IN_WORK && is_capturing(stream);
    if (e && e->key != key) free(key);
    if (refused && is_new) e->state = FAILED;
    while (e && !refused && !is_new && e->state == IN_WORK) pthread_cond_wait(&done, &lock);
    const bool failed = e && !is_new && e->state == FAILED;
    pthread_mutex_unlock(&lock);
    if (!e) return strobe__fail(STROBE_OUT_OF_MEMORY, "a compiled kernel's place could not be allocated");
    if (refused)
        return strobe__fail(STROBE_UNSUPPORTED,
                            "the stream is being captured, and the score function's kernel is not compiled yet; after "
                            "strobe_prepare() or a call outside of a capture it is taken");
    if (failed) return strobe__fail(STROBE_DEVICE_ERROR, "another thread could not compile the score function's kernel");
    if (is_new) {
        const strobe_status status = make(e, text, architecture, function_at);
        pthread_mutex_lock(&lock);
        e->state = status ? FAILED : READY;
        pthread_cond_broadcast(&done);
        pthread_mutex_unlock(&lock);
        if (status) return status;
    }
    memcpy(kernels, e->kernels, sizeof e->kernels);
    remember(serial, asked, e->kernels);
    return STROBE_OK;
}

enum { MOST_TEXTS = 4 };

struct task {
    const struct problem *p;
    const struct compiled_text *text;
    pthread_t thread;
    bool started;
};

/* What goes wrong is found again, and said, by the thread that asked. A thread has no context of its own, without which the
 * driver does not say whether a stream is being captured. */
static void *run_task(void *argument) {
    const struct task *task = argument;
    compiled_kernel kernels[MOST_COMPILED_KERNELS];
    struct cuda_visit visit;
    if (strobe__cuda_enter(task->p->a.device_index, &visit)) return NULL;
    (void)strobe__compiled(task->p, task->text, NULL, kernels);
    strobe__cuda_leave(&visit);
    return NULL;
}

strobe_status strobe__compiled_all(const struct problem *p, const struct compiled_text *const texts[], void *stream) {
    const int architecture = strobe__cuda_limits(p->a.device_index).architecture;
    compiled_kernel kernels[MOST_COMPILED_KERNELS];
    struct task tasks[MOST_TEXTS];
    int count = 0;
    pthread_once(&once, find_driver);
    for (int n = 0; texts[n] && count < MOST_TEXTS; ++n)
        if (!is_known(p->score_call.function->serial, asked_of(p, texts[n], architecture), kernels))
            tasks[count++] = (struct task){.p = p, .text = texts[n]};
    const bool waits = count > 1 && !is_capturing(stream);
    for (int n = 1; n < count && waits; ++n)
        tasks[n].started = pthread_create(&tasks[n].thread, NULL, run_task, &tasks[n]) == 0;
    strobe_status status = count > 0 ? strobe__compiled(p, tasks[0].text, stream, kernels) : STROBE_OK;
    for (int n = 1; n < count; ++n) {
        if (tasks[n].started) pthread_join(tasks[n].thread, NULL);
        if (!status) status = strobe__compiled(p, tasks[n].text, stream, kernels);
    }
    return status;
}

/* ------------------------------------------------------------------------------------------------------------ running -- */

static strobe_status check(CUresult error, const char *what) {
    return error ? strobe__fail(STROBE_DEVICE_ERROR, "%s of a compiled kernel: CUresult %d", what, (int)error) : STROBE_OK;
}

strobe_status strobe__compiled_prepare(const struct problem *p, const struct compiled_text *const texts[]) {
    struct cuda_visit visit;
    if (!(p->features & FEATURE(SCORE))) return STROBE_OK;
    strobe_status status = strobe__cuda_enter(p->a.device_index, &visit);
    if (!status) status = strobe__compiled_all(p, texts, NULL);
    for (int n = 0; texts[n] && !status; ++n) {
        compiled_kernel kernels[MOST_COMPILED_KERNELS];
        CUfunction function;
        status = strobe__compiled(p, texts[n], NULL, kernels);
        for (int k = 0; texts[n]->names[k] && !status; ++k) /* into this context, which a capture could not wait for */
            status = check(driver.function(&function, kernels[k]), "loading");
    }
    strobe__cuda_leave(&visit);
    return status;
}

strobe_status strobe__compiled_launch(compiled_kernel kernel, int64_t blocks, int32_t threads, int32_t shared_bytes,
                                      const void *params, size_t bytes, const struct score_values *values, void *stream,
                                      bool early) {
    _Alignas(128) char all[4096];
    const size_t at = (bytes + SCORE_VALUES_ALIGNMENT - 1) / SCORE_VALUES_ALIGNMENT * SCORE_VALUES_ALIGNMENT;
    void *arguments[] = {all};
    CUfunction function;
    if (blocks == 0) return STROBE_OK;
    if (blocks > INT32_MAX)
        return strobe__fail(STROBE_UNSUPPORTED, "the problem takes %lld blocks of threads; below 2^31 is taken",
                            (long long)blocks);
    if (at + sizeof *values > sizeof all)
        return strobe__fail(STROBE_DEVICE_ERROR, "a compiled kernel's parameters take %zu bytes", at + sizeof *values);
    memcpy(all, params, bytes), memcpy(all + at, values, sizeof *values);
    strobe_status status = check(driver.function(&function, kernel), "loading");
    if (!status && shared_bytes > 40 * 1024)
        status = check(driver.set(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes),
                       "the shared memory");
    CUlaunchAttribute overlap = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                 .value = {.programmaticStreamSerializationAllowed = 1}};
    const CUlaunchConfig config = {.gridDimX = (unsigned)blocks,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = (unsigned)threads,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .sharedMemBytes = (unsigned)shared_bytes,
                                   .hStream = (CUstream)stream,
                                   .attrs = &overlap,
                                   .numAttrs = early};
    return status ? status : check(driver.launch(&config, function, arguments, NULL), "the launch");
}

struct score_values strobe__score_values(const struct problem *p) {
    const struct score_call *call = &p->score_call;
    const struct strobe_score *f = call->function;
    struct score_values v;
    memset(&v, 0, sizeof v);
    for (int n = 0; n < f->array_count; ++n) {
        v.data[n] = call->array[n].data;
        for (int axis = 0; axis < SCORE_AXES; ++axis) {
            v.stride[n][axis] = (int32_t)call->array[n].stride[axis];
            v.last[n][axis] = (int32_t)(call->array[n].extent[axis] - 1);
        }
    }
    for (int n = 0; n < f->scalar_count; ++n) {
        v.number[n] = (float)call->scalar[n];
        if (f->scalar_is_integer[n]) v.integer[n] = (int32_t)call->scalar[n];
    }
    v.q_start = (int32_t)p->a.q_start, v.k_start = (int32_t)p->a.k_start;
    return v;
}
