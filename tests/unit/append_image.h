/* SPDX-License-Identifier: BSD-3-Clause
 *
 * append_image.h: a call of strobe_append and all that it reads and writes in one piece of memory, which may be copied to a
 * device: any layout of cache and tokens, every manner of naming them, rotary embedding, dtypes. */
#ifndef STROBE_TESTS_UNIT_APPEND_IMAGE_H
#define STROBE_TESTS_UNIT_APPEND_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "strobe/strobe_append.h"

enum { BATCH = 3, GAP = 64, POISON = 0x55, POSITIONS = 4096, MOST_BYTES = 64 << 20 };

enum where { CONTIGUOUS, PACKED_CACHE, IN_PAGES, HEADS_OUTSIDE };
enum tokens { ALL, USED, PACKED };
enum named { BY_LENGTHS, BY_LENGTHS_AFTER, BY_SLOTS };
enum rotary { NO_ROTARY, TABLES, COMPUTED };

struct way {
    enum where where;
    enum tokens tokens;
    enum named named;
    enum rotary rotary;
    int64_t dim, dim_v, heads, group, most, longest, page, rotary_dim; /* most: tokens of a sequence */
    int32_t source, target, q_target;
    int block; /* of scales */
    bool interleaved, positions, at_length, hadamard, odd, in_place, special, wide, missing;
};

/* Offsets of what a call reads and writes in one piece of memory, on either device, with gaps between them. */
struct image {
    unsigned char *bytes;
    size_t size;
    size_t q, k, v, q_to, k_to, v_to, q_scale, k_scale, v_scale, cos, sin, new_ends, new_used, lengths, after, positions,
        slots, table, cache_ends, q_ends;
    int64_t count[BATCH], length[BATCH], first[BATCH + 1], cache_first[BATCH + 1], entries, rows; /* of the cache */
};

struct call {
    strobe_attention a;
    strobe_varlen n;
    strobe_paged g;
    strobe_scales s;
    strobe_appender w;
    strobe_rotary r;
};

static inline bool append_is_byte(int32_t dtype) { return dtype == STROBE_FP8_E4M3 || dtype == STROBE_INT8; }

/* An integer of the call's bits at a place of an array. */
void append_put(const struct way *w, unsigned char *to, int64_t at, int64_t value);

/* Memory for the call, poisoned where nothing is read; the caller frees m->bytes. False if it would be too large. */
bool append_image_make(const struct way *w, struct image *m, uint64_t seed);

/* The call on the image at `base`, in the memory of a device. */
void append_describe(const struct way *w, const struct image *m, unsigned char *base, int32_t device, struct call *c);

#endif
