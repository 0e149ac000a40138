/* SPDX-License-Identifier: BSD-3-Clause
 *
 * disk_cache.c: see disk_cache.h. A file is a header, the key, the code. */
#define _DEFAULT_SOURCE
#include "cuda/host/disk_cache.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_PATH = 1024, MOST_BYTES = 64 << 20 };

struct header {
    char magic[8];
    uint64_t key_bytes, code_bytes, check;
};

static const char magic[8] = "strobe1";

uint64_t strobe__hash(uint64_t seed, const void *data, size_t bytes) {
    const unsigned char *at = data;
    uint64_t x = seed ^ 0xcbf29ce484222325u;
    for (size_t n = 0; n < bytes; ++n) x = (x ^ at[n]) * 0x100000001b3u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

/* The folder, made where it is missing. */
static bool find_folder(char folder[MOST_PATH]) {
    const char *off = getenv("STROBE_DISK_CACHE"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length;
    if (off && strcmp(off, "0") == 0) return false;
    if (cache && cache[0] == '/')
        length = snprintf(folder, MOST_PATH, "%s", cache);
    else if (home && home[0] == '/')
        length = snprintf(folder, MOST_PATH, "%s/.cache", home);
    else
        return false;
    if (length <= 0 || length > MOST_PATH - 128) return false;
    (void)mkdir(folder, 0700);
    snprintf(folder + length, (size_t)(MOST_PATH - length), "/strobe");
    return mkdir(folder, 0700) == 0 || access(folder, R_OK | W_OK | X_OK) == 0;
}

static bool find_path(const char *key, char path[MOST_PATH]) {
    if (!find_folder(path)) return false;
    const size_t length = strlen(path), bytes = strlen(key);
    snprintf(path + length, MOST_PATH - length, "/%016llx%016llx.kernel", (unsigned long long)strobe__hash(1, key, bytes),
             (unsigned long long)strobe__hash(2, key, bytes));
    return true;
}

static bool read_all(int file, void *to, size_t bytes) {
    char *at = to;
    while (bytes > 0) {
        const ssize_t some = read(file, at, bytes);
        if (some <= 0) return false;
        at += some, bytes -= (size_t)some;
    }
    return true;
}

static bool write_all(int file, const void *from, size_t bytes) {
    const char *at = from;
    while (bytes > 0) {
        const ssize_t some = write(file, at, bytes);
        if (some <= 0) return false;
        at += some, bytes -= (size_t)some;
    }
    return true;
}

static bool read_entry(int file, const char *key, void **code, size_t *bytes) {
    struct header h;
    struct stat about;
    const size_t key_bytes = strlen(key);
    if (fstat(file, &about) || !S_ISREG(about.st_mode) || about.st_uid != geteuid()) return false;
    if (!read_all(file, &h, sizeof h) || memcmp(h.magic, magic, sizeof magic) != 0 || h.key_bytes != key_bytes) return false;
    if (h.code_bytes == 0 || h.code_bytes > MOST_BYTES) return false;
    if ((uint64_t)about.st_size != sizeof h + h.key_bytes + h.code_bytes) return false;
    char *its_key = malloc(key_bytes), *its_code = malloc(h.code_bytes);
    const bool ok = its_key && its_code && read_all(file, its_key, key_bytes) && memcmp(its_key, key, key_bytes) == 0 &&
                    read_all(file, its_code, h.code_bytes) && strobe__hash(3, its_code, h.code_bytes) == h.check;
    free(its_key);
    if (!ok) free(its_code);
    if (ok) *code = its_code, *bytes = h.code_bytes;
    return ok;
}

bool strobe__disk_cache_read(const char *key, void **code, size_t *bytes) {
    char path[MOST_PATH];
    if (!find_path(key, path)) return false;
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    const bool ok = read_entry(file, key, code, bytes);
    close(file);
    return ok;
}

void strobe__disk_cache_write(const char *key, const void *code, size_t bytes) {
    static atomic_uint number;
    char path[MOST_PATH], beside[MOST_PATH + 64];
    struct header h = {.key_bytes = strlen(key), .code_bytes = bytes, .check = strobe__hash(3, code, bytes)};
    memcpy(h.magic, magic, sizeof magic);
    if (bytes > MOST_BYTES || !find_path(key, path)) return;
    snprintf(beside, sizeof beside, "%s.%ld.%u", path, (long)getpid(), atomic_fetch_add(&number, 1));
    const int file = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) return;
    bool ok = write_all(file, &h, sizeof h) && write_all(file, key, h.key_bytes) && write_all(file, code, bytes);
    ok = close(file) == 0 && ok;
    if (!ok || rename(beside, path)) (void)unlink(beside);
}
