/* SPDX-License-Identifier: BSD-3-Clause
 *
 * posix.h: the little of POSIX that this tree uses and Windows lacks, under the names of POSIX, and three things that
 * neither system calls the same. Elsewhere it includes the system's headers and no more. What is not here either, because
 * Windows has nothing like it, is fork(): who needs it says so, and is left out there (docs/platforms.md). The compiler for
 * Windows is GCC of MinGW-w64, whose own headers have the rest: threads, clocks, getopt_long, stat. */
#ifndef STROBE_PORTABLE_POSIX_H
#define STROBE_PORTABLE_POSIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#if !defined(_WIN32)

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

/* What aligned_alloc() gave goes back by aligned_free(): on Windows it is not free()'s. */
static inline void aligned_free(void *memory) { free(memory); }

/* What stands at `to` is replaced, and is whole at every moment. 0, or -1 with errno. */
static inline int replace_file(const char *from, const char *to) { return rename(from, to); }

/* Streams take bytes as they are, and a terminal takes UTF-8. */
static inline void prepare_streams(void) {}

/* The code that called is never unloaded. On other systems the linker says so (src/CMakeLists.txt). */
static inline void stay_loaded(void) {}

#else

#include <fcntl.h>
#include <io.h>
#include <malloc.h>
#include <sys/types.h>
#include <unistd.h>

/* Names that would collide in a static library begin with strobe__. */
#define aligned_alloc   strobe__aligned_alloc
#define sysconf         strobe__sysconf
#define dlopen          strobe__dlopen
#define dlsym           strobe__dlsym
#define dlclose         strobe__dlclose
#define dlerror         strobe__dlerror
#define mmap            strobe__mmap
#define mprotect        strobe__mprotect
#define munmap          strobe__munmap
#define setenv          strobe__setenv
#define unsetenv        strobe__unsetenv
#define mkdtemp         strobe__mkdtemp
#define replace_file    strobe__replace_file
#define prepare_streams strobe__prepare_streams
#define stay_loaded     strobe__stay_loaded

static inline void *aligned_alloc(size_t alignment, size_t bytes) { return _aligned_malloc(bytes, alignment); }
static inline void aligned_free(void *memory) { _aligned_free(memory); }

enum { _SC_PHYS_PAGES = 1, _SC_PAGESIZE, _SC_LEVEL2_CACHE_SIZE };
#define _SC_PAGE_SIZE   _SC_PAGESIZE
long sysconf(int name);

enum { RTLD_NOW = 2, RTLD_LOCAL = 0 };
void *dlopen(const char *path, int flags);
void *dlsym(void *library, const char *symbol);
int dlclose(void *library);
const char *dlerror(void);

/* Fresh private memory, and who may touch its pages. */
enum { PROT_NONE = 0, PROT_READ = 1, PROT_WRITE = 2, MAP_PRIVATE = 2, MAP_ANONYMOUS = 32 };
#define MAP_FAILED      ((void *)-1)
void *mmap(void *address, size_t bytes, int protection, int flags, int file, long long offset);
int mprotect(void *address, size_t bytes, int protection);
int munmap(void *address, size_t bytes);

int setenv(const char *name, const char *value, int overwrite);
int unsetenv(const char *name);
char *mkdtemp(char *path);

int replace_file(const char *from, const char *to);
void prepare_streams(void);
void stay_loaded(void);

#endif
#endif
