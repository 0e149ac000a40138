/* SPDX-License-Identifier: BSD-3-Clause
 *
 * frozen_score.c: a function of a score as a part of a compiled program: its texts, names and values as bytes, of which each
 * call of the program makes the function anew, which takes less time than to look for it. */
#include "score.h"

#include <stdlib.h>
#include <string.h>

static size_t room(const char *text) { return text ? strlen(text) + 1 : 0; }

struct frozen_score *freeze_score(const struct score *s, size_t *bytes) {
    const size_t score = room(s->source.score), visible = room(s->source.visible);
    *bytes = (sizeof(struct frozen_score) + score + visible + 7) / 8 * 8;
    struct frozen_score *f = calloc(1, *bytes); /* the same function has the same bytes */
    if (!f) return NULL;
    f->scalar_count = s->scalar_count, f->array_count = s->array_count;
    for (int n = 0; n < s->scalar_count; ++n) {
        strcpy(f->scalars[n].name, s->scalars[n].name); /* strobe_score_create has looked at its length */
        f->scalars[n].value = s->scalars[n].value, f->scalars[n].integer = s->scalars[n].integer;
    }
    for (int n = 0; n < s->array_count; ++n) {
        strcpy(f->arrays[n].name, s->arrays[n].name);
        f->arrays[n].rank = s->arrays[n].rank, f->arrays[n].dtype = s->arrays[n].dtype;
        memcpy(f->arrays[n].extent, s->elements[n].extent, sizeof f->arrays[n].extent);
    }
    f->score_length = (int64_t)score, f->visible_length = (int64_t)visible;
    if (score) memcpy(f->texts, s->source.score, score);
    if (visible) memcpy(f->texts + score, s->source.visible, visible);
    return f;
}

bool is_frozen_score(const struct frozen_score *f, size_t bytes) {
    if (bytes < sizeof *f || f->scalar_count > MOST_SCALARS || f->array_count > MOST_ARRAYS) return false;
    return (size_t)(f->score_length + f->visible_length) <= bytes - sizeof *f;
}

strobe_status thaw_score(struct thawed_score *to, const struct frozen_score *f, void *const arrays[], void *const darrays[],
                         strobe_attention *a, strobe_gradients *g) {
    strobe_score_scalar scalars[MOST_SCALARS];
    strobe_score_array declared[MOST_ARRAYS];
    memset(to, 0, sizeof *to);
    for (int n = 0; n < f->scalar_count; ++n)
        scalars[n] = (strobe_score_scalar){
            .name = f->scalars[n].name, .value = f->scalars[n].value, .integer = f->scalars[n].integer != 0};
    for (int n = 0; n < f->array_count; ++n) {
        declared[n] = (strobe_score_array){
            .name = f->arrays[n].name, .rank = f->arrays[n].rank, .dtype = f->arrays[n].dtype};
        memcpy(to->elements[n].extent, f->arrays[n].extent, sizeof to->elements[n].extent);
        to->delements[n] = to->elements[n];
        to->elements[n].data = arrays[n], to->delements[n].data = darrays[n];
    }
    const strobe_score_source source = {.struct_size = sizeof source,
                                        .score = f->score_length ? f->texts : NULL,
                                        .visible = f->visible_length ? f->texts + f->score_length : NULL,
                                        .scalars = scalars,
                                        .arrays = declared,
                                        .scalar_count = f->scalar_count,
                                        .array_count = f->array_count};
    const strobe_status status = strobe_score_create(&source, &to->function);
    if (status) return status;
    to->arguments = (strobe_score_arguments){.struct_size = sizeof to->arguments,
                                             .function = to->function,
                                             .arrays = to->elements,
                                             .array_count = f->array_count};
    to->gradients = (strobe_score_gradients){
        .struct_size = sizeof to->gradients, .arrays = to->delements, .array_count = f->array_count};
    a->score = &to->arguments;
    for (int n = 0; n < f->array_count; ++n)
        if (darrays[n]) g->dscore = &to->gradients;
    return STROBE_OK;
}
