/* SPDX-License-Identifier: BSD-3-Clause
 *
 * quantise.h (cuda): strobe_quantise on a GPU. */
#ifndef STROBE_CUDA_QUANTISE_H
#define STROBE_CUDA_QUANTISE_H

#include "core/quantise.h"

strobe_status strobe__cuda_quantise(const struct quantisation *quantisation, void *stream);

#endif
