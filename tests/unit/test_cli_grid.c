/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_cli_grid.c: what the grid of `strobe check --full` is beyond. The command sees nothing of the kernels; this test
 * does, and fails when a constant of theirs has moved past the grid's shapes. */
#include <stdio.h>

#include "check/grid.h"
#include "kernel_lengths.h"
#include "test.h"

static problem_list grid;

/* Whether the grid has a problem of an operation and a dtype that is such. */
typedef bool wanted(const problem *p, int64_t value);

static bool has(int64_t operation, int64_t dtype, wanted *is_wanted, int64_t value) {
    for (size_t n = 0; n < grid.count; ++n) {
        const problem *p = &grid.items[n];
        if (p->operation == operation && p->dtype == dtype && is_wanted(p, value)) return true;
    }
    return false;
}

static bool has_keys(const problem *p, int64_t keys) { return p->seq_k > keys; }
static bool decodes(const problem *p) { return p->seq_q * (p->heads_q / p->heads_kv) <= kernel_lengths.decode_rows; }
static bool decodes_keys(const problem *p, int64_t keys) { return decodes(p) && p->seq_k > keys; }
static bool decodes_int8(const problem *p, int64_t keys) {
    return decodes_keys(p, keys) && p->kv_dtype == STROBE_INT8 && p->mask == STROBE_MASK_WINDOW_BOTTOM_RIGHT;
}
static bool shares_task(const problem *p, int64_t heads) { return decodes(p) && p->heads_kv > heads; }

static void test_lengths(void **state) {
    static const int64_t dtypes[] = {STROBE_FP32, STROBE_BF16};
    const struct kernel_lengths *l = &kernel_lengths;
    (void)state;
    for (size_t d = 0; d < COUNT(dtypes); ++d) {
        assert_true(has(STROBE_BACKWARD, dtypes[d], has_keys, l->range));
        assert_true(has(STROBE_BACKWARD, dtypes[d], has_keys, l->ranges));
        assert_true(has(STROBE_FORWARD, dtypes[d], decodes_keys, l->split));
        assert_true(has(STROBE_FORWARD, dtypes[d], decodes_keys, l->splits));
        assert_true(has(STROBE_FORWARD, dtypes[d], decodes_int8, l->split));
        assert_true(has(STROBE_FORWARD, dtypes[d], shares_task, 2 * l->task_heads));
    }
}

/* ------------------------------------------------------------------------------------- features at several blocks -- */

static bool has_mask(const problem *p) { return p->mask != STROBE_MASK_NONE; }
static bool has_window(const problem *p) { return p->mask >= STROBE_MASK_WINDOW_TOP_LEFT; }
static bool has_bool_mask(const problem *p) { return p->bool_mask; }
static bool has_block_mask(const problem *p) { return p->block_q > 0; }
static bool has_bias(const problem *p) { return p->bias; }
static bool has_alibi(const problem *p) { return p->alibi; }
static bool has_softcap(const problem *p) { return p->softcap > 0; }
static bool has_dropout(const problem *p) { return p->dropout > 0; }
static bool has_sinks(const problem *p) { return p->sinks; }
static bool has_varlen(const problem *p) { return p->varlen; }
static bool has_layout(const problem *p) { return p->layout; }

static const struct feature_of_problem {
    const char *name;
    bool (*has)(const problem *p);
} features[] = {
    {"mask", has_mask},   {"window", has_window}, {"boolean mask", has_bool_mask}, {"block mask", has_block_mask},
    {"bias", has_bias},   {"ALiBi", has_alibi},   {"softcap", has_softcap},        {"dropout", has_dropout},
    {"sinks", has_sinks}, {"varlen", has_varlen}, {"layout", has_layout},
};

static bool has_feature(const problem *p, int64_t feature) {
    return features[feature].has(p) && p->seq_k > 2 * kernel_lengths.block && p->seq_q > kernel_lengths.block;
}

static void test_features(void **state) {
    static const int64_t dtypes[] = {STROBE_FP32, STROBE_FP16, STROBE_BF16};
    (void)state;
    for (size_t n = 0; n < COUNT(features) * COUNT(dtypes) * 2; ++n) {
        const size_t feature = n / 2 / COUNT(dtypes), dtype = n / 2 % COUNT(dtypes);
        if (!has(n % 2 ? STROBE_BACKWARD : STROBE_FORWARD, dtypes[dtype], has_feature, (int64_t)feature))
            fail_msg("no problem with %s has several blocks of keys", features[feature].name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lengths), cmocka_unit_test(test_features)};
    grid_add(&grid, GRID_FULL, true);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    problem_list_free(&grid);
    return failed;
}
