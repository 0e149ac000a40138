/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_memory.c: the launches of cuda_memory.cu; see cuda_memory.h. The runtime is linked in, as it is in libstrobe, and its
 * calls work on the device that is current. */
#include "cuda_memory.h"

#include <cuda_runtime_api.h>
#include <string.h>

#include "cuda_params.h"

void strobe__dist_move_rows(struct move_params);
void strobe__dist_move_all(struct moves_params);
void strobe__dist_round_rows(struct round_params);
void strobe__dist_row_products(struct product_params);
void strobe__dist_fill_floats(float *to, int64_t count, float value);
void strobe__dist_sum_ranks(float *to, const float *parts, int64_t count, int32_t ranks);
void strobe__dist_store_words(struct upload_params);
void strobe__dist_copy_pieces(struct copy_params);
void strobe__dist_exchange(struct exchange_params);
void strobe__dist_sum_rows(struct summed_rows);

enum { THREADS = 256, MOST_BLOCKS = 4096, MOST_PARTS = 64, MOST_COPIERS = 1056, MOST_EXCHANGERS = 64, MOST_UNITS = 1 << 30 };

/* Launches a kernel by its symbol, whose address the runtime wants as one of an object. Without blocks there is nothing to
 * do, which the runtime refuses. */
static const char *launch(void (*kernel)(void), dim3 blocks, dim3 threads, void **arguments, void *stream) {
    if (blocks.x == 0 || blocks.y == 0) return NULL;
    const void *symbol;
    memcpy(&symbol, &kernel, sizeof symbol);
    const cudaError_t error = cudaLaunchKernel(symbol, blocks, threads, arguments, 0, stream);
    return error == cudaSuccess ? NULL : cudaGetErrorString(error);
}

static const char *text_of(cudaError_t error) { return error == cudaSuccess ? NULL : cudaGetErrorString(error); }

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static const dim3 all_threads = {THREADS, 1, 1};

/* Over rows of `inner` units each: threads lie along a row. */
static const char *launch_over(void (*kernel)(void), int64_t rows, int64_t inner, void *params, void *stream) {
    unsigned across = 16;
    while (across < THREADS && across < inner) across *= 2;
    const unsigned down = THREADS / across;
    const dim3 threads = {across, down, 1};
    const dim3 blocks = {(unsigned)smaller(ceil_div(rows, down), MOST_BLOCKS),
                         (unsigned)smaller(ceil_div(inner, across), MOST_PARTS), 1};
    return launch(kernel, blocks, threads, &params, stream);
}

/* The most bytes, up to 16, at whose multiples every head of every row begins and ends. */
static int32_t unit_of(const struct moved_rows *m, bool adds) {
    uint64_t together = (uint64_t)(uintptr_t)m->to | (uint64_t)(uintptr_t)m->from |
                        (uint64_t)m->count[3] * (uint64_t)m->element_bytes;
    for (int axis = 0; axis < 3; ++axis)
        if (m->count[axis] > 1)
            together |= (uint64_t)(m->to_stride[axis] * m->element_bytes) |
                        (uint64_t)(m->from_stride[axis] * m->element_bytes);
    int32_t unit = 16;
    while (together % (uint64_t)unit) unit /= 2;
    return adds && unit < 16 ? 4 : unit;
}

/* Numbers a row and head, such as lse, of which those of neighbouring rows lie side by side: heads are rows, rows elements.
 */
static struct moved_rows turned(struct moved_rows m) {
    if (m.count[3] != 1 || m.to_stride[1] != 1 || m.from_stride[1] != 1) return m;
    m.count[3] = m.count[1], m.count[1] = m.count[2], m.count[2] = 1;
    m.to_stride[1] = m.to_stride[2], m.from_stride[1] = m.from_stride[2];
    return m;
}

static struct move_params params_of(const struct moved_rows *m, int32_t unit, bool adds) {
    struct move_params p = {.to = m->to, .from = m->from, .entries = m->count[0], .rows = m->count[1], .adds = adds};
    const int64_t units = m->count[3] * m->element_bytes / unit;
    p.units = (uint32_t)units, p.inner = (uint32_t)(units * m->count[2]), p.unit_bytes = unit;
    for (int axis = 0; axis < 3; ++axis) {
        p.to_stride[axis] = m->to_stride[axis] * m->element_bytes;
        p.from_stride[axis] = m->from_stride[axis] * m->element_bytes;
    }
    return p;
}

static int64_t inner_units(const struct moved_rows *m, int32_t unit) {
    return m->count[3] * m->element_bytes / unit * m->count[2];
}

const char *strobe__dist_cuda_move(const struct moved_rows *given, bool adds, void *stream) {
    const struct moved_rows m = turned(*given);
    const int32_t unit = unit_of(&m, adds);
    const int64_t inner = inner_units(&m, unit);
    if (inner > MOST_UNITS) return "rows of 2^30 and more units are not moved";
    struct move_params p = params_of(&m, unit, adds);
    return launch_over((void (*)(void))strobe__dist_move_rows, p.entries * p.rows, inner, &p, stream);
}

