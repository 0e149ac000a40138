/* SPDX-License-Identifier: BSD-3-Clause
 *
 * memory.c: what tensor.h does to memory: on the CPU here, on a GPU by cuda_memory.c, which is part of builds with CUDA. */
#include <stdio.h>
#include <string.h>

#include "cuda_memory.h"
#include "tensor.h"

static unsigned char *at(const strobe_tensor *t, int64_t entry, int64_t row, int64_t head) {
    const int64_t element = entry * t->stride[0] + row * t->stride[1] + head * t->stride[2];
    return (unsigned char *)t->data + element * (int64_t)strobe__dist_bytes(t->dtype);
}

/* Heads that lie side by side are one. */
static struct extent joined(const strobe_tensor *to, const strobe_tensor *from, struct extent e) {
    if (to->stride[2] == e.dim && from->stride[2] == e.dim) e.dim *= e.heads, e.heads = 1;
    return e;
}

/* Keeps the first failure, with its sentence. */
static void note(struct place *on, const char *failure) {
    if (!failure || on->status) return;
    on->status = STROBE_DEVICE_ERROR;
    snprintf(on->sentence, sizeof on->sentence, "%s", failure);
}

static struct moved_rows moved(const strobe_tensor *to, const strobe_tensor *from, struct extent e) {
    struct moved_rows m = {.element_bytes = (int32_t)strobe__dist_bytes(to->dtype)};
    m.to = at(to, 0, e.to_first, 0), m.from = at(from, 0, e.from_first, 0);
    m.count[0] = e.entries, m.count[1] = e.rows, m.count[2] = e.heads, m.count[3] = e.dim;
    m.to_stride[0] = to->stride[0], m.to_stride[1] = to->stride[1] * e.to_step, m.to_stride[2] = to->stride[2];
    m.from_stride[0] = from->stride[0], m.from_stride[1] = from->stride[1] * e.from_step, m.from_stride[2] = from->stride[2];
    return m;
}

/* Copies that go together. */
enum { COLLECTED = 64 };
struct collected {
    int64_t count;
    struct moved_rows at[COLLECTED];
};
static _Thread_local struct collected collected; /* of the call under way */

static void put_collected(struct place *on) {
    struct collected *c = on->collected;
    if (c->count > 0) note(on, strobe__dist_cuda_move_all(c->at, c->count, on->stream));
    c->count = 0;
}

void strobe__collect(struct place *on) {
    if (on->device == STROBE_CUDA) collected.count = 0, on->collected = &collected;
}

void strobe__collected(struct place *on) {
    if (on->collected) put_collected(on);
    on->collected = NULL;
}

static bool is_empty(struct extent e) { return e.entries <= 0 || e.rows <= 0 || e.heads <= 0 || e.dim <= 0; }

void strobe__copy_rows(struct place *on, strobe_tensor to, strobe_tensor from, struct extent e) {
    if (is_empty(e)) return;
    e = joined(&to, &from, e);
    if (on->device == STROBE_CUDA) {
        const struct moved_rows m = moved(&to, &from, e);
        if (!on->collected) {
            note(on, strobe__dist_cuda_move(&m, false, on->stream));
            return;
        }
        on->collected->at[on->collected->count++] = m;
        if (on->collected->count == COLLECTED) put_collected(on);
        return;
    }
    const size_t bytes = (size_t)e.dim * strobe__dist_bytes(to.dtype);
    for (int64_t b = 0; b < e.entries; ++b)
        for (int64_t i = 0; i < e.rows; ++i)
            for (int64_t h = 0; h < e.heads; ++h)
                memcpy(at(&to, b, e.to_first + i * e.to_step, h), at(&from, b, e.from_first + i * e.from_step, h), bytes);
}

void strobe__add_rows(struct place *on, strobe_tensor to, strobe_tensor from, struct extent e) {
    if (is_empty(e)) return;
    e = joined(&to, &from, e);
    if (on->device == STROBE_CUDA) {
        const struct moved_rows m = moved(&to, &from, e);
        note(on, strobe__dist_cuda_move(&m, true, on->stream));
        return;
    }
    for (int64_t b = 0; b < e.entries; ++b)
        for (int64_t i = 0; i < e.rows; ++i)
            for (int64_t h = 0; h < e.heads; ++h) {
                float *sum = (float *)(void *)at(&to, b, e.to_first + i * e.to_step, h);
                const float *part = (const float *)(void *)at(&from, b, e.from_first + i * e.from_step, h);
                for (int64_t x = 0; x < e.dim; ++x) sum[x] += part[x];
            }
}

static int32_t type_of(int32_t dtype) {
    return dtype == STROBE_BF16 ? ROUNDED_BF16 : dtype == STROBE_FP16 ? ROUNDED_FP16 : ROUNDED_FP32;
}

void strobe__subtract_products(struct place *on, strobe_tensor to, strobe_tensor from, strobe_tensor a, strobe_tensor b,
                               struct extent e) {
    if (e.entries <= 0 || e.rows <= 0 || e.heads <= 0) return;
    struct product_params p = {.to = to.data, .a = a.data, .b = b.data, .less_from = from.data};
    p.entries = e.entries, p.rows = e.rows, p.heads = (uint32_t)e.heads, p.dim = (uint32_t)e.dim;
    p.a_type = type_of(a.dtype), p.b_type = type_of(b.dtype);
    for (int axis = 0; axis < 3; ++axis) {
        p.to_stride[axis] = to.stride[axis], p.from_stride[axis] = from.stride[axis];
        p.a_stride[axis] = a.stride[axis], p.b_stride[axis] = b.stride[axis];
    }
    note(on, strobe__dist_cuda_products(&p, on->stream));
}

