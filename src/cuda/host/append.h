/* SPDX-License-Identifier: BSD-3-Clause
 *
 * append.h (cuda): strobe_append on a GPU, one launch. */
#ifndef STROBE_CUDA_APPEND_H
#define STROBE_CUDA_APPEND_H

#include "core/append.h"

strobe_status strobe__cuda_append(const struct appending *call, void *stream);

#endif
