/* SPDX-License-Identifier: BSD-3-Clause
 *
 * explain.c: what the cost model thinks of each scheme, as text. */
#include <stdarg.h>
#include <stdio.h>

#include "cost.h"

/* Text of which as much as fits is written, and all counted. */
struct text {
    char *at;
    size_t capacity, length;
};

__attribute__((format(printf, 2, 3))) static void print(struct text *t, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const size_t room = t->length < t->capacity ? t->capacity - t->length : 0;
    const int written = vsnprintf(room ? t->at + t->length : NULL, room, format, arguments);
    va_end(arguments);
    t->length += written > 0 ? (size_t)written : 0;
}

static strobe_status explain(const struct whole *w, struct text *t) {
    int32_t chosen;
    const strobe_status status = strobe__dist_choose(w, &chosen);
    if (status == STROBE_OUT_OF_MEMORY) return status;
    for (int32_t each = STROBE_DIST_RING; each <= STROBE_DIST_TWO_LEVELS; ++each) {
        const char *why = strobe__dist_rejects(w, each), *name = strobe__dist_scheme_names[each];
        struct cost cost;
        if (why) {
            print(t, "%s: does not take %s\n", name, why);
            continue;
        }
        if (!strobe__dist_cost(w, each, &cost)) return strobe__dist_no_memory();
        print(t, "%s: %spredicted %.5g ms, of which attention %.5g ms, exposed communication and waiting %.3g ms", name,
              !status && each == chosen ? "chosen, " : "", cost.seconds * 1e3, cost.compute * 1e3, cost.exposed * 1e3);
        if (w->a.device == STROBE_CUDA) print(t, "; the host is busy for %.3g ms", cost.host * 1e3);
        if (cost.apart) print(t, "; messages travel while the shard's own block is computed on");
        print(t, "\n");
    }
    return status;
}

strobe_status strobe_dist_explain(const strobe_dist *dist, const strobe_gradients *gradients, char *text, size_t capacity,
                                  size_t *needed) {
    if (!text && capacity > 0)
        return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "text is NULL and capacity %zu; 0 is accepted", capacity);
    struct whole w;
    struct text t = {.at = text, .capacity = capacity};
    strobe_status status = strobe__dist_read(&w, dist, gradients, gradients != NULL);
    if (!status) status = strobe__dist_check(&w);
    if (!status) status = explain(&w, &t);
    strobe__dist_release(&w);
    if (needed && (!status || status == STROBE_UNSUPPORTED)) *needed = t.length + 1;
    return status;
}
