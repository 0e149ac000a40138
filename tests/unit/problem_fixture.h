/* SPDX-License-Identifier: BSD-3-Clause
 *
 * problem_fixture.h: a small random problem with any set of features, its tensors in slots with guard bands. The same shape
 * gives the same numbers, so that several kernels can be given one problem. */
#ifndef STROBE_TESTS_UNIT_PROBLEM_FIXTURE_H
#define STROBE_TESTS_UNIT_PROBLEM_FIXTURE_H

#include "slot.h"
#include "strobe/strobe_score.h"

enum feature {
    BOOL_MASK = 1 << 0,
    BLOCK_MASK = 1 << 1,
    BIAS = 1 << 2,
    ALIBI = 1 << 3,
    SOFTCAP = 1 << 4,
    SINKS = 1 << 5,
    DROPOUT = 1 << 6,
    PACKED_Q = 1 << 7, /* sequences of different lengths, one of them empty */
    PACKED_K = 1 << 8,
    USED_Q = 1 << 9,
    USED_K = 1 << 10,
    STARTS = 1 << 11,
    WITH_DLSE = 1 << 12,
    NEGATIVE_SCALE = 1 << 13,
    INDEX64 = 1 << 14,
    PER_BATCH = 1 << 15, /* axes along which bias and boolean mask are not broadcast */
    PER_HEAD = 1 << 16,
    PER_ROW = 1 << 17,
    HOLES = 1 << 18,    /* a bias of -inf here and there */
    NO_LSE = 1 << 19,   /* forward does not write lse */
    WIDE = 1 << 20,     /* outputs in fp64, whatever the inputs are */
    TIGHT = 1 << 21,    /* every tensor ends where nobody may read on */
    NO_SINKS = 1 << 22, /* every second sink is -inf: as if the head had none */
    FAR_BIAS =
        1 << 23, /* every bias is near the least number of its dtype, where one key's differs from the next's by far */
    PER_SCORE = PER_BATCH | PER_HEAD | PER_ROW,
    PACKED = PACKED_Q | PACKED_K,
    USED = USED_Q | USED_K,
};

/* What q and k are made of: a score's natural units beside those of numbers near 1, at dims whose root is exact. Rows of q
 * point along column 0 or against it, where k has: */
enum values {
    USUAL,         /* nothing: scores near 1 */
    LARGE,         /* scores of some hundreds, by all columns; v near 1000 */
    TINY,          /* scores near 0, by all columns; v near 1/1000 */
    VERY_NEGATIVE, /* -120 for every key: weights of 0 if the maximum were one of 0 */
    GROWING,       /* 7 more with every 64 keys: each block has a new maximum */
    FALLING,       /* 7 less */
    STEEP,         /* 40 more, so that what came before weighs nothing */
    MIXED,         /* growing, falling and usual rows in turn */
};

/* heads_kv 0: heads_q; dim_v 0: dim; dtype 0: fp32. */
struct shape {
    const char *name;
    int64_t batch, seq_q, seq_k, heads_q, heads_kv, dim, dim_v;
    int32_t dtype, mask;
    int64_t left, right;
    unsigned features;
    enum values values;
    /* A score function's texts, or NULL. They may use w, a float of 0.75; c, an integer of 3; at, by which i - j + at is 0
     * or more; table[heads_q][i - j + at], floats, with a gradient where score reads it; kind[97], small integers. */
    const char *score, *visible;
};

enum tensor { Q, K, V, OUT, LSE, DOUT, DLSE, DQ, DK, DV, BIAS_TERM, DBIAS, SINK_LOGITS, DSINKS, TABLE, DTABLE, TENSORS };

struct fixture {
    strobe_attention a;
    strobe_gradients g;
    strobe_varlen varlen;
    strobe_bias bias, dbias;
    strobe_bool_mask bool_mask;
    strobe_block_mask block_mask;
    strobe_alibi alibi;
    strobe_sinks sinks, dsinks;
    strobe_dropout dropout;
    strobe_parallel parallel;
    strobe_tuning tuning;
    strobe_score *function;
    strobe_score_arguments score;
    strobe_score_gradients dscore;
    strobe_score_elements elements[2], delements[2];

    struct shape shape; /* defaults filled in */
    struct slot slot[TENSORS];
    struct fenced memory[9]; /* everything that is not in a slot */
    int pieces;
};

extern const char *const tensor_names[TENSORS];

/* The whole problem, inputs filled; one thread. */
void fixture_make(struct fixture *f, const struct shape *shape);
void fixture_free(struct fixture *f);

/* Where the slots lie, into the descriptors; after a slot has moved. */
void fixture_bind(struct fixture *f);

/* With the kernel of this name, NULL for the library's choice. Outputs are reset first; backward reads what forward left. */
strobe_status fixture_forward(struct fixture *f, const char *kernel);
strobe_status fixture_backward(struct fixture *f, const char *kernel);

/* One or the other. */
strobe_status fixture_run(struct fixture *f, strobe_operation operation, const char *kernel);

/* The operation's outputs hold what no kernel has written. */
void fixture_reset(struct fixture *f, strobe_operation operation);

/* In a workspace of exactly the bytes that strobe_workspace names, full of NaN, between pages that nobody may touch, all
 * tasks by the last of so many workers. whole: nothing was written before it. */
strobe_status fixture_run_fenced(struct fixture *f, strobe_operation operation, const char *kernel, int32_t workers,
                                 bool *whole);

/* The guard bands of every tensor hold. */
bool fixture_guards_hold(const struct fixture *f);

/* The operation writes the tensor, and the problem has it. */
bool is_output(const struct fixture *f, enum tensor t, strobe_operation operation);

/* The same bits in every element. */
bool slot_equal(const struct slot *a, const struct slot *b);

#endif
