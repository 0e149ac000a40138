/* SPDX-License-Identifier: BSD-3-Clause
 *
 * pretend.h: the stream of the GPU that pretend.c makes of the CPU. Programs with it wrap strobe_forward, strobe_backward,
 * strobe_workspace and strobe_merge (--wrap of the linker). */
#ifndef STROBE_TESTS_DIST_PRETEND_H
#define STROBE_TESTS_DIST_PRETEND_H

#include "strobe/strobe_dist.h"

void *pretend_stream(void);

#endif
