/* SPDX-License-Identifier: BSD-3-Clause
 *
 * quantise.h (cpu): strobe_quantise on the CPU. */
#ifndef STROBE_CPU_QUANTISE_H
#define STROBE_CPU_QUANTISE_H

#include "core/quantise.h"

strobe_status strobe__cpu_quantise(const struct quantisation *quantisation, void *stream);

#endif
