/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_lab_counts.c: what every algorithm of the lab moves and calculates, as exact integers; the papers' formulas; the
 * facts about traffic that the papers publish. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lab/blocks.h"
#include "lab/cost_model.h"
#include "lab/experiment.h"
#include "test.h"

static lab_problem square(int64_t n, int64_t d) {
    return (lab_problem){.m = n, .n = n, .d = d, .dv = d, .scale = 0.125, .workers = 2, .splits = 2, .stages = 2};
}

static lab_counts counts_of(const char *name, const lab_problem *p, int64_t capacity, lab_type type) {
    lab_result result;
    char message[LAB_REFUSAL];
    if (!lab_measure(lab_algorithm_named(name), p, capacity, type, NULL, &result, message)) fail_msg("%s", message);
    return result.counts;
}

/* M = 10, N = 14, d = 4, dv = 3, Br = 4, Bc = 5, so Tr = Tc = 3, in fp32. By hand, flash2:
 *     reads           M d + Tr (N d + N dv)                  = 40 + 3 * 98               = 334
 *     writes          M dv + M                               = 40
 *     multiply-adds   M N (d + dv), and Tc M for l           = 980 + 30                  = 1010
 *     exponentials    M N, and Tc M corrections              = 140 + 30                  = 170
 *     divisions       M dv                                   = 30
 *     others          M N each for max, S - m and the sum; Tc M for max, m - m_new; Tc M dv for O; M for L = 580
 *     fast memory     Br (d + dv + Bc + 4) + Bc (d + dv)     = 64 + 35                   = 99 */
static const struct {
    const char *name;
    lab_counts counts;
} pinned[] = {
    {"standard", {614, 310, 2456, 1240, 980, 140, 140, 0, 420, 0, 56, 1120}},
    {"safe_softmax", {894, 310, 3576, 1240, 980, 280, 140, 0, 580, 0, 56, 1120}},
    {"online_softmax", {754, 310, 3016, 1240, 990, 290, 140, 0, 580, 0, 56, 1120}},
    {"online_softmax_v", {1020, 40, 4080, 160, 980, 280, 420, 10, 1130, 0, 20, 40}},
    {"softmax_star", {334, 40, 1336, 160, 1010, 200, 30, 10, 780, 0, 107, 40}},
    {"flash1", {368, 200, 1472, 800, 980, 200, 90, 0, 830, 0, 107, 80}},
    {"split_k", {368, 200, 1472, 800, 1040, 260, 90, 0, 1290, 600, 146, 80}},
    {"flash2", {334, 40, 1336, 160, 1010, 170, 30, 10, 580, 0, 99, 40}},
    {"split_q", {334, 40, 1336, 160, 1010, 170, 30, 10, 580, 0, 99, 40}},
    {"split_kv", {454, 120, 1816, 480, 1030, 210, 90, 30, 840, 0, 99, 360}},
    {"flash3", {334, 40, 1336, 160, 1010, 170, 30, 10, 550, 0, 158, 40}},
    {"standard_backward", {1234, 418, 4936, 1672, 2100, 0, 0, 0, 290, 0, 56, 1680}},
    {"flash1_backward", {578, 356, 2312, 1424, 2610, 140, 140, 0, 420, 0, 178, 80}},
    {"flash2_backward", {548, 268, 2192, 1072, 2550, 140, 0, 0, 420, 0, 162, 80}},
};

static void test_every_count_of_a_small_case(void **state) {
    (void)state;
    int algorithms = 0;
    while (lab_algorithm_at(algorithms)) ++algorithms;
    assert_int_equal(algorithms, COUNT(pinned));
    const lab_problem p = {
        .m = 10, .n = 14, .d = 4, .dv = 3, .scale = 0.5, .br = 4, .bc = 5, .workers = 2, .splits = 2, .stages = 2};
    for (size_t i = 0; i < COUNT(pinned); ++i) {
        const lab_counts counts = counts_of(pinned[i].name, &p, 1000, LAB_FP32);
        if (memcmp(&counts, &pinned[i].counts, sizeof counts))
            fail_msg("%s: reads %" PRId64 " writes %" PRId64 " multiply-adds %" PRId64 " others %" PRId64 " peak %" PRId64,
                     pinned[i].name, counts.reads, counts.writes, counts.multiply_adds, counts.others, counts.fast_peak);
    }
}

