/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward_tasks.h: how the vector forward cuts its work into tasks. The sizes are in a header because the tests derive from
 * them the lengths past which a head has more than one task. */
#ifndef STROBE_CPU_FORWARD_TASKS_H
#define STROBE_CPU_FORWARD_TASKS_H

enum {
    PANEL_ROWS = 256, /* so many rows pay for panels of the keys that they attend to */
    TASK_ROWS = 768,  /* at most, which share each block of K and V that is read and packed: whole tiles at every level */
    SHORT_TASK = 192, /* rows, to which tasks are cut where each of several workers would have less than these: */
    EVEN_TASKS = 16,
    BALANCING_TASKS = 8, /* and to still fewer where there would be less than these for each, */
    ENOUGH_TASKS = 64,   /* unless there are so many */
};

#endif
