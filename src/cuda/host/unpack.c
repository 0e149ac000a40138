/* SPDX-License-Identifier: BSD-3-Clause
 *
 * unpack.c: see unpack.h and packed/model.h. A stream that is damaged gives other bytes or none, and nothing outside of the
 * memory given is read or written. */
#include "cuda/host/unpack.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/packed/model.h"

struct reader {
    const unsigned char *at, *end;
    uint32_t range, code;
    size_t missing; /* bytes read past the end, as zeros */
};

/* All of this is one loop, in whose registers the reader lies: a call would keep it in memory. */
#define INLINE static inline __attribute__((always_inline))

INLINE void refill(struct reader *r) {
    while (r->range >> 24 == 0) {
        r->range <<= 8;
        r->code <<= 8;
        if (r->at < r->end)
            r->code |= *r->at++;
        else
            ++r->missing;
    }
}

INLINE unsigned bit(struct reader *r, probability *p) {
    refill(r);
    const uint32_t bound = (r->range >> PROBABILITY_BITS) * *p;
    if (r->code < bound) {
        r->range = bound;
        *p = (probability)(*p + (((1 << PROBABILITY_BITS) - *p) >> LEARNING_SHIFT));
        return 0;
    }
    r->range -= bound, r->code -= bound;
    *p = (probability)(*p - (*p >> LEARNING_SHIFT));
    return 1;
}

INLINE unsigned tree(struct reader *r, probability *nodes, int bits) {
    unsigned node = 1;
    for (int n = 0; n < bits; ++n) node = 2 * node + bit(r, &nodes[node]);
    return node - (1u << bits);
}

/* The same from the lowest bit up. */
INLINE unsigned tree_upwards(struct reader *r, probability *nodes, int bits) {
    unsigned node = 1, value = 0;
    for (int n = 0; n < bits; ++n) {
        const unsigned b = bit(r, &nodes[node]);
        node = 2 * node + b;
        value |= b << n;
    }
    return value;
}

INLINE uint32_t even_bits(struct reader *r, int bits) {
    uint32_t value = 0;
    while (bits-- > 0) {
        refill(r);
        r->range >>= 1;
        const uint32_t b = r->code >= r->range;
        r->code -= b ? r->range : 0;
        value = 2 * value + b;
    }
    return value;
}

INLINE unsigned length_of(struct reader *r, struct lengths *l, int place) {
    probability *nodes = l->far;
    int bits = 8;
    unsigned least = SHORTEST + 2 * NEAR_LENGTHS;
    if (!bit(r, &l->near_or_more[place]))
        nodes = l->near[place], bits = 3, least = SHORTEST;
    else if (!bit(r, &l->middle_or_far[place]))
        nodes = l->middle[place], bits = 3, least = SHORTEST + NEAR_LENGTHS;
    return least + tree(r, nodes, bits);
}

/* Distances count from 0, the byte before. */
INLINE uint32_t distance_of(struct reader *r, struct model *m, unsigned length) {
    const unsigned class = tree(r, m->distance_class[length_class(length)], CLASS_BITS);
    if (class < 4) return class;
    const int bits = (int)(class / 2) - 1;
    const uint32_t high = (2 | (class & 1)) << bits;
    if (class < NEAR_CLASSES) return high + tree_upwards(r, m->middle_bits[class], bits);
    const uint32_t middle = even_bits(r, bits - LOW_BITS) << LOW_BITS;
    return high + middle + tree_upwards(r, m->low_bits, LOW_BITS);
}

/* A byte beside the one that the copy before it would have had next: bits are told apart by those until one differs. */
INLINE unsigned differing_byte(struct reader *r, struct model *m, int context, int place, unsigned other) {
    unsigned node = 1;
    while (node < 256) {
        const unsigned expected = other >> 7 & 1, b = bit(r, &m->differing[place][expected][node]);
        node = 2 * node + b;
        other <<= 1;
        if (b != expected) break;
    }
    while (node < 256) node = 2 * node + bit(r, &m->byte[context][node]);
    return node - 256;
}

