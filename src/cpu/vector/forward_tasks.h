/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward_tasks.h: how the forward's work is cut into tasks: numbers that were tuned, here because the tests derive from
 * them the lengths past which a task has more than one tile. */
#ifndef STROBE_CPU_FORWARD_TASKS_H
#define STROBE_CPU_FORWARD_TASKS_H

enum {
    MOST_TILES = 4,    /* a task's: K and V blocks are read from L2 that many times less often */
    ENOUGH_TASKS = 64, /* to balance over threads; with fewer, tasks get fewer tiles */
};

#endif
