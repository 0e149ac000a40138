/* SPDX-License-Identifier: BSD-3-Clause
 *
 * marks.c: which calls of a schedule are the first, or the last, to have a part of a row, or to write a key's gradients.
 * What is first is written, not merged or added, and what is both needs no sum. */
#include <stdlib.h>
#include <string.h>

#include "schedule.h"

/* A byte for each row of a tensor. */
static unsigned char *marks_of(int64_t rows) { return calloc((size_t)rows + 1, 1); }

/* Appends the rows without a mark. */
static bool add_unmarked(struct runs *runs, const unsigned char *marks, int64_t rows) {
    bool ok = true;
    const unsigned char *const end = marks + rows, *at = memchr(marks, 0, (size_t)rows);
    while (ok && at) {
        const unsigned char *marked = memchr(at, 1, (size_t)(end - at)), *const stop = marked ? marked : end;
        ok = strobe__runs_add(runs, (struct run){.row = at - marks, .count = stop - at});
        at = memchr(stop, 0, (size_t)(end - stop));
    }
    return ok;
}

/* Marks rows in `seen`; where none of them was marked, in `own` too. Returns whether that is so. */
static bool mark(unsigned char *seen, unsigned char *own, int64_t first, int64_t count) {
    const bool fresh = !memchr(seen + first, 1, (size_t)count);
    memset(seen + first, 1, (size_t)count);
    if (fresh) memset(own + first, 1, (size_t)count);
    return fresh;
}

/* Marks the calls that are the first to write gradients of keys. A late step's are, where nothing has come from others
 * before. */
static bool mark_keys(struct schedule *schedule, const struct shard *s) {
    bool ok = true;
    struct step *late = schedule->late ? &schedule->steps[schedule->count - 1] : NULL;
    for (int64_t t = 0; ok && t < schedule->count - (late != NULL); ++t) {
        struct step *step = &schedule->steps[t];
        const int64_t rows = step->own ? s->keys : step->grad_rows;
        unsigned char *seen = marks_of(rows), *written = marks_of(rows);
        ok = seen && written;
        for (int64_t c = 0; ok && c < step->calls.count; ++c) {
            struct call *call = &step->calls.at[c];
            call->keys_fresh = mark(seen, written, call->grad_row, call->keys);
        }
        for (int64_t c = 0; ok && step->own && late && schedule->count == 3 && c < late->calls.count; ++c) {
            struct call *call = &late->calls.at[c];
            call->keys_fresh = mark(seen, written, call->grad_row, call->keys);
        }
        const struct runs *local =
            &schedule->steps[schedule->count - 1].grad_local.runs; /* an all-gather's, the first there */
        for (int64_t r = 0; ok && step->own && r < local->count; ++r)
            memset(written + local->at[r].row, 1, (size_t)local->at[r].count);
        ok = ok && add_unmarked(&step->unwritten, written, rows);
        free(seen), free(written);
    }
    return ok;
}

static bool add_segment(struct call *c, struct segment segment) {
    struct segment *more = realloc(c->segments, (size_t)(c->segment_count + 1) * sizeof *more);
    if (!more) return false;
    c->segments = more, c->segments[c->segment_count++] = segment;
    return true;
}

/* Cuts the call's segments where marks begin or end, which say what is not first, or not last; then marks its rows. */
static bool cut_segments(struct call *c, unsigned char *marks, bool from_the_end) {
    struct segment *const before = c->segments;
    const int64_t count = c->segment_count;
    bool ok = true;
    c->segments = NULL, c->segment_count = 0;
    for (int64_t n = 0; ok && n < count; ++n)
        for (int64_t at = before[n].row, end = at + before[n].rows; ok && at < end;) {
            const unsigned char mark = marks[at];
            const unsigned char *const other = memchr(marks + at, !mark, (size_t)(end - at));
            const int64_t stop = other ? other - marks : end;
            struct segment segment = {at, stop - at, before[n].fresh, before[n].last};
            *(from_the_end ? &segment.last : &segment.fresh) = !mark;
            ok = add_segment(c, segment), at = stop;
        }
    free(before);
    memset(marks + c->q_row, 1, (size_t)c->rows);
    return ok;
}

/* Finds the segments of all calls, and rows that no call has. */
static bool mark_rows(struct schedule *schedule, const struct shard *s) {
    unsigned char *before = marks_of(s->rows), *after = marks_of(s->rows);
    bool ok = before && after;
    for (int64_t t = 0; ok && t < schedule->count; ++t)
        for (int64_t c = 0; ok && c < schedule->steps[t].calls.count; ++c) {
            struct call *call = &schedule->steps[t].calls.at[c];
            free(call->segments);
            call->segments = NULL, call->segment_count = 0;
            ok = add_segment(call, (struct segment){.row = call->q_row, .rows = call->rows}) &&
                 cut_segments(call, before, false);
        }
    for (int64_t t = schedule->count - 1; ok && t >= 0; --t)
        for (int64_t c = schedule->steps[t].calls.count - 1; ok && c >= 0; --c) {
            struct call *call = &schedule->steps[t].calls.at[c];
            ok = cut_segments(call, after, true);
            call->rows_fresh = call->rows_last = true;
            for (int64_t n = 0; n < call->segment_count; ++n)
                call->rows_fresh &= call->segments[n].fresh, call->rows_last &= call->segments[n].last;
        }
    strobe__runs_free(&schedule->rest);
    ok = ok && add_unmarked(&schedule->rest, before, s->rows);
    free(before), free(after);
    return ok;
}

/* A forward's calls of which most rows have no other call go in pieces, so that these rows are written once and for all,
 * without sums: with a window, those that see their own rank's keys alone. */
static bool split_rows(struct calls *calls) {
    struct calls pieces = {0};
    bool ok = true;
    for (int64_t c = 0; ok && c < calls->count; ++c) {
        struct call *call = &calls->at[c];
        int64_t direct = 0;
        for (int64_t n = 0; n < call->segment_count; ++n)
            if (call->segments[n].fresh && call->segments[n].last) direct += call->segments[n].rows;
        const bool splits = !call->cu_q && direct < call->rows && 2 * direct >= call->rows;
        for (int64_t n = 0; ok && n < (splits ? call->segment_count : 1); ++n)
            ok = splits ? strobe__call_take_rows(call, &call->segments[n], &pieces) : strobe__calls_add(&pieces, *call);
        if (ok && !splits) *call = (struct call){0}; /* it has moved */
    }
    strobe__calls_free(ok ? calls : &pieces);
    if (ok) *calls = pieces;
    return ok;
}

static bool split_calls(struct schedule *schedule) {
    for (int64_t t = 0; t < schedule->count; ++t)
        if (!split_rows(&schedule->steps[t].calls)) return false;
    return true;
}

/* The last transfer of gradients of keys. */
static bool mark_rest_of_keys(struct schedule *schedule, const struct shard *s) {
    int64_t step;
    const struct transfer *last = strobe__schedule_last(schedule, &step);
    unsigned char *done = marks_of(s->keys);
    for (int64_t r = 0; done && last && r < last->runs.count; ++r)
        memset(done + last->runs.at[r].row, 1, (size_t)last->runs.at[r].count);
    const bool ok = done && add_unmarked(&schedule->keys_rest, done, s->keys);
    free(done);
    return ok;
}

bool strobe__schedule_mark(struct schedule *schedule, const struct shard *s) {
    bool ok = mark_keys(schedule, s) && mark_rows(schedule, s) && mark_rest_of_keys(schedule, s);
    if (s->w->backward) return ok;
    return ok && split_calls(schedule) && mark_rows(schedule, s);
}
