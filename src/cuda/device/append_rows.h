/* SPDX-License-Identifier: BSD-3-Clause
 *
 * append_rows.h: which rows a group of lanes has in strobe_append, where they go, the angles of a position and the scale of
 * a row: what rows in registers (append.cu) and in shared memory (append_elements.h) share. */
#ifndef STROBE_CUDA_DEVICE_APPEND_ROWS_H
#define STROBE_CUDA_DEVICE_APPEND_ROWS_H

#include "cuda/device/append.h"
#include "cuda/device/element.h"

/* Which units a group has, and the lane in it. */
struct group {
    int64_t batch, row; /* of the source */
    int token, first;   /* among all tokens; the first unit of the token */
    int lane;
    bool there; /* else there are fewer groups */
};

/* What the rows of a token have in common. */
struct token_place {
    int64_t to, scale; /* elements to head 0 of the row, and to its scale */
    int64_t position;
    bool there; /* else nothing is written */
};

INLINE uint32_t divided(uint32_t n, const struct append_divisor *d) { return (__umulhi(n, d->multiplier) + n) >> d->shift; }

INLINE struct group group_of(const struct append_side *s, uint32_t block) {
    struct group g;
    const uint32_t index = block * (APPEND_THREADS >> s->lane_bits) + (threadIdx.x >> s->lane_bits);
    const uint32_t token = divided(index, &s->parts), batch = divided(token, &s->rows);
    g.token = (int)token, g.batch = batch, g.row = token - batch * s->rows.by;
    g.first = (int)(index - token * s->parts.by) * s->each;
    g.lane = (int)threadIdx.x & ((1 << s->lane_bits) - 1), g.there = index < s->groups;
    return g;
}

/* Elements to head 0 of the group's row of the source. */
INLINE int64_t source_of(const struct quantise_tensor *t, const struct group *g) {
    return g->batch * t->from_stride[0] + g->row * t->from_stride[1];
}

INLINE struct token_place place_of(const struct append_params *p, const struct append_side *s, const struct group *g) {
    const struct quantise_tensor *t = &s->at.t;
    struct quantise_row found;
    struct append_place place = {g->batch, g->row};
    struct token_place to = {0, 0, 0, g->there && quantise_find(t, g->batch, g->row, &found)};
    if (to.there && s->at.cached) {
        place = append_place_of(&p->cache, found.sequence, found.row, g->token);
        to.there = place.entry >= 0;
    }
    if (!to.there) return to;
    to.to = place.entry * t->to_stride[0] + place.row * t->to_stride[1];
    if (t->rotary) to.position = append_position(&p->cache, &s->at, found.sequence, found.row);
    if (s->quantised)
        to.scale = t->block == 1 ? place.entry * t->scale_stride[0] + place.row * t->scale_stride[1]
                                 : found.sequence * t->scale_stride[0];
    return to;
}

INLINE struct rotary_angle angle_at(const struct append_params *p, int64_t position, int pair) {
    return p->computed ? rotary_angle_of((uint64_t)position * p->frequency[pair])
                       : rotary_angle_at(&p->choices, position, pair);
}

/* The bits of a magnitude as rows are judged by them: of an infinity or a NaN those of a NaN with int8, else 0. */
INLINE uint32_t counted(uint32_t magnitude, int int8) {
    return magnitude < 0x7f800000u ? magnitude : int8 ? 0x7fc00000u : 0;
}

/* The scale of a row whose largest counted magnitude is given by its bits. */
INLINE float scale_of_bits(uint32_t bits, int int8) {
    const float largest = __uint_as_float(bits);
    return largest != largest ? largest : scale_of_largest(largest, int8);
}

#endif
