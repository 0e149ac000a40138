/* SPDX-License-Identifier: BSD-3-Clause
 *
 * xla_handler.c: what a program that JAX has compiled calls: the frozen call, an attribute, gets the addresses of the
 * program's buffers, and the library runs. No line of Python: XLA calls from threads of its own. The workspace is the
 * library's to allocate, as in any call on the CPU. */
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
static bool read_attribute(const struct xla_attributes *attributes, struct frozen *p) {
    for (int64_t n = 0; n < attributes->size; ++n) {
        const struct xla_text *name = attributes->names[n];
        if (attributes->types[n] != XLA_ATTRIBUTE_ARRAY || name->length != 6 || memcmp(name->start, "frozen", 6) != 0)
            continue;
        const struct xla_array *array = attributes->values[n];
        if (array->dtype != XLA_INT64 || array->size * 8 != sizeof *p) return false;
        memcpy(p, array->data, sizeof *p);
        return p->size == sizeof *p && strcmp(p->version, strobe_version()) == 0;
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
static void join(struct frozen *p, strobe_parallel *parallel) {
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
    if (frozen_has(p, FROZEN_SEED)) {
        const uint32_t *halves = p->seed;
        p->dropout.seed = (uint64_t)halves[1] << 32 | halves[0];
        a->dropout = &p->dropout;
    }
    if (p->tuning.struct_size) {
        p->tuning.kernel = p->kernel[0] ? p->kernel : NULL;
        a->tuning = &p->tuning;
    }
    if (p->longest_q) a->seq_q = longest(p->varlen.cu_seqlens_q, p->varlen.index_bits, a->batch);
    if (p->longest_k) a->seq_k = longest(p->varlen.cu_seqlens_k, p->varlen.index_bits, a->batch);
    use_threads(parallel, p->threads ? p->threads : threads_of(a));
    a->parallel = parallel;
}

/* Rows of no sequence are the library's to leave alone; a program's results hold no memory that nobody wrote. */
static void fill_spare_rows(struct frozen *p, const struct xla_buffers *results) {
    const bool of_q = frozen_has(p, FROZEN_CU_Q) || frozen_has(p, FROZEN_USED_Q);
    const bool of_k = frozen_has(p, FROZEN_CU_K) || frozen_has(p, FROZEN_USED_K);
    int64_t at = 0;
    for (int n = 0; n < FROZEN_TENSOR_KINDS && (of_q || of_k); ++n) {
        if (!frozen_has(p, (enum frozen_tensor)n) || !frozen_is_result(p, (enum frozen_tensor)n)) continue;
        const struct xla_buffer *b = results->buffers[at++];
        const bool is_k = n == FROZEN_DK || n == FROZEN_DV, is_q = n == FROZEN_OUT || n == FROZEN_LSE || n == FROZEN_DQ;
        if ((is_k && !of_k) || (is_q && !of_q) || n == FROZEN_DSINKS) continue;
        const size_t size = b->dtype == XLA_FLOAT64 ? 8 : b->dtype == XLA_FLOAT32 ? 4 : 2;
        if (n != FROZEN_LSE && p->elements[n] > 0) memset(b->data, 0, (size_t)p->elements[n] * size);
        for (int64_t i = 0; n == FROZEN_LSE && i < p->elements[n]; ++i) {
            if (size == 8)
                ((double *)b->data)[i] = -INFINITY;
            else
                ((float *)b->data)[i] = -INFINITY;
        }
    }
}

static struct xla_error *handle(struct xla_call *call) {
    if (call->extensions && call->extensions->type == XLA_EXTENSION_METADATA) {
        describe(call);
        return NULL;
    }
    struct frozen p;
    strobe_parallel parallel;
    if (call->stage != XLA_STAGE_EXECUTE || !read_attribute(&call->attributes, &p))
        return refuse(call, XLA_INVALID_ARGUMENT,
                      "the program was compiled with another build of Strobe; this one's is accepted");
    if (!take_buffers(&p, &call->arguments, false) || !take_buffers(&p, &call->results, true))
        return refuse(call, XLA_INVALID_ARGUMENT, "the program's buffers are not those that it was compiled for");
    join(&p, &parallel);
    fill_spare_rows(&p, &call->results);
    const strobe_status status = p.backward ? strobe_backward(&p.a, &p.g, NULL, 0, NULL)
                                            : strobe_forward(&p.a, NULL, 0, NULL);
    return status ? refuse_status(call, status) : NULL;
}

FUNCTION(py_xla_handler) {
    (void)module, (void)args, (void)count;
    return PyCapsule_New((void *)(uintptr_t)handle, NULL, NULL);
}
