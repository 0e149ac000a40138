/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_lab_schedule.c: the simulation of FlashAttention-3's pipeline: no pipe does two things at once beyond its rate,
 * everything runs once and in an order that the data allows, small cases come out as by hand, and the published ablation. */
#include <math.h>
#include <stdio.h>

#include "lab/schedule.h"
#include "test.h"

static lab_schedule standard_schedule(int64_t d, bool ping_pong, int depth) {
    lab_schedule s = {.device = lab_device_named("h100"),
                      .elements = LAB_FP16,
                      .n = 16384,
                      .d = d,
                      .dv = d,
                      .ping_pong = ping_pong,
                      .depth = depth};
    assert_true(lab_schedule_tile(&s));
    return s;
}

static lab_timeline run(const lab_schedule *s) {
    lab_timeline t;
    assert_true(lab_schedule_run(s, &t));
    return t;
}

/* One consumer, one block, by hand: load K, S, max, shuffle, exp, rescale, and P V once V is there. */
static void test_one_block_by_hand(void **state) {
    (void)state;
    lab_schedule s = standard_schedule(128, false, 1);
    s.n = s.bc = 128;
    s.br = 64;
    s.consumers = 1;
    lab_timeline t = run(&s);
    const double load = 128 * 128 * 2 / 24.0, product = 512, max = 128, shuffle = 100, exponentials = 512, rescale = 64;
    const double weights = load + product + max + shuffle + exponentials + rescale; /* V comes 50 clocks later */
    assert_true(fabs(t.clocks - (fmax(weights, 2 * load) + product)) < 1e-6);
    assert_int_equal(t.span_count, 8);
    lab_timeline_destroy(&t);
}

/* Two warp groups in step share every pipe: 2 x (QK + PV) and 2 x (max + exp + rescale) and one shuffle, a block. */
static void test_warp_groups_in_step_share_the_rates(void **state) {
    (void)state;
    lab_schedule s = standard_schedule(128, false, 1);
    s.bc = 128;
    s.n = 128 * 10;
    lab_timeline ten = run(&s);
    s.n = 128 * 110;
    lab_timeline hundred_ten = run(&s);
    assert_true(fabs((hundred_ten.clocks - ten.clocks) / 100 - (2 * 1024 + 2 * (128 + 512 + 64) + 100)) < 1e-6);
    lab_timeline_destroy(&ten);
    lab_timeline_destroy(&hundred_ten);
}

typedef struct seen {
    double qk_end, exp_start, exp_end, pv_start, k_end, v_end;
} seen;

/* Every unit ran once for every block and consumer, after what it needs. */
static void check_order(const lab_schedule *s, const lab_timeline *t) {
    enum { MOST = 64 };
    seen at[LAB_MOST_CONSUMERS][MOST] = {0};
    double k[MOST] = {0}, v[MOST] = {0}, product_end[LAB_MOST_CONSUMERS] = {0}, loading = 0;
    const int64_t blocks = (s->n + s->bc - 1) / s->bc;
    const int64_t first_rescale = s->depth == 2 ? 1 : 0; /* Algorithm 2 has none: O is zero */
    assert_int_equal(t->span_count, blocks * 2 + s->consumers * (blocks * 6 - first_rescale));
    for (int i = 0; i < t->span_count; ++i) { /* in the order of their ends */
        const lab_span *span = &t->spans[i];
        seen *of = span->consumer >= 0 ? &at[span->consumer][span->block] : NULL;
        if (span->unit == LAB_LOAD_K || span->unit == LAB_LOAD_V) {
            (span->unit == LAB_LOAD_K ? k : v)[span->block] = span->end;
            assert_true(span->start >= loading - 1e-6);
            loading = span->end;
        }
        if (span->unit == LAB_QK || span->unit == LAB_PV) {
            const double *arrived = span->unit == LAB_QK ? k : v;
            assert_true(arrived[span->block] > 0 && span->start >= arrived[span->block] - 1e-6);
            assert_true(span->start >= product_end[span->consumer] - 1e-6);
            product_end[span->consumer] = span->end;
        }
        if (span->unit == LAB_QK) of->qk_end = span->end;
        if (span->unit == LAB_EXP) {
            assert_true(of->qk_end > 0 && span->start >= of->qk_end);
            of->exp_end = span->end;
        }
        if (span->unit == LAB_PV) assert_true(of->exp_end > 0 && span->start >= of->exp_end - 1e-6);
    }
}

static void test_everything_runs_once_and_in_order(void **state) {
    (void)state;
    for (int64_t d = 64; d <= 256; d *= 2)
        for (int depth = 1; depth <= 3; ++depth)
            for (int ping_pong = 0; ping_pong < 2; ++ping_pong)
                for (int64_t blocks = 1; blocks <= 12; blocks += 5) {
                    lab_schedule s = standard_schedule(d, ping_pong, depth);
                    s.n = blocks * s.bc;
                    lab_timeline t = run(&s);
                    check_order(&s, &t);
                    assert_true(t.utilisation <= 1);
                    lab_timeline_destroy(&t);
                }
}

/* Under ping-pong no two warp groups multiply at the same time. */
static void test_ping_pong_takes_turns(void **state) {
    (void)state;
    lab_schedule s = standard_schedule(128, true, 2);
    s.n = 40 * s.bc;
    lab_timeline t = run(&s);
    double end = 0;
    for (int i = 0; i < t.span_count; ++i) {
        if (t.spans[i].unit != LAB_QK && t.spans[i].unit != LAB_PV) continue;
        assert_true(t.spans[i].start >= end - 1e-6);
        end = t.spans[i].end;
    }
    lab_timeline_destroy(&t);
}

/* FA3's ablation at d = 128, full mask, 16k: neither 570, both 661 TFLOP/s. */
static void test_published_ablation(void **state) {
    (void)state;
    lab_schedule s = standard_schedule(128, false, 1);
    lab_timeline neither = run(&s);
    s = standard_schedule(128, true, 2);
    lab_timeline both = run(&s);
    assert_true(fabs(neither.tflops_power / 570 - 1) < 0.03);
    assert_true(fabs(both.tflops_power / 661 - 1) < 0.03);
    assert_true(both.registers <= both.register_limit);
    lab_timeline_destroy(&neither);
    lab_timeline_destroy(&both);
    s = standard_schedule(128, true, 3);
    lab_timeline three = run(&s);
    assert_true(three.registers > three.register_limit); /* three stages are possible on paper */
    lab_timeline_destroy(&three);
}

static void test_power_clock(void **state) {
    (void)state;
    const lab_device *h100 = lab_device_named("h100");
    assert_true(fabs(lab_power_clock(h100, 1) * 132 * 4096 / 1e3 - 800) < 1e-9);
    assert_true(lab_power_clock(h100, 0.1) == h100->highest_clock);
    lab_schedule s = {.d = 80};
    assert_false(lab_schedule_tile(&s));
    assert_null(lab_device_named("h300"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_block_by_hand),
        cmocka_unit_test(test_warp_groups_in_step_share_the_rates),
        cmocka_unit_test(test_everything_runs_once_and_in_order),
        cmocka_unit_test(test_ping_pong_takes_turns),
        cmocka_unit_test(test_published_ablation),
        cmocka_unit_test(test_power_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
