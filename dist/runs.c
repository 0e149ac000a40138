/* SPDX-License-Identifier: BSD-3-Clause
 *
 * runs.c: lists of runs, positions of a sequence that lie side by side in a tensor. Lists are in the order of their rows. */
#include <stdlib.h>

#include "dist.h"

bool strobe__runs_add(struct runs *runs, struct run run) {
    if (run.count <= 0) return true;
    if (runs->count == runs->capacity) {
        const int64_t capacity = runs->capacity ? 2 * runs->capacity : 4;
        struct run *at = realloc(runs->at, (size_t)capacity * sizeof *at);
        if (!at) return false;
        runs->at = at, runs->capacity = capacity;
    }
    runs->at[runs->count++] = run;
    return true;
}

void strobe__runs_free(struct runs *runs) {
    free(runs->at);
    *runs = (struct runs){0};
}

int64_t strobe__runs_rows(const struct runs *runs) {
    int64_t rows = 0;
    for (int64_t r = 0; r < runs->count; ++r) rows += runs->at[r].count;
    return rows;
}

bool strobe__runs_copy(struct runs *copy, const struct runs *of) {
    int64_t row = 0;
    *copy = (struct runs){0};
    for (int64_t r = 0; r < of->count; ++r) {
        struct run run = of->at[r];
        run.row = run.grad = row, row += run.count;
        if (!strobe__runs_add(copy, run)) {
            strobe__runs_free(copy);
            return false;
        }
    }
    return true;
}

/* The run goes on where the other, not behind it in the tensor, ends or overlaps it: the same positions in the same rows. */
static bool touches(const struct run *a, const struct run *b) {
    const int64_t ahead = b->row - a->row;
    return ahead <= a->count && a->step == b->step && b->first == a->first + ahead * a->step;
}

bool strobe__runs_unite(struct runs *a, const struct runs *b) {
    struct runs all = {0};
    int64_t i = 0, j = 0;
    while (i < a->count || j < b->count) {
        const bool from_a = j == b->count || (i < a->count && a->at[i].row <= b->at[j].row);
        const struct run run = from_a ? a->at[i++] : b->at[j++];
        struct run *last = all.count ? &all.at[all.count - 1] : NULL;
        if (last && touches(last, &run)) {
            const int64_t end = run.row + run.count - last->row;
            if (end > last->count) last->count = end;
        } else if (!strobe__runs_add(&all, run)) {
            strobe__runs_free(&all);
            return false;
        }
    }
    strobe__runs_free(a);
    *a = all;
    return true;
}