static const char *launch_moves(struct moves_params *p, void *stream) {
    const dim3 blocks = {(unsigned)smaller(p->chunks, MOST_BLOCKS), 1, 1};
    void *arguments[] = {p};
    const char *failure = p->count ? launch((void (*)(void))strobe__dist_move_all, blocks, all_threads, arguments, stream)
                                   : NULL;
    p->count = p->chunks = 0;
    return failure;
}

const char *strobe__dist_cuda_move_all(const struct moved_rows *moves, int64_t count, void *stream) {
    struct moves_params p = {.count = 0};
    const char *failure = NULL;
    for (int64_t n = 0; n < count && !failure; ++n) {
        const struct moved_rows m = turned(moves[n]);
        const int32_t unit = unit_of(&m, false);
        const int64_t inner = inner_units(&m, unit);
        if (inner > MOST_UNITS || m.count[0] * m.count[1] > (int64_t)UINT32_MAX / inner) { /* by itself */
            failure = strobe__dist_cuda_move(&moves[n], false, stream);
            continue;
        }
        p.first_chunk[p.count] = p.chunks, p.move[p.count++] = params_of(&m, unit, false);
        p.chunks += (uint32_t)ceil_div(m.count[0] * m.count[1] * inner, MOVED_CHUNK);
        if (p.count == MOVED_TOGETHER) failure = launch_moves(&p, stream);
    }
    return failure ? failure : launch_moves(&p, stream);
}

/* Whether every head of every row begins at a multiple of 16 bytes on both sides, and is as long. */
static bool is_wide(const struct rounded_rows *r) {
    const int64_t to_bytes = r->type == ROUNDED_FP32 ? 4 : 2;
    uint64_t to = (uint64_t)(uintptr_t)r->to, from = (uint64_t)(uintptr_t)r->from | (uint64_t)(uintptr_t)r->more;
    for (int axis = 0; axis < 3; ++axis)
        if (r->count[axis] > 1)
            to |= (uint64_t)(r->to_stride[axis] * to_bytes),
                from |= (uint64_t)(r->from_stride[axis] * 4) | (uint64_t)(r->more ? r->more_stride[axis] * 4 : 0);
    return r->count[3] % 8 == 0 && (to | from) % 16 == 0;
}

const char *strobe__dist_cuda_round(const struct rounded_rows *r, void *stream) {
    const bool wide = is_wide(r);
    const int64_t units = wide ? r->count[3] / 8 : r->count[3], inner = units * r->count[2];
    if (inner > MOST_UNITS) return "rows of 2^30 and more units are not rounded";
    struct round_params p = {.to = r->to, .from = r->from, .more = r->more, .entries = r->count[0], .rows = r->count[1]};
    p.units = (uint32_t)units, p.inner = (uint32_t)inner, p.type = r->type, p.wide = wide;
    for (int axis = 0; axis < 3; ++axis)
        p.to_stride[axis] = r->to_stride[axis], p.from_stride[axis] = r->from_stride[axis],
        p.more_stride[axis] = r->more_stride[axis];
    const dim3 blocks = {(unsigned)smaller(ceil_div(p.entries * p.rows * inner, ROUNDED_AT_ONCE * THREADS), MOST_BLOCKS), 1,
                         1};
    void *arguments[] = {&p};
    return launch((void (*)(void))strobe__dist_round_rows, blocks, all_threads, arguments, stream);
}

static uint64_t places_of(const void *data, const int64_t *stride, int32_t type) {
    uint64_t together = (uint64_t)(uintptr_t)data;
    for (int axis = 0; axis < 3; ++axis) together |= (uint64_t)(stride[axis] * (type == ROUNDED_FP32 ? 4 : 2));
    return together;
}

const char *strobe__dist_cuda_products(struct product_params *p, void *stream) {
    const uint64_t places = places_of(p->a, p->a_stride, p->a_type) | places_of(p->b, p->b_stride, p->b_type);
    const dim3 blocks = {(unsigned)smaller(p->entries * p->rows, MOST_BLOCKS), 1, 1};
    void *arguments[] = {p};
    p->wide = places % 16 == 0 && p->dim % 8 == 0;
    return launch((void (*)(void))strobe__dist_row_products, blocks, all_threads, arguments, stream);
}

const char *strobe__dist_cuda_zero(void *to, int64_t stride, int64_t rows, int64_t row_bytes, void *stream) {
    if (rows == 1) return text_of(cudaMemsetAsync(to, 0, (size_t)row_bytes, stream));
    if (stride >= row_bytes)
        return text_of(cudaMemset2DAsync(to, (size_t)stride, 0, (size_t)row_bytes, (size_t)rows, stream));
    for (int64_t i = 0; i < rows; ++i) {
        const char *failure = text_of(cudaMemsetAsync((char *)to + i * stride, 0, (size_t)row_bytes, stream));
        if (failure) return failure;
    }
    return NULL;
}

static dim3 blocks_for(int64_t count) {
    const dim3 blocks = {(unsigned)smaller(ceil_div(count, THREADS), MOST_BLOCKS), 1, 1};
    return blocks;
}

