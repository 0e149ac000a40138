/* SPDX-License-Identifier: BSD-3-Clause
 *
 * strobe.h: the public interface of Strobe, and its manual. Four subjects have headers of their own: strobe_score.h has
 * functions of a score as text, strobe_quantise.h has FP8 and int8, strobe_append.h writing to a cache, strobe_mask_lists.h
 * what a GPU keeps of a mask.
 *
 * Strobe computes exact attention, softmax(scale * Q K^T) V, and its gradients, by the FlashAttention algorithms: the
 * matrix of scores is never stored. Extra memory is a few tiles a thread; what is kept between tiles, such as the sums of
 * dQ, is linear in the sequence. This header compiles alone as C11 and as C++17; it includes no framework's nor CUDA's.
 *
 *     float q[6 * 64], k[6 * 64], v[6 * 64], out[6 * 64];          // one head, six tokens, 64 wide
 *     strobe_attention a = {.struct_size = sizeof a};              // C++17: a = {}; a.struct_size = sizeof a;
 *     a.batch = 1, a.seq_q = 6, a.seq_k = 6, a.heads_q = 1, a.dim = 64;
 *     a.q.data = q, a.k.data = k, a.v.data = v, a.out.data = out;
 *     if (strobe_forward(&a, NULL, 0, NULL) != STROBE_OK) fprintf(stderr, "%s\n", strobe_last_error());
 *
 * 1. Rules that hold everywhere
 * -----------------------------
 * - Structures start with struct_size; set it to sizeof the structure and the rest to zero. Zero means the default of
 *   every field. Fields are only ever appended: an older program with a shorter structure works with a newer library, and a
 *   newer program with an older library works as long as the fields that the library does not know are zero.
 * - Sizes and strides count elements and are 64-bit; only names that end in _bytes count bytes.
 * - Calls return a strobe_status. Every argument is checked before any work; after a refusal nothing has been written and
 *   strobe_last_error() holds one sentence that names the argument, its value and what is accepted.
 * - No call depends on another, and nothing of a problem is kept. Calls are re-entrant and may run at the same time from any
 *   number of threads. The caller owns every pointer; the library reads descriptors during the call only. It prints nothing
 *   and ends no process. It keeps the log callback, the last error of each thread and what it found out about the machine.
 * - A feature that no kernel offers for a problem is refused with STROBE_UNSUPPORTED, never ignored.
 * - CPU results do not depend on the number of threads, bit for bit, forward and backward.
 * - After a fork the child may call, on CUDA if its parent has not: where the parent had threads, OpenMP's or its own, on
 *   the calling one, or on the caller's (strobe_parallel). Who opens the library at run time may close it; it stays.
 * - On CUDA a call puts its work on the stream and returns. It waits for nothing and allocates no device memory, so that a
 *   graph can capture it. Tensors and workspace must live until the stream has passed it. What arrays of the device hold,
 *   such as varlen's offsets, is not checked.
 *
 * 2. Shapes
 * ---------
 *     q    [batch, seq_q, heads_q,  dim  ]      out [batch, seq_q, heads_q, dim_v]
 *     k    [batch, seq_k, heads_kv, dim  ]      lse [batch, heads_q, seq_q] in memory, optional
 *     v    [batch, seq_k, heads_kv, dim_v]
 * heads_q is a multiple of heads_kv (multi-head, grouped-query and multi-query attention): query head h reads K/V head
 * h / (heads_q / heads_kv). Any strides on batch, sequence and head; the innermost stride is one, so that
 * [batch, heads, seq, dim] and packed qkv are views. batch = 0, seq_q = 0 and seq_k = 0 are legal.
 *
 * 3. What is computed, for row i and key j of one head
 * ----------------------------------------------------
 *     s = scale * dot(q_i, k_j);  if softcap: s = softcap * tanh(s / softcap);  s += bias + alibi;
 *     if score: s = score(s, ...);  invisible: s = -inf
 *     lse_i = log(sum_j exp(s_ij) [+ exp(sink)])           natural logarithm, scale included
 *     out_i = sum_j dropout(exp(s_ij - lse_i)) v_j
 * Products accumulate in fp32 (in float64 for STROBE_FP64). A row that sees no key has out = 0 and lse = -inf (with a
 * sink, lse = the sink's logit), and zero gradients. An invisible key never contributes, not even a NaN of its K or V. */
