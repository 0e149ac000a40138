/* SPDX-License-Identifier: BSD-3-Clause
 *
 * add.h: gradients are added to what the caller's tensors hold (core/accumulate.h), on the CPU. */
#ifndef STROBE_CPU_ADD_H
#define STROBE_CPU_ADD_H

#include "core/kernel.h"

strobe_status strobe__cpu_add(const struct problem *problem, void *stream);

#endif
