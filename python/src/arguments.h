/* SPDX-License-Identifier: BSD-3-Clause
 *
 * arguments.h: the arguments of a call, from Python to the descriptor. The Python side (strobe/_attention.py) passes all of
 * them by position, in the order of enum argument; None means the default. */
#ifndef STROBE_PYTHON_ARGUMENTS_H
#define STROBE_PYTHON_ARGUMENTS_H

#include "tensor.h"

enum argument {
    ARG_Q,
    ARG_K,
    ARG_V,
    ARG_CAUSAL,
    ARG_WINDOW,
    ARG_DIAGONAL,
    ARG_BIAS,
    ARG_MASK,
    ARG_BLOCK_MASK,
    ARG_BLOCK_SIZE,
    ARG_ALIBI_SLOPES,
    ARG_SOFTCAP,
    ARG_SINKS,
    ARG_DROPOUT,
    ARG_SEED,
    ARG_OFFSET,
    ARG_SCALE,
    ARG_CU_SEQLENS_Q,
    ARG_CU_SEQLENS_K,
    ARG_MAX_SEQLEN_Q,
    ARG_MAX_SEQLEN_K,
    ARG_USED_Q,
    ARG_USED_K,
    ARG_Q_START,
    ARG_K_START,
    ARG_DETERMINISTIC,
    ARG_KERNEL,
    ARG_THREADS,
    ARG_K_SCALE,
    ARG_V_SCALE,
    ARGUMENTS /* common to attention, attention_backward and explain; each has its own after them */
};

/* A call being prepared. a leads to the structures beside it; the tensors are open until call_close. */
struct call {
    struct state *state;
    PyObject *const *args;
    strobe_attention a;
    strobe_varlen varlen;
    strobe_bias bias;
    strobe_bool_mask bool_mask;
    strobe_block_mask block_mask;
    strobe_alibi alibi;
    strobe_sinks sinks;
    strobe_dropout dropout;
    strobe_scales scales;
    strobe_parallel parallel;
    strobe_tuning tuning;
    int64_t total_q; /* rows of a packed q */
    struct tensor q, k, v, bias_tensor, mask_tensor, block_tensor, slopes_tensor, sinks_tensor;
    struct tensor cu_q, cu_k, used_q, used_k, k_scale, v_scale;
};

/* Reads the common arguments. The call must be zero but for state and args; false with an exception set. In both cases
 * call_close must follow. */
bool call_read(struct call *call);
void call_close(struct call *call);

/* features.c: the optional structures; those of the tensors need batch, seq_q, seq_k and heads to be known. */
bool read_features(struct call *call);
bool read_lengths(struct call *call);

/* Scalars; None leaves *to as it is. */
bool read_int(PyObject *from, const char *name, int64_t *to);
bool read_float(PyObject *from, const char *name, double *to);

/* [batch, heads, rows, cols] strides of a tensor that broadcasts to these extents; its last axis does not. */
bool read_scores(const struct tensor *tensor, const int64_t extent[4], int64_t stride[3]);

/* A tensor [batch, seq, head, inner] or, packed, [seq, head, inner] into the descriptor. */
bool place_rows(strobe_tensor *to, const struct tensor *tensor, bool packed);
/* The same for [batch, head, seq] or [head, seq]: lse. */
bool place_lse(strobe_tensor *to, const struct tensor *tensor, bool packed);

/* The shapes that a call's results have. */
int out_shape(const struct call *call, int64_t shape[4]);
int lse_shape(const struct call *call, int64_t shape[4]);
static inline bool is_packed_q(const struct call *call) { return tensor_is_open(&call->cu_q); }
static inline bool is_packed_k(const struct call *call) { return tensor_is_open(&call->cu_k); }

/* threads.c: how a call of this size is to run, into the descriptor's parallel; the same for a number of threads. */
bool choose_threads(struct call *call);
void use_threads(strobe_parallel *parallel, int64_t wanted);
int32_t default_threads(void);

#endif
