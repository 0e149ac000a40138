/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_oracle_gradients.c: the gradients of reference_backward in float64 against central differences of reference_forward,
 * for every feature and for combinations. The loss is sum(dout * out) + sum(dlse * lse).
 *
 * A difference over 2h errs by its truncation, which the difference over 4h shows (it errs by four times as much), and by
 * the rounding of the loss, a few epsilon of its terms' magnitudes over h. Their sum is the tolerance. */
#include <math.h>

#include "problem_fixture.h"
#include "test.h"

static const double step = 0x1p-13;

#define SMALL_OF(entries) .batch = entries, .seq_q = 4, .seq_k = 5, .heads_q = 2, .dim = 3, .dtype = STROBE_FP64
#define SMALL             SMALL_OF(2)

static const struct shape cases[] = {
    {"plain", SMALL},
    {"dlse", SMALL, .features = WITH_DLSE},
    {"wider values than keys", SMALL, .dim_v = 5, .features = WITH_DLSE},
    {"narrower values than keys", SMALL, .dim_v = 1},
    {"two query heads a key head", .batch = 1, .seq_q = 3, .seq_k = 4, .heads_q = 4, .heads_kv = 2, .dim = 3,
     .dtype = STROBE_FP64, .features = WITH_DLSE},
    {"one key head", SMALL, .heads_kv = 1},
    {"one row, one key", .batch = 1, .seq_q = 1, .seq_k = 1, .heads_q = 1, .dim = 1, .dtype = STROBE_FP64,
     .features = WITH_DLSE | SINKS},
    {"causal, top left", SMALL, .mask = STROBE_MASK_CAUSAL_TOP_LEFT},
    {"causal, bottom right", SMALL, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = WITH_DLSE},
    {"causal with rows that see nothing", .batch = 1, .seq_q = 6, .seq_k = 3, .heads_q = 2, .dim = 3, .dtype = STROBE_FP64,
     .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = WITH_DLSE},
    {"window, top left", SMALL, .mask = STROBE_MASK_WINDOW_TOP_LEFT, .left = 1, .right = 1},
    {"window, bottom right", SMALL, .mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT, .left = 2, .right = 0, .features = WITH_DLSE},
    {"window, open on the left", SMALL, .mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT, .left = -1, .right = 1},
    {"window, open on the right", SMALL, .mask = STROBE_MASK_WINDOW_TOP_LEFT, .left = 1, .right = -1},
    {"window that leaves rows empty", .batch = 1, .seq_q = 7, .seq_k = 3, .heads_q = 1, .dim = 3, .dtype = STROBE_FP64,
     .mask = STROBE_MASK_WINDOW_TOP_LEFT, .left = 1, .right = 0, .features = WITH_DLSE | SINKS},
    {"starts", SMALL, .mask = STROBE_MASK_CAUSAL_TOP_LEFT, .features = STARTS | ALIBI},
    {"boolean mask", SMALL, .features = BOOL_MASK | PER_SCORE | WITH_DLSE},
    {"boolean mask for all heads", SMALL, .features = BOOL_MASK | PER_BATCH | PER_ROW},
    {"boolean mask of keys", SMALL, .features = BOOL_MASK},
    {"block mask", SMALL, .features = BLOCK_MASK | WITH_DLSE},
    {"bias", SMALL, .features = BIAS | PER_SCORE | WITH_DLSE},
    {"bias for all batch entries", SMALL, .features = BIAS | PER_HEAD | PER_ROW},
    {"bias for all heads", SMALL, .features = BIAS | PER_BATCH | PER_ROW | WITH_DLSE},
    {"bias for all rows", SMALL, .features = BIAS | PER_BATCH | PER_HEAD},
    {"bias for all heads and rows", SMALL, .features = BIAS | PER_BATCH},
    {"bias for all batch entries and rows", SMALL, .features = BIAS | PER_HEAD},
    {"bias for all batch entries and heads", SMALL, .features = BIAS | PER_ROW},
    {"bias of keys alone", SMALL, .features = BIAS},
    {"bias with holes", SMALL, .features = BIAS | HOLES | PER_SCORE | WITH_DLSE},
    {"bias, grouped heads", .batch = 2, .seq_q = 3, .seq_k = 4, .heads_q = 4, .heads_kv = 2, .dim = 2, .dtype = STROBE_FP64,
     .features = BIAS | PER_HEAD | PER_ROW},
    {"ALiBi", SMALL, .features = ALIBI | WITH_DLSE},
    {"softcap", SMALL, .features = SOFTCAP | WITH_DLSE},
    {"softcap, bias, ALiBi", SMALL, .features = SOFTCAP | BIAS | ALIBI | PER_HEAD | PER_ROW},
    {"sinks", SMALL, .features = SINKS},
    {"sinks, dlse", SMALL, .features = SINKS | WITH_DLSE},
    {"dropout", SMALL, .features = DROPOUT},
    {"dropout, dlse, sinks, bias", SMALL, .features = DROPOUT | WITH_DLSE | SINKS | BIAS | PER_SCORE},
    {"negative scale", SMALL, .features = NEGATIVE_SCALE | WITH_DLSE},
    {"negative scale, softcap", SMALL, .features = NEGATIVE_SCALE | SOFTCAP},
    {"packed", SMALL_OF(3), .features = PACKED | WITH_DLSE},
    {"packed queries", SMALL, .features = PACKED_Q},
    {"packed keys", SMALL, .features = PACKED_K | INDEX64},
    {"used", SMALL, .features = USED | WITH_DLSE},
    {"used of packed", SMALL_OF(3), .features = PACKED | USED | INDEX64},
    {"packed, causal, ALiBi", SMALL_OF(3), .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = PACKED | ALIBI},
    {"packed, dropout, bias", SMALL, .features = PACKED | USED_K | DROPOUT | BIAS | PER_SCORE},
    {"a constant is taken off", SMALL, .score = "score - w", .features = WITH_DLSE},
    {"distance", SMALL, .score = "score - w * abs(i - j)", .features = STARTS},
    {"table of distances", SMALL, .score = "score + table[h][i - j + at]", .features = WITH_DLSE | STARTS},
    {"table by the kind of a row", SMALL, .score = "score * (1 + table[h][kind[i] + kind[j]])"},
    {"table twice, tanh", SMALL, .score = "c * tanh(score / c + table[h][i - j + at] * table[0][j])", .features = WITH_DLSE},
    {"every function", SMALL,
     .score = "min(exp(score / 4), 3.0) + max(exp2(score / 5), w) + log(score * score + 1) + sqrt(abs(score) + 1) + "
              "pow(abs(score) + 0.5, w) + floor(score / 100) - score / (2 + score * score)"},
    {"one side has no derivative", SMALL, .score = "score > 0 ? log(score + 0.001) : -sqrt(-score + 0.001)"},
    {"a side of a choice is not a number", SMALL, .score = "j < 5 ? score + table[h][j] : log(0.0 * score - 1)"},
    {"scores of -inf", SMALL, .score = "(i + j) % 3 == 1 ? -inf : score * w", .features = WITH_DLSE},
    {"visible", SMALL, .visible = "kind[i] == kind[j] || abs(i - j) < c - 1", .features = WITH_DLSE},
    {"visible, and what it is", SMALL, .score = "score * w + 0.5 * (j % 2) + hkv - b", .visible = "j <= i + seq_k - seq_q"},
    {"a function behind softcap and bias", SMALL, .score = "score + table[h][i - j + at] * score",
     .features = SOFTCAP | BIAS | ALIBI | PER_HEAD | PER_ROW | HOLES},
    {"a function of grouped heads", .batch = 2, .seq_q = 3, .seq_k = 4, .heads_q = 4, .heads_kv = 2, .dim = 2,
     .dtype = STROBE_FP64, .score = "score + table[h][j] * score", .features = DROPOUT | SINKS},
    {"a function of packed sequences", SMALL_OF(3), .score = "score + w * (j - seq_k) + table[0][i]", .visible = "j + i > 0",
     .features = PACKED | WITH_DLSE},
    {"everything", .batch = 2, .seq_q = 4, .seq_k = 5, .heads_q = 4, .heads_kv = 2, .dim = 3, .dim_v = 2,
     .dtype = STROBE_FP64, .mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT, .left = 3, .right = 1,
     .features = BOOL_MASK | BLOCK_MASK | BIAS | ALIBI | SOFTCAP | SINKS | DROPOUT | STARTS | WITH_DLSE | NEGATIVE_SCALE |
                 PER_HEAD | PER_ROW},
};

