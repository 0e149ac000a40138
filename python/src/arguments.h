/* SPDX-License-Identifier: BSD-3-Clause
 *
 * arguments.h: the arguments of a call, from Python to the descriptor. The table below is the extension's only list of them:
 * the enumeration, the keywords and what _strobe.arguments() says follow from it. python/strobe/_arguments.py has the types
 * and defaults of the same names; a test compares the two. */
#ifndef STROBE_PYTHON_ARGUMENTS_H
#define STROBE_PYTHON_ARGUMENTS_H

#include <strobe/strobe_mask_lists.h>
#include <strobe/strobe_quantise.h>

#include "tensor.h"

/* The calls that take arguments by name, as bits. */
enum {
    FORWARD = 1,
    BACKWARD = 2,
    EXPLAIN = 4,
    QUANTISE = 8,
    LISTS = 16,
    APPEND = 32,
    ATTENTION = FORWARD | BACKWARD | EXPLAIN,
    EVERY_CALL = ATTENTION | QUANTISE | APPEND
};

/* X(enumerator, keyword, the calls that take it). q, k and v may be positional; None is every default. */
#define ARGUMENTS_TABLE(X)                                                                         \
    X(Q, q, EVERY_CALL | LISTS)                                                                    \
    X(K, k, EVERY_CALL | LISTS)                                                                    \
    X(V, v, EVERY_CALL | LISTS)                                                                    \
    X(CAUSAL, causal, ATTENTION)                                                                   \
    X(WINDOW, window, ATTENTION)                                                                   \
    X(DIAGONAL, diagonal, ATTENTION)                                                               \
    X(BIAS, bias, ATTENTION)                                                                       \
    X(MASK, mask, ATTENTION | LISTS)                                                               \
    X(BLOCK_MASK, block_mask, ATTENTION | LISTS)                                                   \
    X(BLOCK_SIZE, block_size, ATTENTION | LISTS)                                                   \
    X(MASK_LISTS, mask_lists, ATTENTION)                                                           \
    X(ALIBI_SLOPES, alibi_slopes, ATTENTION)                                                       \
    X(SOFTCAP, softcap, ATTENTION)                                                                 \
    X(SINKS, sinks, ATTENTION)                                                                     \
    X(DROPOUT, dropout, ATTENTION)                                                                 \
    X(SEED, seed, EVERY_CALL)                                                                      \
    X(OFFSET, offset, ATTENTION)                                                                   \
    X(SCALE, scale, ATTENTION | QUANTISE)                                                          \
    X(CU_SEQLENS_Q, cu_seqlens_q, EVERY_CALL | LISTS)                                              \
    X(CU_SEQLENS_K, cu_seqlens_k, EVERY_CALL | LISTS)                                              \
    X(MAX_SEQLEN_Q, max_seqlen_q, EVERY_CALL | LISTS)                                              \
    X(MAX_SEQLEN_K, max_seqlen_k, EVERY_CALL | LISTS)                                              \
    X(USED_Q, used_q, EVERY_CALL)                                                                  \
    X(USED_K, used_k, EVERY_CALL)                                                                  \
    X(LEFTPAD_K, leftpad_k, FORWARD | EXPLAIN)                                                     \
    X(Q_START, q_start, EVERY_CALL)                                                                \
    X(K_START, k_start, EVERY_CALL)                                                                \
    X(DETERMINISTIC, deterministic, ATTENTION)                                                     \
    X(TF32X3, tf32x3, ATTENTION)                                                                   \
    X(KERNEL, kernel, ATTENTION)                                                                   \
    X(THREADS, threads, EVERY_CALL)                                                                \
    X(SCORE, score, ATTENTION)                                                                     \
    X(VISIBLE, visible, ATTENTION)                                                                 \
    X(ARRAYS, arrays, ATTENTION)                                                                   \
    X(SCALARS, scalars, ATTENTION)                                                                 \
    X(PAGE_TABLE, page_table, FORWARD | EXPLAIN | APPEND)                                          \
    X(Q_SCALE, q_scale, FORWARD | EXPLAIN)                                                         \
    X(K_SCALE, k_scale, FORWARD | EXPLAIN | APPEND)                                                \
    X(V_SCALE, v_scale, FORWARD | EXPLAIN | APPEND)                                                \
    X(SCALE_BLOCK, scale_block, FORWARD | EXPLAIN | QUANTISE | APPEND)                             \
    X(SPLIT_KEYS, split_keys, FORWARD | EXPLAIN)                                                   \
    X(OUT, out, FORWARD | BACKWARD | APPEND) /* where to write it, or the forward's */             \
    X(RETURN_LSE, return_lse, FORWARD)                                                             \
    X(REPEAT, repeat, FORWARD) /* bench/overhead.py's: how many times to run the library's call */ \
    X(HEADS_FIRST, heads_first, FORWARD | BACKWARD)                                                \
    X(SHARDS, shards, FORWARD | BACKWARD) /* strobe.torch's: q, k and v are shards (shards.c) */   \
    X(DOUT, dout, BACKWARD)                                                                        \
    X(LSE, lse, BACKWARD)                                                                          \
    X(DLSE, dlse, BACKWARD)                                                                        \
    X(DQ, dq, BACKWARD)                                                                            \
    X(DK, dk, BACKWARD)                                                                            \
    X(DV, dv, BACKWARD)                                                                            \
    X(BIAS_GRADIENT, bias_gradient, BACKWARD)                                                      \
    X(ARRAY_GRADIENTS, array_gradients, BACKWARD)                                                  \
    X(FOR_BACKWARD, backward, EXPLAIN | LISTS) /* of attention_backward too */                     \
    X(DTYPE, dtype, QUANTISE)                                                                      \
    X(HADAMARD, hadamard, QUANTISE | APPEND)                                                       \
    X(ROTARY, rotary, QUANTISE | APPEND)                                                           \
    X(INTERLEAVED, interleaved, QUANTISE | APPEND)                                                 \
    X(SUBTRACT_MEAN, subtract_mean, QUANTISE)                                                      \
    X(ROTARY_DIM, rotary_dim, QUANTISE | APPEND)                                                   \
    X(Q_AT_LENGTH, q_at_length, APPEND)                                                            \
    X(K_CACHE, k_cache, APPEND)                                                                    \
    X(V_CACHE, v_cache, APPEND)                                                                    \
    X(LENGTHS, lengths, APPEND)                                                                    \
    X(POSITIONS, positions, APPEND)                                                                \
    X(SLOTS, slots, APPEND)                                                                        \
    X(CU_SEQLENS_NEW, cu_seqlens_new, APPEND)                                                      \
    X(MAX_SEQLEN_NEW, max_seqlen_new, APPEND)                                                      \
    X(USED_NEW, used_new, APPEND)