const char *strobe__dist_cuda_fill(float *to, int64_t count, float value, void *stream) {
    void *arguments[] = {&to, &count, &value};
    return launch((void (*)(void))strobe__dist_fill_floats, blocks_for(count), all_threads, arguments, stream);
}

const char *strobe__dist_cuda_copy(void *to, const void *from, size_t bytes, void *stream) {
    return text_of(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
}

const char *strobe__dist_cuda_copy_pieces(const struct copied_rows *pieces, int64_t count, void *stream) {
    const char *failure = NULL;
    for (int64_t first = 0; first < count && !failure; first += COPIED_PIECES) {
        struct copy_params p = {.count = (uint32_t)smaller(count - first, COPIED_PIECES)};
        for (uint32_t n = 0; n < p.count; ++n) {
            const struct copied_rows *c = &pieces[first + n];
            p.piece[n] = (struct copied_piece){c->to, c->from, (uint32_t)c->bytes, p.chunks};
            p.chunks += (uint32_t)ceil_div((int64_t)c->bytes, COPIED_CHUNK);
        }
        const dim3 blocks = {(unsigned)smaller(p.chunks, MOST_COPIERS), 1, 1};
        void *arguments[] = {&p};
        failure = launch((void (*)(void))strobe__dist_copy_pieces, blocks, all_threads, arguments, stream);
    }
    return failure;
}

const char *strobe__dist_cuda_load_copies(void *stream) {
    const dim3 one = {1, 1, 1};
    struct copy_params p = {.count = 0};
    struct exchange_params x = {.fills = 0};
    void *arguments[] = {&p}, *of_exchange[] = {&x};
    const char *failure = launch((void (*)(void))strobe__dist_copy_pieces, one, all_threads, arguments, stream);
    return failure ? failure : launch((void (*)(void))strobe__dist_exchange, one, all_threads, of_exchange, stream);
}

/* CTAs for some steps: as many as the longest has chunks, up to half of what every GPU runs at a time. */
static uint32_t exchangers(struct exchange_params *p, uint32_t first, uint32_t end) {
    uint32_t most = 0;
    for (uint32_t s = first; s < end; ++s) {
        struct exchange_step *step = &p->step[s];
        step->chunks = 0;
        for (uint32_t n = step->first_piece; n < (uint32_t)step->first_piece + step->pieces; ++n) {
            p->piece[n].first_chunk = step->chunks;
            step->chunks += (uint32_t)ceil_div(p->piece[n].bytes, EXCHANGED_CHUNK);
        }
        if (step->chunks > most) most = step->chunks;
    }
    return (uint32_t)smaller(most, MOST_EXCHANGERS);
}

const char *strobe__dist_cuda_exchange(struct exchange_params *p, void *stream) {
    const dim3 threads = {EXCHANGED_THREADS, 1, 1};
    p->fillers = exchangers(p, 0, p->fills);
    const dim3 blocks = {p->fillers + exchangers(p, p->fills, p->fills + p->empties), 1, 1};
    void *arguments[] = {p};
    return launch((void (*)(void))strobe__dist_exchange, blocks, threads, arguments, stream);
}

const char *strobe__dist_cuda_sum_rows(struct summed_rows *r, void *stream) {
    r->chunks = 0;
    for (uint32_t n = 0; n < r->count; ++n) {
        struct summed_piece *p = &r->piece[n];
        uint64_t together = (uint64_t)(uintptr_t)p->to;
        for (uint32_t s = 0; s < p->sources; ++s) together |= (uint64_t)(uintptr_t)r->source[p->first_source + s];
        p->wide = together % 16 == 0 && p->elements % 8 == 0;
        p->first_chunk = r->chunks;
        r->chunks += (uint32_t)ceil_div(p->elements, SUMMED_CHUNK);
    }
    if (r->chunks == 0) return NULL;
    const dim3 blocks = {(unsigned)smaller(r->chunks, MOST_BLOCKS), 1, 1};
    void *arguments[] = {r};
    return launch((void (*)(void))strobe__dist_sum_rows, blocks, all_threads, arguments, stream);
}

const char *strobe__dist_cuda_sum(float *to, const float *parts, int64_t count, int32_t ranks, void *stream) {
    void *arguments[] = {&to, &parts, &count, &ranks};
    return launch((void (*)(void))strobe__dist_sum_ranks, blocks_for(count), all_threads, arguments, stream);
}

const char *strobe__dist_cuda_upload(int64_t *to, const int64_t *words, int64_t count, void *stream) {
    const dim3 one = {1, 1, 1};
    for (int64_t at = 0; at < count; at += UPLOADED_WORDS) {
        struct upload_params p = {.to = to + at, .count = (int32_t)smaller(count - at, UPLOADED_WORDS)};
        void *arguments[] = {&p};
        memcpy(p.word, words + at, (size_t)p.count * sizeof *p.word);
        const char *failure = launch((void (*)(void))strobe__dist_store_words, one, all_threads, arguments, stream);
        if (failure) return failure;
    }
    return NULL;
}

bool strobe__dist_cuda_is_captured(void *stream) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(stream, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
}
