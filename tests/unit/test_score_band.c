/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_score_band.c: a visible function that is taken for a band says of each pair what the band says, beside every mask,
 * with starts and for sequences of any lengths; and which functions are taken. */
#include <string.h>

#include "core/score/band.h"
#include "core/score/bind.h"
#include "test.h"

enum { FREE, KNOWN, NEVER }; /* is a band beside no mask: whatever the lengths are, where they are known, not at all */

static const struct {
    const char *text;
    int is_band, mask;
} texts[] = {
    {"j <= i", FREE, STROBE_MASK_CAUSAL_TOP_LEFT},
    {"i >= j", FREE, STROBE_MASK_CAUSAL_TOP_LEFT},
    {"!(j > i)", FREE, STROBE_MASK_CAUSAL_TOP_LEFT},
    {"!(i < j)", FREE, STROBE_MASK_CAUSAL_TOP_LEFT},
    {"0 <= 3 * i - 3 * j + 2", FREE, STROBE_MASK_CAUSAL_TOP_LEFT},
    {"-j >= -i && 1", FREE, STROBE_MASK_CAUSAL_TOP_LEFT},
    {"j <= i + seq_k - seq_q", FREE, STROBE_MASK_CAUSAL_BOTTOM_RIGHT},
    {"seq_k - j > seq_q - i - 1", FREE, STROBE_MASK_CAUSAL_BOTTOM_RIGHT},
    {"2 * (seq_q - i) <= 2 * (seq_k - j) + 1", FREE, STROBE_MASK_CAUSAL_BOTTOM_RIGHT},
    {"j <= i && i - j < 9", FREE, STROBE_MASK_WINDOW_TOP_LEFT},
    {"j <= i && i <= c + j", FREE, STROBE_MASK_WINDOW_TOP_LEFT},
    {"abs(i - j) <= 5", FREE, STROBE_MASK_WINDOW_TOP_LEFT},
    {"abs(2 * j - 2 * i) < 9 && i - j <= 2", FREE, STROBE_MASK_WINDOW_TOP_LEFT},
    {"abs(i - j + seq_k - seq_q) <= c", FREE, STROBE_MASK_WINDOW_BOTTOM_RIGHT},
    {"i - j < 2 && j < i + 5", FREE, STROBE_MASK_WINDOW_TOP_LEFT},
    {"i - j <= 3", FREE, STROBE_MASK_WINDOW_TOP_LEFT},
    {"1", FREE, STROBE_MASK_NONE},
    {"c >= 3", FREE, STROBE_MASK_NONE},
    {"j <= i && j <= i + seq_k - seq_q + 20", KNOWN, STROBE_MASK_WINDOW_BOTTOM_RIGHT},
    {"i - j < seq_k && j - i < seq_q", KNOWN, STROBE_MASK_WINDOW_TOP_LEFT},
    {"j < i", NEVER, 0}, /* a band that does not reach its diagonal */
    {"j <= i || j < 3", NEVER, 0},
    {"j <= 2 * i", NEVER, 0},
    {"j <= i + b", NEVER, 0},
    {"j <= i + h", NEVER, 0},
    {"j <= 12", NEVER, 0},
    {"i + j < 9", NEVER, 0},
    {"j <= i && h != 1", NEVER, 0},
    {"i / 4 == j / 4", NEVER, 0},
    {"i == j", NEVER, 0},
    {"j <= i + 0.5", NEVER, 0},
    {"min(i, j) <= i", NEVER, 0},
    {"c > 3", NEVER, 0},
    {"w > 0.5", NEVER, 0},
    {"i", NEVER, 0},
};

static const strobe_score_scalar scalars[] = {{"c", 3, 1, 0}, {"w", 0.75, 0, 0}};

struct sides {
    int64_t q, k;
};

static bool in_band(const struct problem *p, const struct sides *s, int64_t i, int64_t j) {
    const struct band band = strobe__band(p, &(struct sequence){.rows = s->q, .keys = s->k});
    return j >= band_first(&band, i) && j < band_end(&band, i);
}

/* What the caller stated, against what has become of it. */
static void check_pairs(const char *text, const struct problem *stated, const struct problem *taken, const struct sides *s) {
    double value[SCORE_MOST_NODES];
    const struct strobe_score *f = stated->score_call.function;
    for (int64_t i = 0; i < s->q; ++i)
        for (int64_t j = 0; j < s->k; ++j) {
            const struct sequence sequence = {.rows = s->q, .keys = s->k};
            const struct score_place at = strobe__score_place(stated, &sequence, 0, i, j);
            strobe__score_evaluate(&stated->score_call, &f->of_visible, &at, 0, false, value);
            const bool sees = in_band(stated, s, i, j) && value[f->visible] != 0;
            if (sees != in_band(taken, s, i, j))
                fail_msg("%s beside mask %d, lengths %lld,%lld of %lld,%lld: row %lld and key %lld as mask %d (%lld,%lld)",
                         text, stated->a.mask, (long long)s->q, (long long)s->k, (long long)stated->a.seq_q,
                         (long long)stated->a.seq_k, (long long)i, (long long)j, taken->a.mask,
                         (long long)taken->a.window_left, (long long)taken->a.window_right);
        }
}