#define ARGUMENT_ENUMERATOR(upper, lower, calls) ARG_##upper,
enum argument { ARGUMENTS_TABLE(ARGUMENT_ENUMERATOR) ARGUMENTS };

/* A call being prepared. a leads to the structures beside it; the tensors are open until call_close. */
struct call {
    struct state *state;
    PyObject *args[ARGUMENTS]; /* borrowed; None where an argument is left out */
    const char *names[3];      /* of the descriptor's q, k and v; NULL: these */
    const char *bound_of_q;    /* the name of ARG_MAX_SEQLEN_Q; NULL: max_seqlen_q */
    const char *offsets_of_q;  /* the name of ARG_CU_SEQLENS_Q; NULL: cu_seqlens_q */
    strobe_attention a;
    strobe_varlen varlen;
    strobe_paged paged;
    strobe_bias bias;
    strobe_bool_mask bool_mask;
    strobe_block_mask block_mask;
    strobe_alibi alibi;
    strobe_sinks sinks;
    strobe_dropout dropout;
    strobe_scales scales;
    strobe_parallel parallel;
    strobe_tuning tuning;
    strobe_mask_lists mask_lists;
    int64_t total_q;  /* rows of a packed q */
    bool is_plain;    /* nothing but q, k, v, causal, diagonal and a scale is given, and nobody asks for a gradient */
    bool heads_first; /* strobe.torch's: q, k, v, out and their gradients come and go as (batch, heads, seq, dim) */
    struct tensor q, k, v, bias_tensor, mask_tensor, block_tensor, slopes_tensor, sinks_tensor;
    struct tensor cu_q, cu_k, used_q, used_k, leftpad_k, page_table, q_scale, k_scale, v_scale, lists_memory;
    struct score *score;   /* score.c's; NULL: no function of a score */
    struct shards *shards; /* shards.c's; NULL: one process */
};

/* keywords.c: sets call->args from what Python passes to one of the calls: values, of which the first count are q, k, v and
 * the others have these names (a tuple, or NULL for none). False with an exception set. */
bool take_arguments(struct call *call, int function, PyObject *const *values, Py_ssize_t count, PyObject *names);