/* The loss, and the sum of its terms' magnitudes. */
static double loss_of(struct fixture *f, double *magnitude) {
    static const enum tensor outputs[] = {OUT, LSE}, gradients[] = {DOUT, DLSE};
    if (fixture_forward(f, "reference_forward")) fail_msg("%s", strobe_last_error());
    double loss = 0;
    *magnitude = 0;
    for (int n = 0; n < 2; ++n) {
        const struct slot *x = &f->slot[outputs[n]], *dx = &f->slot[gradients[n]];
        for (int64_t e = 0; dx->base && e < slot_count(x); ++e) {
            if (slot_is_untouched(x, e) || isinf(slot_get(x, e))) continue; /* not there, or of a row that sees nothing */
            const double term = slot_get(x, e) * slot_get(dx, e);
            loss += term;
            *magnitude += fabs(term);
        }
    }
    return loss;
}

/* (loss(x + h) - loss(x - h)) / 2h, and the rounding it may carry. */
static double difference(struct fixture *f, struct slot *x, int64_t e, double h, double *rounding) {
    const double centre = slot_get(x, e);
    double magnitude_up, magnitude_down;
    slot_set(x, e, centre + h);
    const double up = loss_of(f, &magnitude_up);
    slot_set(x, e, centre - h);
    const double down = loss_of(f, &magnitude_down);
    slot_set(x, e, centre);
    *rounding = 8 * 0x1p-52 * (magnitude_up + magnitude_down + 1) / h;
    return (up - down) / (2 * h);
}

