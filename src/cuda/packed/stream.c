/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stream.c: what is packed, as a stream (model.h). Of the ways to make one, that of least bits is sought by the prices of
 * what the model has learned so far, some thousand bytes at a time. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/packed/model.h"
#include "cuda/packed/packing.h"

/* ---- the range coder */

struct writer {
    struct bytes to;
    uint64_t low;
    uint32_t range;
};

static void carry(struct writer *w) {
    if (w->low >> 32 == 0) return;
    size_t n = w->to.count;
    while (++w->to.at[--n] == 0) {
    }
    w->low &= UINT32_MAX;
}

static void refill(struct writer *w) {
    while (w->range >> 24 == 0) {
        put(&w->to, (unsigned)(w->low >> 24));
        w->low = w->low << 8 & UINT32_MAX;
        w->range <<= 8;
    }
}

static void bit(struct writer *w, probability *p, unsigned b) {
    refill(w);
    const uint32_t bound = (w->range >> PROBABILITY_BITS) * *p;
    if (!b) {
        w->range = bound;
        *p = (probability)(*p + (((1 << PROBABILITY_BITS) - *p) >> LEARNING_SHIFT));
    } else {
        w->low += bound, w->range -= bound;
        carry(w);
        *p = (probability)(*p - (*p >> LEARNING_SHIFT));
    }
}

static void even_bits(struct writer *w, uint32_t value, int bits) {
    while (bits-- > 0) {
        refill(w);
        w->range >>= 1;
        if (value >> bits & 1) w->low += w->range;
        carry(w);
    }
}

static void flush(struct writer *w) {
    for (int n = 0; n < 4; ++n) put(&w->to, (unsigned)(w->low >> 24)), w->low = w->low << 8 & UINT32_MAX;
}

/* ---- each thing that a step consists of: written where there is a writer, else only its price is found, in bits */

static float price[1 << PROBABILITY_BITS]; /* of a bit of that probability */

static float code_bit(struct writer *w, probability *p, unsigned b) {
    if (!w) return price[b ? (1 << PROBABILITY_BITS) - *p : *p];
    bit(w, p, b);
    return 0;
}

static float code_tree(struct writer *w, probability *nodes, int bits, unsigned value) {
    unsigned node = 1;
    float sum = 0;
    while (bits-- > 0) {
        const unsigned b = value >> bits & 1;
        sum += code_bit(w, &nodes[node], b);
        node = 2 * node + b;
    }
    return sum;
}

static float code_tree_upwards(struct writer *w, probability *nodes, int bits, unsigned value) {
    unsigned node = 1;
    float sum = 0;
    for (int n = 0; n < bits; ++n) {
        const unsigned b = value >> n & 1;
        sum += code_bit(w, &nodes[node], b);
        node = 2 * node + b;
    }
    return sum;
}

static float code_length(struct writer *w, struct lengths *l, int place, unsigned length) {
    unsigned rest = length - SHORTEST;
    if (rest < NEAR_LENGTHS) return code_bit(w, &l->near_or_more[place], 0) + code_tree(w, l->near[place], 3, rest);
    float sum = code_bit(w, &l->near_or_more[place], 1);
    rest -= NEAR_LENGTHS;
    sum += code_bit(w, &l->middle_or_far[place], rest >= NEAR_LENGTHS);
    if (rest < NEAR_LENGTHS) return sum + code_tree(w, l->middle[place], 3, rest);
    return sum + code_tree(w, l->far, 8, rest - NEAR_LENGTHS);
}

static unsigned distance_class(uint32_t distance) {
    if (distance < 4) return distance;
    const int bits = 30 - __builtin_clz(distance); /* below the two highest */
    return 2u * (unsigned)(bits + 1) + (distance >> bits & 1);
}

static float code_distance(struct writer *w, struct model *m, unsigned length, uint32_t distance) {
    const unsigned class = distance_class(distance);
    const int bits = (int)(class / 2) - 1;
    float sum = code_tree(w, m->distance_class[length_class(length)], CLASS_BITS, class);
    if (class < 4) return sum;
    const uint32_t rest = distance & ((1u << bits) - 1);
    if (class < NEAR_CLASSES) return sum + code_tree_upwards(w, m->middle_bits[class], bits, rest);
    if (w)
        even_bits(w, rest >> LOW_BITS, bits - LOW_BITS);
    else
        sum += (float)(bits - LOW_BITS);
    return sum + code_tree_upwards(w, m->low_bits, LOW_BITS, rest & ((1 << LOW_BITS) - 1));
}