#ifndef STROBE_H
#define STROBE_H

#include <stddef.h>
#include <stdint.h>

#define STROBE_VERSION_MAJOR 0
#define STROBE_VERSION_MINOR 1
#define STROBE_VERSION_PATCH 0

#if defined(_WIN32)
#define STROBE_API
#else
#define STROBE_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------ status and errors -- */

typedef enum strobe_status {
    STROBE_OK = 0,
    STROBE_INVALID_ARGUMENT = 1,    /* an argument is wrong; the sentence names it */
    STROBE_UNSUPPORTED = 2,         /* the problem is sound, but no kernel of this build and machine takes it */
    STROBE_OUT_OF_MEMORY = 3,       /* host memory for the workspace could not be had; nothing was written */
    STROBE_WORKSPACE_TOO_SMALL = 4, /* workspace_bytes is less than strobe_workspace() asks for */
    STROBE_DEVICE_ERROR = 5         /* the driver or the device reported an error */
} strobe_status;

/* The name of a status, such as "invalid argument". Never NULL. */
STROBE_API const char *strobe_status_name(strobe_status status);

/* The sentence of this thread's last call that failed, "" before the first; valid until the thread's next one fails. */
STROBE_API const char *strobe_last_error(void);

/* ------------------------------------------------------------------------------------------------------ enumerations -- */

typedef enum strobe_dtype {
    STROBE_DTYPE_DEFAULT = 0,
    STROBE_FP32 = 1,
    STROBE_FP16 = 2,
    STROBE_BF16 = 3,
    STROBE_FP64 = 4,     /* the reference kernels only: for gradient checks */
    STROBE_FP8_E4M3 = 5, /* OCP's e4m3, finite, up to 448: q, k, v of the forward, with scales: strobe_scales */
    STROBE_INT8 = 6      /* k and v of the forward, or q and k beside a v of e4m3, with scales */
} strobe_dtype;

typedef enum strobe_device {
    STROBE_CPU = 0,
    STROBE_CUDA = 1 /* every pointer of a call but those to structures is of the device, varlen's arrays too */
} strobe_device;

typedef enum strobe_operation { STROBE_FORWARD = 0, STROBE_BACKWARD = 1 } strobe_operation;

/* Who sees whom. Row i stands at position q_start + i and key j at k_start + j. The diagonal runs through the key position
 * that equals the row's, TOP_LEFT, or through the one that equals it plus seq_k - seq_q, BOTTOM_RIGHT, so that the last row
 * meets the last key (flash-attn's meaning of "causal"; PyTorch's is_causal is TOP_LEFT). Under varlen, seq_q and seq_k are
 * those of the sequence. */
typedef enum strobe_mask_kind {
    STROBE_MASK_NONE = 0,
    STROBE_MASK_CAUSAL_TOP_LEFT = 1,     /* keys up to the diagonal */
    STROBE_MASK_CAUSAL_BOTTOM_RIGHT = 2, /* keys up to the diagonal */
    STROBE_MASK_WINDOW_TOP_LEFT = 3,     /* window_left keys before the diagonal to window_right after it, inclusive */
    STROBE_MASK_WINDOW_BOTTOM_RIGHT = 4  /* the same around the other diagonal */
} strobe_mask_kind;

