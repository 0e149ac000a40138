/* SPDX-License-Identifier: BSD-3-Clause
 *
 * next_rows.h: rows that a worker comes to next, prefetched into L2 while it computes. */
#ifndef STROBE_CPU_NEXT_ROWS_H
#define STROBE_CPU_NEXT_ROWS_H

#include "core/problem.h"

struct next_rows {
    const char *data;            /* NULL: there are none, or they do not lie in a row */
    int64_t rows, stride, bytes; /* bytes from one to the next, and of one */
};

/* Keys [j0, j0 + n) of x. */
static inline struct next_rows next_keys(const strobe_tensor *x, const struct sequence *s, int64_t kv, int64_t j0, int64_t n,
                                         int64_t columns) {
    const int64_t size = (int64_t)strobe__dtype_bytes(x->dtype);
    if (n <= 0 || !strobe__keys_in_place(s, j0, n)) return (struct next_rows){.data = NULL};
    return (struct next_rows){(const char *)x->data + strobe__key_offset(x, s, j0, kv) * size, n, x->stride[1] * size,
                              columns * size};
}

/* Prefetches the next `rows` of them. Returns how many are left to do. */
static inline int64_t prefetch_rows(struct next_rows *next, int64_t rows) {
    if (!next->data) return rows;
    const int64_t n = rows < next->rows ? rows : next->rows;
    for (int64_t r = 0; r < n; ++r, next->data += next->stride)
        for (int64_t at = 0; at < next->bytes; at += 64) __builtin_prefetch(next->data + at, 0, 2);
    next->rows -= n;
    return rows - n;
}

/* Prefetches one of `shares` equal shares of what is left. */
static inline void prefetch_share(struct next_rows *next, int shares) {
    if (next->data) prefetch_rows(next, (next->rows + shares - 1) / shares);
}

#endif