static float code_byte(struct writer *w, struct model *m, const unsigned char *from, uint32_t at, uint32_t origin, bool text,
                       int past, uint32_t last) {
    const int place = place_of(text, at - origin), context = byte_context(text, at - origin, at ? from[at - 1] : 0);
    float sum = code_bit(w, &m->copy[past][place], 0);
    if (!past_copied(past) || last >= at) return sum + code_tree(w, m->byte[context], 8, from[at]);
    unsigned node = 1;
    bool same = true;
    for (int n = 7; n >= 0; --n) {
        const unsigned expected = from[at - 1 - last] >> n & 1, b = from[at] >> n & 1;
        sum += code_bit(w, same ? &m->differing[place][expected][node] : &m->byte[context][node], b);
        same = same && b == expected;
        node = 2 * node + b;
    }
    return sum;
}

/* Of a repeated distance all but the length. */
static float code_repeat(struct writer *w, struct model *m, int place, int past, int which, unsigned length) {
    float sum = code_bit(w, &m->copy[past][place], 1) + code_bit(w, &m->repeat[past], 1);
    sum += code_bit(w, &m->repeat_first[past], which > 0);
    if (which == 0) return sum + code_bit(w, &m->repeat_one_byte[past][place], length > 1);
    sum += code_bit(w, &m->repeat_second[past], which > 1);
    return which > 1 ? sum + code_bit(w, &m->repeat_third[past], which > 2) : sum;
}

static float code_copy(struct writer *w, struct model *m, int place, int past) {
    return code_bit(w, &m->copy[past][place], 1) + code_bit(w, &m->repeat[past], 0);
}

/* ---- earlier places with the same bytes: trees of all places with the same first three, by what follows */

enum { HASH_BITS = 18, DEPTH = 64, ENOUGH = 160 };
struct finder {
    const unsigned char *from;
    uint32_t bytes, *head, *head2, *child; /* places from 1 on; 0: none */
};
struct match {
    uint32_t length, distance;
};

/* Longer and longer ones; also notes the place. */
static int find_matches(struct finder *f, uint32_t at, struct match *found) {
    const uint32_t most = f->bytes - at < LONGEST ? f->bytes - at : LONGEST;
    int count = 0;
    if (most < 3) return 0;
    const unsigned char *here = f->from + at;
    uint32_t *head2 = &f->head2[here[0] | here[1] << 8];
    uint32_t *head =
        &f->head[((here[0] | (uint32_t)here[1] << 8 | (uint32_t)here[2] << 16) * 2654435761u) >> (32 - HASH_BITS)];
    uint32_t best = 1, place = *head, *less = &f->child[2 * at], *more = less + 1, same_less = 0, same_more = 0;
    if (*head2 && here[0] == f->from[*head2 - 1] && here[1] == f->from[*head2])
        found[count++] = (struct match){best = 2, at - *head2};
    *head2 = *head = at + 1;
    for (int depth = 0; place; ++depth) {
        const unsigned char *there = f->from + place - 1;
        uint32_t same = same_less < same_more ? same_less : same_more;
        if (depth == DEPTH) break;
        while (same < most && there[same] == here[same]) ++same;
        if (same > best) found[count++] = (struct match){best = same, at - place};
        uint32_t *children = &f->child[2 * (place - 1)];
        if (same == most || same >= ENOUGH) {
            *less = children[0], *more = children[1];
            return count;
        }
        if (there[same] < here[same])
            *less = place, less = &children[1], place = *less, same_less = same;
        else
            *more = place, more = &children[0], place = *more, same_more = same;
    }
    *less = *more = 0;
    return count;
}

/* ---- the way of least bits */

enum { STRETCH = 4096 };
struct node { /* how a place is reached best */
    float bits;
    uint32_t from, distance; /* the place before; distance of a copy */
    int which;               /* -2: a byte; -1: a new distance; else the repeated one */
    int past;
    uint32_t last[REPEATS];
};

static void reach(struct node *nodes, uint32_t from, uint32_t to, float bits, int which, uint32_t distance) {
    struct node *n = &nodes[to];
    if (bits >= n->bits) return;
    n->bits = bits, n->from = from, n->which = which, n->distance = distance;
}

