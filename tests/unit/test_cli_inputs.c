/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_cli_inputs.c: what a problem's inputs are: the same numbers in every layout, nothing outside the rows that exist,
 * lengths that fit, poison only where nobody looks, work counted as publications count it; and descriptors that the library
 * takes. */
#include "test.h"

#include "problem/element.h"
#include "problem/inputs.h"
#include "problem/visible.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static char message[PROBLEM_MESSAGE];

static void create(inputs *in, const char *text) {
    problem p;
    assert_true(problem_parse(text, &p, message, sizeof message));
    if (!inputs_create(in, &p, message, sizeof message)) fail_msg("%s: %s", text, message);
}

static void layouts_hold_the_same_numbers(void **state) {
    (void)state;
    static const char *const layouts[] = {"bhsd", "packed", "gaps", "reversed"};
    inputs right, other;
    create(&right, "b=2 h=4/2 s=9 d=6 dv=3 bf16");
    for (size_t l = 0; l < COUNT(layouts); ++l) {
        char text[128];
        snprintf(text, sizeof text, "b=2 h=4/2 s=9 d=6 dv=3 bf16 layout=%s", layouts[l]);
        create(&other, text);
        for (int id = T_Q; id <= T_V; ++id)
            for (rows r = rows_of(&right, (tensor_id)id, &right.tensor[id]); rows_next(&r);)
                assert_memory_equal(rows_at(&r, &right.tensor[id]),
                                    inputs_row(&other, (tensor_id)id, &other.tensor[id], r.batch, r.row, r.head),
                                    2 * (size_t)right.tensor[id].extent[3]);
        inputs_free(&other);
    }
    inputs_free(&right);
}

/* Three strides of 0 would be the default, which is contiguous: the library would read behind the memory. */
static void rows_that_overlap_have_a_stride(void **state) {
    (void)state;
    int shared = 0, still = 0;
    for (int seed = 0; seed < 200; ++seed) {
        char text[128];
        inputs in;
        snprintf(text, sizeof text, "bwd b=2 h=2 s=3 d=20 layout=overlapping dlse seed=%d", seed);
        create(&in, text);
        for (int id = 0; id < TENSOR_COUNT; ++id) {
            const buffer *t = &in.tensor[id];
            if (t->data) assert_true(t->stride[0] != 0 || t->stride[1] != 0 || t->stride[2] != 0);
        }
        shared += in.tensor[T_K].stride[1] < 20, still += in.tensor[T_K].stride[1] == 0;
        inputs_free(&in);
    }
    assert_true(shared > 100 && still > 20);
}

static void slopes_of_either_sign(void **state) {
    (void)state;
    inputs in;
    create(&in, "h=3 s=3 d=2 alibi=signed");
    const float *slopes = (const float *)(void *)in.tensor[T_SLOPES].data;
    assert_true(slopes[0] == 0 && slopes[1] > 0 && slopes[2] < 0);
    inputs_free(&in);
}

static void wipe_rows(const inputs *in, const buffer *tensors) {
    for (int id = 0; id < TENSOR_COUNT; ++id) {
        const buffer *b = &tensors[id];
        if (!b->data) continue;
        for (rows r = rows_of(in, (tensor_id)id, b); rows_next(&r);)
            memset(rows_at(&r, b), 0xFF, (size_t)b->extent[3] * element_bytes(b->dtype));
    }
}

/* What is filled is what exists: taking the existing rows away leaves every byte as it was allocated. */
static void only_existing_rows_are_filled(void **state) {
    inputs in;
    create(&in, *state);
    for (int id = T_Q; id <= T_K; ++id)
        for (rows r = rows_of(&in, (tensor_id)id, &in.tensor[id]); rows_next(&r);)
            for (int64_t c = 0; c < in.tensor[id].extent[3]; ++c)
                assert_true(isfinite(element_load(
                    rows_at(&r, &in.tensor[id]) + (size_t)c * element_bytes(in.tensor[id].dtype), in.tensor[id].dtype)));
    wipe_rows(&in, in.tensor);
    for (int id = 0; id < TENSOR_COUNT; ++id)
        if (!buffer_is_wiped(&in.tensor[id])) fail_msg("%s: %s", (const char *)*state, tensor_name((tensor_id)id));
    inputs_free(&in);
}

static void lengths_fit(void **state) {
    (void)state;
    for (int seed = 0; seed < 50; ++seed) {
        char text[128];
        inputs in;
        snprintf(text, sizeof text, "b=6 sq=7 sk=12 d=1 varlen=packed_used seed=%d", seed);
        create(&in, text);
        const int32_t *cu = in.varlen_arrays[0], *used = in.varlen_arrays[3];
        for (int64_t b = 0; b < 6; ++b) {
            const sequence *s = &in.sequences[b];
            assert_true(s->first_row == cu[b] && cu[b] <= cu[b + 1] && s->rows <= cu[b + 1] - cu[b] &&
                        cu[b + 1] - cu[b] <= 7);
            assert_true(s->keys == used[b] && s->keys <= 12);
        }
        assert_true(in.sequences[0].rows == 7 && in.sequences[0].keys == 12);
        assert_true(in.sequences[2].rows == 0 && in.sequences[3].keys == 0);
        assert_true(cu[6] < in.total_q && in.tensor[T_Q].extent[1] == in.total_q);
        inputs_free(&in);
    }
}

