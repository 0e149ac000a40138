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

#include "core/score/line.h"

/* A band around either diagonal, as in mask.h; diagonal ANY: it bounds nothing so far. */
enum diagonal { ANY, TOP_LEFT, BOTTOM_RIGHT };
struct bounds {
    int64_t left, right;
    enum diagonal diagonal;
    bool lengths_are_known; /* the same for all sequences, so that one diagonal can be said as the other */
    int64_t seq_q, seq_k;   /* then */
};

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
static bool narrow_by_line(struct bounds *band, struct score_line x) {
    struct bounds bound = *band;
    if (x.key == INT64_MIN || x.row != -x.key) return false;
    const int64_t factor = x.key < 0 ? -x.key : x.key;
    const bool bottom = factor > 0 && x.seq_k == -x.key && x.seq_q == x.key;
    if (!bottom && (x.seq_q || x.seq_k)) { /* lengths that make no diagonal */
        if (!band->lengths_are_known || !strobe__score_add(&x.one, band->seq_q, x.seq_q) ||
            !strobe__score_add(&x.one, band->seq_k, x.seq_k))
            return false;
    }
    if (factor == 0) return x.one >= 0; /* else it hides everything */
    const int64_t limit = floor_of(x.one, factor);
    if (limit < -SCORE_FARTHEST || limit > SCORE_FARTHEST) return false;
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
        struct score_line x = {.one = equal ? 0 : -1};
        if (!strobe__score_add_line(&x, call, b, 1) ||
            !strobe__score_add_line(&x, call, within ? left->operand[0] : a, -sign) || !narrow_by_line(band, x))
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