static void settle(struct node *nodes, uint32_t to) {
    struct node *n = &nodes[to];
    const struct node *before = &nodes[n->from];
    memcpy(n->last, before->last, sizeof n->last);
    if (n->which == -2) {
        n->past = past_after(before->past, STEP_BYTE);
        return;
    }
    n->past = past_after(before->past, n->which < 0 ? STEP_COPY : STEP_REPEAT);
    memmove(n->last + 1, n->last, (size_t)(n->which < 0 ? REPEATS - 1 : n->which) * sizeof *n->last);
    n->last[0] = n->distance;
}

static uint32_t same_bytes(const unsigned char *a, const unsigned char *b, uint32_t most) {
    uint32_t n = 0;
    while (n < most && a[n] == b[n]) ++n;
    return n;
}

struct packing {
    struct model model;
    struct finder finder;
    uint32_t origin, last[REPEATS]; /* of the stream, the first byte; the distances before it */
    int past;
};

struct packing *packing_after(const struct packing *before, const unsigned char *from, uint32_t bytes) {
    struct packing *s = memory(sizeof *s);
    model_begin(&s->model);
    if (before) *s = *before, s->origin = before->finder.bytes;
    if (price[1] == 0)
        for (int p = 0; p < 1 << PROBABILITY_BITS; ++p) price[p] = (float)PROBABILITY_BITS - log2f((float)(p ? p : 1));
    s->finder = (struct finder){from, bytes, memory(sizeof(uint32_t) << HASH_BITS), memory(sizeof(uint32_t) << 16),
                                memory(2 * sizeof(uint32_t) * (bytes + 1))};
    if (before) {
        memcpy(s->finder.head, before->finder.head, sizeof(uint32_t) << HASH_BITS);
        memcpy(s->finder.head2, before->finder.head2, sizeof(uint32_t) << 16);
        memcpy(s->finder.child, before->finder.child, 2 * sizeof(uint32_t) * before->finder.bytes);
    }
    return s;
}

void packing_end(struct packing *s) {
    if (s) free(s->finder.head), free(s->finder.head2), free(s->finder.child);
    free(s);
}

/* Of what prices are looked up most often, as they are at the beginning of a stretch. */
struct prices {
    float length[2][POSITIONS][LONGEST + 1], class[LENGTH_CLASSES][1 << CLASS_BITS];
};

/* Where the way through a stretch is sought. */
struct search {
    struct packing *packing;
    bool text;
    uint32_t begin, noted; /* the stretch's first byte; those before `noted` are in the trees */
    struct node nodes[STRETCH + LONGEST + 1];
    uint32_t way[STRETCH + LONGEST + 1];
    struct match found[LONGEST + 1];
    struct prices prices;
};

static void find_prices(struct model *m, bool text, struct prices *prices) {
    for (int kind = 0; kind < 2; ++kind)
        for (int place = 0; place < (text ? 1 : POSITIONS); ++place)
            for (unsigned n = SHORTEST; n <= LONGEST; ++n)
                prices->length[kind][place][n] = code_length(NULL, &m->lengths[kind], place, n);
    for (int c = 0; c < LENGTH_CLASSES; ++c)
        for (unsigned n = 0; n < 1 << CLASS_BITS; ++n)
            prices->class[c][n] = code_tree(NULL, m->distance_class[c], CLASS_BITS, n);
}

/* The steps from a place that are no copies from new distances. The bytes of the longest one, if there are ENOUGH, else 0.
 */
static uint32_t try_repeats(struct search *s, uint32_t at) {
    struct packing *p = s->packing;
    struct model *m = &p->model;
    const struct node *n = &s->nodes[at];
    const unsigned char *from = p->finder.from;
    const uint32_t here = s->begin + at, left = p->finder.bytes - here, most = left < LONGEST ? left : LONGEST;
    const int place = place_of(s->text, here - p->origin);
    uint32_t longest = 0;
    reach(s->nodes, at, at + 1, n->bits + code_byte(NULL, m, from, here, p->origin, s->text, n->past, n->last[0]), -2, 0);
    for (int which = 0; which < REPEATS; ++which) {
        const uint32_t distance = n->last[which];
        if (distance >= here) continue;
        const uint32_t same = same_bytes(from + here, from + here - 1 - distance, most);
        if (which == 0 && same >= 1)
            reach(s->nodes, at, at + 1, n->bits + code_repeat(NULL, m, place, n->past, 0, 1), 0, distance);
        if (same < SHORTEST) continue;
        const float bits = n->bits + code_repeat(NULL, m, place, n->past, which, 2);
        for (uint32_t length = same >= ENOUGH ? same : SHORTEST; length <= same; ++length)
            reach(s->nodes, at, at + length, bits + s->prices.length[1][place][length], which, distance);
        if (same >= ENOUGH && same > longest) longest = same;
    }
    return longest;
}