/* Reads q, k, v and the options of attention into the descriptor; what only one of the calls takes is left to it. The call
 * must be zero but for state and args; false with an exception set. In both cases call_close must follow. */
bool call_read(struct call *call);
void call_close(struct call *call);

/* features.c: the optional structures; those of the tensors need batch, seq_q, seq_k and heads to be known. */
bool read_features(struct call *call);
bool read_lengths(struct call *call);
bool open_pages(struct call *call);
/* A tensor of integers on q's device, one contiguous axis, or nothing; all of one group have as many bits. */
bool open_integers(struct call *call, struct tensor *tensor, enum argument argument, const char *name, int32_t *bits,
                   const void **to);
/* The bound of the lengths between offsets: as the argument says, or found where the CPU can read them. */
bool read_bound(struct call *call, const struct tensor *cu, enum argument argument, const char *name, int64_t *to);
/* Refuses a tensor of PyTorch that requires a gradient, which would silently be lost. */
bool records_no_gradient(const struct state *state, const struct tensor *tensor);

/* score.c: the user's function of a score, and where its arrays' gradients go; the latter are the backward's. */
bool read_score(struct call *call);
bool read_score_gradients(struct call *call, strobe_gradients *gradients);
void close_score(struct call *call);

/* shards.c: a call over many processes. open: the argument. measure: when extents are known. run: the call; with gradients
 * the backward. close: after an exception that the other ranks have not heard of, tells them. */
bool open_shards(struct call *call);
void measure_shards(struct call *call);
bool run_shards(struct call *call, const strobe_gradients *gradients);
void close_shards(struct call *call);

/* The descriptor's shape of scales: what a tensor of them has on one side, (batch, blocks, heads), or packed (blocks,
 * heads), and (batch, heads) where a whole packed sequence has one. block: rows, 0 = the whole sequence. The number of axes.
 */
int scales_shape(const struct call *call, bool of_queries, int64_t block, int64_t shape[3]);
/* A float32 tensor of them, of extent 1 where it repeats. */
bool place_scales(const struct call *call, const struct tensor *tensor, bool of_queries, int64_t block, int64_t stride[3]);
/* rotary.c: rotary embedding by tables, or by a base; attached says whether the call has one. */
struct rotary {
    strobe_rotary by;
    bool attached;
    struct tensor cos, sin;
};
bool read_rotary(struct call *call, struct rotary *rotary);
void close_rotary(struct rotary *rotary);
/* scale_block, a pair of rows and keys. */
bool read_pair(PyObject *from, const char *name, int64_t *first, int64_t *second);
/* mask_lists.c: lists that were made before. */
bool read_mask_lists(struct call *call);

/* Scalars; None leaves *to as it is. */
bool read_int(PyObject *from, const char *name, int64_t *to);
/* A str as C has it, which ends at a zero: one with a zero inside is refused. */
bool read_string(PyObject *from, const char *name, const char **to);
bool read_float(PyObject *from, const char *name, double *to);

/* [batch, heads, rows, cols] strides of a tensor that broadcasts to these extents; its last axis does not. */
bool read_scores(const struct tensor *tensor, const int64_t extent[4], int64_t stride[3]);

/* A tensor [batch, seq, head, inner] or, packed, [seq, head, inner] into the descriptor. */
bool place_rows(strobe_tensor *to, const struct tensor *tensor, bool packed);
/* The same for [batch, head, seq] or [head, seq]: lse. */
bool place_lse(strobe_tensor *to, const struct tensor *tensor, bool packed);

/* With heads_first: an opened tensor as (batch, seq, heads, dim), and a result, a new reference, as it is shown. */
void heads_last(const struct call *call, struct tensor *tensor);
PyObject *as_shown(const struct call *call, PyObject *result);

/* The shapes that a call's results have. */
int out_shape(const struct call *call, int64_t shape[4]);
int lse_shape(const struct call *call, int64_t shape[4]);
int32_t lse_element(const struct call *call);
static inline bool is_packed_q(const struct call *call) { return tensor_is_open(&call->cu_q); }
static inline bool is_packed_k(const struct call *call) { return tensor_is_open(&call->cu_k); }
static inline bool is_paged(const struct call *call) { return tensor_is_open(&call->page_table); }

/* threads.c: how a call of this size is to run, into the descriptor's parallel; the same for a number of threads. */
bool choose_threads(struct call *call);
void use_threads(strobe_parallel *parallel, int64_t wanted);
/* How many threads a call of this size has by default. */
int64_t threads_of(const strobe_attention *attention);
int32_t default_threads(void);

#endif
