/* SPDX-License-Identifier: BSD-3-Clause
 *
 * safetensors.h: files of named tensors (https://github.com/huggingface/safetensors): 8 bytes of header length, a JSON
 * header, then data. Reads any bytes without harm; writes whole files or none. */
#ifndef STROBE_CLI_SAFETENSORS_H
#define STROBE_CLI_SAFETENSORS_H

#include "io/array.h"

typedef struct safetensors_note {
    char *key, *value;
} safetensors_note;

typedef struct safetensors {
    array *arrays; /* in the header's order; data points into the bytes that were parsed */
    size_t count;
    safetensors_note *notes; /* __metadata__ */
    size_t note_count;
} safetensors;

/* True, or false with a sentence in message[capacity]. safetensors_free either way. */
bool safetensors_parse(const unsigned char *bytes, size_t size, safetensors *out, char *message, size_t capacity);
void safetensors_free(safetensors *file);

/* NULL if there is none of that name. */
const array *safetensors_find(const safetensors *file, const char *name);

/* Writes through a temporary file beside the path, or beside the file that a link at the path leads to, and a rename: at no
 * moment is there half a file. What is there and is no file, such as a pipe or /dev/null, is written to. */
bool safetensors_write(const char *path, const array *arrays, size_t count, char *message, size_t capacity);

#endif