/* What has been learned, and the steps before. */
struct state {
    struct model model;
    uint32_t last[REPEATS];
    int past;
};

/* The bytes from `begin` to `end`; those before are known. */
INLINE bool unpack(struct reader begun, struct state *s, unsigned char *to, uint32_t begin, uint32_t end, bool text) {
    struct model *m = &s->model;
    struct reader reader = begun, *r = &reader;
    uint32_t last[REPEATS], at = begin;
    int past = s->past;
    memcpy(last, s->last, sizeof last);
    while (at < end && r->missing < 8) {
        const int place = place_of(text, at - begin);
        if (!bit(r, &m->copy[past][place])) {
            const int context = byte_context(text, at - begin, at ? to[at - 1] : 0);
            if (past_copied(past) && last[0] < at)
                to[at] = (unsigned char)differing_byte(r, m, context, place, to[at - 1 - last[0]]);
            else
                to[at] = (unsigned char)tree(r, m->byte[context], 8);
            past = past_after(past, STEP_BYTE);
            ++at;
            continue;
        }
        unsigned length = 0;
        if (!bit(r, &m->repeat[past])) {
            length = length_of(r, &m->lengths[0], place);
            const uint32_t distance = distance_of(r, m, length);
            last[3] = last[2], last[2] = last[1], last[1] = last[0], last[0] = distance;
            past = past_after(past, STEP_COPY);
        } else {
            int which = 0;
            if (bit(r, &m->repeat_first[past]))
                which = !bit(r, &m->repeat_second[past]) ? 1 : 2 + (int)bit(r, &m->repeat_third[past]);
            else if (!bit(r, &m->repeat_one_byte[past][place]))
                length = 1;
            if (!length) length = length_of(r, &m->lengths[1], place);
            const uint32_t chosen = last[which];
            for (; which > 0; --which) last[which] = last[which - 1];
            last[0] = chosen;
            past = past_after(past, STEP_REPEAT);
        }
        if (last[0] >= at || length > end - at) return false;
        const unsigned char *from = to + at - 1 - last[0];
        for (unsigned n = 0; n < length; ++n) to[at + n] = from[n]; /* may overlap what it writes */
        at += length;
    }
    s->past = past;
    memcpy(s->last, last, sizeof last);
    return at == end && r->missing < 8;
}

char *strobe__unpack_registers(const unsigned char *text, size_t bytes) {
    static const char entry[] = ".entry";
    struct named {
        int count;
        uint16_t number[MOST_REGISTERS]; /* the one that was named last is last */
    } *all = malloc(PREFIXES * sizeof *all);
    size_t room = 2 * bytes + 64, used = 0;
    char *to = malloc(room);
    for (int n = 0; all && n < PREFIXES; ++n) all[n].count = 0;
    for (size_t at = 0; to && all;) {
        if (room - used < 32) {
            char *more = realloc(to, room *= 2);
            if (!more) break;
            to = more;
        }
        if (at == bytes) {
            to[used] = 0;
            free(all);
            return to;
        }
        const unsigned char c = text[at++];
        if (c < FIRST_PREFIX) {
            to[used++] = (char)c;
            if (c == '.' && bytes - at >= sizeof entry - 2 && memcmp(text + at, entry + 1, sizeof entry - 2) == 0)
                for (int n = 0; n < PREFIXES; ++n) all[n].count = 0;
            continue;
        }
        if (c >= FIRST_PREFIX + PREFIXES || at == bytes) break;
        struct named *named = &all[c - FIRST_PREFIX];
        int rank = text[at++];
        if (rank == FAR_RANK) {
            if (bytes - at < 2) break;
            rank = FAR_RANK + text[at] + 256 * text[at + 1], at += 2;
        }
        if (rank > named->count || (rank == 0 && named->count == MOST_REGISTERS)) break;
        uint16_t number = (uint16_t)named->count;
        if (rank) {
            uint16_t *place = &named->number[named->count - rank];
            number = *place;
            memmove(place, place + 1, (size_t)(rank - 1) * sizeof *place);
            named->number[named->count - 1] = number;
        } else
            named->number[named->count++] = number;
        for (const char *p = register_prefixes[c - FIRST_PREFIX]; *p; ++p) to[used++] = *p;
        char digits[8];
        int count = 0;
        for (unsigned rest = number; rest || !count; rest /= 10) digits[count++] = (char)('0' + rest % 10);
        while (count) to[used++] = digits[--count];
    }
    free(all), free(to);
    return NULL;
}

