/* SPDX-License-Identifier: BSD-3-Clause
 *
 * strobe_append.h: the K and V of tokens are written into a cache, and what may be done on the way: rotary embedding of k
 * and of q, incoherent processing (random signs and a Hadamard transform), quantisation with scales. */
#ifndef STROBE_APPEND_H
#define STROBE_APPEND_H

#include "strobe/strobe_quantise.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What strobe_append reads: k and v of new tokens, and q. Sequence b has a length before the call, L: token i of it becomes
 * key L + i and stands at position k_start + L + i, row i of q at q_start + L + i, the positions of rotary embedding. */
typedef struct strobe_appender {
    size_t struct_size;
    /* k [batch, seq_new, heads_kv, dim] and v [batch, seq_new, heads_kv, dim_v], or packed [total_new, heads, dim]; q laid
     * as the attention's. fp32, fp16 or bf16. data NULL: this tensor of the attention and its scales are left as they are.
     */
    strobe_tensor q, k, v;
    int32_t dtype;     /* default dtype of the three; default fp32 */
    int32_t hadamard;  /* STROBE_HADAMARD: incoherent processing of q and of k, which scores do not feel */
    uint64_t seed;     /* of the signs: the same for q and for all of k */
    int64_t seq_new;   /* tokens of each sequence; with cu_seqlens_new an upper bound */
    int64_t total_new; /* rows of packed k and v; default cu_seqlens_new[batch], on the CPU */
    /* Arrays of integers of index_bits bits, or NULL. */
    const void *cu_seqlens_new; /* batch + 1 offsets, as strobe_varlen's: k and v are packed */
    const void *used_new;       /* [batch]: of the sequence's tokens the first used_new[b] count, the others do not exist */
    const void *lengths;        /* [batch]: L; NULL: the length after the call, which is the attention's (varlen.used_k,
                                   else all keys of the sequence), less its new tokens */
    const void *positions;      /* [batch]: what stands for L in positions; NULL: L does */
    /* NULL: keys go where L says. Else a slot for each token, laid as k's rows, [batch][seq_new] or [total_new]: the key's
     * number in memory, page * page_size + slot of it, or entry * seq_k + key, or the row of packed K and V. A token whose
     * slot is negative or past the cache is not written. A page table is not needed then. */
    const int64_t *slots;
    const strobe_rotary *rotary; /* NULL: none */
    int32_t index_bits;          /* 32 (default) or 64 */
    int32_t flags;               /* STROBE_Q_AT_LENGTH */
} strobe_appender;

/* Every row of q stands at q_start + L, as flash_attn_with_kvcache has it without a causal mask or a window. */
enum { STROBE_Q_AT_LENGTH = 1 };

/* Writes new K and V into the cache that attention describes, as strobe_forward will read it: k and v contiguous, packed or
 * in pages (strobe_paged), their dtype, scales and strides; and q, turned and transformed, into its q, which may be the
 * appender's own q with the same strides and dtype. In this order: rotary embedding of q and k, random signs and a Hadamard
 * transform of q and k, quantisation. Of the rest of attention sizes, varlen, starts, device and threads count. All else in
 * the cache keeps its bytes. A key in a page of a number that is none is not written.
 * A cache of e4m3 or int8 has its scales in attention's strobe_scales: with block_k = 1 one a token and head, which is
 * written beside; with 0 one a sequence or less, which is read, positive numbers; others are not accepted. So for a q of
 * e4m3 or int8, with block_q. Numbers beyond the range of a given scale saturate. What is not finite becomes e4m3's NaN; for
 * int8 it makes a written scale a NaN and saturates with a given one, a NaN downwards. Where nothing is to be done on the
 * way a row is copied. No two tokens of a call may have one slot, nor may sequences share a page that is written. It takes
 * head dims up to 256 with a Hadamard transform.
 * A GPU stores the bytes of the CPU, but that a NaN of fp32, fp16 or bf16 may be another NaN. There the call is one launch,
 * waits for nothing and may be captured in a graph, whose replays read the lengths, slots and tables that lie in device
 * memory then. What only the device knows is not refused: keys at lengths outside of the cache are not written, positions
 * outside of rotary.positions make NaN. Packed tensors need total_new, and total_q or total_k, there.
 *     // One decoding step: lengths.used_k counts the new token already, so both calls are given one descriptor.
 *     strobe_appender n = {.struct_size = sizeof n, .dtype = STROBE_BF16, .seq_new = 1, .rotary = &rotary};
 *     n.q.data = q, n.k.data = k, n.v.data = v;                             // of this step
 *     a.q.data = turned_q, a.k.data = k_pages, a.v.data = v_pages, a.paged = &pages, a.varlen = &lengths;
 *     if (strobe_append(&a, &n, stream) == STROBE_OK) strobe_forward(&a, work, bytes, stream);
 * Returns INVALID_ARGUMENT, UNSUPPORTED, DEVICE_ERROR. */
STROBE_API strobe_status strobe_append(const strobe_attention *attention, const strobe_appender *appender, void *stream);

#ifdef __cplusplus
}
#endif

#endif
