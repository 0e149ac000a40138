/* SPDX-License-Identifier: BSD-3-Clause
 *
 * inputs.h: a problem made concrete: lengths, tensors in the problem's layout filled with random normal numbers rounded to
 * its dtype, masks, bias; and the descriptors that a call takes.
 *
 *     inputs in;                                            // what is read
 *     outputs out;                                          // what is written; several sets for one inputs
 *     inputs_create(&in, &p, message, sizeof message) && outputs_create(&out, &in, message, sizeof message);
 *     call c;
 *     call_prepare(&c, &in, &out);                          // c.attention and c.gradients are ready
 *
 * What is random and how: q, k, v, dout, dlse, bias and sinks are standard normal; with softcap q is multiplied by
 * softcap / 4, so that the cap is felt. A boolean mask shows seven of eight scores, hides every seventh row, and with its
 * own batch axis hides the last batch entry whole; a block mask shows three of four blocks. shows=few: of a mask most
 * squares of scores are hidden; shows=documents: rows see the keys of their own document; shows=nothing: all is hidden.
 * ALiBi slopes are the usual 2^(-8 (h + 1) / heads); signed: with signs that take turns, of 0 too. int8 and fp8 tensors are
 * such numbers over a scale of their row, by which its largest is 127 or 448. Ragged lengths: entry 0 is the longest, entry
 * 2 has no rows, entry 3 no keys, the others are drawn. values= and its like: inputs_values.c. */
#ifndef STROBE_CLI_INPUTS_H
#define STROBE_CLI_INPUTS_H

#include "problem/buffer.h"
#include "problem/problem_text.h"

#include "problem/score_functions.h"

#include <strobe/strobe_mask_lists.h>
#include <strobe/strobe_score.h>

typedef enum tensor_id {
    T_Q,
    T_K,
    T_V,
    T_OUT,
    T_LSE,
    T_DOUT,
    T_DLSE,
    T_DQ,
    T_DK,
    T_DV, /* over rows or keys */
    T_BIAS,
    T_DBIAS,
    T_MASK,
    T_BLOCKS, /* over scores */
    T_SLOPES,
    T_SINKS,
    T_DSINKS, /* over heads */
    T_K_SCALE,
    T_V_SCALE, /* over keys: of quantised k and v */
    T_Q_SCALE, /* over rows */
    T_TABLE,
    T_DTABLE, /* of a score function: [heads][width], in one row */
    TENSOR_COUNT
} tensor_id;

typedef enum tensor_side { OVER_ROWS, OVER_KEYS, OVER_SCORES, OVER_BLOCKS, OVER_HEADS } tensor_side;

const char *tensor_name(tensor_id id);
tensor_side tensor_side_of(tensor_id id);

/* Whether the problem's operation writes the tensor. */
bool tensor_is_output(const problem *p, tensor_id id);

/* One batch entry: its lengths, and the rows before it where that side is packed (0 otherwise). */
typedef struct sequence {
    int64_t rows, keys, first_row, first_key;
    int64_t padding; /* keys before key 0 that are none; first_key counts them */
} sequence;

enum { LEFTPAD_ARRAY = 4, VARLEN_ARRAYS }; /* of inputs.varlen_arrays; the others have the order of VARLEN_ bits */

typedef struct inputs {
    problem problem;
    sequence *sequences;      /* [batch] */
    int64_t total_q, total_k; /* rows of a packed side */
    int32_t *pages,
        *page_table; /* [batch][pages_of_sequence]: where keys lie, and what a call is told; NULL: not in pages */
    void *varlen_arrays[VARLEN_ARRAYS]; /* cu_seqlens_q, cu_seqlens_k, used_q, used_k, leftpad_k, of 32 or 64 bits; NULL
                                           where absent */
    strobe_dropout dropout;      /* p is 0 where there is none; the place in a larger problem is the caller's to set */
    buffer tensor[TENSOR_COUNT]; /* what the operation reads; data NULL where absent */
} inputs;

typedef struct outputs {
    buffer tensor[TENSOR_COUNT]; /* what it writes */
} outputs;

/* False, with a sentence, when the tensors would take more memory than is sensible on this machine. inputs_free either way.
 * Backward: out and lse are there but not filled; they are a forward's result (see oracle.h). */
