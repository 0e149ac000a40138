/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_mask.c: bands against the public header's words on who sees whom, pair by pair, for every mask kind over a grid of
 * windows, starts and lengths, in 64 bits and in 32; and block coverage against the pairs of the block. */
#include <string.h>

#include "core/problem.h"
#include "test.h"

enum { MOST = 9 };

static bool is_bottom(int32_t mask) {
    return mask == STROBE_MASK_CAUSAL_BOTTOM_RIGHT || mask == STROBE_MASK_WINDOW_BOTTOM_RIGHT;
}

/* The header: the diagonal runs through the key position that equals the row's, or that plus seq_k - seq_q. */
static bool sees(const strobe_attention *a, int64_t i, int64_t j) {
    const int64_t row = a->q_start + i + (is_bottom(a->mask) ? a->seq_k - a->seq_q : 0), key = a->k_start + j;
    switch (a->mask) {
    case STROBE_MASK_NONE: return true;
    case STROBE_MASK_CAUSAL_TOP_LEFT:
    case STROBE_MASK_CAUSAL_BOTTOM_RIGHT: return key <= row;
    default:
        return (a->window_left < 0 || row - key <= a->window_left) && (a->window_right < 0 || key - row <= a->window_right);
    }
}

static void explain(const strobe_attention *a, const char *what, int64_t i0, int64_t i1, int64_t j0, int64_t j1) {
    fail_msg("%s: mask %d window %lld,%lld starts %lld,%lld lengths %lld,%lld rows %lld..%lld keys %lld..%lld", what,
             a->mask, (long long)a->window_left, (long long)a->window_right, (long long)a->q_start, (long long)a->k_start,
             (long long)a->seq_q, (long long)a->seq_k, (long long)i0, (long long)i1, (long long)j0, (long long)j1);
}

static void check_rows(const strobe_attention *a, const struct band *band, bool visible[MOST][MOST]) {
    for (int64_t i = 0; i < a->seq_q; ++i)
        for (int64_t j = 0; j < a->seq_k; ++j) {
            visible[i][j] = sees(a, i, j);
            if ((j >= band_first(band, i) && j < band_end(band, i)) != visible[i][j])
                explain(a, "band_first, band_end", i, i, j, j);
        }
}

/* The form in 32 bits, which the Hopper kernels ask, for rows and the other way round for keys. */
static void check_band32(const strobe_attention *a, const struct band *band, bool visible[MOST][MOST]) {
    const struct band32 shifts = band32_of(band);
    const int32_t rows = (int32_t)a->seq_q, keys = (int32_t)a->seq_k;
    for (int32_t i = 0; i < rows; ++i)
        for (int32_t j = 0; j < keys; ++j) {
            if ((j >= band32_first_key(shifts.first_shift, i) && j < band32_end_key(shifts.end_shift, i, keys)) !=
                visible[i][j])
                explain(a, "band32_first_key, band32_end_key", i, i, j, j);
            if ((i >= band32_first_row(shifts.end_shift, j) && i < band32_end_row(shifts.first_shift, j, rows)) !=
                visible[i][j])
                explain(a, "band32_first_row, band32_end_row", i, i, j, j);
            if (band32_last_row(shifts.first_shift, j, rows) != band32_end_row(shifts.first_shift, j, rows) - 1)
                explain(a, "band32_last_row", i, i, j, j);
        }
}

static void check_blocks(const strobe_attention *a, const struct band *band, bool visible[MOST][MOST]) {
    for (int64_t i0 = 0; i0 < a->seq_q; ++i0)
        for (int64_t j0 = 0; j0 < a->seq_k; ++j0)
            for (int64_t i1 = i0 + 1; i1 <= a->seq_q; ++i1)
                for (int64_t j1 = j0 + 1; j1 <= a->seq_k; ++j1) {
                    int64_t seen = 0;
                    for (int64_t i = i0; i < i1; ++i)
                        for (int64_t j = j0; j < j1; ++j) seen += visible[i][j];
                    const enum coverage expected = seen == 0                       ? BLOCK_SKIPPED
                                                   : seen == (i1 - i0) * (j1 - j0) ? BLOCK_FULL
                                                                                   : BLOCK_PARTIAL;
                    if (band_covers(band, i0, i1, j0, j1) != expected) explain(a, "band_covers", i0, i1, j0, j1);
                }
}

static void check_lengths(strobe_attention *a, bool blocks) {
    static const int64_t lengths[][2] = {{1, 1}, {1, 9}, {9, 1}, {4, 7}, {7, 4}, {6, 6}, {9, 9}, {0, 3}, {3, 0}};
    for (size_t n = 0; n < COUNT(lengths); ++n) {
        a->seq_q = lengths[n][0], a->seq_k = lengths[n][1];
        struct problem problem;
        assert_int_equal(strobe__problem_read(&problem, a, NULL, false), STROBE_OK);
        const struct sequence s = strobe__sequence(&problem, 0);
        bool visible[MOST][MOST];
        check_rows(a, &s.band, visible);
        check_band32(a, &s.band, visible);
        if (blocks) check_blocks(a, &s.band, visible);
    }
}