static void check_prediction(const lab_algorithm *algorithm, const lab_problem *p, int64_t capacity) {
    const lab_counts counts = counts_of(algorithm->name, p, capacity, LAB_FP32);
    const lab_prediction predicted = algorithm->predict(p, capacity);
    assert_int_equal(counts.reads, predicted.reads);
    assert_int_equal(counts.writes, predicted.writes);
    assert_int_equal(counts.divisions, predicted.divisions);
}

/* The closed forms of the papers against the meter, exactly, over sizes that divide and sizes that do not, in a fast memory
 * with room and in one that just takes the tiles, where rows of scores pass in pieces. */
static void test_formulas_predict_every_scalar(void **state) {
    (void)state;
    static const int64_t sizes[][4] = {{64, 64, 16, 16}, {65, 63, 8, 24}, {1, 100, 32, 32}, {200, 7, 5, 3}, {1, 1, 1, 1}};
    static const int64_t blocks[][2] = {{16, 16}, {7, 9}, {1, 1}, {200, 200}, {3, 64}};
    for (int a = 0; lab_algorithm_at(a); ++a)
        for (size_t s = 0; s < COUNT(sizes); ++s)
            for (size_t b = 0; b < COUNT(blocks); ++b) {
                const lab_problem p = {.m = sizes[s][0],
                                       .n = sizes[s][1],
                                       .d = sizes[s][2],
                                       .dv = sizes[s][3],
                                       .scale = 1,
                                       .br = blocks[b][0],
                                       .bc = blocks[b][1],
                                       .workers = 1,
                                       .splits = 1,
                                       .stages = 2};
                const lab_algorithm *algorithm = lab_algorithm_at(a), *forward = algorithm;
                if (algorithm->forward) forward = lab_algorithm_named(algorithm->forward);
                const int64_t need = lab_fast_need(algorithm, &p), before = lab_fast_need(forward, &p);
                check_prediction(algorithm, &p, 1 << 30);
                check_prediction(algorithm, &p, need > before ? need : before);
            }
}

/* Counting without calculating gives the same, with masks and dropout too. */
static void test_counting_needs_no_data(void **state) {
    (void)state;
    for (int a = 0; lab_algorithm_at(a); ++a) {
        const lab_algorithm *algorithm = lab_algorithm_at(a);
        lab_problem p = {.m = 21,
                         .n = 34,
                         .d = 6,
                         .dv = 4,
                         .scale = 0.4,
                         .br = 5,
                         .bc = 8,
                         .workers = 3,
                         .splits = 3,
                         .stages = 3,
                         .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT};
        if (algorithm->takes & LAB_TAKES_DROPOUT) p.dropout = 0.25;
        lab_data data;
        lab_result with, without;
        char message[LAB_REFUSAL];
        assert_true(lab_data_random(&data, &p, LAB_FP32, 3, true, message));
        assert_true(lab_measure(algorithm, &p, 4000, LAB_FP32, &data, &with, message));
        assert_true(lab_measure(algorithm, &p, 4000, LAB_FP32, NULL, &without, message));
        assert_memory_equal(&with.counts, &without.counts, sizeof with.counts);
        lab_data_destroy(&data);
    }
}

