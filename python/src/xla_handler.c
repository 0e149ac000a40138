/* SPDX-License-Identifier: BSD-3-Clause
 *
 * xla_handler.c: what a program that JAX has compiled calls: the frozen call, an attribute, gets the addresses of the
 * program's buffers, and the library runs. No line of Python: XLA calls from threads of its own. On the CPU the library
 * allocates its workspace, as in any call. On a GPU the call goes on the program's stream, with a workspace of XLA's
 * allocator, which orders by that stream. */
#define _GNU_SOURCE /* RTLD_NOLOAD */

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "frozen.h"
#include "xla_ffi.h"

static struct xla_error *refuse(const struct xla_call *call, int code, const char *message) {
    struct xla_error_arguments e = {.struct_size = sizeof e, .message = message, .code = code};
    return call->api->error_create(&e);
}

static struct xla_error *refuse_status(const struct xla_call *call, strobe_status status) {
    static const int codes[] = {[STROBE_INVALID_ARGUMENT] = XLA_INVALID_ARGUMENT,
                                [STROBE_UNSUPPORTED] = XLA_UNIMPLEMENTED,
                                [STROBE_OUT_OF_MEMORY] = XLA_RESOURCE_EXHAUSTED,
                                [STROBE_WORKSPACE_TOO_SMALL] = XLA_INTERNAL,
                                [STROBE_DEVICE_ERROR] = XLA_INTERNAL};
    return refuse(call, codes[status], strobe_last_error());
}

/* Which version of the interface this was written for; XLA compares. Where it does not say what its own is, it is the
 * oldest. */
static void describe(const struct xla_call *call) {
    struct xla_metadata *m = ((struct xla_metadata_extension *)call->extensions)->metadata;
    const int minor = call->api && call->api->version.major == XLA_MAJOR ? call->api->version.minor : XLA_OLDEST_MINOR;
    m->version.major = XLA_MAJOR;
    m->version.minor = minor < XLA_NEWEST_MINOR ? minor : XLA_NEWEST_MINOR;
    m->traits = 0;
}

/* The only attribute, "frozen", an array of 64-bit integers. */
static bool read_attribute(const struct xla_attributes *attributes, struct frozen *p, const struct frozen_score **score) {
    for (int64_t n = 0; n < attributes->size; ++n) {
        const struct xla_text *name = attributes->names[n];
        if (attributes->types[n] != XLA_ATTRIBUTE_ARRAY || name->length != 6 || memcmp(name->start, "frozen", 6) != 0)
            continue;
        const struct xla_array *array = attributes->values[n];
        if (array->dtype != XLA_INT64 || array->size * 8 < sizeof *p) return false;
        memcpy(p, array->data, sizeof *p);
        if (p->size != sizeof *p || strcmp(p->version, strobe_version()) != 0) return false;
        const size_t behind = array->size * 8 - sizeof *p;
        if (behind != (size_t)p->score_bytes) return false;
        *score = behind ? (const void *)((const char *)array->data + sizeof *p) : NULL;
        return !behind || is_frozen_score(*score, behind);
    }
    return false;
}

#define FROZEN_OFFSET(upper, lower, at) offsetof(struct frozen, at),
static const size_t pointers[FROZEN_TENSOR_KINDS] = {FROZEN_TENSORS(FROZEN_OFFSET)};

/* Puts the addresses of operands or results in; false where they are not those of the frozen call. */
static bool take_buffers(struct frozen *p, const struct xla_buffers *from, bool results) {
    int64_t at = 0;
    for (int n = 0; n < FROZEN_TENSOR_KINDS; ++n) {
        if (!frozen_has(p, (enum frozen_tensor)n) || frozen_is_result(p, (enum frozen_tensor)n) != results) continue;
        if (at == from->size || from->types[at] != XLA_BUFFER) return false;
        const struct xla_buffer *b = from->buffers[at++];
        int64_t elements = 1;
        for (int64_t axis = 0; axis < b->rank; ++axis) elements *= b->dims[axis];
        if (elements != p->elements[n] || b->dtype != p->dtype[n]) return false;
        memcpy((char *)p + pointers[n], &b->data, sizeof b->data);
    }
    return at == from->size;
}

