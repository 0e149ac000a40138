/* SPDX-License-Identifier: BSD-3-Clause
 *
 * schedule_program.h: what a consumer warp group does, as instructions for the simulation. */
#ifndef STROBE_LAB_SCHEDULE_PROGRAM_H
#define STROBE_LAB_SCHEDULE_PROGRAM_H

#include <stdint.h>

typedef enum lab_op {
    LAB_OP_TAKE,   /* ping-pong: wait until this warp group has the tensor cores */
    LAB_OP_GIVE,   /* ping-pong: give them up once the products issued so far have ended */
    LAB_OP_WAIT_K, /* until K of the block is in fast memory */
    LAB_OP_WAIT_V,
    LAB_OP_QK,       /* issue S = Q K^T of the block; go on at once */
    LAB_OP_PV,       /* issue O += P V of the block; go on at once */
    LAB_OP_WAIT_ALL, /* until no product of this warp group is in flight */
    LAB_OP_WAIT_ONE, /* until at most one is */
    LAB_OP_FREE_K,   /* this warp group is done with K of the block */
    LAB_OP_FREE_V,
    LAB_OP_MAX,     /* row maximum */
    LAB_OP_SHUFFLE, /* reductions of rows across threads, and other latencies of the softmax */
    LAB_OP_EXP,     /* exponentials; sums and conversions run under them */
    LAB_OP_RESCALE, /* O = diag(e^(m_old - m_new)) O */
    LAB_OP_END
} lab_op;

/* An instruction for block j + offset; one for a block below 0 is skipped. */
typedef struct lab_step {
    lab_op op;
    int offset;
} lab_step;

/* Each ends with LAB_OP_END. The body runs for j = 1 .. blocks - 1, first with j = 0, last with j = blocks. */
typedef struct lab_program {
    const lab_step *first, *body, *last;
} lab_program;

/* depth: 1, 2, 3. */
const lab_program *lab_program_of_depth(int depth);

#endif
