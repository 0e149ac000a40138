/* SPDX-License-Identifier: BSD-3-Clause
 *
 * safetensors.c: reads and writes files of named tensors; see safetensors.h. */
#include "io/safetensors.h"

#include "io/json.h"
#include "io/memory.h"
#include "portable/posix.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strobe/strobe.h>
#include <sys/stat.h>

enum { PREFIX = 8, MOST_HEADER = 1 << 24, MOST_TENSORS = 1 << 16 };

static const struct type {
    const char *name;
    int64_t dtype;
    size_t element;
} types[] = {{"F64", STROBE_FP64, 8},  {"F32", STROBE_FP32, 4},         {"F16", STROBE_FP16, 2},
             {"BF16", STROBE_BF16, 2}, {"F8_E4M3", STROBE_FP8_E4M3, 1}, {"I8", STROBE_INT8, 1}};

static const struct type *type_named(const char *name) {
    for (const struct type *t = types; t < types + sizeof types / sizeof types[0]; ++t)
        if (strcmp(t->name, name) == 0) return t;
    return NULL;
}

/* --------------------------------------------------------------------------------------------------------- reading -- */

static bool read_shape(const cJSON *shape, array *a) {
    const cJSON *extent;
    if (!cJSON_IsArray(shape) || cJSON_GetArraySize(shape) > ARRAY_RANK) return false;
    cJSON_ArrayForEach(extent, shape) {
        if (!json_integer(extent, &a->shape[a->rank++])) return false;
    }
    return true;
}

/* One member of the header. data[size]: what follows the header. */
static bool read_array(const cJSON *entry, const unsigned char *data, size_t size, array *a, char *message,
                       size_t capacity) {
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(entry, "dtype");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    int64_t begin = 0, end = 0;
    size_t bytes = 0;
    if (snprintf(a->name, sizeof a->name, "%s", entry->string) >= ARRAY_NAME) {
        snprintf(message, capacity, "a tensor's name is longer than %d bytes: %s", ARRAY_NAME - 1, a->name);
        return false;
    }
    if (!cJSON_IsString(dtype) || !read_shape(cJSON_GetObjectItemCaseSensitive(entry, "shape"), a) ||
        cJSON_GetArraySize(offsets) != 2 || !json_integer(cJSON_GetArrayItem(offsets, 0), &begin) ||
        !json_integer(cJSON_GetArrayItem(offsets, 1), &end)) {
        snprintf(message, capacity, "tensor %s does not have a dtype, a shape of at most %d axes and two data_offsets",
                 a->name, ARRAY_RANK);
        return false;
    }
    if (begin > end || (uint64_t)end > size) {
        snprintf(message, capacity, "tensor %s lies at bytes %lld to %lld of %zu", a->name, (long long)begin, (long long)end,
                 size);
        return false;
    }
    const struct type *t = type_named(dtype->valuestring);
    a->bytes = (size_t)(end - begin);
    if (t && (!array_bytes(a, t->element, &bytes) || bytes != a->bytes)) {
        snprintf(message, capacity, "tensor %s has %zu bytes, which is not what its shape takes", a->name, a->bytes);
        return false;
    }
    a->dtype = t ? t->dtype : STROBE_DTYPE_DEFAULT;
    a->data = a->bytes ? data + begin : NULL;
    return true;
}

static void read_notes(const cJSON *metadata, safetensors *out) {
    const cJSON *note;
    out->notes = memory_zeroed((size_t)cJSON_GetArraySize(metadata), sizeof *out->notes);
    cJSON_ArrayForEach(note, metadata) {
        if (!cJSON_IsString(note)) continue;
        out->notes[out->note_count++] = (safetensors_note){memory_text(note->string), memory_text(note->valuestring)};
    }
}

static bool read_header(const cJSON *header, const unsigned char *data, size_t size, safetensors *out, char *message,
                        size_t capacity) {
    const cJSON *entry;
    if (!cJSON_IsObject(header) || cJSON_GetArraySize(header) > MOST_TENSORS) {
        snprintf(message, capacity, "the safetensors header is not a JSON object of at most %d tensors", MOST_TENSORS);
        return false;
    }
    out->arrays = memory_zeroed((size_t)cJSON_GetArraySize(header), sizeof *out->arrays);
    cJSON_ArrayForEach(entry, header) {
        if (strcmp(entry->string, "__metadata__") != 0) {
            if (!read_array(entry, data, size, &out->arrays[out->count++], message, capacity)) return false;
        } else if (cJSON_IsObject(entry) && !out->notes)
            read_notes(entry, out);
    }
    return true;
}