/* Every element of one input; returns how many have a gradient. */
static int64_t check_input(struct fixture *f, enum tensor input, enum tensor gradient) {
    int64_t moved = 0;
    for (int64_t e = 0; e < slot_count(&f->slot[input]); ++e) {
        double rounding, coarse_rounding;
        if (isinf(slot_get(&f->slot[input], e))) continue; /* a hole in a bias */
        const double fine = difference(f, &f->slot[input], e, step, &rounding);
        const double coarse = difference(f, &f->slot[input], e, 2 * step, &coarse_rounding);
        const bool untouched = slot_is_untouched(&f->slot[gradient], e); /* a row that is not there */
        const double found = untouched ? 0 : slot_get(&f->slot[gradient], e), tolerance = fabs(coarse - fine) + rounding;
        if (!(fabs(found - fine) <= tolerance))
            fail_msg("%s[%lld] is %.12g, by differences %.12g, tolerance %.2g", tensor_names[gradient], (long long)e, found,
                     fine, tolerance);
        moved += found != 0 && tolerance < 1e-2 * fabs(found);
    }
    return moved;
}

static void test_case(void **state) {
    static const enum tensor inputs[] = {Q, K, V, BIAS_TERM, SINK_LOGITS, TABLE},
                             gradients[] = {DQ, DK, DV, DBIAS, DSINKS, DTABLE};
    const struct shape *shape = *state;
    struct fixture f;
    fixture_make(&f, shape);
    if (fixture_forward(&f, "reference_forward")) fail_msg("%s", strobe_last_error());
    if (fixture_backward(&f, "reference_backward")) fail_msg("%s", strobe_last_error());
    for (size_t n = 0; n < COUNT(inputs); ++n) {
        if (!f.slot[inputs[n]].base) continue;
        const int64_t moved = check_input(&f, inputs[n], gradients[n]);
        /* A test of zeros would show nothing: one key of one row has no gradient in q and k, unless a sink competes. */
        if (moved == 0) fail_msg("%s is zero throughout", tensor_names[gradients[n]]);
    }
    assert_true(fixture_guards_hold(&f));
    fixture_free(&f);
}

int main(void) {
    struct CMUnitTest tests[COUNT(cases)];
    for (size_t n = 0; n < COUNT(cases); ++n) tests[n] = test_of_row(cases[n].name, test_case, &cases[n]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
