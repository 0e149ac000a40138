/* SPDX-License-Identifier: BSD-3-Clause
 *
 * schedule_program.c: a consumer's instructions for the three depths of pipelining; see schedule_program.h. */
#include "schedule_program.h"

/* One instruction, or a pair that always goes together. clang-format would break macros of braces into lines. */
/* clang-format off */
#define TAKE       {LAB_OP_TAKE, 0}
#define GIVE       {LAB_OP_GIVE, 0}
#define WAIT_ALL   {LAB_OP_WAIT_ALL, 0}
#define WAIT_ONE   {LAB_OP_WAIT_ONE, 0}
#define QK(x)      {LAB_OP_WAIT_K, x}, {LAB_OP_QK, x}
#define PV(x)      {LAB_OP_WAIT_V, x}, {LAB_OP_PV, x}
#define FREE_K(x)  {LAB_OP_FREE_K, x}
#define FREE_V(x)  {LAB_OP_FREE_V, x}
#define SOFTMAX(x) {LAB_OP_MAX, x}, {LAB_OP_SHUFFLE, x}, {LAB_OP_EXP, x}
#define RESCALE(x) {LAB_OP_RESCALE, x}
#define END        {LAB_OP_END, 0}
/* clang-format on */

/* FA3's Algorithm 1, lines 15 to 23: product, wait, softmax, product, wait. PV(j - 1) and QK(j) come next to one another, so
 * that under ping-pong a warp group keeps the tensor cores for both. */
static const lab_step serial_first[] = {TAKE, QK(0), GIVE, WAIT_ALL, FREE_K(0), END};
static const lab_step serial_body[] = {SOFTMAX(-1), RESCALE(-1), TAKE,       PV(-1),    QK(0),
                                       GIVE,        WAIT_ALL,    FREE_V(-1), FREE_K(0), END};
static const lab_step serial_last[] = {SOFTMAX(-1), RESCALE(-1), TAKE, PV(-1), GIVE, WAIT_ALL, FREE_V(-1), END};

/* FA3's Algorithm 2: both products are issued, softmax starts when the first has ended, and runs under the second. */
static const lab_step two_first[] = {TAKE, QK(0), GIVE, WAIT_ALL, FREE_K(0), SOFTMAX(0), END}; /* 3-6 */
static const lab_step two_body[] = {TAKE,     QK(0),      PV(-1),     GIVE,                    /* 8-11 */
                                    WAIT_ONE, FREE_K(0),  SOFTMAX(0),                          /* 12, 13 */
                                    WAIT_ALL, RESCALE(0), FREE_V(-1), END};                    /* 14, 15 */
static const lab_step two_last[] = {TAKE, PV(-1), GIVE, WAIT_ALL, FREE_V(-1), END};            /* 18, 19 */

/* Three stages: softmax works on scores that were finished one step before, under both products. */
static const lab_step three_first[] = {TAKE, QK(0), GIVE, WAIT_ALL, FREE_K(0), END};
static const lab_step three_body[] = {TAKE,     QK(0),       PV(-2),     GIVE,      SOFTMAX(-1),
                                      WAIT_ALL, RESCALE(-1), FREE_V(-2), FREE_K(0), END};
static const lab_step three_last[] = {TAKE, PV(-2), GIVE, SOFTMAX(-1), WAIT_ALL,   RESCALE(-1), FREE_V(-2),
                                      TAKE, PV(-1), GIVE, WAIT_ALL,    FREE_V(-1), END};

const lab_program *lab_program_of_depth(int depth) {
    static const lab_program programs[] = {
        {serial_first, serial_body, serial_last}, {two_first, two_body, two_last}, {three_first, three_body, three_last}};
    return &programs[depth - 1];
}
