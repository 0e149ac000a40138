/* SPDX-License-Identifier: BSD-3-Clause
 *
 * buffer.c: memory for tensors between guard bands; see buffer.h. */
#include "problem/buffer.h"

#include "portable/posix.h"
#include "problem/element.h"

#include <stdlib.h>
#include <string.h>

enum { GUARD = 256, ALIGNMENT = 64, POISON = 0xFF };

/* Elements from the first in memory to the last, and from the first in memory to [0, 0, 0, 0]. */
static bool reach(const buffer *b, int64_t *span, int64_t *before) {
    const bool is_empty = b->extent[0] == 0 || b->extent[1] == 0 || b->extent[2] == 0;
    *span = b->lead + (is_empty ? 0 : b->extent[3]);
    *before = b->lead;
    if (is_empty) return true;
    for (int axis = 0; axis < 3; ++axis) {
        int64_t step = 0;
        if (b->extent[axis] <= 1) continue;
        if (__builtin_mul_overflow(b->extent[axis] - 1, b->stride[axis], &step)) return false;
        if (step < 0) *before -= step;
        if (__builtin_add_overflow(*span, step < 0 ? -step : step, span)) return false;
    }
    return *span <= (int64_t)1 << 56;
}

int64_t buffer_bytes(const buffer *b) {
    int64_t span = 0, before = 0;
    if (!reach(b, &span, &before)) return -1;
    const int64_t bytes = span * (int64_t)element_bytes(b->dtype) + 2 * GUARD;
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

bool buffer_allocate(buffer *b) {
    int64_t span = 0, before = 0;
    const int64_t bytes = buffer_bytes(b);
    if (bytes < 0 || !reach(b, &span, &before)) return false;
    b->bytes = aligned_alloc(ALIGNMENT, (size_t)bytes);
    if (!b->bytes) return false;
    b->size = (size_t)bytes;
    b->data = span ? b->bytes + GUARD + (size_t)before * element_bytes(b->dtype) : NULL;
    buffer_wipe(b);
    return true;
}

void buffer_free(buffer *b) {
    aligned_free(b->bytes);
    *b = (buffer){0};
}

void buffer_wipe(buffer *b) {
    if (b->bytes) memset(b->bytes, POISON, b->size);
}

bool buffer_is_wiped(const buffer *b) {
    /* Every byte equals the one before it, and the first is right. */
    return !b->bytes || (b->bytes[0] == POISON && memcmp(b->bytes, b->bytes + 1, b->size - 1) == 0);
}
