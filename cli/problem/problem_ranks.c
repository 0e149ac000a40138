/* SPDX-License-Identifier: BSD-3-Clause
 *
 * problem_ranks.c: see problem_ranks.h. */
#include "problem/problem_ranks.h"

#include "io/number.h"

#include <stdio.h>
#include <string.h>

static const char *const schemes[] = {"automatic", "ring", "all_gather", "ulysses", "two_levels"};
static const char *const layouts[] = {"contiguous", "zigzag", "striped"};
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static bool read_name(const char *text, size_t length, const char *const *names, size_t count, int64_t *value) {
    for (size_t n = 0; n < count; ++n)
        if (strlen(names[n]) == length && memcmp(names[n], text, length) == 0) {
            *value = (int64_t)n;
            return true;
        }
    return false;
}

static bool read_ranks(const char *value, problem *p) {
    const size_t first = strcspn(value, ":");
    const char *slash = memchr(value, '/', first);
    const size_t number = slash ? (size_t)(slash - value) : first;
    if (!number_integer(value, number, &p->ranks) || p->ranks < 1 || p->ranks > MOST_RANKS) return false;
    if (slash && (!number_integer(slash + 1, first - number - 1, &p->rank_group) || p->rank_group < 1 ||
                  p->ranks % p->rank_group != 0))
        return false;
    if (!value[first]) return true;
    const char *scheme = value + first + 1;
    const size_t second = strcspn(scheme, ":");
    if (!read_name(scheme, second, schemes, COUNT(schemes), &p->rank_scheme)) return false;
    if (!scheme[second]) return true;
    const char *layout = scheme + second + 1;
    return read_name(layout, strlen(layout), layouts, COUNT(layouts), &p->rank_layout);
}

bool problem_ranks_read(const char *value, problem *p, char *message, size_t capacity) {
    p->ranks = p->rank_group = p->rank_scheme = p->rank_layout = 0;
    if (!read_ranks(value, p)) {
        snprintf(
            message, capacity,
            "ranks is %s; N, or N/GROUP with a GROUP that divides N, of 1 to %d ranks, then :SCHEME of automatic, ring, "
            "all_gather, ulysses, two_levels, then :LAYOUT of contiguous, zigzag, striped is accepted",
            *value ? value : "nothing", MOST_RANKS);
        return false;
    }
    const bool two_levels = p->rank_scheme == STROBE_DIST_TWO_LEVELS;
    if (two_levels ? p->rank_group > 0 : p->rank_group == 0 || p->rank_scheme == STROBE_DIST_AUTOMATIC) return true;
    snprintf(message, capacity, "ranks is %s; %s is accepted", value,
             two_levels ? "N/GROUP with two_levels" : "a GROUP with two_levels or automatic");
    return false;
}

int problem_ranks_print(const problem *p, char *text, size_t capacity) {
    char group[24] = "";
    if (!p->ranks) return 0;
    if (p->rank_group) snprintf(group, sizeof group, "/%lld", (long long)p->rank_group);
    const bool layout = p->rank_layout, scheme = layout || p->rank_scheme;
    return snprintf(text, capacity, " ranks=%lld%s%s%s%s%s", (long long)p->ranks, group, scheme ? ":" : "",
                    scheme ? schemes[p->rank_scheme] : "", layout ? ":" : "", layout ? layouts[p->rank_layout] : "");
}

/* Positions of a side: those of all sequences where it is packed. */
static int64_t positions(const strobe_attention *a, bool keys) {
    const strobe_varlen *v = a->varlen;
    const void *cu = v ? keys ? v->cu_seqlens_k : v->cu_seqlens_q : NULL;
    if (!cu) return keys ? a->seq_k : a->seq_q;
    return v->index_bits == 64 ? ((const int64_t *)cu)[a->batch] : ((const int32_t *)cu)[a->batch];
}

void problem_ranks_describe(const problem *p, const strobe_attention *whole, int32_t rank, strobe_transport *transport,
                            strobe_dist *dist) {
    *transport = (strobe_transport){.struct_size = sizeof *transport, .rank = rank, .size = (int32_t)p->ranks};
    transport->device = whole->device;
    *dist = (strobe_dist){.struct_size = sizeof *dist, .attention = whole, .transport = transport};
    dist->layout = (int32_t)p->rank_layout, dist->scheme = (int32_t)p->rank_scheme, dist->group = (int32_t)p->rank_group;
    dist->rows_q = strobe_dist_rows(dist->layout, positions(whole, false), transport->size, rank);
    dist->rows_k = strobe_dist_rows(dist->layout, positions(whole, true), transport->size, rank);
}

bool problem_list_is_of_one_process(const problem_list *list, char *message, size_t capacity) {
    for (size_t i = 0; i < list->count; ++i)
        if (list->items[i].ranks) {
            snprintf(message, capacity, "ranks is given; strobe check and strobe explain take it");
            return false;
        }
    return true;
}
