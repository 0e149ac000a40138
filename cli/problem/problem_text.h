/* SPDX-License-Identifier: BSD-3-Clause
 *
 * problem_text.h: a problem as a person writes it, the same in every command, in the check grid and in reports:
 *
 *     fwd b=2 h=32/8 s=1k..16k*2 d=128 bf16 causal
 *
 * problem_parse reads one problem without sweeps; problem_print writes it canonically, and reading that back gives the same
 * problem. problem_list_read takes a command's words, with sweeps and several problems. problem_print_help prints the
 * grammar. */
#ifndef STROBE_CLI_PROBLEM_TEXT_H
#define STROBE_CLI_PROBLEM_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <strobe/strobe.h>

/* Memory orders of q, k, v, out and their gradients. */
typedef enum problem_layout {
    LAYOUT_BSHD,       /* [batch, seq, heads, dim] */
    LAYOUT_BHSD,       /* [batch, heads, seq, dim] in memory */
    LAYOUT_PACKED,     /* q, k, v side by side in every row of one tensor; their gradients likewise */
    LAYOUT_GAPS,       /* bshd with unused elements after every head, row and batch entry */
    LAYOUT_REVERSED,   /* bshd with rows in descending order: a negative stride */
    LAYOUT_SBHD,       /* [seq, batch, heads, dim] in memory */
    LAYOUT_BACKWARDS,  /* bshd with every axis in descending order */
    LAYOUT_MISALIGNED, /* gaps of one element, and the tensor begins one element after a multiple of 64 bytes */
    LAYOUT_SHARED,     /* k, v and dout are one for all batch entries and heads: strides of 0 */
    LAYOUT_MIXED,      /* a layout for each tensor, drawn from the seed */
    LAYOUT_OVERLAPPING /* what is read, but lse and out: rows that share elements, or are one row, as the seed says */
} problem_layout;

/* What q and k hold; see inputs.h. */
typedef enum problem_values {
    VALUES_NORMAL,
    VALUES_OUTLIERS,
    VALUES_GROWING,
    VALUES_FALLING,
    VALUES_LOW,
    VALUES_SPIKES,
    VALUES_EQUAL,
} problem_values;

/* What poison is put where nobody may look. */
typedef enum problem_hidden { HIDDEN_NAN, HIDDEN_INFINITY, HIDDEN_LARGEST } problem_hidden;

/* Which rows share a scale. 0: int8 and fp8 have one for each row and head, other types have none. */
typedef enum problem_scales { SCALES_TOKEN = 1, SCALES_ROWS, SCALES_SEQUENCE, SCALES_TENSOR, SCALES_BLOCKS } problem_scales;

/* Rows of a block of SCALES_ROWS, and of SCALES_BLOCKS. */
enum { SCALE_ROWS = 16, SCALE_BLOCK = 128 };

/* Which lengths sequences have under varlen. */
typedef enum problem_lengths {
    LENGTHS_RAGGED,
    LENGTHS_NO_KEYS,
    LENGTHS_NO_ROWS,
    LENGTHS_NONE,
    LENGTHS_ONE_LONG /* a sixteenth of the first at most */
} problem_lengths;

/* What masks show; see inputs.h. */
typedef enum problem_shows { SHOWS_USUAL, SHOWS_FEW, SHOWS_DOCUMENTS, SHOWS_NOTHING } problem_shows;

/* Kinds of sinks and of ALiBi; 0: there are none. */
enum { SINKS_USUAL = 1, SINKS_HIDDEN, SINKS_LARGE, SINKS_FAR };
enum { ALIBI_HEADS = 1, ALIBI_BATCH, ALIBI_SIGNED };

/* Results in fp32: out, or dq, dk and dv; of the backward's dk and dv, dq, or dk alone. */
typedef enum problem_wide { WIDE_ALL = 1, WIDE_KEYS, WIDE_DQ, WIDE_DK } problem_wide;

/* Which of strobe_varlen's arrays a problem has. */
enum { VARLEN_CU_Q = 1, VARLEN_CU_K = 2, VARLEN_USED_Q = 4, VARLEN_USED_K = 8, VARLEN_INDEX_64 = 16 };

/* The axes that a mask or a bias has of its own; 0: there is none. */
enum { AXIS_KEY = 1, AXIS_ROW = 2, AXIS_HEAD = 4, AXIS_BATCH = 8 };

enum { PROBLEM_KERNEL = 64, PROBLEM_EXPRESSION = 256, PROBLEM_TEXT = 1536, PROBLEM_MESSAGE = 512 };

