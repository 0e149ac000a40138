/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_score_alibi.c: a function of the score that is taken for ALiBi with slopes of its own gives every visible pair the
 * score that ALiBi gives it, beside every mask, with starts and for sequences of any lengths; and which functions are
 * taken. */
#include <math.h>

#include "core/score/alibi.h"
#include "core/score/bind.h"
#include "test.h"

enum { FREE, KNOWN, CAUSAL, NEVER }; /* is ALiBi: always, where lengths are known, under a mask that hides what follows */

static const struct {
    const char *text;
    int is_alibi;
} texts[] = {
    {"score - 0.5 * abs(i - j)", KNOWN},
    {"score - abs(j - i)", KNOWN},
    {"score + w * abs(i - j + 3)", KNOWN},
    {"abs(i - j) * -0.25 + score", KNOWN},
    {"score - slope[h] * abs(i - j)", KNOWN},
    {"score - pair[b][h] * w * abs(j - i - c)", KNOWN},
    {"score - (-slope[h]) * (2.0 * abs(i - j))", KNOWN},
    {"score - slope[h] * abs(i - j + seq_k - seq_q)", FREE},
    {"score + 0.125 * abs(j - i + seq_q - seq_k - 1)", FREE},
    {"score - c * 0.5 * abs(seq_k - j - (seq_q - i))", FREE},
    {"score + 0.5 * (j - i)", CAUSAL},
    {"score - slope[h] * (i - j)", CAUSAL},
    {"score - w * (i + 2 - j)", CAUSAL},
    {"score - 0.5 * abs(i + j)", NEVER},
    {"score - 0.5 * abs(2 * i - 2 * j)", NEVER},
    {"score - 0.5 * abs(i - j + h)", NEVER},
    {"score * 2 - 0.5 * abs(i - j)", NEVER},
    {"0.5 * abs(i - j) - score", NEVER},
    {"score - slope[hkv] * abs(i - j)", NEVER},
    {"score - slope[1] * abs(i - j)", NEVER},
    {"score - slope[h] * slope[h] * abs(i - j)", NEVER},
    {"score - half[h] * abs(i - j)", NEVER},
    {"score - abs(i - j) * abs(i - j)", NEVER},
    {"score - w", NEVER},
    {"score - tanh(0.1 * abs(i - j))", NEVER},
    {"score + 0.5 * (j - 2 * i)", NEVER},
};

enum { BATCH = 2, HEADS = 2 };

static const strobe_score_scalar scalars[] = {{"c", 3, 1, 0}, {"w", 0.75, 0, 0}};
static const strobe_score_array arrays[] = {{"slope", 1, STROBE_FP32}, {"pair", 2, STROBE_FP32}, {"half", 1, STROBE_FP16}};
static float slope[HEADS] = {0.5f, 0.125f}, pair[BATCH][HEADS] = {{1, 2}, {-0.5f, 4}};
static uint16_t half[HEADS] = {0x3800, 0x3400};
static const strobe_score_elements elements[] = {
    {.data = slope, .extent = {HEADS}}, {.data = pair, .extent = {BATCH, HEADS}}, {.data = half, .extent = {HEADS}}};

struct sides {
    int64_t q, k;
};

/* A sequence's visible pairs, in all heads. */
static void check_pairs(const char *text, const struct problem *p, const struct score_alibi *alibi, const struct sides *s) {
    double value[SCORE_MOST_NODES];
    const struct strobe_score *f = p->score_call.function;
    const struct band band = strobe__band(p, &(struct sequence){.rows = s->q, .keys = s->k});
    for (int64_t n = 0; n < BATCH * HEADS * s->q; ++n) {
        const int64_t b = n / HEADS / s->q, h = n / s->q % HEADS, i = n % s->q;
        const struct sequence sequence = {.b = b, .rows = s->q, .keys = s->k};
        for (int64_t j = band_first(&band, i); j < band_end(&band, i); ++j) {
            const struct score_place at = strobe__score_place(p, &sequence, h, i, j);
            const double own = alibi->slopes ? (double)alibi->slopes[b * alibi->stride_batch + h] : 1;
            const double distance = (double)(i + strobe__alibi_diagonal(p, &sequence) + alibi->shift - j);
            strobe__score_evaluate(&p->score_call, &f->of_score, &at, 0.25, false, value);
            if (fabs(value[f->score] - (0.25 - alibi->factor * own * fabs(distance))) > 1e-9)
                fail_msg("%s beside mask %d, lengths %lld,%lld: row %lld and key %lld of head %lld have %g, as ALiBi %g",
                         text, p->a.mask, (long long)s->q, (long long)s->k, (long long)i, (long long)j, (long long)h,
                         value[f->score], 0.25 - alibi->factor * own * fabs(distance));
        }
    }
}

