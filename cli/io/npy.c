/* SPDX-License-Identifier: BSD-3-Clause
 *
 * npy.c: reads .npy; see npy.h. The header is a Python dict in ASCII,
 *     {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
 * read by a scanner that never looks past the header's end. */
#include "io/npy.h"

#include <stdio.h>
#include <string.h>
#include <strobe/strobe.h>

typedef struct scanner {
    const char *at, *end;
} scanner;

static void skip_space(scanner *s) {
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\t')) ++s->at;
}

/* Consumes a piece of text if it comes next. */
static bool accept(scanner *s, const char *text) {
    skip_space(s);
    const size_t length = strlen(text);
    if ((size_t)(s->end - s->at) < length || memcmp(s->at, text, length) != 0) return false;
    s->at += length;
    return true;
}

/* A Python string into text; no escapes occur in these headers. */
static bool read_string(scanner *s, char *text, size_t capacity) {
    skip_space(s);
    if (s->at == s->end || (*s->at != '\'' && *s->at != '"')) return false;
    const char quote = *s->at++;
    size_t length = 0;
    for (; s->at < s->end && *s->at != quote; ++s->at) {
        if (length + 1 >= capacity) return false;
        text[length++] = *s->at;
    }
    text[length] = 0;
    return s->at < s->end && *s->at++ == quote;
}

static bool read_integer(scanner *s, int64_t *value) {
    skip_space(s);
    const char *start = s->at;
    *value = 0;
    for (; s->at < s->end && *s->at >= '0' && *s->at <= '9'; ++s->at)
        if (__builtin_mul_overflow(*value, 10, value) || __builtin_add_overflow(*value, *s->at - '0', value)) return false;
    return s->at > start;
}

static bool read_shape(scanner *s, array *out) {
    if (!accept(s, "(")) return false;
    for (out->rank = 0; !accept(s, ")");) {
        if (out->rank == ARRAY_RANK || !read_integer(s, &out->shape[out->rank++])) return false;
        if (!accept(s, ",")) return accept(s, ")");
    }
    return true;
}

static bool read_dict(scanner *s, array *out, char descr[16], bool *fortran) {
    bool has_descr = false, has_order = false, has_shape = false;
    if (!accept(s, "{")) return false;
    while (!accept(s, "}")) {
        char key[16];
        if (!read_string(s, key, sizeof key) || !accept(s, ":")) return false;
        if (strcmp(key, "descr") == 0)
            has_descr = read_string(s, descr, 16);
        else if (strcmp(key, "fortran_order") == 0)
            has_order = (*fortran = accept(s, "True")) || accept(s, "False");
        else if (strcmp(key, "shape") == 0)
            has_shape = read_shape(s, out);
        else
            return false;
        if (!accept(s, ",")) return accept(s, "}") && has_descr && has_order && has_shape;
    }
    return has_descr && has_order && has_shape;
}

static bool refuse(char *message, size_t capacity, const char *sentence) {
    snprintf(message, capacity, "%s", sentence);
    return false;
}

/* Where the header text lies. Version 1 has 16 bits for its length, 2 and 3 have 32. */
static bool find_header(const unsigned char *bytes, size_t size, scanner *header) {
    static const unsigned char magic[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};
    if (size < 10 || memcmp(bytes, magic, sizeof magic) != 0 || bytes[6] < 1 || bytes[6] > 3) return false;
    size_t start = 10, length = (size_t)(bytes[8] | bytes[9] << 8);
    if (bytes[6] > 1) {
        if (size < 12) return false;
        start = 12;
        length |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
    }
    if (length > size - start) return false;
    *header = (scanner){(const char *)bytes + start, (const char *)bytes + start + length};
    return true;
}

bool npy_parse(const unsigned char *bytes, size_t size, array *out, char *message, size_t capacity) {
    static const struct {
        const char *descr;
        int64_t dtype;
        size_t element;
    } types[] = {{"<f4", STROBE_FP32, 4}, {"<f2", STROBE_FP16, 2}, {"<f8", STROBE_FP64, 8}};
    scanner header;
    char descr[16] = "";
    bool fortran = false;
    *out = (array){0};
    if (!find_header(bytes, size, &header))
        return refuse(message, capacity, "not an .npy file, or one that ends inside its header");
    const unsigned char *data = (const unsigned char *)header.end;
    if (!read_dict(&header, out, descr, &fortran))
        return refuse(message, capacity,
                      "the .npy header is not {'descr': ..., 'fortran_order': ..., 'shape': ...} of an array");
    if (fortran) return refuse(message, capacity, "the array is in Fortran order; C order is accepted");
    size_t element = 0, needed = 0;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; ++i)
        if (strcmp(descr, types[i].descr) == 0) out->dtype = types[i].dtype, element = types[i].element;
    if (!element) {
        snprintf(message, capacity, "the array's type is %s; <f2, <f4 and <f8 are accepted", descr);
        return false;
    }
    if (!array_bytes(out, element, &needed) || needed != (size_t)(bytes + size - data))
        return refuse(message, capacity, "the file does not hold just as many bytes as its shape says");
    out->data = needed ? data : NULL;
    out->bytes = needed;
    return true;
}
