/* SPDX-License-Identifier: BSD-3-Clause
 *
 * slot.h: a tensor of a test: memory with guard bands, any strides, elements counted in logical order whatever the layout.
 * Fresh memory is all ones, a NaN in every dtype: what a kernel reads by mistake poisons its result, what it writes by
 * mistake shows. */
#ifndef STROBE_TESTS_UNIT_SLOT_H
#define STROBE_TESTS_UNIT_SLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fenced.h"
#include "strobe/strobe.h"

struct slot {
    unsigned char *base; /* NULL: this tensor is not there */
    size_t bytes;        /* of base, guard bands included */
    void *data;          /* element 0 */
    int32_t dtype;
    int64_t extent[3], stride[3]; /* as in strobe_tensor or strobe_bias; a stride of 0 where the extent is 1 */
    int64_t inner;
    bool contiguous; /* in logical order: the way an element is found quickly */
    struct fenced fence;
};

/* Elements start `shift` elements after a multiple of 64 bytes. */
struct slot slot_make(int32_t dtype, const int64_t extent[3], const int64_t stride[3], int64_t inner, int shift);
/* The last element, in memory, ends where nobody may read on; elements are aligned as they come. */
struct slot slot_make_tight(int32_t dtype, const int64_t extent[3], const int64_t stride[3], int64_t inner);
void slot_free(struct slot *slot);

/* Elements in logical order: [extent 0][extent 1][extent 2][inner]. */
int64_t slot_count(const struct slot *slot);
double slot_get(const struct slot *slot, int64_t element);
void slot_set(struct slot *slot, int64_t element, double value);
/* The element at these indices. */
int64_t slot_element(const struct slot *slot, int64_t x, int64_t y, int64_t z, int64_t inner);

/* All memory to all ones again. */
void slot_reset(struct slot *slot);
/* The element still holds what slot_reset left. */
bool slot_is_untouched(const struct slot *slot, int64_t element);
/* No byte that belongs to no element has changed. */
bool slot_guards_hold(const struct slot *slot);

/* Moves the elements to other strides. */
void slot_move(struct slot *slot, const int64_t stride[3], int shift);

/* The largest relative error of rounding to a dtype, half a unit in the last place. */
double dtype_rounding(int32_t dtype);
size_t dtype_bytes(int32_t dtype);

#endif