/* Bits of strobe_gradients.accumulate, and of strobe_attention.flags. */
enum { STROBE_ADD_TO_DQ = 1, STROBE_ADD_TO_DK = 2, STROBE_ADD_TO_DV = 4 };
enum {
    STROBE_DETERMINISTIC = 1, /* backward gives the same bits on every run; always so on the CPU */
    STROBE_TF32X3 = 2 /* a product of fp32 may be three of tf32 on a GPU: faster, errors as small (docs/numerics.md) */
};

/* ----------------------------------------------------------------------------------------------------------- tensors -- */

/* A view of a tensor. data: the first element. stride: elements from one batch entry, one position and one head to the
 * next, in this order for every tensor (may be negative; 0 repeats). Three zeros mean contiguous in the memory order that
 * section 2 gives. dtype: default is strobe_attention.dtype, for lse and dlse fp32.
 * k and v may be one tensor, v the first dim_v columns of k, as multi-head latent attention has it: v.data = k.data, and the
 * same strides and scales. The CPU reads it once. k and v share a dtype, which in the forward may be another than q's: a
 * cache of e4m3 or int8, of 16 bits beside fp32; or q and k are int8 and v e4m3. For 8-bit dtypes out and bias are bf16.
 * data may be NULL where the tensor has no elements, and in queries that run nothing. */
typedef struct strobe_tensor {
    void *data;
    int64_t stride[3]; /* batch, sequence, head */
    int32_t dtype;     /* a strobe_dtype */
    int32_t reserved;  /* zero */
} strobe_tensor;

/* ------------------------------------------------------------------------- optional features, each a typed structure -- */

/* Sequences of different lengths. Either side may be packed, or padded, or neither.
 * cu_seqlens_*: NULL, or batch + 1 non-decreasing offsets, the first >= 0: sequence b of that side is rows [cu[b], cu[b+1])
 *   of one packed tensor [total, heads, dim]; stride[0] is not used. Packed lse is [heads_q, total_q] in memory.
 * used_*: NULL, or batch lengths: the first used[b] rows of the sequence count, the others do not exist: they are not read,
 *   and out, lse and gradients are not written there.
 * leftpad_k: NULL, or batch numbers: the first leftpad_k[b] keys of the sequence, which its length counts, do not exist
 *   either, and key 0 is the one behind them (flash-attn's cache_leftpad). In forwards.
 * seq_q and seq_k of the descriptor are upper bounds of the lengths (flash-attn's max_seqlen).
 * total_*: rows of a packed tensor; total_q is also the default head stride of lse. The default is cu_seqlens[batch], which
 *   the host cannot read on CUDA: there total_q is required where cu_seqlens_q is given, without total_k fewer kernels will
 *   do, and a total of 0 is right for packed tensors of no rows, which are all NULL then. */
typedef struct strobe_varlen {
    size_t struct_size;
    const void *cu_seqlens_q, *cu_seqlens_k;
    const void *used_q, *used_k;
    int64_t total_q, total_k;
    int32_t index_bits; /* 32 (default) or 64: the integers behind the pointers */
    int32_t reserved;
    const void *leftpad_k;
} strobe_varlen;

/* K and V in pages, as a cache of many sequences has them: k and v are [pages, page_size, heads_kv, dim], with strides
 * between pages, slots of a page, and heads. Key j of sequence b lies in slot j % page_size of page page_table[b *
 * table_stride + j / page_size]. Where that is no number of a page, in [0, pages), nothing is read and its keys are
 * invisible. Entries beyond a sequence's length are not read. table_stride: default ceil(seq_k / page_size), and at least
 * that. Lengths are varlen's used_k; cu_seqlens_k is not accepted beside. Scales with block_k = 1 are [pages, page_size,
 * heads_kv] too; with 0 they are a sequence's, others are not accepted. Taken by forwards; docs/support.md says which.
 * A cache [entries, slots, heads_kv, dim] of more sequences than the call has: page_size = slots, pages = entries, and the
 * table has the entry of each sequence. */
