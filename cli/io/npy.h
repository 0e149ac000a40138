/* SPDX-License-Identifier: BSD-3-Clause
 *
 * npy.h: NumPy's .npy files, versions 1 to 3, as described in numpy.lib.format: little-endian f2, f4 and f8 in C order. */
#ifndef STROBE_CLI_NPY_H
#define STROBE_CLI_NPY_H

#include "io/array.h"

/* Reads any bytes. True, or false with a sentence in message[capacity]. out->data points into bytes; its name is empty. */
bool npy_parse(const unsigned char *bytes, size_t size, array *out, char *message, size_t capacity);

#endif
