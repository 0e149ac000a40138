/* SPDX-License-Identifier: BSD-3-Clause
 *
 * frozen.h: a call without its tensors: what JAX knows of a call when it traces it, as bytes that become a part of the
 * compiled program. The program's handler (xla_handler.c) puts addresses in and calls the library, without Python. */
#ifndef STROBE_PYTHON_FROZEN_H
#define STROBE_PYTHON_FROZEN_H

#include "score.h"

#define FROZEN_FOUR(X, upper, lower, at, a, b, c, d) \
    X(upper##a, lower##a, at[a]) X(upper##b, lower##b, at[b]) X(upper##c, lower##c, at[c]) X(upper##d, lower##d, at[d])
#define FROZEN_SIXTEEN(X, upper, lower, at)      \
    FROZEN_FOUR(X, upper, lower, at, 0, 1, 2, 3) \
    FROZEN_FOUR(X, upper, lower, at, 4, 5, 6, 7) \
    FROZEN_FOUR(X, upper, lower, at, 8, 9, 10, 11) FROZEN_FOUR(X, upper, lower, at, 12, 13, 14, 15)

/* X(enumerator, keyword, the pointer in struct frozen that the tensor's address goes to). The operands of a program's call
 * are those tensors that it has, in this order. */
#define FROZEN_TENSORS(X)                                                                                          \
    X(Q, q, a.q.data)                                                                                              \
    X(K, k, a.k.data)                                                                                              \
    X(V, v, a.v.data)                                                                                              \
    X(BIAS, bias, bias.data)                                                                                       \
    X(MASK, mask, bool_mask.data)                                                                                  \
    X(BLOCK_MASK, block_mask, block_mask.data)                                                                     \
    X(SLOPES, alibi_slopes, alibi.slopes)                                                                          \
    X(SINKS, sinks, sinks.data)                                                                                    \
    X(CU_Q, cu_seqlens_q, varlen.cu_seqlens_q)                                                                     \
    X(CU_K, cu_seqlens_k, varlen.cu_seqlens_k)                                                                     \
    X(USED_Q, used_q, varlen.used_q)                                                                               \
    X(USED_K, used_k, varlen.used_k)                                                                               \
    X(LEFTPAD_K, leftpad_k, varlen.leftpad_k)                                                                      \
    X(PAGE_TABLE, page_table, paged.page_table)                                                                    \
    X(Q_SCALE, q_scale, scales.q)                                                                                  \
    X(K_SCALE, k_scale, scales.k)                                                                                  \
    X(V_SCALE, v_scale, scales.v)                                                                                  \
    FROZEN_SIXTEEN(X, ARRAY_, array_, arrays) /* of a function of a score */                                       \
    X(SEED, seed, seed)                       /* two 32-bit halves, the lower one first */                         \
    X(OUT, out, a.out.data)                   /* an operand of the backward, a result of the forward; so is lse */ \
    X(LSE, lse, a.lse.data)                                                                                        \
    X(DOUT, dout, g.dout.data)                                                                                     \
    X(DLSE, dlse, g.dlse.data)                                                                                     \
    X(DQ, dq, g.dq.data) /* results of the backward from here on */                                                \
    X(DK, dk, g.dk.data)                                                                                           \
    X(DV, dv, g.dv.data)                                                                                           \
    X(DBIAS, dbias, dbias.data)                                                                                    \
    X(DSINKS, dsinks, dsinks.data)                                                                                 \
    FROZEN_SIXTEEN(X, DARRAY_, darray_, darrays)

#define FROZEN_ENUMERATOR(upper, lower, at) FROZEN_##upper,
enum frozen_tensor { FROZEN_TENSORS(FROZEN_ENUMERATOR) FROZEN_TENSOR_KINDS };

_Static_assert(FROZEN_TENSOR_KINDS <= 64, "which of them a call has are the bits of one number");

enum { FROZEN_VERSION_ROOM = 16, FROZEN_KERNEL_ROOM = 64 }; /* room for texts */

/* All pointers are NULL until a handler sets them in its copy. */
struct frozen {
    uint64_t size; /* of this structure, and below the library's version: a call frozen by another build is refused */
    char version[FROZEN_VERSION_ROOM];
    uint64_t present; /* bit n: the call has tensor n, as an operand or a result */
    int64_t elements[FROZEN_TENSOR_KINDS];
    int32_t dtype[FROZEN_TENSOR_KINDS]; /* an enum xla_dtype */
    int32_t backward;
    int32_t longest_q, longest_k;    /* nonzero: the longest sequence is found out from the offsets */
    int64_t threads;                 /* 0: as many as a call has by default */
    char kernel[FROZEN_KERNEL_ROOM]; /* "": the library's choice */
    int64_t score_bytes;             /* of the struct frozen_score behind this; 0: the call has no function of a score */
    const void *seed;
    void *arrays[MOST_ARRAYS], *darrays[MOST_ARRAYS];
    strobe_attention a;
    strobe_gradients g;
    strobe_varlen varlen;
    strobe_paged paged;
    strobe_bias bias, dbias;
    strobe_bool_mask bool_mask;
    strobe_block_mask block_mask;
    strobe_alibi alibi;
    strobe_sinks sinks, dsinks;
    strobe_dropout dropout;
    strobe_scales scales;
    strobe_tuning tuning;
};

static inline bool frozen_has(const struct frozen *frozen, enum frozen_tensor tensor) {
    return frozen->present >> tensor & 1;
}

static inline bool frozen_is_result(const struct frozen *frozen, enum frozen_tensor tensor) {
    return frozen->backward ? tensor >= FROZEN_DQ : tensor == FROZEN_OUT || tensor == FROZEN_LSE;
}

#endif
