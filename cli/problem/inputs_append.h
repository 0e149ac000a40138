/* SPDX-License-Identifier: BSD-3-Clause
 *
 * inputs_append.h: the last keys of every sequence come into K and V by strobe_append, and q too. The seed says in which
 * manner: tokens packed or padded, by lengths or slots, with rotary embedding or without; what is given to it is chosen so
 * that the tensors hold afterwards what they held before. */
#ifndef STROBE_CLI_INPUTS_APPEND_H
#define STROBE_CLI_INPUTS_APPEND_H

#include "problem/inputs.h"

/* Nothing to do without `append`. False, with a sentence, if something else was written. */
bool inputs_append(inputs *in, char *message, size_t capacity);

#endif
