/* SPDX-License-Identifier: BSD-3-Clause
 *
 * kernel_lengths.h: the lengths past which the CPU's kernels take another path, for tests of the command, whose `problem` is
 * not the library's. */
#ifndef STROBE_TESTS_UNIT_KERNEL_LENGTHS_H
#define STROBE_TESTS_UNIT_KERNEL_LENGTHS_H

#include <stdint.h>

struct kernel_lengths {
    int64_t block;         /* keys that a tile of rows meets at once */
    int64_t range, ranges; /* keys over which the backward sums dQ at once, and of as many ranges as there may be */
    int64_t split, splits; /* keys of a split of decoding, and of as many splits as there may be */
    int64_t decode_rows, task_heads; /* rows of a K/V head that are decoded; heads that share a task */
};

extern const struct kernel_lengths kernel_lengths;

#endif