/* Seed 002: 1,094,713,344 FLOP over 69,206,016 bytes: 15.82, when fast memory holds all of Q. */
static void test_standard_attention_has_16_flop_a_byte(void **state) {
    (void)state;
    lab_problem p = square(2048, 64);
    char message[LAB_REFUSAL];
    assert_true(lab_choose_blocks(lab_algorithm_named("standard"), &p, 524288, LAB_BLOCKS_FORMULA, message));
    const lab_counts counts = counts_of("standard", &p, 524288, LAB_FP32);
    assert_int_equal(lab_flop(&counts), 1094713344);
    assert_int_equal(lab_traffic_bytes(&counts), 69206016);
    assert_int_equal(lab_textbook_flop(&p), 1094713344);
    assert_int_equal(4 * lab_textbook_accesses(&p), 69206016);
    assert_true(fabs((double)lab_flop(&counts) / (double)lab_traffic_bytes(&counts) - 15.82) < 0.005);
}

/* 2 MiB a head at N = 1,024 in fp16, 20 GB at 102,400: the matrix of scores; S and P are two of them. FlashAttention keeps
 * two or one scalar a row. */
static void test_score_matrices_take_2_mib_and_20_gb(void **state) {
    (void)state;
    const int64_t lengths[] = {1024, 102400}, bytes[] = {2097152, 20971520000};
    for (int i = 0; i < 2; ++i) {
        lab_problem p = square(lengths[i], 64);
        p.br = 64;
        p.bc = 200;
        assert_int_equal(counts_of("standard", &p, 51200, LAB_FP16).extra_bytes, 2 * bytes[i]);
        assert_int_equal(counts_of("flash1", &p, 51200, LAB_FP16).extra_bytes, 8 * lengths[i]);
        assert_int_equal(counts_of("flash2", &p, 51200, LAB_FP16).extra_bytes, 4 * lengths[i]);
    }
}

/* FA1: Tc (2 N d reads + N d writes, for Q and O) + 2 N d for K and V + statistics, which are l and m in and out for every
 * block of keys: to the scalar. Line 2's initialisation, N d + 2 N writes, is not in the published formula. */
static void test_flash1_traffic_is_as_published(void **state) {
    (void)state;
    for (int64_t n = 512; n <= 16384; n *= 2) {
        lab_problem p = square(n, 64);
        char message[LAB_REFUSAL];
        assert_true(lab_choose_blocks(lab_algorithm_named("flash1"), &p, 51200, LAB_BLOCKS_FORMULA, message));
        const lab_counts counts = counts_of("flash1", &p, 51200, LAB_FP16);
        const int64_t tc = lab_ceil_div(n, p.bc), statistics = 4 * n * tc, line2 = n * 64 + 2 * n;
        assert_int_equal(lab_accesses(&counts) - line2, tc * (2 * n * 64 + n * 64) + 2 * n * 64 + statistics);
    }
}

/* Theta(N^2 d^2 / S): the slope of ln(accesses) against ln(S) is -1, against ln(N) 2. */
static void test_flash1_traffic_grows_as_n2_d2_over_s(void **state) {
    (void)state;
    double x[6], y[6];
    char message[LAB_REFUSAL];
    for (int i = 0; i < 6; ++i) {
        lab_problem p = square(65536, 64);
        x[i] = 16384 << i;
        assert_true(lab_choose_blocks(lab_algorithm_named("flash1"), &p, 16384 << i, LAB_BLOCKS_FORMULA, message));
        const lab_counts counts = counts_of("flash1", &p, 16384 << i, LAB_FP16);
        y[i] = (double)lab_accesses(&counts);
    }
    assert_true(fabs(lab_log_slope(x, y, 6) + 1) < 0.1);
    for (int i = 0; i < 6; ++i) {
        lab_problem p = square(2048 << i, 64);
        x[i] = 2048 << i;
        assert_true(lab_choose_blocks(lab_algorithm_named("flash1"), &p, 51200, LAB_BLOCKS_FORMULA, message));
        const lab_counts counts = counts_of("flash1", &p, 51200, LAB_FP16);
        y[i] = (double)lab_accesses(&counts);
    }
    assert_true(fabs(lab_log_slope(x, y, 6) - 2) < 0.05);
}