static int check_problem(size_t n, const strobe_attention *a, const struct sides *longest) {
    struct problem stated, taken;
    if (strobe__problem_read(&stated, a, NULL, false) || strobe__problem_read(&taken, a, NULL, false) ||
        strobe__problem_validate(&taken))
        fail_msg("%s: %s", texts[n].text, strobe_last_error());
    strobe__score_take_band(&taken);
    if (!taken.visible_is_band) {
        assert_int_equal(taken.a.mask, a->mask);
        assert_true(taken.features & FEATURE(VISIBLE) && taken.a.score);
        return 0;
    }
    assert_false(taken.features & FEATURE(VISIBLE) || taken.a.score);
    if (!a->varlen) check_pairs(texts[n].text, &stated, &taken, longest);
    for (struct sides s = {1, 1}; a->varlen && s.q <= longest->q; s.q += 4)
        for (s.k = 1; s.k <= longest->k; s.k += 4) check_pairs(texts[n].text, &stated, &taken, &s);
    if (a->mask == STROBE_MASK_NONE && a->seq_q == a->seq_k && texts[n].is_band == FREE)
        assert_int_equal(taken.a.mask, texts[n].mask);
    return 1;
}

static void test_bands(void **state) {
    (void)state;
    static const struct sides sides[] = {{13, 13}, {9, 21}, {21, 9}, {1, 17}};
    static const int64_t starts[][2] = {{0, 0}, {5, 0}, {0, 7}, {-3, 40}};
    for (size_t n = 0; n < COUNT(texts); ++n) {
        const strobe_score_source source = {
            .struct_size = sizeof source, .visible = texts[n].text, .scalars = scalars, .scalar_count = 2};
        strobe_score *f;
        if (strobe_score_create(&source, &f)) fail_msg("%s: %s", texts[n].text, strobe_last_error());
        const strobe_score_arguments score = {.struct_size = sizeof score, .function = f};
        const strobe_varlen varlen = {.struct_size = sizeof varlen, .used_q = (void *)64, .used_k = (void *)64};
        int taken[2][2] = {{0, 0}, {0, 0}}, asked = 0; /* [lengths differ][beside a mask] */
        for (int e = 0; e < 4 * 4 * 2 * 5; ++e) {
            const struct sides *s = &sides[e % 4];
            const int mask = e / 32, varies = e / 16 % 2;
            const strobe_attention a = {.struct_size = sizeof a,
                                        .batch = 2,
                                        .heads_q = 2,
                                        .seq_q = s->q,
                                        .seq_k = s->k,
                                        .dim = 8,
                                        .mask = mask,
                                        .window_left = 4,
                                        .window_right = 2,
                                        .q_start = starts[e / 4 % 4][0],
                                        .k_start = starts[e / 4 % 4][1],
                                        .varlen = varies ? &varlen : NULL,
                                        .score = &score};
            asked += mask == 0;
            taken[varies][mask != 0] += check_problem(n, &a, s);
        }
        const int half = asked / 2, is_band = texts[n].is_band;
        const int least = is_band == FREE ? half : is_band == KNOWN, most = is_band == NEVER ? 0 : half;
        if (taken[0][0] < least || taken[0][0] > most || taken[1][0] != (is_band == FREE ? half : 0))
            fail_msg("%s: a band in %d problems of known lengths, %d of others, of %d each", texts[n].text, taken[0][0],
                     taken[1][0], half);
        if (is_band == FREE && taken[0][1] == 0) fail_msg("%s: never one with a mask", texts[n].text);
        strobe_score_destroy(f);
    }
}

/* The reference computes a problem as it was stated; a kernel that is chosen says what has become of it. */
static void test_explained(void **state) {
    (void)state;
    const strobe_score_source source = {.struct_size = sizeof source, .visible = "j <= i"};
    strobe_score *f;
    assert_int_equal(strobe_score_create(&source, &f), STROBE_OK);
    const strobe_score_arguments score = {.struct_size = sizeof score, .function = f};
    strobe_tuning tuning = {.struct_size = sizeof tuning};
    const strobe_attention a = {.struct_size = sizeof a,
                                .batch = 1,
                                .heads_q = 1,
                                .seq_q = 20,
                                .seq_k = 20,
                                .dim = 8,
                                .score = &score,
                                .tuning = &tuning};
    char text[8192];
    assert_int_equal(strobe_explain(&a, NULL, text, sizeof text, NULL), STROBE_OK);
    assert_non_null(strstr(text, ", visible as the mask: causal, top-left\n"));
    tuning.kernel = "reference_forward";
    assert_int_equal(strobe_explain(&a, NULL, text, sizeof text, NULL), STROBE_OK);
    assert_null(strstr(text, "visible as"));
    strobe_score_destroy(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bands), cmocka_unit_test(test_explained)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