static void check_grid(bool blocks) {
    static const int64_t starts[][2] = {{0, 0}, {3, 0}, {0, 3}, {5, 5}, {-2, 0}, {0, -2}, {100, 0}, {0, 100}};
    static const int64_t windows[][2] = {{0, 0}, {-1, 0}, {0, -1}, {-1, -1}, {2, 0},
                                         {0, 2}, {1, 3},  {4, -1}, {-1, 4},  {50, 50}};
    for (int32_t mask = STROBE_MASK_NONE; mask <= STROBE_MASK_WINDOW_BOTTOM_RIGHT; ++mask)
        for (size_t w = 0; w < (mask >= STROBE_MASK_WINDOW_TOP_LEFT ? COUNT(windows) : 1); ++w)
            for (size_t s = 0; s < COUNT(starts); ++s) {
                strobe_attention a = {.struct_size = sizeof a, .batch = 1, .heads_q = 1, .dim = 1, .mask = mask};
                a.window_left = windows[w][0], a.window_right = windows[w][1];
                a.q_start = starts[s][0], a.k_start = starts[s][1];
                check_lengths(&a, blocks);
            }
}

static void test_rows(void **state) { (void)state, check_grid(false); }
static void test_blocks(void **state) { (void)state, check_grid(true); }

/* In 32 bits, at the ends of sequences as long as the Hopper kernels take them, with what the device adds to the shifts. */
static void check_far_band32(const strobe_attention *a, const struct band *from) {
    static const int32_t rows[] = {0, 3, (1 << 28) - 1}, lengths[] = {4, 1 << 28}, diagonals[] = {0, 1 << 28, -(1 << 28)};
    const struct band32 shifts = band32_of(from);
    for (size_t n = 0; n < COUNT(rows) * COUNT(lengths) * COUNT(diagonals); ++n) {
        const int32_t i = rows[n % COUNT(rows)], keys = lengths[n / COUNT(rows) % COUNT(lengths)];
        const int32_t diagonal = diagonals[n / COUNT(rows) / COUNT(lengths)];
        const struct band band = {from->left, from->right, from->diagonal + diagonal, keys};
        const int32_t seen[] = {0, 3, keys - 1};
        for (size_t k = 0; k < COUNT(seen); ++k) {
            const bool visible = seen[k] >= band_first(&band, i) && seen[k] < band_end(&band, i);
            if ((seen[k] >= band32_first_key(shifts.first_shift + diagonal, i) &&
                 seen[k] < band32_end_key(shifts.end_shift + diagonal, i, keys)) != visible)
                explain(a, "band32 far away", i, i, seen[k], seen[k]);
        }
    }
}

/* The largest legal positions and windows: nothing wraps around. */
static void test_extremes(void **state) {
    (void)state;
    static const int64_t far = (int64_t)1 << 59, wide = (int64_t)1 << 40;
    static const struct {
        int64_t q_start, k_start, left, right;
        enum coverage covered;
    } rows[] = {
        {far, -far, wide, wide, BLOCK_SKIPPED}, {-far, far, wide, wide, BLOCK_SKIPPED}, {far, far, 0, 0, BLOCK_PARTIAL},
        {far, -far, -1, 0, BLOCK_FULL},         {-far, far, 0, -1, BLOCK_FULL},         {far, -far, 0, -1, BLOCK_SKIPPED},
        {-far, far, -1, -1, BLOCK_FULL},        {far, -far, -1, -1, BLOCK_FULL},        {-far, far, -1, 0, BLOCK_SKIPPED},
    };
    for (size_t n = 0; n < COUNT(rows); ++n) {
        const strobe_attention a = {.struct_size = sizeof a,
                                    .batch = 1,
                                    .seq_q = 4,
                                    .seq_k = 4,
                                    .heads_q = 1,
                                    .dim = 1,
                                    .mask = STROBE_MASK_WINDOW_TOP_LEFT,
                                    .window_left = rows[n].left,
                                    .window_right = rows[n].right,
                                    .q_start = rows[n].q_start,
                                    .k_start = rows[n].k_start};
        struct problem problem;
        assert_int_equal(strobe__problem_read(&problem, &a, NULL, false), STROBE_OK);
        assert_int_equal(strobe__problem_validate(&problem), STROBE_OK);
        const struct sequence s = strobe__sequence(&problem, 0);
        if (band_covers(&s.band, 0, 4, 0, 4) != rows[n].covered) explain(&a, "extremes", 0, 4, 0, 4);
        check_far_band32(&a, &s.band);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