typedef struct strobe_paged {
    size_t struct_size;
    const int32_t *page_table;
    int64_t table_stride;
    int64_t page_size; /* at least 1 */
    int64_t pages;     /* that k and v have */
} strobe_paged;

/* A tensor over scores, [batch, heads_q, seq_q, seq_k] with the last axis contiguous: an additive bias, its gradient, or a
 * boolean mask. stride: elements between batch entries, heads and rows, 0 = broadcast along that axis (there is no default
 * layout). As a bias: dtype fp32, fp16, bf16 or fp64, default the descriptor's; a bias of -inf makes its key invisible. */
typedef struct strobe_bias {
    size_t struct_size;
    void *data;
    int64_t stride[3]; /* batch, head, row */
    int32_t dtype, reserved;
} strobe_bias;

/* A boolean mask, one byte a score, nonzero = visible; combined with the mask kind by "and". Strides as in strobe_bias. */
typedef struct strobe_bool_mask {
    size_t struct_size;
    const uint8_t *data;
    int64_t stride[3]; /* batch, head, row */
} strobe_bool_mask;

/* FlashAttention-1's block mask: one byte a block of block_q x block_k scores, zero = the block is invisible. Kernels leave
 * out tiles of their own of which nothing is visible, with 64 keys on the CPU and 128 x 128 scores on GPUs; so blocks of
 * that size save the most.
 * Shape [batch, heads_q, ceil(seq_q / block_q), ceil(seq_k / block_k)], last axis contiguous, 0 = broadcast. */
typedef struct strobe_block_mask {
    size_t struct_size;
    const uint8_t *data;
    int64_t block_q, block_k;
    int64_t stride[3]; /* batch, head, row of blocks */
} strobe_block_mask;

/* ALiBi: -slope_h * |(q_start + i) + (seq_k - seq_q) - (k_start + j)| is added to the score. slopes: fp32 [heads_q], or
 * [batch, heads_q] with stride_batch set; stride_batch 0 = the same for every batch entry. */
typedef struct strobe_alibi {
    size_t struct_size;
    const float *slopes;
    int64_t stride_batch;
} strobe_alibi;

/* Attention sinks: one logit a head, [heads_q], that joins the softmax's denominator and has no value. dtype: fp32
 * (default), or fp64 when the descriptor's is. As a gradient (dsinks), data is written. */
typedef struct strobe_sinks {
    size_t struct_size;
    void *data;
    int32_t dtype, reserved;
} strobe_sinks;

/* Dropout of attention weights, 0 <= p < 1; kept weights are divided by 1 - p; lse is the one without dropout.
 * Philox4x32-10 with key = seed and counter = (offset, position), where position counts groups of four keys,
 *     ((((batch_start + b) * heads + head_start + h) * rows) + row_start + i) * ceil(keys / 4) + (key_start + j) / 4,
 * and word (key_start + j) % 4 decides: kept when it is at least p * 2^32. The mask is thus the same whatever the tiling,
 * the thread count or the device, and in backward. heads, rows, keys: 0 = heads_q, seq_q, seq_k; a shard of a larger problem
 * gives the larger problem's and its own start, and must lie in it; of packed sequences that is checked for heads alone. */
typedef struct strobe_dropout {
    size_t struct_size;
    double p;
    uint64_t seed, offset;
    int64_t heads, rows, keys;
    int64_t batch_start, head_start, row_start, key_start;
} strobe_dropout;

/* Scales of quantised q, k, v: the true value is scale * stored, whatever the dtype; NULL: none, for int8 and e4m3 where
 * there are no rows. stride: elements between batch entries, blocks of rows and heads, 0 = broadcast. block_*: rows that
 * share a scale, 1 = a scale a token and head, as for an int8 cache; 0 = the whole sequence. Blocks of a packed side are
 * those of the packed tensor's rows, and stride[0] is then read for whole sequences only. Scales of invisible keys are not
 * read. In forwards; q's on the CPU, on Hopper beside a v of e4m3. Of an int8 cache with a float for each token and head:
 *     strobe_scales s = {.struct_size = sizeof s, .k = k_scale, .v = v_scale, .block_k = 1};   // [batch][seq_k][heads_kv]
 *     s.stride_k[0] = s.stride_v[0] = seq_k * heads_kv;
 *     s.stride_k[1] = s.stride_v[1] = heads_kv, s.stride_k[2] = s.stride_v[2] = 1; */
