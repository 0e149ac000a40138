/* SPDX-License-Identifier: BSD-3-Clause
 *
 * compare_runs.h: two documents of `strobe bench -o json`, row by row: what has changed beyond noise.
 *
 * Noise is half of both rows' spreads together: medians that lie closer have quartiles that overlap. A row is "faster" or
 * "slower" where both its time and its share of the peak have changed by more; "machine" where only the time has, as the
 * peak did that was measured beside it; else "same". */
#ifndef STROBE_CLI_COMPARE_RUNS_H
#define STROBE_CLI_COMPARE_RUNS_H

#include "bench/report.h"

typedef enum verdict_of_times { TIMES_SAME, TIMES_FASTER, TIMES_SLOWER, TIMES_MACHINE } verdict_of_times;

/* speed: old time over new; share: new share of the peak over old, 0 where it is not known; noise: as above. */
verdict_of_times compare_times(double speed, double share, double noise);

/* Prints the comparison to stdout. False with a sentence in message[capacity] if one of the files is no such document. */
bool compare_files(const char *old_path, const char *new_path, report_format format, char *message, size_t capacity);

#endif
