/* SPDX-License-Identifier: BSD-3-Clause
 *
 * file.h: a whole file in memory. */
#ifndef STROBE_CLI_FILE_H
#define STROBE_CLI_FILE_H

#include <stdbool.h>
#include <stddef.h>

/* True with the file's bytes, to be freed, or false with a sentence in message[capacity] that goes on
 * where the path ends. */
bool file_read(const char *path, unsigned char **bytes, size_t *size, char *message, size_t capacity);

#endif
