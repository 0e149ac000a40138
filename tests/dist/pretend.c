/* SPDX-License-Identifier: BSD-3-Clause
 *
 * pretend.c: a GPU that is none, so that what libstrobe_dist does for tensors of a device is tested where there is none:
 * calls of the core library with device = STROBE_CUDA are the CPU's, and memory of the device is the host's. What a GPU is
 * not given is not read either: offsets in the workspace, by a query. A stream is a number, which every call must bring. */
#include "pretend.h"

#include <stdlib.h>
#include <string.h>

#include "core/element.h"
#include "dist/cuda_memory.h"
#include "portable/posix.h"

strobe_status __real_strobe_forward(const strobe_attention *a, void *workspace, size_t bytes, void *stream);
strobe_status __real_strobe_backward(const strobe_attention *a, const strobe_gradients *g, void *workspace, size_t bytes,
                                     void *stream);
strobe_status __real_strobe_workspace(const strobe_attention *a, const strobe_gradients *g, size_t *bytes);
strobe_status __real_strobe_merge(const strobe_partials *p, void *stream);
strobe_status __wrap_strobe_forward(const strobe_attention *a, void *workspace, size_t bytes, void *stream);
strobe_status __wrap_strobe_backward(const strobe_attention *a, const strobe_gradients *g, void *workspace, size_t bytes,
                                     void *stream);
strobe_status __wrap_strobe_workspace(const strobe_attention *a, const strobe_gradients *g, size_t *bytes);
strobe_status __wrap_strobe_merge(const strobe_partials *p, void *stream);

static int number; /* whose address the stream is */
void *pretend_stream(void) { return &number; }

static void check_stream(const void *stream) {
    if (stream != &number) abort();
}

strobe_status __wrap_strobe_forward(const strobe_attention *a, void *workspace, size_t bytes, void *stream) {
    if (a->device != STROBE_CUDA) return __real_strobe_forward(a, workspace, bytes, stream);
    strobe_attention cpu = *a;
    check_stream(stream);
    cpu.device = STROBE_CPU;
    return __real_strobe_forward(&cpu, NULL, 0, NULL);
}

strobe_status __wrap_strobe_backward(const strobe_attention *a, const strobe_gradients *g, void *workspace, size_t bytes,
                                     void *stream) {
    if (a->device != STROBE_CUDA) return __real_strobe_backward(a, g, workspace, bytes, stream);
    strobe_attention cpu = *a;
    check_stream(stream);
    cpu.device = STROBE_CPU;
    return __real_strobe_backward(&cpu, g, NULL, 0, NULL);
}

strobe_status __wrap_strobe_workspace(const strobe_attention *a, const strobe_gradients *g, size_t *bytes) {
    if (a->device != STROBE_CUDA) return __real_strobe_workspace(a, g, bytes);
    strobe_attention cpu = *a;
    cpu.device = STROBE_CPU, cpu.varlen = NULL;
    const strobe_status status = __real_strobe_workspace(&cpu, g, bytes);
    *bytes = 192; /* of which nothing is used */
    return status;
}

strobe_status __wrap_strobe_merge(const strobe_partials *p, void *stream) {
    if (p->device != STROBE_CUDA) return __real_strobe_merge(p, stream);
    strobe_partials cpu = *p;
    check_stream(stream);
    cpu.device = STROBE_CPU;
    return __real_strobe_merge(&cpu, NULL);
}

/* ---- memory */

static const int32_t dtypes[] = {STROBE_FP32, STROBE_FP16, STROBE_BF16}; /* of the types of cuda_params.h */

const char *strobe__dist_cuda_move(const struct moved_rows *m, bool adds, void *stream) {
    const size_t bytes = (size_t)m->element_bytes;
    check_stream(stream);
    for (int64_t b = 0; b < m->count[0]; ++b)
        for (int64_t i = 0; i < m->count[1]; ++i)
            for (int64_t h = 0; h < m->count[2]; ++h) {
                const int64_t there = b * m->to_stride[0] + i * m->to_stride[1] + h * m->to_stride[2];
                const int64_t here = b * m->from_stride[0] + i * m->from_stride[1] + h * m->from_stride[2];
                char *to = (char *)m->to + there * (int64_t)bytes;
                const char *from = (const char *)m->from + here * (int64_t)bytes;
                for (int64_t x = 0; adds && x < m->count[3]; ++x)
                    ((float *)(void *)to)[x] += ((const float *)(const void *)from)[x];
                if (!adds) memcpy(to, from, (size_t)m->count[3] * bytes);
            }
    return NULL;
}

const char *strobe__dist_cuda_move_all(const struct moved_rows *moves, int64_t count, void *stream) {
    for (int64_t n = 0; n < count; ++n) strobe__dist_cuda_move(&moves[n], false, stream);
    return NULL;
}

