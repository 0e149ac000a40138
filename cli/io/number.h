/* SPDX-License-Identifier: BSD-3-Clause
 *
 * number.h: how numbers are read and written everywhere in the command, independent of the locale's habits: integers with
 * the suffixes k and M (1024 and 1024^2), reals that survive text and back. */
#ifndef STROBE_CLI_NUMBER_H
#define STROBE_CLI_NUMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads the whole of text[0..length) as an integer such as 64, -1, 16k or 2M. False if it is anything else or overflows. */
bool number_integer(const char *text, size_t length, int64_t *value);

/* Reads the whole text as a finite real in C's notation. */
bool number_real(const char *text, double *value);

/* The shortest of %.15g, %.16g and %.17g that reads back as the same value. */
enum { NUMBER_TEXT = 32 };
void number_print(double value, char text[NUMBER_TEXT]);

#endif
