/* SPDX-License-Identifier: BSD-3-Clause
 *
 * strobe_mask_lists.h: what a GPU's kernels work out of a boolean mask and a block mask before they start: which blocks of
 * 128 x 128 scores are hidden, partly visible or wholly visible, and the boolean mask's bits in the order in which the
 * kernels use them. Each call does it anew, in a pass of its own, unless the descriptor brings lists that were made before:
 * for a mask that is used again, as every layer of a model does, it is done once. */
#ifndef STROBE_MASK_LISTS_H
#define STROBE_MASK_LISTS_H

#include "strobe/strobe.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bits of strobe_mask_lists.uses: forward and backward walk over the blocks in different orders. */
enum { STROBE_LISTS_FORWARD = 1, STROBE_LISTS_BACKWARD = 2 };

/* Lists, and what they were made for. The caller sets struct_size, data, bytes and uses; strobe_mask_lists_make writes the
 * rest, by which later calls know the lists again, since the host cannot read what lies on the device. The structure may be
 * copied. */
struct strobe_mask_lists {
    size_t struct_size;
    void *data;   /* memory of the descriptor's device, aligned to 64 bytes; NULL where it takes 0 bytes */
    size_t bytes; /* of data */
    int32_t uses; /* STROBE_LISTS_FORWARD, STROBE_LISTS_BACKWARD; default both */

    int32_t made; /* the uses that they were made for; 0: not made yet */
    int32_t device, device_index;
    int64_t batch, heads_q, seq_q, seq_k;
    int64_t block_q, block_k; /* of the block mask, 0 without one */
    int32_t axes; /* 1: there is a boolean mask; 2, 4, 8: it differs by batch, head, row; 16 to 128: the block mask */
    int32_t reserved;
};

/* The bytes that lists of the descriptor's masks take, into *bytes. It reads uses of `lists` alone. 0 on the CPU, whose
 * kernels look at masks as they go: there lists are made like others, and change nothing. */
STROBE_API strobe_status strobe_mask_lists_bytes(const strobe_attention *attention, const strobe_mask_lists *lists,
                                                 size_t *bytes);

/* Makes lists of the descriptor's boolean mask and block mask, on its device and the stream; nothing else but sizes is read.
 * A call whose descriptor leads to them (strobe_attention.mask_lists) must come after it in the order of streams, and must
 * have the same masks still, unchanged: kernels read them too, where a block is hidden in part. Sizes, the sizes of blocks,
 * and the axes along which a mask differs are checked; what masks hold cannot be. Heads of K and V, dims, dtypes, the
 * mask's kind, windows and lengths of sequences may be others.
 *     strobe_mask_lists l = {.struct_size = sizeof l};
 *     if (strobe_mask_lists_bytes(&a, &l, &l.bytes) == STROBE_OK && cudaMalloc(&l.data, l.bytes) == cudaSuccess)
 *         status = strobe_mask_lists_make(&a, &l, stream);
 *     a.mask_lists = &l;                                                 // of each of the calls that follow
 * Returns INVALID_ARGUMENT, UNSUPPORTED, WORKSPACE_TOO_SMALL, DEVICE_ERROR. */
STROBE_API strobe_status strobe_mask_lists_make(const strobe_attention *attention, strobe_mask_lists *lists, void *stream);

#ifdef __cplusplus
}
#endif
#endif
