/* SPDX-License-Identifier: BSD-3-Clause
 *
 * json.h: the little that this command adds to cJSON: parsing of bytes that nobody has vouched for, exact integers, and
 * printing to a stream. */
#ifndef STROBE_CLI_JSON_H
#define STROBE_CLI_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Parses text[0..length), which need not end in a zero. Values nest at most JSON_DEPTH deep: cJSON recurses, so that depth
 * is stack. NULL, with a sentence in message[capacity], if it is not one JSON value. The caller deletes the value. */
enum { JSON_DEPTH = 16 };
cJSON *json_parse(const char *text, size_t length, char *message, size_t capacity);

/* The value as an integer in [0, 2^53], where a double holds every integer. False if it is anything else. */
bool json_integer(const cJSON *value, int64_t *integer);

/* Prints the value and a line end. False if memory or the stream fails. */
bool json_print(const cJSON *value, FILE *stream);

#endif