static void test_flash1_divides_tc_times_as_often_as_flash2(void **state) {
    (void)state;
    lab_problem p = square(1024, 64);
    p.br = 64;
    p.bc = 100;
    const lab_counts one = counts_of("flash1", &p, 1 << 20, LAB_FP16), two = counts_of("flash2", &p, 1 << 20, LAB_FP16);
    assert_int_equal(one.divisions, 11 * two.divisions);
    assert_int_equal(two.divisions, 1024 * 64);
}

/* FA2's point: O is written once, and K and V are read once for each block of queries. */
static void test_flash2_writes_o_once(void **state) {
    (void)state;
    lab_problem p = square(1024, 64);
    p.br = 128;
    p.bc = 32;
    const lab_counts counts = counts_of("flash2", &p, 1 << 20, LAB_FP16);
    assert_int_equal(counts.writes, 1024 * 64 + 1024);
    assert_int_equal(counts.reads, 1024 * 64 + 8 * 2 * 1024 * 64);
}

/* Workers: split-Q exchanges nothing; split-K all of (O, m, l), written and read, for every worker and every block. */
static void test_split_q_exchanges_nothing(void **state) {
    (void)state;
    lab_problem p = square(256, 32);
    p.br = p.bc = 64;
    for (p.workers = 1; p.workers <= LAB_MOST_WORKERS; ++p.workers) {
        assert_int_equal(counts_of("split_q", &p, 1 << 20, LAB_FP16).exchanged, 0);
        if (64 % p.workers) continue;
        assert_int_equal(counts_of("split_k", &p, 1 << 20, LAB_FP16).exchanged, p.workers * 4 * 256 * 2 * (32 + 2));
    }
}

/* A causal mask: blocks beyond the diagonal are neither loaded nor calculated. With square blocks t (t + 1) / 2 of t^2. */
static void test_blocks_out_of_sight_are_skipped(void **state) {
    (void)state;
    lab_problem p = square(256, 16);
    p.br = p.bc = 32;
    const lab_counts full = counts_of("flash2", &p, 1 << 20, LAB_FP32);
    p.mask = STROBE_MASK_CAUSAL_TOP_LEFT;
    const lab_counts causal = counts_of("flash2", &p, 1 << 20, LAB_FP32);
    const int64_t q = 256 * 16;
    assert_int_equal((full.reads - q) * 36, (causal.reads - q) * 64);
    uint8_t none[64] = {0};
    p.mask = STROBE_MASK_NONE;
    p.block_mask = none;
    assert_int_equal(counts_of("flash2", &p, 1 << 20, LAB_FP32).reads, q);
    none[9] = 1; /* one block of the 64: its K and V */
    assert_int_equal(counts_of("flash2", &p, 1 << 20, LAB_FP32).reads, q + 2 * 32 * 16);
    assert_int_equal(counts_of("flash1", &p, 1 << 20, LAB_FP32).reads, 2 * q + 32 * (16 + 16 + 2));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_count_of_a_small_case),
        cmocka_unit_test(test_formulas_predict_every_scalar),
        cmocka_unit_test(test_counting_needs_no_data),
        cmocka_unit_test(test_standard_attention_has_16_flop_a_byte),
        cmocka_unit_test(test_score_matrices_take_2_mib_and_20_gb),
        cmocka_unit_test(test_flash1_traffic_is_as_published),
        cmocka_unit_test(test_flash1_traffic_grows_as_n2_d2_over_s),
        cmocka_unit_test(test_flash1_divides_tc_times_as_often_as_flash2),
        cmocka_unit_test(test_flash2_writes_o_once),
        cmocka_unit_test(test_split_q_exchanges_nothing),
        cmocka_unit_test(test_blocks_out_of_sight_are_skipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
