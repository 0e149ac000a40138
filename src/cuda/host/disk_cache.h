/* SPDX-License-Identifier: BSD-3-Clause
 *
 * disk_cache.h: compiled kernels on disk, under XDG_CACHE_HOME/strobe or ~/.cache/strobe, a file each, named by a number of
 * its key. An entry holds its key, and is taken only if that is the one that is looked for, if its check number is right,
 * and if it belongs to this user. It is written beside its place and renamed, so that processes may race.
 * STROBE_DISK_CACHE=0 in the environment turns all of it off; an error is no error, but a cache without the entry. */
#ifndef STROBE_CUDA_HOST_DISK_CACHE_H
#define STROBE_CUDA_HOST_DISK_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* 64 bits of anything. */
uint64_t strobe__hash(uint64_t seed, const void *data, size_t bytes);

/* code: free() it. */
bool strobe__disk_cache_read(const char *key, void **code, size_t *bytes);
void strobe__disk_cache_write(const char *key, const void *code, size_t bytes);

#endif