static int64_t longest(const void *offsets, int32_t bits, int64_t batch) {
    int64_t most = 0;
    for (int64_t b = 0; b < batch; ++b) {
        const int64_t length = bits == 64 ? ((const int64_t *)offsets)[b + 1] - ((const int64_t *)offsets)[b]
                                          : ((const int32_t *)offsets)[b + 1] - ((const int32_t *)offsets)[b];
        if (length > most) most = length;
    }
    return most;
}

static bool has_any(const struct frozen *p, enum frozen_tensor first, enum frozen_tensor last) {
    for (int n = (int)first; n <= (int)last; ++n)
        if (frozen_has(p, (enum frozen_tensor)n)) return true;
    return false;
}

/* Joins the structures of the features that the call has. */
static void join(struct frozen *p) {
    strobe_attention *a = &p->a;
    if (has_any(p, FROZEN_CU_Q, FROZEN_LEFTPAD_K)) a->varlen = &p->varlen;
    if (frozen_has(p, FROZEN_PAGE_TABLE)) a->paged = &p->paged;
    if (frozen_has(p, FROZEN_BIAS)) a->bias = &p->bias;
    if (frozen_has(p, FROZEN_MASK)) a->bool_mask = &p->bool_mask;
    if (frozen_has(p, FROZEN_BLOCK_MASK)) a->block_mask = &p->block_mask;
    if (frozen_has(p, FROZEN_SLOPES)) a->alibi = &p->alibi;
    if (frozen_has(p, FROZEN_SINKS)) a->sinks = &p->sinks;
    if (has_any(p, FROZEN_Q_SCALE, FROZEN_V_SCALE)) a->scales = &p->scales;
    if (frozen_has(p, FROZEN_DBIAS)) p->g.dbias = &p->dbias;
    if (frozen_has(p, FROZEN_DSINKS)) p->g.dsinks = &p->dsinks;
    if (frozen_has(p, FROZEN_SEED)) a->dropout = &p->dropout;
    if (p->tuning.struct_size) {
        p->tuning.kernel = p->kernel[0] ? p->kernel : NULL;
        a->tuning = &p->tuning;
    }
}

static void set_seed(struct frozen *p, const uint32_t halves[2]) { p->dropout.seed = (uint64_t)halves[1] << 32 | halves[0]; }

/* What only memory of the CPU tells: the seed, and the longest sequence; and the threads. */
static void join_on_cpu(struct frozen *p, strobe_parallel *parallel) {
    strobe_attention *a = &p->a;
    if (a->dropout) set_seed(p, p->seed);
    if (p->longest_q) a->seq_q = longest(p->varlen.cu_seqlens_q, p->varlen.index_bits, a->batch);
    if (p->longest_k) a->seq_k = longest(p->varlen.cu_seqlens_k, p->varlen.index_bits, a->batch);
    use_threads(parallel, p->threads ? p->threads : threads_of(a));
    a->parallel = parallel;
}

/* Functions of the CUDA driver, which XLA has loaded. */
typedef int set_bytes(unsigned long long data, unsigned char value, size_t count, void *stream);
typedef int set_words(unsigned long long data, unsigned value, size_t count, void *stream);
typedef int copy_to_host(void *to, unsigned long long from, size_t count, void *stream);
typedef int wait_for(void *stream);

static bool find_in_driver(const char *name, void *function) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    void *const found = driver ? dlsym(driver, name) : NULL;
    memcpy(function, &found, sizeof found); /* POSIX converts objects to functions so */
    if (driver) dlclose(driver);            /* XLA holds it */
    return found != NULL;
}