void *strobe__unpack(const struct packed *codes, int count, bool text) {
    size_t sum = 0;
    for (int n = 0; n < count; ++n) {
        if (codes[n].unpacked == 0 || codes[n].unpacked > MOST_UNPACKED || codes[n].bytes < 4) return NULL;
        sum += codes[n].unpacked;
    }
    if (sum == 0 || sum > MOST_UNPACKED) return NULL;
    struct state *s = calloc(1, sizeof *s);
    unsigned char *all = malloc(sum);
    void *result = NULL;
    bool whole = s && all;
    size_t begin = 0, end = 0;
    if (s) model_begin(&s->model);
    for (int n = 0; whole && n < count; ++n) {
        struct reader r = {codes[n].stream + 4, codes[n].stream + codes[n].bytes, UINT32_MAX, 0, 0};
        for (int k = 0; k < 4; ++k) r.code = r.code << 8 | codes[n].stream[k];
        begin = end, end += codes[n].unpacked;
        whole = text ? unpack(r, s, all, (uint32_t)begin, (uint32_t)end, true)
                     : unpack(r, s, all, (uint32_t)begin, (uint32_t)end, false);
    }
    if (whole && text)
        result = strobe__unpack_registers(all + begin, end - begin);
    else if (whole)
        result = memmove(all, all + begin, end - begin);
    if (result != all) free(all);
    free(s);
    return result;
}

static size_t number_at(const unsigned char *at) {
    return at[0] | (size_t)at[1] << 8 | (size_t)at[2] << 16 | (size_t)at[3] << 24;
}

/* 0 where there is none, or the table is damaged. */
static int code_for(const struct packed_image *image, int architecture, struct packed *found) {
    const size_t count = image->bytes < 4 ? 0 : number_at(image->at), table = 4 + 4 * CODE_NUMBERS * count;
    int chosen = 0;
    if (count > MOST_CODES || image->bytes < table) return 0;
    size_t stream = table, left = image->bytes - table;
    for (size_t n = 0; n < count; ++n) {
        const unsigned char *numbers = image->at + 4 + 4 * CODE_NUMBERS * n;
        const int code = (int)number_at(numbers);
        const bool text = code >= TEXT_CODE;
        const size_t bytes = number_at(numbers + 4);
        if (bytes > left) return 0;
        const bool fits = text ? code - TEXT_CODE <= architecture : code / 10 == architecture / 10 && code <= architecture;
        const bool better = !chosen || (text ? chosen >= TEXT_CODE && code > chosen : chosen >= TEXT_CODE || code > chosen);
        if (fits && better) chosen = code, *found = (struct packed){image->at + stream, bytes, number_at(numbers + 8)};
        stream += bytes, left -= bytes;
    }
    return chosen;
}

void *strobe__unpack_image(const struct packed_image *image, const struct packed_image *base, int architecture) {
    struct packed codes[2];
    const int first = base ? code_for(base, architecture, &codes[0]) : 0;
    const int code = code_for(image, architecture, &codes[1]);
    if (!code || (base && first != code)) return NULL;
    return strobe__unpack(base ? codes : codes + 1, base ? 2 : 1, code >= TEXT_CODE);
}
