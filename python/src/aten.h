/* SPDX-License-Identifier: BSD-3-Clause
 *
 * aten.h: what the kernels of PyTorch's operators share: tensors of PyTorch's, (batch, heads, seq, dim), as a problem of the
 * library (aten_tensors.c), and the library's calls (aten_calls.c). No line of Python: PyTorch calls these without the GIL,
 * from any thread. */
#ifndef STROBE_PYTHON_ATEN_H
#define STROBE_PYTHON_ATEN_H

#include <strobe/strobe.h>

#include "torch_abi.h"

/* Where a tensor is: PyTorch's numbers. */
struct place {
    int32_t device, index;
};

/* A tensor (batch, heads, seq, dim) that is read, with elements. */
struct view {
    struct torch_tensor *copy; /* owned, of the same shape; NULL: data is the caller's */
    void *data;
    int64_t size[4], stride[4]; /* stride in elements */
    int64_t callers_stride[4];  /* the same where data is a copy's */
    int32_t dtype;              /* PyTorch's */
    struct place place;
};

/* A call: what it reads, and the library's description. Zero, then aten_describe; aten_close must follow in any case. */
struct aten_call {
    strobe_attention a;
    strobe_parallel parallel;
    strobe_bias bias;
    strobe_bool_mask mask;
    struct view q, k, v;
};

/* Reads the numbers of dtypes and devices, once torch_abi is open. */
void aten_numbers(void);

/* False for what is not described here, with nothing written: another rank, dtype or device, no elements, shapes or devices
 * that disagree. */
bool aten_describe(struct aten_call *call, struct torch_tensor *q, struct torch_tensor *k, struct torch_tensor *v,
                   bool causal, const double *scale);
/* A mask over scores, which is added or, of bool, hides; of 2 to 4 axes that broadcast, the last one contiguous. NULL: none.
 */
bool aten_mask(struct aten_call *call, struct torch_tensor *mask);
/* A tensor of out's shape that is read, into the description. */
bool aten_read(const struct aten_call *call, struct view *view, struct torch_tensor *tensor, strobe_tensor *to);
/* lse that is read: (batch, heads, seq), with more behind a head's last row, or with an axis of one behind it. */
bool aten_read_lse(struct aten_call *call, struct torch_tensor *lse);
void aten_close_view(struct view *view);
void aten_close(struct aten_call *call);

/* New tensors of q's dtype, in memory (batch, seq, heads, dim); or with the axes in the order that another tensor's have, as
 * empty_like makes them; false where PyTorch has no memory, or there is no such order. */
bool aten_new(const struct aten_call *call, const int64_t size[4], struct torch_tensor **made, strobe_tensor *to);
bool aten_new_like(const struct aten_call *call, const struct view *like, const int64_t size[4], struct torch_tensor **made,
                   strobe_tensor *to);
/* lse, with `rows` for each head, of which the first ones are the call's: what is behind them is infinity, as PyTorch's own
 * kernel leaves it. */
enum lse_layout { LSE_HEADS_LAST, LSE_ROWS_LAST, LSE_COLUMN }; /* (batch, heads, seq), two orders; (batch, heads, seq, 1) */
bool aten_new_lse(struct aten_call *call, enum lse_layout layout, int64_t rows, struct torch_tensor **made);
/* A tensor of PyTorch's dtype with nothing written, where q is; of no axes where size is NULL, of one otherwise. */
bool aten_new_empty(const struct aten_call *call, int32_t dtype, const int64_t *size, struct torch_tensor **made);

/* So many numbers of a random generator that nobody reads, of no axes: on the host, as PyTorch's own efficient kernel makes
 * them, or, while the stream is recorded for a graph, whose outputs are the device's, where q is. */
bool aten_new_unread(const struct aten_call *call, struct torch_tensor **made, int count);

/* A tensor of the CPU, fp32, fp16, bf16 or fp64, with nothing written. False where the ABI is not open, too. */
bool aten_empty(int32_t element, int axes, const int64_t *size, const int64_t *stride, struct torch_tensor **made);

/* The library's calls, on the CPU or on the current stream of q's device; false for what it refuses. */
bool aten_forward(struct aten_call *call);
/* from: grad_out, query, key, value; then out and lse, which stand elsewhere in each operator. made: dq, dk, dv, laid out as
 * query, key and value are where like_inputs, else in memory (batch, seq, heads, dim). */
bool aten_backward(struct aten_call *call, const stable_value *from, stable_value out, stable_value lse, bool like_inputs,
                   struct torch_tensor *made[3]);
/* Whether the backward would be taken. */
bool aten_has_backward(const struct aten_call *call);
/* How many calls were computed, forward and backward: tests ask whether it was here. */
void aten_computed(long long calls[2]);

/* The kernels, by where they are registered: aten.c. */
stable_kernel aten_flash_for_cpu, aten_flash_for_cpu_backward;                                       /* aten_cpu.c */
stable_kernel aten_efficient_offered, aten_efficient_offered_backward, aten_efficient_offered_graph; /* aten_cpu.c */
stable_kernel aten_flash, aten_flash_backward, aten_cudnn, aten_cudnn_backward;                      /* aten_cuda.c */
stable_kernel aten_efficient, aten_efficient_backward;                                               /* aten_cuda.c */
stable_kernel aten_flash_offered, aten_flash_offered_backward, aten_flash_offered_graph;             /* aten_cuda.c */

#endif
