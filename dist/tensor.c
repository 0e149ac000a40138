/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tensor.c: see tensor.h; what moves is in memory.c. On the CPU rounding is strobe_merge's, of one part
 * whose lse is 0. */
#include "tensor.h"

#include <string.h>

#include "portable/posix.h"

void *strobe__room_take(struct room *room, size_t bytes) {
    void *piece = room->base ? room->base + room->used : NULL;
    room->used += (bytes + 63) / 64 * 64;
    return piece;
}

strobe_status strobe__room_find(struct room *room, const struct place *place, size_t needed, void *workspace, size_t given,
                                void **own) {
    if (!workspace && given == 0 && place->device == STROBE_CPU) {
        *own = needed ? aligned_alloc(64, needed) : NULL;
        if (needed && !*own)
            return strobe__dist_fail(STROBE_OUT_OF_MEMORY, "a workspace of %zu bytes could not be allocated", needed);
        *room = (struct room){.base = *own};
        return STROBE_OK;
    }
    if (given < needed)
        return strobe__dist_fail(STROBE_WORKSPACE_TOO_SMALL, "workspace_bytes is %zu; at least %zu is accepted", given,
                                 needed);
    if ((!workspace && needed) || (uintptr_t)workspace % 64 != 0)
        return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "workspace is %p; a multiple of 64 bytes is accepted", workspace);
    *room = (struct room){.base = workspace};
    return STROBE_OK;
}

strobe_tensor strobe__tensor_of(void *data, int32_t dtype, int64_t rows, int64_t heads, int64_t dim) {
    return (strobe_tensor){.data = data, .stride = {rows * heads * dim, heads * dim, dim}, .dtype = dtype};
}

strobe_tensor strobe__lse_of(void *data, int64_t rows, int64_t heads) {
    return (strobe_tensor){.data = data, .stride = {heads * rows, 1, rows}, .dtype = STROBE_FP32};
}

strobe_tensor strobe__tensor_from(strobe_tensor t, int64_t row, int64_t head) {
    const int64_t elements = row * t.stride[1] + head * t.stride[2];
    if (t.data) t.data = (unsigned char *)t.data + elements * (int64_t)strobe__dist_bytes(t.dtype);
    return t;
}

strobe_status strobe__round_rows(struct place *on, const struct whole *w, strobe_tensor to, strobe_tensor from,
                                 strobe_tensor more, struct extent e, float *zeros) {
    if (e.entries == 0 || e.rows == 0) return STROBE_OK;
    if (on->device == STROBE_CUDA) {
        strobe__round_on_device(on, to, from, more, e);
        return STROBE_OK;
    }
    e.to_step = e.from_step = 1;
    if (more.data) strobe__add_rows(on, from, more, e);
    const strobe_partial part = {.out = from, .lse = {.data = zeros, .stride = {0, 0, 1}, .dtype = STROBE_FP32}};
    const strobe_partials m = {.struct_size = sizeof m,
                               .batch = e.entries,
                               .seq_q = e.rows,
                               .heads_q = e.heads,
                               .dim_v = e.dim,
                               .count = 1,
                               .parts = &part,
                               .out = to,
                               .device = on->device,
                               .device_index = on->index,
                               .parallel = w->a.parallel};
    return strobe__dist_core(strobe_merge(&m, on->stream));
}

static size_t part_bytes(int64_t entries, int64_t rows, int64_t heads, int64_t dim, int32_t dtype) {
    return ((size_t)entries * (size_t)rows * (size_t)heads * (size_t)dim * strobe__dist_bytes(dtype) + 63) / 64 * 64;
}

size_t strobe__block_bytes(const strobe_attention *a, int64_t entries, int64_t rows, int32_t dtype) {
    return part_bytes(entries, rows, a->heads_kv, a->dim, dtype) + part_bytes(entries, rows, a->heads_kv, a->dim_v, dtype);
}

struct block strobe__block_at(const strobe_attention *a, int64_t entries, int64_t rows, int32_t dtype, void *data) {
    unsigned char *v = data ? (unsigned char *)data + part_bytes(entries, rows, a->heads_kv, a->dim, dtype) : NULL;
    return (struct block){.k = strobe__tensor_of(data, dtype, rows, a->heads_kv, a->dim),
                          .v = strobe__tensor_of(v, dtype, rows, a->heads_kv, a->dim_v)};
}