typedef struct strobe_scales {
    size_t struct_size;
    const float *q, *k, *v;
    int64_t stride_q[3], stride_k[3], stride_v[3];
    int64_t block_q, block_k;
} strobe_scales;

/* The caller's threads (CPU). run must call task(context, index, worker) once for every index in [0, tasks), in any order
 * and at the same time as it likes, worker in [0, threads) being unique among the calls that run at once, and return when
 * all have. 128 KiB of stack are enough for a task. run = NULL: the library's OpenMP threads, as many as `threads` says (0:
 * OpenMP's default). */
typedef struct strobe_parallel {
    size_t struct_size;
    int32_t threads; /* required when run is given */
    int32_t reserved;
    void (*run)(void *self, int64_t tasks, void (*task)(void *context, int64_t index, int32_t worker), void *context);
    void *self;
} strobe_parallel;

/* The user's own function of a score, and the gradients of its arrays: strobe_score.h. */
typedef struct strobe_score_arguments strobe_score_arguments;
typedef struct strobe_score_gradients strobe_score_gradients;

/* What a GPU has worked out of the masks before, so that a call need not: strobe_mask_lists.h. */
typedef struct strobe_mask_lists strobe_mask_lists;

/* Choices that the library otherwise makes. kernel: take the kernel of this name or refuse (names: strobe_kernel_at).
 * split_keys: keys in one split of split-KV decoding, so that results do not depend on the batch. Forwards take it: those of
 * cpu_decode (up to 16 query rows a K/V head; no softcap, ALiBi, bias, function of a score) and, rounded up to whole blocks,
 * cuda_latent_sm90, cuda_decode_sm80, cuda_decode_bytes_sm80, cuda_forward_sm80 and cuda_forward_fp32. */
typedef struct strobe_tuning {
    size_t struct_size;
    const char *kernel;
    int64_t split_keys;
} strobe_tuning;

/* ---------------------------------------------------------------------------------------------------- the descriptor -- */

typedef struct strobe_attention {
    size_t struct_size; /* sizeof(strobe_attention) */

    int64_t batch;
    int64_t seq_q, seq_k;
    int64_t heads_q;  /* at least 1 */
    int64_t heads_kv; /* default heads_q; divides heads_q */
    int64_t dim;      /* 1..576 */
    int64_t dim_v;    /* default dim; 1..512 */

    strobe_tensor q, k, v; /* read */
    strobe_tensor out;     /* written by forward, read by backward */
    strobe_tensor lse;     /* forward: written unless data is NULL; backward: read, required. fp32, or fp64 with fp64 q */

    int32_t dtype;        /* a strobe_dtype; default fp32 */
    int32_t device;       /* a strobe_device; default the CPU */
    int32_t device_index; /* which one of that kind */
    int32_t mask;         /* a strobe_mask_kind; default none */
    uint64_t flags;       /* STROBE_DETERMINISTIC, STROBE_TF32X3 */

    double scale;   /* default 1 / sqrt(dim); of a magnitude from 1e-30 to 1e30 */
    double softcap; /* default 0: none; from 1e-30 to 1e30, and scale / softcap of a magnitude from 1e-36 to 1e36 */

    int64_t window_left, window_right; /* read for the two window masks only; -1 = unbounded */
    int64_t q_start, k_start;          /* positions of row 0 and key 0, for shards and chunks; default 0 */

    const strobe_varlen *varlen; /* NULL: none; so for all that follow */
    const strobe_paged *paged;
    const strobe_bias *bias;
    const strobe_bool_mask *bool_mask;
    const strobe_block_mask *block_mask;
    const strobe_alibi *alibi;
    const strobe_sinks *sinks;
    const strobe_dropout *dropout;
    const strobe_scales *scales;
    const strobe_parallel *parallel;
    const strobe_tuning *tuning;
    const strobe_score_arguments *score;
    const strobe_mask_lists *mask_lists;
} strobe_attention;