bool inputs_create(inputs *in, const problem *p, char *message, size_t capacity);
void inputs_free(inputs *in);

/* The same lengths and values under a problem that differs from the inputs' in dtype, or by a tensor more; a tensor that
 * `from` does not have holds NaN. out and lse of backward are converted too. */
bool inputs_convert(inputs *to, const inputs *from, const problem *p, char *message, size_t capacity);

/* Copies the values of a tensor between two buffers of its shape, whatever their layouts and dtypes. */
void inputs_copy(const inputs *in, tensor_id id, const buffer *to, const buffer *from);

/* Zeros in dout and dlse; their usual values back into rows [first, end) of query heads [head, head + heads) of one batch
 * entry. */
void inputs_clear_gradient(inputs *in);
void inputs_fill_gradient(inputs *in, int64_t batch, int64_t head, int64_t heads, int64_t first, int64_t end);

/* NaN, or what the problem's hidden= says, into every key and value that no row sees, every query and dout that sees no key,
 * and a bias where its key is hidden. */
void inputs_poison(inputs *in);

bool outputs_create(outputs *out, const inputs *in, char *message, size_t capacity);
void outputs_free(outputs *out);

/* Pages of one sequence of the longest kind, and of all with some that none has. */
int64_t inputs_pages_of_sequence(const problem *p);
int64_t inputs_page_count(const problem *p);

/* Whether key j of a batch entry lies in a page that the call is told wrongly of: nobody sees it. */
static inline bool inputs_key_is_missing(const inputs *in, int64_t batch, int64_t j) {
    if (!in->pages) return false;
    const int64_t page = (in->sequences[batch].first_key + j) / in->problem.page_size;
    const int64_t at = batch * inputs_pages_of_sequence(&in->problem) + page;
    return in->pages[at] != in->page_table[at];
}

/* Rows, or keys, of a batch entry, and where a row of it lies in the buffer. */
int64_t inputs_length(const inputs *in, tensor_id id, int64_t batch);
unsigned char *inputs_row(const inputs *in, tensor_id id, const buffer *b, int64_t batch, int64_t row, int64_t head);

/* A walk over the existing rows of a tensor, those that a sequence has:
 *     for (rows r = rows_of(in, id, b); rows_next(&r);) use(rows_at(&r, b), b->extent[3]); */
typedef struct rows {
    const inputs *in;
    tensor_id id;
    int64_t batches, heads, fixed_length; /* fixed_length -1: each batch entry has its own */
    int64_t batch, row, head;
} rows;

rows rows_of(const inputs *in, tensor_id id, const buffer *b);
bool rows_next(rows *r);
unsigned char *rows_at(const rows *r, const buffer *b);

/* Whether a problem's dq, dk or dv with this buffer is added to what is there; the numbers that are there before a call,
 * of few bits and up to 2, and 0 where it is not so; and their way into the buffers. */
static inline bool outputs_are_added(const problem *p, const buffer *gradient) {
    return p->added && p->operation == STROBE_BACKWARD && gradient->dtype == STROBE_FP32;
}
double outputs_before(const problem *p, tensor_id id, const buffer *b, const rows *at, int64_t column);
void outputs_begin(const outputs *out, const inputs *in);

/* The descriptors of one call. Not to be moved: they point at each other. */
typedef struct call {
    strobe_attention attention;
    strobe_gradients gradients;
    strobe_varlen varlen;
    strobe_paged paged;
    strobe_bias bias, dbias;
    strobe_bool_mask bool_mask;
    strobe_block_mask block_mask;
    strobe_alibi alibi;
    strobe_sinks sinks, dsinks;
    strobe_dropout dropout;
    strobe_scales scales;
    strobe_parallel parallel;
    strobe_tuning tuning;
    strobe_score_arguments score;
    strobe_score_gradients dscore;
    strobe_score_elements table, dtable;
    strobe_mask_lists mask_lists;
    bool backward;
} call;

void call_prepare(call *c, const inputs *in, const outputs *out);

/* The same of a problem without any tensor, for queries: every data pointer is NULL. */
void call_describe(call *c, const problem *p);

/* What the operation wants where the forward wants NULL. */
static inline const strobe_gradients *call_gradients(const call *c) { return c->backward ? &c->gradients : NULL; }

#endif
