/* SPDX-License-Identifier: BSD-3-Clause
 *
 * append.h (core): a strobe_append after it has been read and checked, as backends are given it. */
#ifndef STROBE_CORE_APPEND_H
#define STROBE_CORE_APPEND_H

#include "core/rotary.h"
#include "math/append.h"
#include "strobe/strobe_append.h"

enum { APPEND_Q, APPEND_K, APPEND_V, APPEND_TENSORS };

struct appending {
    struct problem p; /* its q, k, v and scales are written */
    strobe_appender n;
    struct rotary_call rotary;
    struct append_tensor tensor[APPEND_TENSORS]; /* t.from NULL: left as it is */
    struct append_cache cache;
    struct quantise_choices choices;
};

/* Of a call that was read, with `tensor` and `cache` set: whether its arguments are sound. append_check.c. */
strobe_status strobe__append_check(const struct appending *call);

#endif