/* What backward reads and writes beside the forward's tensors. Gradients of q, k, v have their shapes; those of K and V are
 * summed over the query heads of a group in fp32 before they are rounded.
 * accumulate: those of dq, dk, dv, in fp32, to which the gradient is added: an element is what it was plus the gradient,
 * rounded once; rows that no sequence has stay as they are. The workspace grows by as much memory; of packed tensors
 * varlen.total_q or total_k says how much, and is required. All other gradients are written. */
typedef struct strobe_gradients {
    size_t struct_size;
    strobe_tensor dout;         /* [batch, seq_q, heads_q, dim_v], read */
    strobe_tensor dlse;         /* as lse, read; data NULL: zero */
    strobe_tensor dq, dk, dv;   /* written, or added to; their dtypes may differ: each is rounded from the same fp32 sums */
    const strobe_bias *dbias;   /* NULL: not wanted; written; broadcast axes (the bias's own) are summed */
    const strobe_sinks *dsinks; /* NULL: not wanted; written */
    const strobe_score_gradients *dscore; /* NULL: not wanted; written */
    int32_t accumulate, reserved;         /* bits STROBE_ADD_TO_DQ, _DK, _DV; zero */
} strobe_gradients;

/* ------------------------------------------------------------------------------------------------------------- calls -- */

/* Attention. workspace: at least strobe_workspace() bytes, 64-byte aligned, of the descriptor's device; its content before
 * and after means nothing. On the CPU NULL with 0 bytes lets the library allocate and free it itself. stream: a CUDA stream
 * (cudaStream_t), NULL on the CPU, on CUDA NULL is the default stream. No output may overlap another tensor; one that begins
 * where another does is refused. Any thread may call, also one without a CUDA call before, with any device current: the call
 * runs on device_index, in that device's current context if it is the thread's, else in its primary one, and the thread's
 * current device is the same afterwards.
 * Returns INVALID_ARGUMENT, UNSUPPORTED, OUT_OF_MEMORY, WORKSPACE_TOO_SMALL, DEVICE_ERROR. Example: at the top. */
STROBE_API strobe_status strobe_forward(const strobe_attention *attention, void *workspace, size_t workspace_bytes,
                                        void *stream);

/* Gradients. attention: as it was for the forward, with out and lse as the forward left them. Arguments and errors as
 * strobe_forward.
 *     strobe_gradients g = {.struct_size = sizeof g};
 *     g.dout.data = dout, g.dq.data = dq, g.dk.data = dk, g.dv.data = dv;
 *     strobe_status status = strobe_backward(&a, &g, NULL, 0, NULL);                     // a.out and a.lse are set */
STROBE_API strobe_status strobe_backward(const strobe_attention *attention, const strobe_gradients *gradients,
                                         void *workspace, size_t workspace_bytes, void *stream);

/* Whether a call would be refused, and does nothing else: all that strobe_forward, or strobe_backward where gradients is not
 * NULL, checks before any work, with the data pointers and lengths as they are; but for workspace and stream. For who writes
 * something first: strobe_append before strobe_forward. Arguments and errors as theirs.
 *     if (strobe_check(&a, NULL) || strobe_append(&a, &n, NULL)) return; // no slot of the cache was written */
STROBE_API strobe_status strobe_check(const strobe_attention *attention, const strobe_gradients *gradients);