static void conversion_keeps_the_values(void **state) {
    (void)state;
    inputs half, wide;
    create(&half, "bwd b=3 h=2 s=6 d=5 fp16 layout=gaps varlen bias=hqk sinks dlse");
    problem p = half.problem;
    p.dtype = STROBE_FP64;
    p.layout = LAYOUT_BHSD;
    assert_true(inputs_convert(&wide, &half, &p, message, sizeof message));
    static const tensor_id ids[] = {T_Q, T_V, T_DOUT, T_DLSE, T_BIAS, T_SINKS};
    for (size_t n = 0; n < COUNT(ids); ++n) {
        const buffer *from = &half.tensor[ids[n]], *to = &wide.tensor[ids[n]];
        assert_int_equal(to->dtype, STROBE_FP64);
        rows there = rows_of(&wide, ids[n], to);
        for (rows r = rows_of(&half, ids[n], from); rows_next(&r);) {
            assert_true(rows_next(&there));
            for (int64_t c = 0; c < from->extent[3]; ++c)
                assert_true(element_load(rows_at(&r, from) + (size_t)c * element_bytes(from->dtype), from->dtype) ==
                            element_load(rows_at(&there, to) + (size_t)c * 8, STROBE_FP64));
        }
        assert_false(rows_next(&there));
    }
    inputs_free(&half);
    inputs_free(&wide);
}

static void poison_lies_where_nobody_looks(void **state) {
    (void)state;
    inputs in;
    create(&in, "b=1 h=2/1 sq=3 sk=10 d=2 window=2,1");
    inputs_poison(&in); /* rows stand at keys 7, 8, 9 and see 5 to 10 */
    for (int64_t j = 0; j < 10; ++j) {
        float key = 0;
        memcpy(&key, inputs_row(&in, T_K, &in.tensor[T_K], 0, j, 0), sizeof key);
        assert_int_equal(isnan(key) != 0, j < 5);
    }
    inputs_free(&in);
}

static void gradients_are_filled_by_windows(void **state) {
    (void)state;
    inputs in, again;
    create(&in, "bwd b=2 h=2 s=5 d=3 dlse");
    create(&again, "bwd b=2 h=2 s=5 d=3 dlse");
    inputs_clear_gradient(&again);
    inputs_fill_gradient(&again, 1, 1, 1, 2, 4);
    for (rows r = rows_of(&in, T_DOUT, &in.tensor[T_DOUT]); rows_next(&r);) {
        static const float zero[3] = {0};
        const bool inside = r.batch == 1 && r.head == 1 && r.row >= 2 && r.row < 4;
        const void *expected = inside ? (const void *)rows_at(&r, &in.tensor[T_DOUT]) : (const void *)zero;
        assert_memory_equal(rows_at(&r, &again.tensor[T_DOUT]), expected, sizeof zero);
    }
    inputs_free(&in);
    inputs_free(&again);
}

static const struct work {
    const char *text;
    double pairs;
} works[] = {
    {"b=2 h=3 sq=5 sk=7 d=1", 2 * 3 * 5 * 7},
    {"s=64 d=1 causal", 64 * 64 / 2.0},
    {"s=64 d=1 causal=topleft h=2", 64 * 64},
    {"sq=1 sk=64 d=1 causal", 63.5},
    {"sq=2 sk=64 d=1 causal=topleft", 0.5 + 1.5},
    {"sq=64 sk=2 d=1 causal", 0.5 + 1.5},
    {"s=8 d=1 window=0,0", 8},
    {"s=8 d=1 window=1,0", 8 + 7},
    {"s=8 d=1 window=-1,-1", 64},
    {"s=8 d=1 window=-1,0", 36},
    {"s=8 d=1 causal kstart=100", 0},
    {"s=8 d=1 mask", 64},
    {"b=0 s=8 d=1", 0},
    {"sq=0 sk=8 d=1", 0},
};

static void work_is_counted_as_published(void **state) {
    const struct work *row = *state;
    inputs in;
    create(&in, row->text);
    assert_true(fabs(visible_pairs(&in) - row->pairs) < 1e-9);
    inputs_free(&in);
}

