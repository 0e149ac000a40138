/* SPDX-License-Identifier: BSD-3-Clause
 *
 * row_statistics.h: what the backward pass keeps in the workspace beside its sums: lse and delta of every packed row, and
 * the recompute marks of keys and rows whose sums are not finite; struct params says how they lie. */
#ifndef STROBE_CUDA_DEVICE_ROW_STATISTICS_H
#define STROBE_CUDA_DEVICE_ROW_STATISTICS_H

#include "cuda/device/job.h"

/* Where lse and delta of a packed row lie. */
INLINE int64_t statistic_at(const struct params *p, const struct job *t, int packed) {
    return ((int64_t)t->b * p->heads_kv + t->kv) * p->packed_rows + packed;
}

/* Marks keys or packed rows [first, first + count), of `units` units in a head, to be computed again. */
INLINE void mark_for_recompute(int32_t *marks, const struct params *p, const struct job *t, int first, int count,
                               int units) {
    marks[0] = 1;
    for (int n = first / RECOMPUTE_UNIT; n < (first + count) / RECOMPUTE_UNIT && n < units; ++n)
        marks[1 + ((int64_t)t->b * p->heads_kv + t->kv) * units + n] = 1;
}

INLINE bool is_marked(const int32_t *marks, const struct params *p, const struct job *t, int first, int units) {
    return marks[1 + ((int64_t)t->b * p->heads_kv + t->kv) * units + first / RECOMPUTE_UNIT] != 0;
}

#endif