/* All numbers are int64_t, or double, so that the table of words in problem_words.c can name any of them. */
typedef struct problem {
    int64_t operation, dtype, device, mask; /* strobe_operation, strobe_dtype, strobe_device, strobe_mask_kind */
    int64_t kv_dtype;                       /* of k and v; 0: dtype */
    int64_t qk_dtype;                       /* of q and k beside a v of fp8; 0: dtype */
    int64_t out_dtype, dout_dtype;          /* of out, and of dout; 0: problem_wide_dtype() */
    int64_t gradients_dtype;                /* of dq, dk and dv, but for those that are wide; 0: dtype */
    int64_t batch, heads_q, heads_kv, seq_q, seq_k, dim, dim_v;
    int64_t window_left, window_right;
    double scale, softcap, dropout; /* 0: the default, none, none */
    int64_t seed;                   /* of the inputs, the lengths and the dropout */
    int64_t varlen;                 /* VARLEN_ bits */
    int64_t bool_mask, bias;        /* AXIS_ bits */
    int64_t block_q, block_k;       /* 0: no block mask */
    int64_t block_axes;             /* AXIS_ bits of the block mask; 0: all of them */
    int64_t shows;                  /* problem_shows: of both masks */
    int64_t bias_dtype, bias_hides; /* 0: dtype; flag: some of the bias are -inf */
    int64_t alibi, sinks, no_lse;   /* ALIBI_, SINKS_, flag */
    int64_t dlse, dbias, dsinks;    /* flags of backward */
    int64_t deterministic;          /* flag */
    int64_t tf32x3;                 /* flag: products of tf32 parts are allowed */
    int64_t layout;                 /* problem_layout */
    int64_t page_size;              /* of K and V in pages; 0: they are not */
    int64_t v_in_k;                 /* flag: v is the first columns of k */
    int64_t leftpad;                /* flag: the first keys of sequences are padding, as many as the seed says */
    int64_t missing;                /* flag: some numbers of pages are those of no page */
    int64_t append;                 /* of each sequence's keys, those that strobe_append puts there, at most; 0: none */
    int64_t q_start, k_start;
    int64_t values, hidden, nan;      /* problem_values, problem_hidden; flag: a NaN that rows see */
    int64_t scales, lengths;          /* problem_scales, problem_lengths */
    int64_t q_scales;                 /* flag: q has scales as well; fp8 has them anyway */
    int64_t shard;                    /* flag: dropout as of a part of a larger problem */
    int64_t split_keys;               /* 0: the library's default */
    int64_t added;                    /* flag of backward: fp32 gradients are added to what their tensors hold */
    int64_t wide;                     /* which results are fp32 whatever the inputs are: a problem_wide, 0: none */
    int64_t threads;                  /* 0: the library's default */
    int64_t dscore;                   /* flag of backward: the gradient of the table */
    int64_t table_heads, table_width; /* of the table; 0: heads_q, seq_q + seq_k */
    int64_t ranks, rank_group;        /* threads that share the work by libstrobe_dist; 0: one process; of two_levels */
    int64_t rank_scheme, rank_layout; /* strobe_dist_scheme, strobe_dist_layout */
    char kernel[PROBLEM_KERNEL];      /* "": the library chooses */
    char score[PROBLEM_EXPRESSION], visible[PROBLEM_EXPRESSION]; /* expressions without blanks; "": none */
} problem;

/* Reads one problem: words separated by white space, no sweeps. False, with a sentence that names the word, its value and
 * what is accepted, if it is not one. */
bool problem_parse(const char *text, problem *p, char *message, size_t capacity);

/* The canonical text: every size, then what differs from the default. */
void problem_print(const problem *p, char text[PROBLEM_TEXT]);

/* "fp32", "fp16", ... */
const char *problem_dtype_name(int64_t dtype);

/* The dtype of out, bias and gradients by default: that of q, bf16 for fp8. */
static inline int64_t problem_wide_dtype(const problem *p) { return p->dtype == STROBE_FP8_E4M3 ? STROBE_BF16 : p->dtype; }

/* Whether a gradient of q, k and v is in fp32. */
static inline bool problem_has_fp32_gradients(const problem *p) {
    return p->wide || (p->gradients_dtype ? p->gradients_dtype : p->dtype) == STROBE_FP32;
}

/* The dtype of k and v, or of v alone where q and k have one of their own. */
static inline int64_t problem_kv_dtype(const problem *p) { return p->kv_dtype ? p->kv_dtype : p->dtype; }

/* Whether numbers of a dtype have scales whatever else is asked for. */
static inline bool problem_is_quantised(int64_t dtype) { return dtype == STROBE_INT8 || dtype == STROBE_FP8_E4M3; }

typedef struct problem_list {
    problem *items;
    size_t count, capacity;
} problem_list;

/* Appends the problems of one text with sweeps; a sweep written first varies slowest. */
bool problem_list_add(problem_list *list, const char *text, char *message, size_t capacity);

/* Appends the problems of a command line: every "fwd" or "bwd" begins one. Words may hold several words. */
bool problem_list_read(problem_list *list, int count, char *const *words, char *message, size_t capacity);

void problem_list_free(problem_list *list);

/* For commands that know no ranks: false, with a sentence, if a problem asks for some. */
bool problem_list_is_of_one_process(const problem_list *list, char *message, size_t capacity);

/* Prints the grammar, for --help. */
void problem_print_help(FILE *to);

#endif
