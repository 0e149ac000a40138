/* SPDX-License-Identifier: BSD-3-Clause
 *
 * slot.c: see slot.h. */
#include "slot.h"

#include <string.h>

#include "core/element.h"
#include "portable/posix.h"

enum { GUARD = 256, UNTOUCHED = 0xff };

static const struct {
    size_t bytes;
    double rounding;
} dtypes[] = {
    [STROBE_FP32] = {4, 0x1p-24},
    [STROBE_FP16] = {2, 0x1p-11},
    [STROBE_BF16] = {2, 0x1p-8},
    [STROBE_FP64] = {8, 0x1p-53},
};

double dtype_rounding(int32_t dtype) { return dtypes[dtype].rounding; }
size_t dtype_bytes(int32_t dtype) { return dtypes[dtype].bytes; }

/* Elements from element 0 to the first one in memory, and past the last. */
struct reach {
    size_t before, after;
};

static struct slot slot_of(int32_t dtype, const int64_t extent[3], const int64_t stride[3], int64_t inner,
                           struct reach *reach_of) {
    struct slot s = {.dtype = dtype, .inner = inner, .contiguous = true};
    int64_t before = 0, after = inner;
    int64_t below = inner; /* elements of one index of the axis at hand */
    for (int axis = 2; axis >= 0; --axis) {
        if (extent[axis] > 1 && stride[axis] != below) s.contiguous = false;
        below *= extent[axis];
        s.extent[axis] = extent[axis];
        s.stride[axis] = stride[axis];
        const int64_t reach = extent[axis] > 1 ? (extent[axis] - 1) * stride[axis] : 0;
        if (reach < 0) before -= reach;
        if (reach > 0) after += reach;
    }
    *reach_of = (struct reach){(size_t)before, (size_t)after};
    return s;
}

struct slot slot_make(int32_t dtype, const int64_t extent[3], const int64_t stride[3], int64_t inner, int shift) {
    struct reach reach;
    struct slot s = slot_of(dtype, extent, stride, inner, &reach);
    const size_t bytes = dtype_bytes(dtype), lead = (reach.before * bytes + GUARD + 63) / 64 * 64 + (size_t)shift * bytes;
    s.bytes = (lead + reach.after * bytes + GUARD + 63) / 64 * 64;
    s.base = aligned_alloc(64, s.bytes);
    if (!s.base) abort();
    s.data = s.base + lead;
    slot_reset(&s);
    return s;
}

struct slot slot_make_tight(int32_t dtype, const int64_t extent[3], const int64_t stride[3], int64_t inner) {
    struct reach reach;
    struct slot s = slot_of(dtype, extent, stride, inner, &reach);
    const size_t bytes = dtype_bytes(dtype);
    s.bytes = GUARD + (reach.before + (slot_count(&s) ? reach.after : 0)) * bytes;
    s.fence = fenced_make(s.bytes);
    s.base = s.fence.data;
    s.data = s.base + GUARD + reach.before * bytes;
    slot_reset(&s);
    return s;
}

void slot_free(struct slot *slot) {
    if (slot->fence.pages)
        fenced_free(&slot->fence);
    else
        aligned_free(slot->base);
    slot->base = NULL;
}

int64_t slot_count(const struct slot *s) { return s->extent[0] * s->extent[1] * s->extent[2] * s->inner; }

int64_t slot_element(const struct slot *s, int64_t x, int64_t y, int64_t z, int64_t inner) {
    return ((x * s->extent[1] + y) * s->extent[2] + z) * s->inner + inner;
}

static int64_t offset_of(const struct slot *s, int64_t element) {
    if (s->contiguous) return element;
    int64_t offset = element % s->inner, rest = element / s->inner;
    for (int axis = 2; axis >= 0; --axis) {
        offset += rest % s->extent[axis] * s->stride[axis];
        rest /= s->extent[axis];
    }
    return offset;
}

double slot_get(const struct slot *s, int64_t element) { return element_load(s->data, s->dtype, offset_of(s, element)); }

void slot_set(struct slot *s, int64_t element, double value) {
    element_store(s->data, s->dtype, offset_of(s, element), value);
}

void slot_reset(struct slot *s) { memset(s->base, UNTOUCHED, s->bytes); }

static unsigned char *bytes_of(const struct slot *s, int64_t element) {
    return (unsigned char *)s->data + offset_of(s, element) * (int64_t)dtype_bytes(s->dtype);
}

static bool all_untouched(const unsigned char *bytes, size_t count) {
    for (size_t n = 0; n < count; ++n)
        if (bytes[n] != UNTOUCHED) return false;
    return true;
}

bool slot_is_untouched(const struct slot *s, int64_t element) {
    return all_untouched(bytes_of(s, element), dtype_bytes(s->dtype));
}

bool slot_guards_hold(const struct slot *s) {
    unsigned char *others = malloc(s->bytes); /* the memory with its elements blanked out */
    if (!others) abort();
    memcpy(others, s->base, s->bytes);
    for (int64_t e = 0; e < slot_count(s); e += s->inner)
        memset(others + (bytes_of(s, e) - s->base), UNTOUCHED, (size_t)s->inner * dtype_bytes(s->dtype));
    const bool hold = all_untouched(others, s->bytes);
    free(others);
    return hold;
}

void slot_move(struct slot *s, const int64_t stride[3], int shift) {
    struct slot moved = slot_make(s->dtype, s->extent, stride, s->inner, shift);
    for (int64_t e = 0; e < slot_count(s); ++e) memcpy(bytes_of(&moved, e), bytes_of(s, e), dtype_bytes(s->dtype));
    slot_free(s);
    *s = moved;
}
