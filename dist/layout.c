/* SPDX-License-Identifier: BSD-3-Clause
 *
 * layout.c: which positions of a sequence a rank holds. The header draws the layouts. */
#include <stdlib.h>

#include "dist.h"

const char *const strobe__dist_layout_names[3] = {"contiguous", "zigzag", "striped"};

/* Where part number `part` of `parts` begins: the first seq % parts have one position more. */
static int64_t part_begin(int64_t seq, int64_t parts, int64_t part) {
    const int64_t longer = seq % parts;
    return seq / parts * part + (part < longer ? part : longer);
}

static struct run part_run(int64_t seq, int64_t parts, int64_t part) {
    const int64_t begin = part_begin(seq, parts, part);
    return (struct run){.first = begin, .step = 1, .count = part_begin(seq, parts, part + 1) - begin};
}

/* One or two runs of a rank, their rows not yet counted; the second may be empty. */
static void rank_runs(int32_t layout, int64_t seq, int32_t size, int32_t rank, struct run runs[2]) {
    runs[1] = (struct run){.step = 1};
    if (layout == STROBE_DIST_CONTIGUOUS) {
        runs[0] = part_run(seq, size, rank);
    } else if (layout == STROBE_DIST_ZIGZAG) {
        runs[0] = part_run(seq, 2 * (int64_t)size, rank);
        runs[1] = part_run(seq, 2 * (int64_t)size, 2 * (int64_t)size - 1 - rank);
    } else {
        runs[0] = (struct run){.first = rank, .step = size, .count = seq > rank ? (seq - rank - 1) / size + 1 : 0};
    }
}

static bool makes_sense(int32_t layout, int64_t seq, int32_t size, int32_t rank) {
    return layout >= STROBE_DIST_CONTIGUOUS && layout <= STROBE_DIST_STRIPED && seq >= 0 && size >= 1 && rank >= 0 &&
           rank < size;
}

int64_t strobe_dist_rows(int32_t layout, int64_t seq, int32_t size, int32_t rank) {
    struct run runs[2];
    if (!makes_sense(layout, seq, size, rank)) return -1;
    rank_runs(layout, seq, size, rank, runs);
    return runs[0].count + runs[1].count;
}

int64_t strobe_dist_position(int32_t layout, int64_t seq, int32_t size, int32_t rank, int64_t row) {
    struct run runs[2];
    if (!makes_sense(layout, seq, size, rank) || row < 0) return -1;
    rank_runs(layout, seq, size, rank, runs);
    if (row < runs[0].count) return runs[0].first + row * runs[0].step;
    row -= runs[0].count;
    return row < runs[1].count ? runs[1].first + row : -1;
}

static int by_first(const void *a, const void *b) {
    const struct run *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* What `ranks` ranks from first_rank on hold together, in the order of positions; all stripes together are the whole. */
bool strobe__layout_runs(int32_t layout, int64_t seq, int32_t size, int32_t first_rank, int32_t ranks, struct runs *runs) {
    struct runs all = {0};
    *runs = (struct runs){0};
    if (layout == STROBE_DIST_STRIPED && ranks == size)
        return strobe__runs_add(runs, (struct run){.first = 0, .step = 1, .count = seq});
    bool ok = true;
    for (int32_t rank = first_rank; rank < first_rank + ranks; ++rank) {
        struct run both[2];
        rank_runs(layout, seq, size, rank, both);
        ok = ok && strobe__runs_add(&all, both[0]) && strobe__runs_add(&all, both[1]);
    }
    if (ok && all.count > 1) qsort(all.at, (size_t)all.count, sizeof *all.at, by_first);
    for (int64_t r = 0; ok && r < all.count; ++r) {
        struct run *last = runs->count ? &runs->at[runs->count - 1] : NULL;
        if (last && last->step == 1 && all.at[r].step == 1 && last->first + last->count == all.at[r].first)
            last->count += all.at[r].count;
        else
            ok = strobe__runs_add(runs, all.at[r]);
    }
    int64_t row = 0;
    for (int64_t r = 0; r < runs->count; ++r) runs->at[r].row = runs->at[r].grad = row, row += runs->at[r].count;
    strobe__runs_free(&all);
    return ok;
}
