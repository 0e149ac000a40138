/* SPDX-License-Identifier: BSD-3-Clause
 *
 * band.c: see band.h. `visible` is a band where it is a conjunction of comparisons that bound j - i:
 *
 *     x >= 0  with  x = row i + key j + seq_q' seq_q + seq_k' seq_k + one,  key = -row
 *
 * Below the diagonal or above it, that depends on the sign of `key`; and the diagonal is the top-left one where lengths do
 * not occur, the bottom-right one where they occur as seq_k - seq_q does in its definition. Positions are those of mask.h: i
 * and j have their starts in them, and so has the band's diagonal. */
#include "core/score/band.h"

/* Beyond it a bound hides nothing, whatever the positions, which have 32 bits. */
#define FARTHEST ((int64_t)1 << 33)

/* An integer that is a sum of multiples of positions and lengths. */
struct line {
    int64_t row, key, seq_q, seq_k, one;
};

/* A band around either diagonal, as in mask.h; diagonal ANY: it bounds nothing so far. */
enum diagonal { ANY, TOP_LEFT, BOTTOM_RIGHT };
struct bounds {
    int64_t left, right;
    enum diagonal diagonal;
    bool lengths_are_known; /* the same for all sequences, so that one diagonal can be said as the other */
    int64_t seq_q, seq_k;   /* then */
};

static bool add(int64_t *x, int64_t y, int64_t factor) {
    int64_t product;
    return !__builtin_mul_overflow(y, factor, &product) && !__builtin_add_overflow(*x, product, x);
}

/* sum += factor * x; false when a number leaves 64 bits. */
static bool add_line(struct line *sum, const struct line *x, int64_t factor) {
    return add(&sum->row, x->row, factor) && add(&sum->key, x->key, factor) && add(&sum->seq_q, x->seq_q, factor) &&
           add(&sum->seq_k, x->seq_k, factor) && add(&sum->one, x->one, factor);
}

static bool is_number(const struct line *x) { return !x->row && !x->key && !x->seq_q && !x->seq_k; }

/* sum += factor * node; false where the node is no such sum, or depends on a batch entry or head. What is affine was checked
 * to stay in 32 bits, so it does not wrap. */
static bool add_node(struct line *sum, const struct score_call *call, uint16_t n, int64_t factor) {
    const struct score_node *x = &call->function->node[n];
    if (!x->affine) return false;
    switch ((enum score_operation)x->operation) {
    case OP_CONSTANT: return add(&sum->one, (int64_t)x->value, factor);
    case OP_SCALAR: return add(&sum->one, (int64_t)call->scalar[x->number], factor);
    case OP_STRIDE: return add(&sum->one, call->array[x->number].stride[x->axis], factor);
    case OP_LAST: return add(&sum->one, call->array[x->number].extent[x->axis] - 1, factor);
    case OP_ROW: return add(&sum->row, 1, factor);
    case OP_KEY: return add(&sum->key, 1, factor);
    case OP_SEQ_Q: return add(&sum->seq_q, 1, factor);
    case OP_SEQ_K: return add(&sum->seq_k, 1, factor);
    case OP_I_NEG: return add_node(sum, call, x->operand[0], -factor);
    case OP_I_ADD: return add_node(sum, call, x->operand[0], factor) && add_node(sum, call, x->operand[1], factor);
    case OP_I_SUB: return add_node(sum, call, x->operand[0], factor) && add_node(sum, call, x->operand[1], -factor);
    case OP_I_MUL: {
        struct line a = {0}, b = {0};
        if (!add_node(&a, call, x->operand[0], 1) || !add_node(&b, call, x->operand[1], 1)) return false;
        const struct line *number = is_number(&a) ? &a : &b, *other = is_number(&a) ? &b : &a;
        int64_t product = factor;
        return !__builtin_mul_overflow(product, number->one, &product) && add_line(sum, other, product);
    }
    default: return false;
    }
}

/* The largest integer that is not above x / y, y > 0. */
static int64_t floor_of(int64_t x, int64_t y) { return x / y - (x % y < 0); }

static int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }

/* Says the band's bounds around another diagonal; false where that depends on the sequence. */
static bool say_around(struct bounds *band, enum diagonal diagonal) {
    if (band->diagonal != diagonal && band->diagonal != ANY) {
        if (!band->lengths_are_known) return false;
        const int64_t apart = band->seq_k - band->seq_q, shift = diagonal == BOTTOM_RIGHT ? -apart : apart;
        if (band->right != BAND_UNBOUNDED) band->right += shift;
        if (band->left != BAND_UNBOUNDED) band->left -= shift;
    }
    band->diagonal = diagonal;
    return true;
}

/* Both bands at once, around the bottom-right diagonal if one of them is. */
static bool narrow(struct bounds *band, struct bounds other) {
    const bool bottom = band->diagonal == BOTTOM_RIGHT || other.diagonal == BOTTOM_RIGHT;
    const enum diagonal diagonal = bottom ? BOTTOM_RIGHT : TOP_LEFT;
    if (!say_around(band, diagonal) || !say_around(&other, diagonal)) return false;
    band->left = least(band->left, other.left), band->right = least(band->right, other.right);
    return true;
}

