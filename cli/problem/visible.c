/* SPDX-License-Identifier: BSD-3-Clause
 *
 * visible.c: who sees whom; see visible.h. */
#include "problem/visible.h"

#include "problem/element.h"

#include <math.h>

static bool is_causal(const problem *p) {
    return p->mask == STROBE_MASK_CAUSAL_TOP_LEFT || p->mask == STROBE_MASK_CAUSAL_BOTTOM_RIGHT;
}

/* The key on the diagonal of row i. */
static int64_t diagonal(const problem *p, const sequence *s, int64_t i) {
    const bool top_left = p->mask == STROBE_MASK_CAUSAL_TOP_LEFT || p->mask == STROBE_MASK_WINDOW_TOP_LEFT;
    return p->q_start + i - p->k_start + (top_left ? 0 : s->keys - s->rows);
}

static bool inside_kind(const problem *p, const sequence *s, int64_t i, int64_t j) {
    if (p->mask == STROBE_MASK_NONE) return true;
    const int64_t ahead = j - diagonal(p, s, i);
    if (is_causal(p)) return ahead <= 0;
    return (p->window_left < 0 || ahead >= -p->window_left) && (p->window_right < 0 || ahead <= p->window_right);
}

/* Scores of an axis that a tensor does not have of its own are all at index 0: its stride is 0. */
bool visible_but_for_bias(const inputs *in, int64_t b, int64_t h, int64_t i, int64_t j) {
    const problem *p = &in->problem;
    if (!inside_kind(p, &in->sequences[b], i, j) || inputs_key_is_missing(in, b, j)) return false;
    const buffer *mask = &in->tensor[T_MASK], *blocks = &in->tensor[T_BLOCKS];
    if (p->bool_mask && !buffer_at(mask, b, i, h, 1)[j]) return false;
    return !p->block_q || buffer_at(blocks, b, i / p->block_q, h, 1)[j / p->block_k];
}

bool visible(const inputs *in, int64_t b, int64_t h, int64_t i, int64_t j) {
    const buffer *bias = &in->tensor[T_BIAS];
    if (!visible_but_for_bias(in, b, h, i, j)) return false;
    if (!in->problem.bias_hides) return true;
    const size_t bytes = element_bytes(bias->dtype);
    return element_load(buffer_at(bias, b, i, h, bytes) + (size_t)j * bytes, bias->dtype) != -INFINITY;
}

static double clamp(double value, double most) { return fmin(fmax(value, 0), most); }

/* Keys that row i sees by the mask's kind. */
static double keys_of_row(const problem *p, const sequence *s, int64_t i) {
    const double keys = (double)s->keys, at = (double)diagonal(p, s, i);
    if (p->mask == STROBE_MASK_NONE) return keys;
    if (is_causal(p)) return clamp(at + 0.5, keys);
    const double first = p->window_left < 0 ? 0 : clamp(at - (double)p->window_left, keys);
    const double end = p->window_right < 0 ? keys : clamp(at + (double)p->window_right + 1, keys);
    return fmax(end - first, 0);
}

static double share_of_blocks(const inputs *in) {
    const buffer *m = &in->tensor[T_BLOCKS];
    double blocks = 0, seen = 0;
    for (int64_t b = 0; b < m->extent[0]; ++b)
        for (int64_t i = 0; i < m->extent[1]; ++i)
            for (int64_t h = 0; h < m->extent[2]; ++h)
                for (int64_t j = 0; j < m->extent[3]; ++j) blocks += 1, seen += buffer_at(m, b, i, h, 1)[j] != 0;
    return blocks > 0 ? seen / blocks : 1;
}

double visible_pairs(const inputs *in) {
    const problem *p = &in->problem;
    double pairs = 0;
    for (int64_t b = 0; b < p->batch; ++b)
        for (int64_t i = 0; i < in->sequences[b].rows; ++i) pairs += keys_of_row(p, &in->sequences[b], i);
    return pairs * (double)p->heads_q * (p->block_q ? share_of_blocks(in) : 1);
}
