/* SPDX-License-Identifier: BSD-3-Clause
 *
 * sizes.h: how the AMX kernels cut their work. These are the sizes at which a kernel takes another path, in a header without
 * an instruction of AMX, because the tests derive the lengths that they run from them. Those of decoding are in
 * decode/split_kv.h.
 *
 * FORWARD_SUPER_BYTES, BLOCK_TILES and BATCH_STRIPS were tuned on one thread of a Xeon with 2 MiB of L2, at d 64 and 128:
 * larger and smaller ones were slower or no faster (docs/kernels/cpu.md, what was tried and lost). */
#ifndef STROBE_CPU_AMX_SIZES_H
#define STROBE_CPU_AMX_SIZES_H

enum {
    FORWARD_SUPER_BYTES = 1 << 20, /* K and V of a super-block of the forward: half of L2 */
    FORWARD_MOST_ROWS = 2048,      /* of a task: bounds the O^T that wait in memory between super-blocks */
    FORWARD_LEAST_ROWS = 256,      /* of a task: each packs V for itself, which fewer rows would not pay for */
    STRIP_KEYS = 32,               /* keys of a strip of the backward */
    BLOCK_TILES = 8,               /* tiles of 32 rows in a block of rows of the backward, at most */
    FP32_BLOCK_TILES = 4,          /* the same in fp32, where P and dS are three times as large */
    ROWS_BYTES = 1 << 19,          /* of such a block's operands, at most; in bf16 8 tiles have no more */
    BATCH_STRIPS = 8,              /* strips over which dQ is summed at once */
};

#endif
