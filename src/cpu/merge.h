/* SPDX-License-Identifier: BSD-3-Clause
 *
 * merge.h: strobe_merge on the CPU. */
#ifndef STROBE_CPU_MERGE_H
#define STROBE_CPU_MERGE_H

#include "core/kernel.h"

strobe_status strobe__cpu_merge(const struct merge *merge, void *stream);

#endif