/* Narrows the band to where x >= 0; false where that is no bound of j - i. */
static bool narrow_by_line(struct bounds *band, struct line x) {
    struct bounds bound = *band;
    if (x.key == INT64_MIN || x.row != -x.key) return false;
    const int64_t factor = x.key < 0 ? -x.key : x.key;
    const bool bottom = factor > 0 && x.seq_k == -x.key && x.seq_q == x.key;
    if (!bottom && (x.seq_q || x.seq_k)) { /* lengths that make no diagonal */
        if (!band->lengths_are_known || !add(&x.one, band->seq_q, x.seq_q) || !add(&x.one, band->seq_k, x.seq_k))
            return false;
    }
    if (factor == 0) return x.one >= 0; /* else it hides everything */
    const int64_t limit = floor_of(x.one, factor);
    if (limit < -FARTHEST || limit > FARTHEST) return false;
    bound.diagonal = bottom ? BOTTOM_RIGHT : TOP_LEFT;
    bound.left = x.key > 0 ? limit : BAND_UNBOUNDED;
    bound.right = x.key < 0 ? limit : BAND_UNBOUNDED;
    return narrow(band, bound);
}

/* a <= b, or a < b. */
static bool narrow_by_comparison(struct bounds *band, const struct score_call *call, uint16_t a, uint16_t b, bool equal) {
    const struct score_node *left = &call->function->node[a];
    const bool within = left->operation == OP_I_ABS; /* |a| <= b: a <= b and -a <= b */
    for (int sign = 1; sign >= (within ? -1 : 1); sign -= 2) {
        struct line x = {.one = equal ? 0 : -1};
        if (!add_node(&x, call, b, 1) || !add_node(&x, call, within ? left->operand[0] : a, -sign) ||
            !narrow_by_line(band, x))
            return false;
    }
    return true;
}

/* Narrows the band to where a node is true; false where that is no band. */
static bool narrow_by_node(struct bounds *band, const struct score_call *call, uint16_t n) {
    const struct score_node *x = &call->function->node[n];
    const uint16_t a = x->operand[0], b = x->operand[1];
    switch ((enum score_operation)x->operation) {
    case OP_CONSTANT: return x->value != 0;
    case OP_I_AND: return narrow_by_node(band, call, a) && narrow_by_node(band, call, b);
    case OP_I_LESS: return narrow_by_comparison(band, call, a, b, false);
    case OP_I_LESS_EQUAL: return narrow_by_comparison(band, call, a, b, true);
    case OP_I_NOT: { /* of a < b it is b <= a, and the other way round */
        const struct score_node *other = &call->function->node[a];
        if (other->operation != OP_I_LESS && other->operation != OP_I_LESS_EQUAL) return false;
        return narrow_by_comparison(band, call, other->operand[1], other->operand[0], other->operation == OP_I_LESS);
    }
    default: return false;
    }
}

/* The problem's mask as it stands. */
static struct bounds bounds_of(const struct problem *p) {
    const strobe_attention *a = &p->a;
    const struct band band = strobe__band(p, &(struct sequence){.rows = a->seq_q, .keys = a->seq_k});
    const bool bottom = a->mask == STROBE_MASK_CAUSAL_BOTTOM_RIGHT || a->mask == STROBE_MASK_WINDOW_BOTTOM_RIGHT;
    return (struct bounds){.left = band.left,
                           .right = band.right,
                           .diagonal = !a->mask ? ANY
                                       : bottom ? BOTTOM_RIGHT
                                                : TOP_LEFT,
                           .lengths_are_known = !a->varlen,
                           .seq_q = a->seq_q,
                           .seq_k = a->seq_k};
}

/* The mask that is this band; false where it does not reach its diagonal, which no mask says. */
static bool put_mask(strobe_attention *a, const struct bounds *band) {
    const bool bottom = band->diagonal == BOTTOM_RIGHT;
    if (band->left < 0 || band->right < 0) return false;
    if (band->left == BAND_UNBOUNDED && band->right == BAND_UNBOUNDED)
        a->mask = STROBE_MASK_NONE;
    else if (band->left == BAND_UNBOUNDED && band->right == 0)
        a->mask = bottom ? STROBE_MASK_CAUSAL_BOTTOM_RIGHT : STROBE_MASK_CAUSAL_TOP_LEFT;
    else {
        a->mask = bottom ? STROBE_MASK_WINDOW_BOTTOM_RIGHT : STROBE_MASK_WINDOW_TOP_LEFT;
        a->window_left = band->left == BAND_UNBOUNDED ? -1 : band->left;
        a->window_right = band->right == BAND_UNBOUNDED ? -1 : band->right;
    }
    return true;
}

void strobe__score_take_band(struct problem *p) {
    const struct strobe_score *f = p->score_call.function;
    if (!p->a.score || !f->has_visible || p->a.mask_lists) return;
    struct bounds band = bounds_of(p);
    if (!narrow_by_node(&band, &p->score_call, f->visible) || !put_mask(&p->a, &band)) return;
    p->visible_is_band = true;
    if (!f->has_score) p->a.score = NULL;
    strobe__problem_ask(p);
}