const char *strobe__dist_cuda_round(const struct rounded_rows *r, void *stream) {
    static const float lse; /* of one part */
    float *sum = malloc((size_t)r->count[3] * sizeof *sum);
    check_stream(stream);
    for (int64_t b = 0; b < r->count[0]; ++b)
        for (int64_t i = 0; i < r->count[1]; ++i)
            for (int64_t h = 0; h < r->count[2]; ++h) {
                const int64_t to = b * r->to_stride[0] + i * r->to_stride[1] + h * r->to_stride[2];
                for (int64_t x = 0; x < r->count[3]; ++x) {
                    sum[x] = r->from[b * r->from_stride[0] + i * r->from_stride[1] + h * r->from_stride[2] + x];
                    if (r->more)
                        sum[x] += r->more[b * r->more_stride[0] + i * r->more_stride[1] + h * r->more_stride[2] + x];
                }
                const strobe_partial part = {{.data = sum, .dtype = STROBE_FP32},
                                             {.data = (void *)(uintptr_t)&lse, .dtype = STROBE_FP32}};
                strobe_partials m = {.struct_size = sizeof m, .batch = 1, .seq_q = 1, .heads_q = 1, .count = 1};
                m.dim_v = r->count[3], m.parts = &part;
                m.out = (strobe_tensor){.data = (char *)r->to + to * (r->type ? 2 : 4), .dtype = dtypes[r->type]};
                if (__real_strobe_merge(&m, NULL)) abort();
            }
    free(sum);
    return NULL;
}

const char *strobe__dist_cuda_products(struct product_params *p, void *stream) {
    check_stream(stream);
    for (int64_t b = 0; b < p->entries; ++b)
        for (int64_t i = 0; i < p->rows; ++i)
            for (int64_t h = 0; h < p->heads; ++h) {
                const int64_t x = b * p->a_stride[0] + i * p->a_stride[1] + h * p->a_stride[2];
                const int64_t y = b * p->b_stride[0] + i * p->b_stride[1] + h * p->b_stride[2];
                const int64_t from = b * p->from_stride[0] + i * p->from_stride[1] + h * p->from_stride[2];
                double sum = p->less_from ? p->less_from[from] : 0;
                for (int64_t d = 0; d < p->dim; ++d)
                    sum -= element_load(p->a, dtypes[p->a_type], x + d) * element_load(p->b, dtypes[p->b_type], y + d);
                p->to[b * p->to_stride[0] + i * p->to_stride[1] + h * p->to_stride[2]] = (float)sum;
            }
    return NULL;
}

const char *strobe__dist_cuda_zero(void *to, int64_t stride, int64_t rows, int64_t row_bytes, void *stream) {
    check_stream(stream);
    for (int64_t i = 0; i < rows; ++i) memset((char *)to + i * stride, 0, (size_t)row_bytes);
    return NULL;
}

const char *strobe__dist_cuda_fill(float *to, int64_t count, float value, void *stream) {
    check_stream(stream);
    for (int64_t n = 0; n < count; ++n) to[n] = value;
    return NULL;
}

const char *strobe__dist_cuda_copy(void *to, const void *from, size_t bytes, void *stream) {
    check_stream(stream);
    memcpy(to, from, bytes);
    return NULL;
}

const char *strobe__dist_cuda_copy_pieces(const struct copied_rows *pieces, int64_t count, void *stream) {
    check_stream(stream);
    for (int64_t n = 0; n < count; ++n) memcpy(pieces[n].to, pieces[n].from, pieces[n].bytes);
    return NULL;
}

/* A row of numbers is summed, and rounded as by strobe__dist_cuda_round. */
const char *strobe__dist_cuda_sum_rows(struct summed_rows *r, void *stream) {
    check_stream(stream);
    for (uint32_t n = 0; n < r->count; ++n) {
        const struct summed_piece *p = &r->piece[n];
        float *sum = malloc((size_t)p->elements * sizeof *sum);
        for (uint32_t x = 0; x < p->elements; ++x) {
            sum[x] = r->source[p->first_source][x];
            for (uint32_t s = 1; s < p->sources; ++s) sum[x] += r->source[p->first_source + s][x];
        }
        struct rounded_rows rounded = {.to = p->to, .from = sum, .count = {1, 1, 1, p->elements}, .type = p->type};
        strobe__dist_cuda_round(&rounded, stream);
        free(sum);
    }
    return NULL;
}

const char *strobe__dist_cuda_sum(float *to, const float *parts, int64_t count, int32_t ranks, void *stream) {
    check_stream(stream);
    for (int64_t n = 0; n < count; ++n) {
        double sum = 0;
        for (int32_t rank = 0; rank < ranks; ++rank) sum += parts[rank * count + n];
        to[n] = (float)sum;
    }
    return NULL;
}

const char *strobe__dist_cuda_upload(int64_t *to, const int64_t *words, int64_t count, void *stream) {
    check_stream(stream);
    memcpy(to, words, (size_t)count * sizeof *to);
    return NULL;
}

const char *strobe__dist_cuda_enter(int32_t index, int *entered) {
    *entered = 0;
    return index == 0 ? NULL : "device_index is none of this machine's GPUs";
}

void strobe__dist_cuda_leave(int32_t index, int entered) { (void)index, (void)entered; }

int strobe__dist_cuda_owner(const void *data, int32_t index) {
    (void)data, (void)index;
    return MEMORY_OF_ANY;
}

int strobe__dist_cuda_stream_owner(void *stream) {
    (void)stream;
    return MEMORY_OF_ANY;
}

bool strobe__dist_cuda_is_captured(void *stream) {
    (void)stream;
    return false;
}
