/* SPDX-License-Identifier: BSD-3-Clause
 *
 * aten.h: tensors of PyTorch's, (batch, heads, seq, dim), as a problem of the library: what the kernels of aten.c share. */
#ifndef STROBE_PYTHON_ATEN_H
#define STROBE_PYTHON_ATEN_H

#include <strobe/strobe.h>

#include "torch_abi.h"

/* A tensor (batch, heads, seq, dim) that is read, with elements. */
struct view {
    struct torch_tensor *copy; /* owned, of the same shape; NULL: data is the caller's */
    void *data;
    int64_t size[4], stride[4]; /* stride in elements */
    int64_t callers_stride[4];  /* the same where data is a copy's */
    int32_t dtype;              /* PyTorch's */
};

/* A call: what it reads, and the library's description. Zero, then aten_describe; aten_close must follow in any case. */
struct aten_call {
    strobe_attention a;
    strobe_parallel parallel;
    strobe_bias bias;
    strobe_bool_mask mask;
    struct view q, k, v;
};

/* Reads the dtypes' numbers, once torch_abi is open. */
void aten_dtypes(void);

/* False for what is not described here, with nothing written: another rank or dtype, no elements, shapes that disagree. */
bool aten_describe(struct aten_call *call, struct torch_tensor *q, struct torch_tensor *k, struct torch_tensor *v,
                   bool causal, const double *scale);
/* A mask over scores, which is added or, of bool, hides; of 2 to 4 axes that broadcast, the last one contiguous. */
bool aten_mask(struct aten_call *call, struct torch_tensor *mask);
/* A tensor of out's shape that is read, into the description. */
bool aten_read(const struct aten_call *call, struct view *view, struct torch_tensor *tensor, strobe_tensor *to);
/* lse, (batch, heads, seq), that is read. */
bool aten_read_lse(struct aten_call *call, struct torch_tensor *lse);
void aten_close_view(struct view *view);
void aten_close(struct aten_call *call);

/* New tensors, in memory (batch, seq, heads, dim), or as q lies; false where PyTorch has no memory, or q is no layout for
 * it. */
bool aten_new(const struct aten_call *call, const int64_t size[4], struct torch_tensor **made, strobe_tensor *to);
bool aten_new_like_q(const struct aten_call *call, struct torch_tensor **made, strobe_tensor *to);
/* lse, (batch, heads, seq): in memory so, or (batch, seq, heads). */
bool aten_new_lse(struct aten_call *call, bool heads_last, struct torch_tensor **made);

#endif
