/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_lone_key.c: a row that sees one key has a weight of exactly 1 in the forward, whatever its score is: its out is that
 * key's V to the bit, split and merged too. (A backward has e^(score - lse) with lse as fp32 holds it, which need not be 1.)
 */
#include <stdio.h>

#include "cpu/decode/split_kv.h"
#include "kernel_table.h"
#include "test.h"

enum { SEVERAL_SPLITS = 2 * DEFAULT_SPLIT + 77 };

/* Rows see one key each: row i key i, and where keys are more than rows the last ones. */
static const struct shape cases[] = {
    {"usual", .batch = 2, .seq_q = 139, .seq_k = 139, .heads_q = 2, .dim = 40, .dim_v = 9},
    {"usual, wide", .batch = 1, .seq_q = 70, .seq_k = 70, .heads_q = 1, .dim = 192, .dim_v = 200},
    {"large", .batch = 2, .seq_q = 139, .seq_k = 139, .heads_q = 2, .dim = 64, .values = LARGE},
    {"tiny", .batch = 2, .seq_q = 139, .seq_k = 139, .heads_q = 2, .dim = 64, .values = TINY},
    {"very negative", .batch = 2, .seq_q = 139, .seq_k = 139, .heads_q = 2, .dim = 16, .values = VERY_NEGATIVE},
    {"very negative, softcap", .batch = 2, .seq_q = 139, .seq_k = 139, .heads_q = 2, .dim = 16, .values = VERY_NEGATIVE,
     .features = SOFTCAP},
    {"steep, ALiBi", .batch = 1, .seq_q = 139, .seq_k = 139, .heads_q = 2, .dim = 16, .values = STEEP, .features = ALIBI},
    {"against the scale", .batch = 1, .seq_q = 139, .seq_k = 139, .heads_q = 2, .dim = 64, .values = LARGE,
     .features = NEGATIVE_SCALE},
    {"decoding", .batch = 1, .seq_q = 1, .seq_k = SEVERAL_SPLITS, .heads_q = 2, .dim = 64},
    {"decoding, several rows", .batch = 1, .seq_q = 3, .seq_k = SEVERAL_SPLITS, .heads_q = 2, .dim = 64, .values = LARGE},
};

static const int32_t dtypes[] = {STROBE_FP32, STROBE_FP16, STROBE_BF16};
static const char *const dtype_names[] = {"fp32", "fp16", "bf16"};

/* Row i of out is row first + i of v. */
static void check_rows(const struct fixture *f, int64_t first, const char *kernel) {
    const struct slot *out = &f->slot[OUT], *v = &f->slot[V];
    for (int64_t b = 0; b < f->a.batch; ++b)
        for (int64_t i = 0; i < f->a.seq_q; ++i)
            for (int64_t h = 0; h < f->a.heads_q; ++h)
                for (int64_t x = 0; x < f->a.dim_v; ++x) {
                    const double is = slot_get(out, slot_element(out, b, i, h, x));
                    const double right = slot_get(v, slot_element(v, b, first + i, h, x));
                    if (is != right)
                        fail_msg("%s: out[%lld, %lld, %lld, %lld] is %.9g and not %.9g", kernel, (long long)b, (long long)i,
                                 (long long)h, (long long)x, is, right);
                }
}

static void test_one(void **state) {
    const struct shape *shape = *state;
    struct fixture f;
    const char *names[MOST_KERNELS];
    fixture_make(&f, shape);
    const int kernels = kernels_for(&f, STROBE_FORWARD, names);
    assert_true(kernels > 0);
    for (int k = 0; k < kernels; ++k) {
        if (is_yardstick(names[k])) continue;
        assert_int_equal(fixture_forward(&f, names[k]), STROBE_OK);
        check_rows(&f, f.a.seq_k - f.a.seq_q, names[k]);
    }
    fixture_free(&f);
}

int main(void) {
    static struct shape all[COUNT(cases) * COUNT(dtypes)];
    static char names[COUNT(all)][80];
    struct CMUnitTest tests[COUNT(all)];
    for (size_t n = 0; n < COUNT(all); ++n) {
        all[n] = cases[n / COUNT(dtypes)];
        all[n].dtype = dtypes[n % COUNT(dtypes)];
        all[n].mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT;
        snprintf(names[n], sizeof names[n], "%s, %s", all[n].name, dtype_names[n % COUNT(dtypes)]);
        tests[n] = test_of_row(names[n], test_one, &all[n]);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