/* The seed lies in the GPU's memory, where the program has made it: the host waits for the stream to come here. */
static bool read_seed_on_gpu(struct frozen *p, void *stream) {
    uint32_t halves[2];
    copy_to_host *copy;
    wait_for *wait;
    if (!find_in_driver("cuMemcpyDtoHAsync_v2", &copy) || !find_in_driver("cuStreamSynchronize", &wait)) return false;
    if (copy(halves, (uintptr_t)p->seed, sizeof halves, stream) != 0 || wait(stream) != 0) return false;
    set_seed(p, halves);
    return true;
}

static bool fill_on_gpu(const struct xla_buffer *b, int64_t elements, size_t size, bool is_lse, void *stream) {
    const unsigned long long data = (uintptr_t)b->data;
    const unsigned minus_infinity = 0xff800000u;
    set_bytes *zero;
    set_words *set;
    if (is_lse) return find_in_driver("cuMemsetD32Async", &set) && set(data, minus_infinity, (size_t)elements, stream) == 0;
    return find_in_driver("cuMemsetD8Async", &zero) && zero(data, 0, (size_t)elements * size, stream) == 0;
}

static void fill_on_cpu(const struct xla_buffer *b, int64_t elements, size_t size, bool is_lse) {
    if (!is_lse) memset(b->data, 0, (size_t)elements * size);
    for (int64_t i = 0; is_lse && i < elements; ++i) {
        if (size == 8)
            ((double *)b->data)[i] = -INFINITY;
        else
            ((float *)b->data)[i] = -INFINITY;
    }
}

/* Rows of no sequence are the library's to leave alone; a program's results hold no memory that nobody wrote. */
static bool fill_spare_rows(struct frozen *p, const struct xla_buffers *results, bool on_gpu, void *stream) {
    const bool of_q = frozen_has(p, FROZEN_CU_Q) || frozen_has(p, FROZEN_USED_Q);
    const bool of_k = frozen_has(p, FROZEN_CU_K) || frozen_has(p, FROZEN_USED_K);
    int64_t at = 0;
    bool done = true;
    for (int n = 0; n < FROZEN_TENSOR_KINDS && (of_q || of_k); ++n) {
        if (!frozen_has(p, (enum frozen_tensor)n) || !frozen_is_result(p, (enum frozen_tensor)n)) continue;
        const struct xla_buffer *b = results->buffers[at++];
        const bool is_k = n == FROZEN_DK || n == FROZEN_DV, is_q = n == FROZEN_OUT || n == FROZEN_LSE || n == FROZEN_DQ;
        if ((is_k && !of_k) || (is_q && !of_q) || n >= FROZEN_DSINKS || p->elements[n] == 0) continue;
        const size_t size = b->dtype == XLA_FLOAT64 ? 8 : b->dtype == XLA_FLOAT32 ? 4 : 2;
        if (on_gpu)
            done = done && fill_on_gpu(b, p->elements[n], size, n == FROZEN_LSE, stream);
        else
            fill_on_cpu(b, p->elements[n], size, n == FROZEN_LSE);
    }
    return done;
}

static strobe_status run_with(const struct frozen *p, void *workspace, size_t bytes, void *stream) {
    return p->backward ? strobe_backward(&p->a, &p->g, workspace, bytes, stream)
                       : strobe_forward(&p->a, workspace, bytes, stream);
}

static struct xla_error *run_on_cpu(const struct xla_call *call, struct frozen *p) {
    strobe_parallel parallel;
    join_on_cpu(p, &parallel);
    fill_spare_rows(p, &call->results, false, NULL);
    const strobe_status status = run_with(p, NULL, 0, NULL);
    return status ? refuse_status(call, status) : NULL;
}

/* XLA aligns to 16 bytes, as far as it says. */
enum { WORKSPACE_ALIGNMENT = 64, XLA_ALIGNMENT = 16 };

