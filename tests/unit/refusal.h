/* SPDX-License-Identifier: BSD-3-Clause
 *
 * refusal.h: tables of bad inputs. A row changes a few fields of a sound call, and says the whole sentence with which every
 * function of the interface must then refuse it, its outputs untouched. */
#ifndef STROBE_TESTS_UNIT_REFUSAL_H
#define STROBE_TESTS_UNIT_REFUSAL_H

#include <stddef.h>
#include <stdint.h>

#include "strobe/strobe_mask_lists.h"
#include "strobe/strobe_score.h"

/* A sound problem of [2, 4 x 5, 4 heads on 2, 8], backward too, and every optional structure, none of them attached. */
struct call {
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
    strobe_parallel parallel;
    strobe_tuning tuning;
    strobe_score_arguments score;
    strobe_score_gradients dscore;
    strobe_mask_lists mask_lists;                   /* made for the boolean mask */
    strobe_score_elements elements, delements;      /* of the one array: float table[h][i - j + 4], 4 x 9 */
    double scalar;                                  /* of the one scalar, the integer c: 3 */
    int32_t page_table[6];                          /* two sequences of three pages: all page 0 */
    int64_t cu_q[3], cu_k[3], used_q[2], used_k[2]; /* 64-bit: {0, 4, 6}, {0, 5, 7}, {4, 2}, {5, 2} */
};

extern struct call call;

/* Functions of the call: "score + table[h][i - j + 4] / c"; "j <= i". */
extern struct strobe_score score_function, visible_function;

/* Data that tensors and features may point at; enough for every view of the call. */
enum { ARENA = 4096 };
extern _Alignas(64) float input[ARENA];

/* One field that a row changes: an integer or a pointer, by its size, or a double. */
struct poke {
    size_t at, bytes;
    int64_t integer;
    double real;
    const void *pointer;
};

#define FIELD(field) offsetof(struct call, field), sizeof(((struct call *)0)->field)
#define INT(field, value) \
    { FIELD(field), .integer = (value) }
#define REAL(field, value) \
    { offsetof(struct call, field), 0, .real = (value) }
#define POINT(field, value) \
    { FIELD(field), .pointer = (value) }
#define ATTACH(feature) \
    { offsetof(struct call, a.feature), sizeof(void *), .pointer = &call.feature }
#define ATTACH_D(feature) \
    { offsetof(struct call, g.feature), sizeof(void *), .pointer = &call.feature }

/* Changes the call, as many as have a size or a place. */
void apply_pokes(const struct poke *poke, size_t count);

enum refusal_flags {
    BACKWARD = 1,    /* strobe_backward; otherwise strobe_forward */
    DATA = 2,        /* concerns data: queries, which touch none, accept it */
    UNSUPPORTED = 4, /* the status; otherwise STROBE_INVALID_ARGUMENT */
};

struct refusal {
    struct poke poke[4];  /* as many as have a size or a double */
    const char *sentence; /* %p in it: the pointer of the last poke */
    int flags;
};

void check_refusals(const struct refusal *rows, size_t count);

/* Sets up the call afresh. */
void reset_call(void);

#endif
