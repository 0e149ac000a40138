/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fuzz_score.c: any bytes as the texts of a score function, two lines: a sentence, or a function that can be evaluated on a
 * pair and on a block, where what it says of the block holds for the pair. */
#include <math.h>

#include "core/score/ranges.h"
#include "input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const strobe_score_scalar scalars[] = {{"w", 0.75, 0, 0}, {"c", -7, 1, 0}};
static const strobe_score_array arrays[] = {{"t", 2, STROBE_FP32}, {"d", 1, STROBE_INT32}};
static const float table[12] = {0, 1, -2, 3.5f, INFINITY, NAN, 1e30f, -1e-30f, 0, 5, 6, 7};
static const int32_t kind[5] = {0, 1, INT32_MAX, INT32_MIN, 3};

/* The offsets of loads that are not clamped would be checked at the call, for its positions. */
static bool is_inside(const struct score_call *call, const double *value) {
    const struct strobe_score *f = call->function;
    for (int n = 0; n < f->load_count; ++n)
        for (int axis = 0; !f->load[n].in_visible && axis < f->array_rank[f->load[n].array]; ++axis) {
            const double index = value[f->load[n].index[axis]];
            if (index < 0 || index >= (double)call->array[f->load[n].array].extent[axis]) return false;
        }
    return true;
}

static bool has_free_loads(const struct strobe_score *f) {
    for (int n = 0; n < f->load_count; ++n)
        for (int axis = 0; axis < f->array_rank[f->load[n].array]; ++axis)
            if (f->node[f->load[n].index[axis]].affine) return true;
    return false;
}

static void evaluate(const struct score_call *call) {
    const struct strobe_score *f = call->function;
    const struct score_place at = {.b = 1, .h = 2, .hkv = 1, .i = 5, .j = 3, .seq_q = 9, .seq_k = 8};
    const struct score_box box = {.b = 1,
                                  .hkv = 1,
                                  .first_h = 2,
                                  .last_h = 3,
                                  .first_i = 4,
                                  .last_i = 7,
                                  .first_j = 0,
                                  .last_j = 7,
                                  .seq_q = 9,
                                  .seq_k = 8};
    static double value[SCORE_MOST_NODES];
    static struct interval range[SCORE_MOST_NODES];
    if (has_free_loads(f)) return;
    if (f->has_score) {
        strobe__score_evaluate(call, &f->of_score, &at, 0.5, true, value);
        strobe__score_evaluate(call, &f->of_gradients, &at, 0.5, false, value);
        REQUIRE(is_inside(call, value));
    }
    if (!f->has_visible) return;
    strobe__score_evaluate(call, &f->of_visible, &at, 0, true, value);
    strobe__score_ranges(call, &f->of_visible, &box, OF_CALL, OF_PAIR + 1, range);
    REQUIRE(!(interval_is_false(range[f->visible]) && value[f->visible] != 0));
    REQUIRE(!(interval_is_true(range[f->visible]) && value[f->visible] == 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char text[2][SCORE_MOST_TEXT + 3];
    const uint8_t *const line = size ? memchr(data, '\n', size) : NULL;
    const size_t first = line ? (size_t)(line - data) : size, second = line ? size - first - 1 : 0;
    if (first > SCORE_MOST_TEXT + 1 || second > SCORE_MOST_TEXT + 1) return 0;
    memcpy(text[0], data, first), text[0][first] = 0;
    if (line) memcpy(text[1], line + 1, second);
    text[1][second] = 0;
    const strobe_score_source source = {.struct_size = sizeof source,
                                        .score = text[0],
                                        .visible = line ? text[1] : NULL,
                                        .scalars = scalars,
                                        .arrays = arrays,
                                        .scalar_count = 2,
                                        .array_count = 2};
    strobe_score *f = NULL;
    if (strobe_score_create(&source, &f)) {
        REQUIRE(f == NULL && strlen(strobe_last_error()) > 10);
        return 0;
    }
    struct score_call call = {.function = f, .scalar = {0.75, -7}};
    call.array[0] = (strobe_score_elements){
        .data = (void *)(uintptr_t)table, .extent = {3, 4, 1, 1}, .stride = {4, 1}, .dtype = STROBE_FP32};
    call.array[1] = (strobe_score_elements){
        .data = (void *)(uintptr_t)kind, .extent = {5, 1, 1, 1}, .stride = {1}, .dtype = STROBE_INT32};
    evaluate(&call);
    strobe_score_destroy(f);
    return 0;
}