void strobe__round_on_device(struct place *on, strobe_tensor to, strobe_tensor from, strobe_tensor more, struct extent e) {
    if (is_empty(e)) return;
    if (!more.data || more.stride[2] == e.dim) e = joined(&to, &from, e);
    struct rounded_rows r = {.to = to.data, .from = from.data, .more = more.data};
    r.type = type_of(to.dtype);
    r.count[0] = e.entries, r.count[1] = e.rows, r.count[2] = e.heads, r.count[3] = e.dim;
    for (int axis = 0; axis < 3; ++axis)
        r.to_stride[axis] = to.stride[axis], r.from_stride[axis] = from.stride[axis],
        r.more_stride[axis] = more.stride[axis];
    note(on, strobe__dist_cuda_round(&r, on->stream));
}

void strobe__copy_pieces(struct place *on, const struct copied_rows *pieces, int64_t count) {
    if (count > 0) note(on, strobe__dist_cuda_copy_pieces(pieces, count, on->stream));
}

void strobe__sum_rows(struct place *on, struct summed_rows *r) {
    if (r->count > 0) note(on, strobe__dist_cuda_sum_rows(r, on->stream));
    r->count = r->source_count = 0;
}

void strobe__zero(struct place *on, void *to, size_t bytes) {
    if (bytes == 0) return;
    if (on->device == STROBE_CUDA)
        note(on, strobe__dist_cuda_zero(to, (int64_t)bytes, 1, (int64_t)bytes, on->stream));
    else
        memset(to, 0, bytes);
}

void strobe__zero_rows(struct place *on, void *to, int64_t stride_bytes, int64_t rows, int64_t row_bytes) {
    if (rows <= 0 || row_bytes <= 0) return;
    if (on->device == STROBE_CUDA) {
        note(on, strobe__dist_cuda_zero(to, stride_bytes, rows, row_bytes, on->stream));
        return;
    }
    for (int64_t i = 0; i < rows; ++i) memset((unsigned char *)to + i * stride_bytes, 0, (size_t)row_bytes);
}

void strobe__fill(struct place *on, float *to, int64_t count, float value) {
    if (count <= 0) return;
    if (on->device == STROBE_CUDA)
        note(on, strobe__dist_cuda_fill(to, count, value, on->stream));
    else
        for (int64_t n = 0; n < count; ++n) to[n] = value;
}

void strobe__copy(struct place *on, void *to, const void *from, size_t bytes) {
    if (bytes == 0) return;
    if (on->device == STROBE_CUDA)
        note(on, strobe__dist_cuda_copy(to, from, bytes, on->stream));
    else
        memcpy(to, from, bytes);
}

void strobe__sum_parts(struct place *on, float *to, const float *parts, int64_t count, int32_t ranks) {
    if (count <= 0) return;
    if (on->device == STROBE_CUDA) {
        note(on, strobe__dist_cuda_sum(to, parts, count, ranks, on->stream));
        return;
    }
    for (int64_t x = 0; x < count; ++x) {
        double sum = 0;
        for (int32_t rank = 0; rank < ranks; ++rank) sum += parts[rank * count + x];
        to[x] = (float)sum;
    }
}

void strobe__upload(struct place *on, int64_t *to, const int64_t *words, int64_t count) {
    if (on->device == STROBE_CUDA)
        note(on, strobe__dist_cuda_upload(to, words, count, on->stream));
    else
        memcpy(to, words, (size_t)count * sizeof *to);
}

strobe_status strobe__place_enter(const struct place *on, int *entered) {
    if (on->device != STROBE_CUDA) {
        if (!on->stream || on->device != STROBE_CPU) return STROBE_OK;
        return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "stream is %p; NULL is accepted on the CPU", on->stream);
    }
    const char *failure = strobe__dist_cuda_enter(on->index, entered);
    if (failure) return strobe__dist_fail(STROBE_UNSUPPORTED, "device is %d; %s", on->device, failure);
    const int owner = strobe__dist_cuda_stream_owner(on->stream);
    if (owner == MEMORY_OF_ANY || owner == on->index) return STROBE_OK;
    return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "stream is one of device %d; one of device %d is accepted", owner,
                             on->index);
}

void strobe__place_leave(const struct place *on, int entered) {
    if (on->device == STROBE_CUDA) strobe__dist_cuda_leave(on->index, entered);
}

strobe_status strobe__place_check(const struct place *on, const char *name, const void *data) {
    const int owner = on->device == STROBE_CUDA && data ? strobe__dist_cuda_owner(data, on->index) : MEMORY_OF_ANY;
    if (owner == MEMORY_OF_THE_HOST)
        return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "%s is %p, memory of the host; memory of device %d is accepted",
                                 name, data, on->index);
    if (owner != MEMORY_OF_ANY && owner != on->index)
        return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "%s is %p, memory of device %d; memory of device %d is accepted",
                                 name, data, owner, on->index);
    return STROBE_OK;
}

strobe_status strobe__place_may_wait(const struct place *on) {
    if (on->device != STROBE_CUDA || !strobe__dist_cuda_is_captured(on->stream)) return STROBE_OK;
    return strobe__dist_fail(STROBE_INVALID_ARGUMENT,
                             "the stream is being captured; with STROBE_DIST_UNCOMPARED that is accepted, since ranks that "
                             "compare their calls wait for each other");
}
