/* SPDX-License-Identifier: BSD-3-Clause
 *
 * sizes.h: how the AMX kernels cut their work: numbers that were tuned, here without an instruction of AMX because the tests
 * derive from them the lengths past which a kernel takes another path. Those of decoding are in decode/split_kv.h. */
#ifndef STROBE_CPU_AMX_SIZES_H
#define STROBE_CPU_AMX_SIZES_H

enum {
    FORWARD_SUPER_BYTES = 1 << 20, /* of K and V in a super-block of the forward: half of L2 */
    FORWARD_MOST_ROWS = 2048,      /* of a task: its O^T waits in memory between super-blocks */
    FORWARD_LEAST_ROWS = 256,      /* of a task: with fewer, packing V would show */
    STRIP_KEYS = 32,               /* of the backward */
    BLOCK_TILES = 8,               /* of rows that meet keys together */
    BATCH_STRIPS = 8,              /* of keys that dQ is summed over at once */
};

#endif
