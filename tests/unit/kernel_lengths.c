/* SPDX-License-Identifier: BSD-3-Clause
 *
 * kernel_lengths.c: see kernel_lengths.h. */
#include "kernel_lengths.h"

#include "cpu/decode/split_kv.h"
#include "cpu/vector/backward_tasks.h"

const struct kernel_lengths kernel_lengths = {
    .block = BLOCK_KEYS,
    .range = LEAST_RANGE,
    .ranges = LEAST_RANGE * MOST_RANGES,
    .split = DEFAULT_SPLIT,
    .splits = DEFAULT_SPLIT * MOST_SPLITS,
    .decode_rows = MOST_DECODE_ROWS,
    .task_heads = HEADS_A_TASK,
};
