/* SPDX-License-Identifier: BSD-3-Clause
 *
 * file.c: reads a whole file; see file.h. */
#include "io/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* NULL, or why not. */
static const char *read_all(FILE *file, unsigned char **bytes, size_t *size) {
    struct stat status;
    if (!file || fstat(fileno(file), &status)) return strerror(errno);
    if (!S_ISREG(status.st_mode)) return "it is not a regular file"; /* a size is needed beforehand */
    *size = (size_t)status.st_size;
    *bytes = malloc(*size ? *size : 1);
    if (!*bytes) return strerror(errno);
    if (fread(*bytes, 1, *size, file) == *size) return NULL;
    return ferror(file) ? strerror(errno) : "it became shorter meanwhile";
}

bool file_read(const char *path, unsigned char **bytes, size_t *size, char *message, size_t capacity) {
    *bytes = NULL;
    FILE *file = fopen(path, "rb");
    const char *reason = read_all(file, bytes, size);
    if (file) fclose(file);
    if (!reason) return true;
    snprintf(message, capacity, "could not be read: %s", reason);
    free(*bytes);
    *bytes = NULL;
    return false;
}