/* A window counted pair by pair is what the rule for single pairs says. */
static void windows_agree_with_pairs(void **state) {
    (void)state;
    struct random r = {6};
    for (int round = 0; round < 300; ++round) {
        char text[160];
        inputs in;
        snprintf(text, sizeof text, "b=2 sq=%lld sk=%lld d=1 window%s=%lld,%lld qstart=%lld kstart=%lld varlen=used seed=%d",
                 (long long)random_below(&r, 9), (long long)random_below(&r, 9), round % 2 ? "_topleft" : "",
                 (long long)random_below(&r, 6) - 1, (long long)random_below(&r, 6) - 1, (long long)random_below(&r, 5),
                 (long long)random_below(&r, 5), round);
        create(&in, text);
        double pairs = 0;
        for (int64_t b = 0; b < 2; ++b)
            for (int64_t i = 0; i < in.sequences[b].rows; ++i)
                for (int64_t j = 0; j < in.sequences[b].keys; ++j) pairs += visible(&in, b, 0, i, j);
        assert_true(visible_pairs(&in) == pairs);
        inputs_free(&in);
    }
}

static void too_large_is_refused_before_allocation(void **state) {
    static const char *const texts[] = {"b=1M h=64k s=1024M d=512", "b=1 h=1 s=1024M d=4k", "b=1 h=64k s=64k d=1 mask=bhqk"};
    (void)state;
    for (size_t i = 0; i < COUNT(texts); ++i) {
        problem p;
        inputs in;
        assert_true(problem_parse(texts[i], &p, message, sizeof message));
        p.batch = p.batch > 1 ? 1 << 10 : 1; /* lengths are allocated, tensors are not */
        assert_false(inputs_create(&in, &p, message, sizeof message));
        assert_non_null(strstr(message, "half of this machine's memory"));
        inputs_free(&in);
    }
}

/* The library takes every problem's descriptor, with data and without, up to its own "unsupported". */
static void the_library_takes_the_descriptors(void **state) {
    inputs in;
    outputs out;
    call c;
    const char *kernel = NULL;
    size_t described = 0, prepared = 0;
    create(&in, *state);
    assert_true(outputs_create(&out, &in, message, sizeof message));
    call_describe(&c, &in.problem);
    assert_int_equal(strobe_select(&c.attention, call_gradients(&c), &kernel), STROBE_OK);
    assert_int_equal(strobe_workspace(&c.attention, call_gradients(&c), &described), STROBE_OK);
    call_prepare(&c, &in, &out);
    assert_int_equal(strobe_workspace(&c.attention, call_gradients(&c), &prepared), STROBE_OK);
    assert_int_equal(described, prepared);
    outputs_free(&out);
    inputs_free(&in);
}

int main(void) {
    static const char *const problems[] = {
        "b=4 h=4/2 sq=5 sk=9 d=6 dv=3",
        "b=4 h=2 s=5 d=3 layout=packed varlen fp16",
        "b=5 h=2 s=5 d=3 layout=gaps varlen=packed_used",
        "b=5 h=2 sq=4 sk=8 d=3 layout=reversed varlen=used64 bf16",
        "b=4 h=2 s=5 d=3 layout=bhsd varlen=packed_q",
        "bwd b=4 h=2 s=6 d=3 varlen=used_k bias=bk dbias sinks dsinks dlse",
        "bwd b=2 h=3 s=5 d=4 mask=bhqk block=2,3 alibi layout=gaps",
        "bwd b=2 h=3/1 s=5 d=4 layout=packed dropout=0.5 softcap=3",
        "bwd b=4 h=4/2 s=9 d=6 bf16 out=fp16 dout=fp32 gradients=fp16 mask=bhqk bias=bhqk dlse layout=overlapping",
        "bwd b=2 h=3 s=5 d=4 fp64 mask shows=nothing alibi=signed sinks=far dsinks",
        "b=0 sq=3 sk=2",
        "sq=0 sk=0",
    };
    static const struct CMUnitTest others[] = {cmocka_unit_test(layouts_hold_the_same_numbers),
                                               cmocka_unit_test(lengths_fit),
                                               cmocka_unit_test(conversion_keeps_the_values),
                                               cmocka_unit_test(poison_lies_where_nobody_looks),
                                               cmocka_unit_test(gradients_are_filled_by_windows),
                                               cmocka_unit_test(windows_agree_with_pairs),
                                               cmocka_unit_test(too_large_is_refused_before_allocation),
                                               cmocka_unit_test(rows_that_overlap_have_a_stride),
                                               cmocka_unit_test(slopes_of_either_sign)};
    struct CMUnitTest tests[2 * COUNT(problems) + COUNT(works) + COUNT(others)];
    size_t count = 0;
    for (size_t i = 0; i < COUNT(problems); ++i) {
        tests[count++] = test_of_row(problems[i], only_existing_rows_are_filled, problems[i]);
        tests[count++] = test_of_row(problems[i], the_library_takes_the_descriptors, problems[i]);
    }
    for (size_t i = 0; i < COUNT(works); ++i)
        tests[count++] = test_of_row(works[i].text, work_is_counted_as_published, &works[i]);
    for (size_t i = 0; i < COUNT(others); ++i) tests[count++] = others[i];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
