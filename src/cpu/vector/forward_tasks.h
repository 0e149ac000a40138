/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward_tasks.h: how the vector forward cuts its work into tasks. The sizes are in a header because the tests derive from
 * them the lengths past which a head has more than one task. */
#ifndef STROBE_CPU_FORWARD_TASKS_H
#define STROBE_CPU_FORWARD_TASKS_H

enum {
    TASK_ROWS = 192,     /* at most, which share each block of K and V that is read: whole tiles at every level */
    BALANCING_TASKS = 8, /* for each of several workers; where there would be fewer, tasks get fewer rows, */
    ENOUGH_TASKS = 64,   /* unless there are so many */
};

#endif
