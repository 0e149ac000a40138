/* SPDX-License-Identifier: BSD-3-Clause
 *
 * file.c: reads a whole file; see file.h. */
#include "file.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool read_all(FILE *file, unsigned char **bytes, size_t *size) {
    struct stat status;
    if (fstat(fileno(file), &status)) return false;
    if (!S_ISREG(status.st_mode)) return errno = EINVAL, false; /* a size is needed beforehand */
    *size = (size_t)status.st_size;
    *bytes = malloc(*size ? *size : 1);
    return *bytes && fread(*bytes, 1, *size, file) == *size;
}

bool file_read(const char *path, unsigned char **bytes, size_t *size, char *message, size_t capacity) {
    *bytes = NULL;
    FILE *file = fopen(path, "rb");
    errno = file ? 0 : errno;
    const bool ok = file && read_all(file, bytes, size);
    if (!ok) {
        snprintf(message, capacity, "%s could not be read: %s", path,
                 errno ? strerror(errno) : "it became shorter meanwhile");
        free(*bytes);
        *bytes = NULL;
    }
    if (file) fclose(file);
    return ok;
}
