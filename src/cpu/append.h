/* SPDX-License-Identifier: BSD-3-Clause
 *
 * append.h (cpu): strobe_append on the CPU. */
#ifndef STROBE_CPU_APPEND_H
#define STROBE_CPU_APPEND_H

#include "core/append.h"

strobe_status strobe__cpu_append(const struct appending *call, void *stream);

#endif
