/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_lab_memory.c: the lab's machine: what crosses is counted, what does not fit is refused with its numbers, number
 * formats round as they should, and block sizes follow from the size of the fast memory. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lab/blocks.h"
#include "lab/random.h"
#include "test.h"

static void test_what_crosses_is_counted(void **state) {
    (void)state;
    lab_memory memory;
    lab_memory_open(&memory, 100, LAB_FP16, LAB_COMPUTE);
    lab_matrix *x = lab_matrix_create(&memory, "X", 10, 8, LAB_FP16, LAB_OPERAND);
    lab_matrix *y = lab_matrix_create(&memory, "Y", 10, 8, LAB_FP32, LAB_EXTRA);
    double values[80], back[80];
    for (int i = 0; i < 80; ++i) values[i] = i;
    lab_matrix_put(x, values);
    lab_tile tile = lab_tile_create(&memory, "tile", 4, 8);
    assert_true(lab_fits(&memory));
    assert_int_equal(lab_accesses(&memory.counts), 0);
    lab_load(&memory, &tile, x, 8); /* two rows are left */
    assert_int_equal(tile.rows, 2);
    assert_int_equal(memory.counts.reads, 16);
    assert_int_equal(memory.counts.read_bytes, 32);
    lab_store_part(&memory, &tile, y, 3, 0);
    assert_int_equal(memory.counts.writes, 16);
    assert_int_equal(memory.counts.write_bytes, 64);
    assert_int_equal(memory.counts.extra_bytes, 320);
    assert_int_equal(memory.counts.fast_peak, 32);
    lab_matrix_get(y, back);
    assert_memory_equal(back + 24, values + 64, 16 * sizeof(double));
    lab_release(&memory);
    lab_matrix_destroy(&memory, x);
    lab_matrix_destroy(&memory, y);
    assert_int_equal(memory.extra_now, 0);
}

static void test_what_does_not_fit_is_refused(void **state) {
    (void)state;
    lab_memory memory;
    lab_memory_open(&memory, 100, LAB_FP32, LAB_COMPUTE);
    lab_tile_create(&memory, "A", 10, 6);
    lab_tile_create(&memory, "B", 8, 5); /* exactly full */
    assert_string_equal(memory.refusal, "");
    lab_tile_create(&memory, "C", 1, 1);
    lab_tile_create(&memory, "D", 5, 5);
    assert_string_equal(memory.refusal,
                        "tile C of 1 x 1 scalars does not fit: 100 of the 100 scalars of fast memory are taken");
    assert_false(lab_fits(&memory));
    assert_int_equal(memory.fast_used, 0);

    lab_memory_open(&memory, 100, LAB_FP32, LAB_COMPUTE);
    lab_tile small = lab_tile_create(&memory, "small", 2, 3);
    assert_false(lab_shape(&memory, &small, 2, 4));
    assert_string_equal(memory.refusal, "tile small holds 6 scalars, not 2 x 4");
    lab_release(&memory);
}

/* An algorithm whose tiles do not fit moves nothing, and leaves fast memory empty. */
static void test_a_refused_algorithm_moves_nothing(void **state) {
    (void)state;
    for (int a = 0; lab_algorithm_at(a); ++a) {
        const lab_algorithm *algorithm = lab_algorithm_at(a);
        const lab_problem p = {
            .m = 32, .n = 32, .d = 16, .dv = 16, .scale = 1, .br = 8, .bc = 8, .workers = 2, .splits = 2, .stages = 2};
        lab_memory memory;
        lab_head head;
        lab_memory_open(&memory, lab_fast_need(algorithm, &p) - 1, LAB_FP32, LAB_COMPUTE);
        assert_true(lab_head_create(&memory, &head, &p, algorithm->parts));
        algorithm->run(&memory, &head);
        assert_non_null(strstr(memory.refusal, "does not fit"));
        assert_int_equal(memory.fast_used, 0);
        if (!(algorithm->parts & LAB_SCORES) && strcmp(algorithm->name, "flash2_backward"))
            assert_int_equal(lab_accesses(&memory.counts),
                             0); /* the others are several kernels, and the last one is large */
        lab_head_destroy(&memory, &head);
    }
}

/* e4m3 against its definition: every one of its 127 positive values, the places half way between neighbours, the ends. */
static void test_e4m3_rounds_to_the_nearest_even(void **state) {
    (void)state;
    double value[128];
    for (int code = 0; code < 127; ++code) {
        const int exponent = code >> 3, fraction = code & 7;
        value[code] = exponent ? ldexp(1 + fraction / 8.0, exponent - 7) : ldexp(fraction / 8.0, -6);
    }
    assert_true(value[126] == LAB_E4M3_LARGEST);
    for (int code = 0; code < 127; ++code) {
        assert_true(lab_round(value[code], LAB_E4M3) == value[code]);
        assert_true(lab_round(-value[code], LAB_E4M3) == -value[code]);
        if (code == 126) break;
        const double middle = (value[code] + value[code + 1]) / 2;
        assert_true(lab_round(middle, LAB_E4M3) == value[code + code % 2]);
        assert_true(lab_round(nextafter(middle, 0), LAB_E4M3) == value[code]);
        assert_true(lab_round(nextafter(middle, 1000), LAB_E4M3) == value[code + 1]);
    }
    assert_true(lab_round(1e9, LAB_E4M3) == 448 && lab_round(-470, LAB_E4M3) == -448);
}

