/* SPDX-License-Identifier: BSD-3-Clause
 *
 * text.c: PTX as it is packed, see model.h. */
#include <string.h>

#include "cuda/packed/model.h"
#include "cuda/packed/packing.h"

/* Without comments, blanks at the beginnings of lines, empty lines. */
struct bytes stripped(const struct bytes *b) {
    struct bytes to = {0};
    for (size_t at = 0; at < b->count;) {
        size_t end = at;
        bool quoted = false, begun = false;
        while (end < b->count && b->at[end] != '\n') quoted |= b->at[end++] == '"';
        for (; at < end; ++at) {
            const unsigned char c = b->at[at];
            if (!quoted && c == '/' && at + 1 < end && b->at[at + 1] == '/') break;
            if (c >= FIRST_PREFIX) fail("has a byte above 127", "the text");
            if (!begun && (c == ' ' || c == '\t')) continue;
            begun = true;
            put(&to, c == '\t' ? ' ' : c);
        }
        while (begun && to.at[to.count - 1] == ' ') --to.count;
        if (begun) put(&to, '\n');
        at = end + 1;
    }
    return to;
}

static bool is_word(unsigned char c) {
    return c == '_' || c == '$' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* The register named at b->at[at]: which prefix, and its number; or -1. */
static int register_at(const struct bytes *b, size_t at, long *number, size_t *end) {
    size_t n = at + 1;
    if (b->at[at] != '%') return -1;
    while (n < b->count && b->at[n] >= 'a' && b->at[n] <= 'z') ++n;
    const size_t digits = n;
    for (*number = 0; n < b->count && b->at[n] >= '0' && b->at[n] <= '9'; ++n) *number = 10 * *number + b->at[n] - '0';
    if (n == digits || n - digits > 6 || (n < b->count && is_word(b->at[n]))) return -1;
    *end = n;
    for (int k = 0; k < PREFIXES; ++k)
        if (strlen(register_prefixes[k]) == digits - at && memcmp(register_prefixes[k], b->at + at, digits - at) == 0)
            return k;
    return -1;
}

struct bytes renamed(const struct bytes *b, const char *name) {
    static long known[PREFIXES][MOST_REGISTERS];
    int counts[PREFIXES] = {0};
    struct bytes to = {0};
    for (size_t at = 0; at < b->count;) {
        long number;
        size_t end;
        const int prefix = register_at(b, at, &number, &end);
        if (prefix < 0) {
            if (b->count - at >= 6 && memcmp(b->at + at, ".entry", 6) == 0) memset(counts, 0, sizeof counts);
            put(&to, b->at[at++]);
            continue;
        }
        long *all = known[prefix];
        int n = counts[prefix];
        while (n > 0 && all[n - 1] != number) --n;
        int rank = 0;
        if (n) {
            rank = counts[prefix] - n + 1;
            memmove(all + n - 1, all + n, (size_t)(rank - 1) * sizeof *all);
        } else if (counts[prefix]++ == MOST_REGISTERS)
            fail("has more registers than 32768", name);
        all[counts[prefix] - 1] = number;
        put(&to, FIRST_PREFIX + (unsigned)prefix);
        if (rank < FAR_RANK)
            put(&to, (unsigned)rank);
        else {
            put(&to, FAR_RANK);
            put(&to, (unsigned)(rank - FAR_RANK) & 255), put(&to, (unsigned)(rank - FAR_RANK) >> 8);
        }
        at = end;
    }
    return to;
}