bool safetensors_parse(const unsigned char *bytes, size_t size, safetensors *out, char *message, size_t capacity) {
    *out = (safetensors){0};
    uint64_t length = 0;
    for (size_t i = 0; i < PREFIX && size >= PREFIX; ++i) length |= (uint64_t)bytes[i] << (8 * i);
    if (size < PREFIX || length > size - PREFIX || length > MOST_HEADER) {
        snprintf(message, capacity, "not a safetensors file: its first 8 bytes are not the length of a header inside it");
        return false;
    }
    cJSON *header = json_parse((const char *)bytes + PREFIX, (size_t)length, message, capacity);
    if (!header) return false;
    const bool ok = read_header(header, bytes + PREFIX + length, size - PREFIX - (size_t)length, out, message, capacity);
    cJSON_Delete(header);
    return ok;
}

void safetensors_free(safetensors *file) {
    for (size_t i = 0; i < file->note_count; ++i) {
        free(file->notes[i].key);
        free(file->notes[i].value);
    }
    free(file->notes);
    free(file->arrays);
    *file = (safetensors){0};
}

const array *safetensors_find(const safetensors *file, const char *name) {
    for (size_t i = 0; i < file->count; ++i)
        if (strcmp(file->arrays[i].name, name) == 0) return &file->arrays[i];
    return NULL;
}

/* --------------------------------------------------------------------------------------------------------- writing -- */

/* The header, padded with spaces to a multiple of 8 so that the data is aligned; freed by the caller. */
static char *make_header(const array *arrays, size_t count) {
    cJSON *header = cJSON_CreateObject();
    size_t at = 0;
    for (size_t i = 0; i < count; ++i) {
        cJSON *entry = cJSON_AddObjectToObject(header, arrays[i].name);
        for (const struct type *t = types; t < types + sizeof types / sizeof types[0]; ++t)
            if (t->dtype == arrays[i].dtype) cJSON_AddStringToObject(entry, "dtype", t->name);
        cJSON *shape = cJSON_AddArrayToObject(entry, "shape"), *offsets = cJSON_AddArrayToObject(entry, "data_offsets");
        for (int64_t axis = 0; axis < arrays[i].rank; ++axis)
            cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)arrays[i].shape[axis]));
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)at));
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)(at += arrays[i].bytes)));
    }
    char *text = cJSON_PrintUnformatted(header);
    cJSON_Delete(header);
    const size_t length = text ? strlen(text) : 0, padded = (length + 7) / 8 * 8;
    char *result = memory_zeroed(padded + 1, 1);
    memset(result, ' ', padded);
    if (text) memcpy(result, text, length);
    cJSON_free(text);
    return result;
}

static bool write_all(FILE *file, const array *arrays, size_t count) {
    char *header = make_header(arrays, count);
    const size_t length = strlen(header);
    unsigned char prefix[PREFIX];
    for (size_t i = 0; i < PREFIX; ++i) prefix[i] = (unsigned char)((uint64_t)length >> (8 * i));
    bool ok = fwrite(prefix, 1, PREFIX, file) == PREFIX && fwrite(header, 1, length, file) == length;
    for (size_t i = 0; ok && i < count; ++i)
        ok = !arrays[i].bytes || fwrite(arrays[i].data, 1, arrays[i].bytes, file) == arrays[i].bytes;
    free(header);
    return ok;
}

static bool write_and_close(FILE *file, const array *arrays, size_t count) {
    const bool ok = file && write_all(file, arrays, count);
    return (!file || fclose(file) == 0) && ok; /* a full disk may show only here */
}

static bool replace_by_arrays(const char *path, const array *arrays, size_t count) {
    const size_t bytes = strlen(path) + 16;
    char *temporary = memory_zeroed(bytes, 1);
    snprintf(temporary, bytes, "%s.XXXXXX", path);
    const int descriptor = mkstemp(temporary);
#if !defined(_WIN32)
    const mode_t mask = umask(0); /* mkstemp's file is for its owner alone; the result is an ordinary file */
    umask(mask);
    if (descriptor >= 0) fchmod(descriptor, 0666 & ~mask);
#endif
    FILE *file = descriptor >= 0 ? fdopen(descriptor, "wb") : NULL;
    const bool ok = write_and_close(file, arrays, count) && replace_file(temporary, path) == 0;
    const int why = errno;
    if (!file && descriptor >= 0) close(descriptor);
    if (!ok && descriptor >= 0) unlink(temporary);
    free(temporary);
    errno = why;
    return ok;
}

bool safetensors_write(const char *path, const array *arrays, size_t count, char *message, size_t capacity) {
    struct stat there;
    char *target = NULL;
#if !defined(_WIN32)
    target = realpath(path, NULL); /* NULL: nothing is there yet */
#endif
    /* A device, such as /dev/null, or a pipe is written to: a file in its place would be no longer the same. */
    const bool ok = stat(path, &there) == 0 && !S_ISREG(there.st_mode)
                        ? write_and_close(fopen(path, "wb"), arrays, count)
                        : replace_by_arrays(target ? target : path, arrays, count);
    if (!ok) snprintf(message, capacity, "%s could not be written: %s", path, strerror(errno));
    free(target);
    return ok;
}