static void test_other_formats_round(void **state) {
    (void)state;
    assert_true(lab_round(65519, LAB_FP16) == 65504 && isinf(lab_round(65520, LAB_FP16)));
    assert_true(lab_round(2049, LAB_FP16) == 2048 && lab_round(2051, LAB_FP16) == 2052);
    assert_true(lab_round(0x1p-25, LAB_FP16) == 0 && lab_round(0x1.8p-25, LAB_FP16) == 0x1p-24);
    assert_true(lab_round(257, LAB_BF16) == 256 && lab_round(259, LAB_BF16) == 260);
    assert_true(lab_round(0.1, LAB_FP32) == (double)0.1f && lab_round(0.1, LAB_FP64) == 0.1);
    assert_true(lab_round((double)FLT_MAX, LAB_FP32) == (double)FLT_MAX);
    lab_type type;
    assert_true(lab_type_named("bf16", &type) && type == LAB_BF16);
    assert_false(lab_type_named("fp12", &type));
}

/* FA1's formula; that it alone overflows S; that S' does not, and loses a quarter at most. */
static void test_block_sizes_follow_from_s(void **state) {
    (void)state;
    lab_problem p = {.m = 1024, .n = 1024, .d = 64, .dv = 64, .scale = 1, .workers = 2, .splits = 2, .stages = 2};
    lab_paper_blocks(&p, 25600);
    assert_int_equal(p.bc, 100);
    assert_int_equal(p.br, 64);
    assert_true(p.br * p.d + 2 * p.bc * p.d + 2 * p.br * p.bc > 25600); /* the notes say: never */
    const lab_algorithm *flash1 = lab_algorithm_named("flash1");
    assert_int_equal(lab_fast_need(flash1, &p), 2 * 64 * 64 + 2 * 100 * 64 + 64 * 100 + 6 * 64);
    char message[LAB_REFUSAL];
    for (int64_t capacity = 300; capacity < 1 << 20; capacity = capacity * 5 / 4) {
        p.m = p.n = 1 << 20;
        assert_true(lab_choose_blocks(flash1, &p, capacity, LAB_BLOCKS_FORMULA, message));
        assert_true(lab_fast_need(flash1, &p) <= capacity);
        lab_problem formula = p;
        lab_paper_blocks(&formula, capacity);
        assert_true(p.bc >= formula.bc * 3 / 4);
    }
}

static void test_too_small_a_memory_is_refused_with_its_numbers(void **state) {
    (void)state;
    char message[LAB_REFUSAL] = "";
    lab_problem p = {.m = 64, .n = 64, .d = 64, .dv = 64, .scale = 1, .workers = 2, .splits = 2, .stages = 2};
    assert_false(lab_choose_blocks(lab_algorithm_named("flash1"), &p, 262, LAB_BLOCKS_FORMULA, message));
    assert_string_equal(message, "flash1: one query and one key of d = 64 need 263 scalars of fast memory, S is 262");
    assert_true(lab_choose_blocks(lab_algorithm_named("flash1"), &p, 263, LAB_BLOCKS_FORMULA, message));
    assert_int_equal(p.br * p.bc, 1);
}

/* The best blocks move no more than the formula's: FA1 wants many keys, FA2 many queries. */
static void test_best_blocks_move_less(void **state) {
    (void)state;
    char message[LAB_REFUSAL];
    for (int a = 0; lab_algorithm_at(a); ++a) {
        const lab_algorithm *algorithm = lab_algorithm_at(a);
        lab_problem p = {.m = 1000, .n = 1000, .d = 64, .dv = 64, .scale = 1, .workers = 2, .splits = 2, .stages = 2};
        assert_true(lab_choose_blocks(algorithm, &p, 25600, LAB_BLOCKS_FORMULA, message));
        const lab_prediction formula = algorithm->predict(&p, 25600);
        assert_true(lab_choose_blocks(algorithm, &p, 25600, LAB_BLOCKS_BEST, message));
        const lab_prediction best = algorithm->predict(&p, 25600);
        assert_true(lab_fast_need(algorithm, &p) <= 25600);
        assert_true(best.reads + best.writes <= formula.reads + formula.writes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_crosses_is_counted),
        cmocka_unit_test(test_what_does_not_fit_is_refused),
        cmocka_unit_test(test_a_refused_algorithm_moves_nothing),
        cmocka_unit_test(test_e4m3_rounds_to_the_nearest_even),
        cmocka_unit_test(test_other_formats_round),
        cmocka_unit_test(test_block_sizes_follow_from_s),
        cmocka_unit_test(test_too_small_a_memory_is_refused_with_its_numbers),
        cmocka_unit_test(test_best_blocks_move_less),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