/* The bytes of workspace that a call needs, into *bytes. gradients: NULL for the forward. Depends on sizes, strides,
 * features and thread count, not on what tensors hold: data pointers may be NULL. A pointer that is not NULL counts by its
 * alignment, since some kernels take aligned tensors only.
 *     size_t bytes;
 *     if (strobe_workspace(&a, NULL, &bytes) == STROBE_OK) work = aligned_alloc(64, bytes);   // a multiple of 64 */
STROBE_API strobe_status strobe_workspace(const strobe_attention *attention, const strobe_gradients *gradients,
                                          size_t *bytes);

/* One partial result of attention: the same rows over a part of the keys. Shapes as out and lse in strobe_attention. */
typedef struct strobe_partial {
    strobe_tensor out;
    strobe_tensor lse;
} strobe_partial;

/* Partial results over disjoint sets of keys, to be merged: lse = log sum_p exp(lse_p), out = sum_p exp(lse_p - lse) out_p.
 * (0, -inf) is the identity. Parts are merged in the order of their index, in fp32. */
typedef struct strobe_partials {
    size_t struct_size;
    int64_t batch, seq_q, heads_q, dim_v;
    int64_t count;               /* at least 1 */
    const strobe_partial *parts; /* [count]; dtypes as below */
    strobe_tensor out;           /* written; fp32, fp16 or bf16; may be the same memory and strides as parts[0].out */
    strobe_tensor lse;           /* written unless data is NULL; fp32; may be the same memory and strides as parts[0].lse */
    int32_t dtype;               /* default dtype of every out; fp32 is the default and loses nothing */
    int32_t device, device_index;
    int32_t reserved;
    const strobe_parallel *parallel;
} strobe_partials;

/* Merges partial results (split-KV decoding, ring attention, chunked prefill). INVALID_ARGUMENT, UNSUPPORTED.
 *     strobe_partial part[2] = {{{out_a}, {lse_a}}, {{out_b}, {lse_b}}};
 *     strobe_partials m = {.struct_size = sizeof m};
 *     m.batch = 1, m.seq_q = 6, m.heads_q = 1, m.dim_v = 64, m.count = 2, m.parts = part;
 *     m.out.data = out, m.lse.data = lse;
 *     strobe_status status = strobe_merge(&m, NULL); */
STROBE_API strobe_status strobe_merge(const strobe_partials *partials, void *stream);

/* ------------------------------------------------------------------------------------------- what was chosen, and why -- */

/* The name of the kernel that a call would run, into *kernel: a string that lives as long as the library. Runs nothing; data
 * pointers may be NULL. gradients: NULL for the forward. */
STROBE_API strobe_status strobe_select(const strobe_attention *attention, const strobe_gradients *gradients,
                                       const char **kernel);

/* The same with reasons, as text: a line for each kernel of the operation and device, best first, "name: chosen" or
 * "name: why not". Of a kernel that is compiled in several variants the line says which: "name: chosen, variant ...", with
 * " + ..." for the passes beside the main one. Writes at most capacity bytes with the closing zero; *needed (may be NULL)
 * gets the bytes that the whole text takes.
 *     char text[4096];
 *     if (strobe_explain(&a, NULL, text, sizeof text, NULL) == STROBE_OK) puts(text);
 * Returns UNSUPPORTED, with the text written, when no kernel takes the problem. */
STROBE_API strobe_status strobe_explain(const strobe_attention *attention, const strobe_gradients *gradients, char *text,
                                        size_t capacity, size_t *needed);