/* Copies from the `count` distances that were found; of one of ENOUGH bytes, more than `longest`, only the longest, which is
 * returned; else `longest` is. */
static uint32_t try_copies(struct search *s, uint32_t at, int count, uint32_t longest) {
    struct packing *p = s->packing;
    struct model *m = &p->model;
    const struct node *n = &s->nodes[at];
    const int place = place_of(s->text, s->begin + at - p->origin);
    const float bits = n->bits + code_copy(NULL, m, place, n->past);
    uint32_t length = SHORTEST;
    if (count && s->found[count - 1].length >= ENOUGH && s->found[count - 1].length > longest)
        length = longest = s->found[count - 1].length;
    for (int k = 0; k < count; ++k) {
        const uint32_t distance = s->found[k].distance;
        if (length > s->found[k].length) continue;
        const unsigned class = distance_class(distance);
        const float rest = code_distance(NULL, m, SHORTEST, distance) - s->prices.class[0][class];
        for (; length <= s->found[k].length; ++length)
            reach(s->nodes, at, at + length,
                  bits + s->prices.length[0][place][length] + s->prices.class[length_class(length)][class] + rest, -1,
                  distance);
    }
    return longest;
}

/* How far the way was found: to the end of the stretch, or of a copy so long that what lies between is not looked at. */
static uint32_t find_way(struct search *s, uint32_t stretch) {
    struct packing *p = s->packing;
    for (uint32_t n = 0; n <= stretch + LONGEST; ++n) s->nodes[n].bits = INFINITY;
    s->nodes[0].bits = 0, s->nodes[0].past = p->past;
    memcpy(s->nodes[0].last, p->last, sizeof p->last);
    for (uint32_t at = 0; at < stretch; ++at) {
        int count = 0;
        if (at) settle(s->nodes, at);
        for (; s->noted <= s->begin + at; ++s->noted) count = find_matches(&p->finder, s->noted, s->found);
        const uint32_t longest = try_copies(s, at, count, try_repeats(s, at));
        if (longest) return at + longest;
    }
    return stretch;
}

static void write_way(struct search *s, struct writer *w, uint32_t end) {
    struct packing *p = s->packing;
    struct model *m = &p->model;
    uint32_t steps = 0;
    for (uint32_t n = end; n > 0; n = s->nodes[n].from) s->way[steps++] = n;
    for (uint32_t n = 0; steps-- > 0; n = s->way[steps]) {
        const uint32_t here = s->begin + n, length = s->way[steps] - n;
        const struct node *before = &s->nodes[n], *next = &s->nodes[s->way[steps]];
        const int place = place_of(s->text, here - p->origin);
        if (next->which == -2)
            code_byte(w, m, p->finder.from, here, p->origin, s->text, before->past, before->last[0]);
        else if (next->which == -1) {
            code_copy(w, m, place, before->past);
            code_length(w, &m->lengths[0], place, length);
            code_distance(w, m, length, next->distance);
        } else {
            code_repeat(w, m, place, before->past, next->which, length);
            if (length > 1) code_length(w, &m->lengths[1], place, length);
        }
    }
    p->past = s->nodes[end].past;
    memcpy(p->last, s->nodes[end].last, sizeof p->last);
}

struct bytes pack_stream(struct packing *p, bool text) {
    struct search *s = memory(sizeof *s);
    struct writer w = {.range = UINT32_MAX};
    s->packing = p, s->text = text, s->begin = s->noted = p->origin;
    while (s->begin < p->finder.bytes) {
        const uint32_t left = p->finder.bytes - s->begin;
        find_prices(&p->model, text, &s->prices);
        const uint32_t end = find_way(s, left < STRETCH ? left : STRETCH);
        settle(s->nodes, end);
        write_way(s, &w, end);
        s->begin += end;
    }
    flush(&w);
    free(s);
    return w.to;
}