/* Whether the function is taken for ALiBi; *shows_later: whether the mask shows keys after a row's own, by either diagonal.
 */
static bool check_problem(const char *text, const strobe_attention *a, const struct sides *longest) {
    struct problem p;
    struct score_alibi alibi;
    if (strobe__problem_read(&p, a, NULL, false) || strobe__problem_validate(&p))
        fail_msg("%s: %s", text, strobe_last_error());
    if (!strobe__score_as_alibi(&p, &alibi)) return false;
    if (!a->varlen) check_pairs(text, &p, &alibi, longest);
    for (struct sides s = {1, 1}; a->varlen && s.q <= longest->q; s.q += 4)
        for (s.k = 1; s.k <= longest->k; s.k += 4) check_pairs(text, &p, &alibi, &s);
    return true;
}

static void test_alibi(void **state) {
    (void)state;
    static const struct sides sides[] = {{13, 13}, {9, 21}, {21, 9}, {1, 17}};
    static const int64_t starts[][2] = {{0, 0}, {5, 0}, {0, 7}, {-3, 40}};
    for (size_t n = 0; n < COUNT(texts); ++n) {
        const strobe_score_source source = {.struct_size = sizeof source,
                                            .score = texts[n].text,
                                            .scalars = scalars,
                                            .arrays = arrays,
                                            .scalar_count = 2,
                                            .array_count = 3};
        strobe_score *f;
        if (strobe_score_create(&source, &f)) fail_msg("%s: %s", texts[n].text, strobe_last_error());
        const strobe_score_arguments score = {
            .struct_size = sizeof score, .function = f, .arrays = elements, .array_count = 3};
        const strobe_varlen varlen = {.struct_size = sizeof varlen, .used_q = (void *)64, .used_k = (void *)64};
        int taken[2] = {0, 0}, asked[2] = {0, 0}; /* [lengths differ] */
        for (int e = 0; e < 4 * 4 * 2 * 5; ++e) {
            const struct sides *s = &sides[e % 4];
            const int mask = e / 32, varies = e / 16 % 2;
            const strobe_attention a = {.struct_size = sizeof a,
                                        .batch = BATCH,
                                        .heads_q = HEADS,
                                        .heads_kv = HEADS,
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
            const bool is_taken = check_problem(texts[n].text, &a, s);
            ++asked[varies], taken[varies] += is_taken;
            if (texts[n].is_alibi == CAUSAL && mask == STROBE_MASK_NONE) assert_false(is_taken);
            if (texts[n].is_alibi == CAUSAL && mask == STROBE_MASK_CAUSAL_TOP_LEFT && !varies) assert_true(is_taken);
        }
        const int is = texts[n].is_alibi;
        const bool right = is == FREE    ? taken[0] == asked[0] && taken[1] == asked[1]
                           : is == KNOWN ? taken[0] == asked[0] && taken[1] == 0
                           : is == NEVER ? taken[0] + taken[1] == 0
                                         : taken[0] > 0 && taken[0] < asked[0] && taken[1] == 0;
        if (!right)
            fail_msg("%s: ALiBi in %d problems of known lengths, %d of others, of %d each", texts[n].text, taken[0],
                     taken[1], asked[0]);
        strobe_score_destroy(f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_alibi)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
