/* SPDX-License-Identifier: BSD-3-Clause
 *
 * schedule_machine.h: one SM that runs the programs of schedule_program.h. */
#ifndef STROBE_LAB_SCHEDULE_MACHINE_H
#define STROBE_LAB_SCHEDULE_MACHINE_H

#include "schedule.h"

/* Runs one query tile over all blocks of keys: sets clocks and appends to spans, which has room for LAB_SPANS. cost: clocks
 * of every unit of work of one warp group (of a load: of the thread block) that has its pipe to itself. False: no memory. */
bool lab_machine_run(const lab_schedule *schedule, const double cost[LAB_UNITS], lab_timeline *timeline);

#endif
