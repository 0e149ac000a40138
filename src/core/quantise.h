/* SPDX-License-Identifier: BSD-3-Clause
 *
 * quantise.h: a strobe_quantise after it has been read and checked, as backends are given it. */
#ifndef STROBE_CORE_QUANTISE_H
#define STROBE_CORE_QUANTISE_H

#include "core/rotary.h"

enum { QUANTISE_Q, QUANTISE_K, QUANTISE_V, QUANTISE_TENSORS };

struct quantisation {
    struct problem p; /* its q, k, v and scales are written */
    strobe_quantiser z;
    struct rotary_call rotary;
    struct quantise_tensor tensor[QUANTISE_TENSORS]; /* from NULL: left as it is */
    struct quantise_choices choices;
};

#endif