static struct xla_error *run_with_memory(const struct xla_call *call, struct frozen *p, size_t bytes, void *stream) {
    struct xla_allocate_arguments memory = {.struct_size = sizeof memory,
                                            .context = call->context,
                                            .size = bytes + WORKSPACE_ALIGNMENT,
                                            .alignment = XLA_ALIGNMENT};
    struct xla_error *error = call->api->memory_allocate(&memory);
    if (error) return error;
    const uintptr_t mask = WORKSPACE_ALIGNMENT - 1;
    const strobe_status status = run_with(p, (void *)(((uintptr_t)memory.data + mask) & ~mask), bytes, stream);
    struct xla_free_arguments done = {
        .struct_size = sizeof done, .context = call->context, .size = memory.size, .data = memory.data};
    error = status ? refuse_status(call, status) : NULL;
    struct xla_error *of_free = call->api->memory_free(&done);
    return error ? error : of_free;
}

static struct xla_error *run_on_gpu(const struct xla_call *call, struct frozen *p) {
    struct xla_stream_arguments stream = {.struct_size = sizeof stream, .context = call->context};
    struct xla_device_arguments device = {.struct_size = sizeof device, .context = call->context};
    struct xla_error *error = call->api->stream_get(&stream);
    if (!error && call->api->struct_size >= sizeof *call->api) error = call->api->device_get(&device);
    if (error) return error;
    p->a.device = STROBE_CUDA, p->a.device_index = device.index;
    if (p->a.dropout && !read_seed_on_gpu(p, stream.stream))
        return refuse(call, XLA_INTERNAL, "the seed could not be read by the CUDA driver");
    size_t bytes;
    strobe_status status = strobe_workspace(&p->a, p->backward ? &p->g : NULL, &bytes);
    if (status) return refuse_status(call, status);
    if (!fill_spare_rows(p, &call->results, true, stream.stream))
        return refuse(call, XLA_INTERNAL, "the rows of no sequence could not be filled by the CUDA driver");
    if (bytes > 0) return run_with_memory(call, p, bytes, stream.stream);
    status = run_with(p, NULL, 0, stream.stream);
    return status ? refuse_status(call, status) : NULL;
}

static struct xla_error *handle(struct xla_call *call, bool on_gpu) {
    if (call->extensions && call->extensions->type == XLA_EXTENSION_METADATA) {
        describe(call);
        return NULL;
    }
    struct frozen p;
    const struct frozen_score *score = NULL;
    if (call->stage != XLA_STAGE_EXECUTE || !read_attribute(&call->attributes, &p, &score))
        return refuse(call, XLA_INVALID_ARGUMENT,
                      "the program was compiled with another build of Strobe; this one's is accepted");
    if (!take_buffers(&p, &call->arguments, false) || !take_buffers(&p, &call->results, true))
        return refuse(call, XLA_INVALID_ARGUMENT, "the program's buffers are not those that it was compiled for");
    join(&p);
    struct thawed_score function = {.function = NULL};
    const strobe_status status = score ? thaw_score(&function, score, p.arrays, p.darrays, &p.a, &p.g) : STROBE_OK;
    struct xla_error *error = status ? refuse_status(call, status) : on_gpu ? run_on_gpu(call, &p) : run_on_cpu(call, &p);
    strobe_score_destroy(function.function);
    return error;
}

static struct xla_error *handle_on_cpu(struct xla_call *call) { return handle(call, false); }
static struct xla_error *handle_on_gpu(struct xla_call *call) { return handle(call, true); }

/* The handler for the CPU, or with a true argument for CUDA. */
FUNCTION(py_xla_handler) {
    (void)module;
    const int on_gpu = count == 1 ? PyObject_IsTrue(args[0]) : 0;
    if (on_gpu < 0) return NULL;
    return PyCapsule_New((void *)(uintptr_t)(on_gpu ? handle_on_gpu : handle_on_cpu), NULL, NULL);
}