/* A kernel of this build, and all that it takes: what is not named here is refused. Strings live as long as the library. */
typedef struct strobe_kernel_info {
    size_t struct_size;
    const char *name;        /* one word: the same in tuning, tables, benchmarks and logs */
    const char *summary;     /* one line */
    const char *unavailable; /* NULL, or why no device of this machine can run it */
    int32_t operation;       /* a strobe_operation */
    int32_t device;          /* a strobe_device */
    int32_t chosen_by_name;  /* nonzero: never chosen by itself, only by strobe_tuning.kernel */
    int32_t reserved;
    uint64_t features;  /* bit n: takes the feature of strobe_feature_name(n) */
    uint16_t dtypes[9]; /* of q; k and v; out; lse and dlse; bias; sinks and dsinks; dout; dq, dk and dv; dbias: bit d for a
                           strobe_dtype d, bit 0 for q's, 0 where the kernel has no such tensor */
    uint16_t reserved2;
    int32_t dim, dim_v;  /* the largest; from 1 on */
    int32_t scale_block; /* a tile's keys: block_k of scales is a multiple, or 0; 1: any number; 0: no scales are taken */
    int64_t seq_q[2];    /* lengths, least and most; INT64_MAX: any */
    int64_t seq_k[2];
    int64_t rows[2];      /* query rows that share a K/V head, seq_q * heads_q / heads_kv */
    int64_t best_rows[2]; /* those for which it is chosen before others; two zeros: any */
    const char *limits;   /* NULL, or what else it wants of numbers, in words */
    const char *variants; /* NULL, or the names of its variants, a blank before each */
} strobe_kernel_info;

/* How many kernels this build has. */
STROBE_API int32_t strobe_kernel_count(void);

/* Kernel number index in [0, strobe_kernel_count()), best first within an operation and device, the reference last.
 *     strobe_kernel_info info = {.struct_size = sizeof info};
 *     for (int32_t i = 0; strobe_kernel_at(i, &info) == STROBE_OK; ++i) puts(info.name); */
STROBE_API strobe_status strobe_kernel_at(int32_t index, strobe_kernel_info *info);

/* The same, with `unavailable` of device number device_index of the kernel's kind alone. */
STROBE_API strobe_status strobe_kernel_on(int32_t index, int32_t device_index, strobe_kernel_info *info);

/* What a bit of strobe_kernel_info.features stands for, such as "softcap"; NULL past the last. Bits may stand for something
 * else in another version of the library. */
STROBE_API const char *strobe_feature_name(int32_t bit);

/* A device that the library can use. */
typedef struct strobe_device_info {
    size_t struct_size;
    const char *name;  /* as the device calls itself; both strings live as long as the library */
    const char *level; /* CUDA: such as sm_90; CPU: baseline, avx2, avx512, avx512bf16, amx, on ARM neon, neonbf16, which the
                          environment variable STROBE_ISA can lower: one of these words, any other is ignored */
    int32_t threads;   /* CPU: threads that a call uses by default */
    int32_t reserved;
    int64_t memory_bytes;
} strobe_device_info;

/* Device number index of a kind (a strobe_device). INVALID_ARGUMENT when there is none of that number.
 *     strobe_device_info info = {.struct_size = sizeof info};
 *     if (strobe_device_at(STROBE_CPU, 0, &info) == STROBE_OK) printf("%s, %s\n", info.name, info.level); */
STROBE_API strobe_status strobe_device_at(int32_t device, int32_t index, strobe_device_info *info);

/* The library's version, such as "0.1.0", to compare with the STROBE_VERSION_ macros of the header. */
STROBE_API const char *strobe_version(void);

/* How the library was built: version, compiler, backends, levels. One line. */
STROBE_API const char *strobe_build_info(void);

/* Receives one line for each forward or backward that ran: operation, sizes, kernel and, where the kernel was compiled in
 * several, its variant; and before it one for a kernel that gave the call to another, "A: handed over to B, why". message is
 * valid during the call. */
typedef void (*strobe_log_callback)(void *user, const char *message);

/* Sets the callback for the whole process, NULL for none (the default). The library itself never prints. Set it before
 * other threads make calls.
 *     static void print(void *file, const char *message) { fprintf((FILE *)file, "strobe: %s\n", message); }
 *     strobe_set_log(print, stderr); */
STROBE_API void strobe_set_log(strobe_log_callback callback, void *user);

#ifdef __cplusplus
}
#endif

#endif
