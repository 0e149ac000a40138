/* SPDX-License-Identifier: BSD-3-Clause
 *
 * nvrtc.c: see nvrtc.h. The compiler reads no file: every header is handed to it, those of libc as the few lines that the
 * kernels need of them. */
#define _DEFAULT_SOURCE
#include "cuda/host/nvrtc.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The file that embed.cmake writes: for each file a line "@ bytes name", then its bytes. */
extern const char strobe__cuda_sources[], strobe__cuda_sources_end[];

typedef struct nvrtc_program *program;
enum { NVRTC_SUCCESS = 0, NVRTC_INVALID_OPTION = 5, MOST_HEADERS = 256, MOST_OPTIONS = 64 };

static struct {
    int (*version)(int *major, int *minor);
    int (*create)(program *made, const char *text, const char *name, int count, const char *const *headers,
                  const char *const *names);
    int (*compile)(program made, int count, const char *const *options);
    int (*log_size)(program made, size_t *bytes);
    int (*log)(program made, char *text);
    int (*code_size)(program made, size_t *bytes);
    int (*code)(program made, char *bytes);
    int (*ptx_size)(program made, size_t *bytes);
    int (*ptx)(program made, char *bytes);
    int (*destroy)(program *made);
    const char *(*error)(int code);
} nvrtc;

static struct {
    const char *name[MOST_HEADERS], *text[MOST_HEADERS];
    int count;
    uint64_t number;
} sources;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const char *lack;
static int found_version;

/* What the kernels need of the headers of libc and of the driver. */
static const struct {
    const char *name, *text;
} own_headers[] = {
    {"stdint.h", "#pragma once\n"
                 "typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long int64_t;\n"
                 "typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;\n"
                 "typedef unsigned long uint64_t; typedef unsigned long uintptr_t; typedef long intptr_t;\n"
                 "#define INT32_MAX 2147483647\n#define INT32_MIN (-2147483647 - 1)\n#define UINT32_MAX 4294967295u\n"
                 "#define INT64_MAX 9223372036854775807l\n#define UINT64_MAX 18446744073709551615ul\n"},
    {"math.h", "#pragma once\n#define INFINITY __int_as_float(0x7f800000)\n#define NAN __int_as_float(0x7fffffff)\n"},
    {"limits.h", "#pragma once\n#define INT_MAX 2147483647\n"},
    {"stddef.h", "#pragma once\n"},
    {"stdbool.h", "#pragma once\n"},
    {"string.h", "#pragma once\n"},
    {"cuda.h", "#pragma once\nstruct alignas(128) CUtensorMap { unsigned long opaque[16]; };\n"},
};

static uint64_t number_of(const char *from, const char *end) {
    uint64_t x = 0xcbf29ce484222325u;
    for (; from < end; ++from) x = (x ^ (uint64_t)(unsigned char)*from) * 0x100000001b3u;
    return x;
}

static bool add_header(const char *name, const char *text) {
    if (sources.count == MOST_HEADERS || !name || !text) return false;
    sources.name[sources.count] = name, sources.text[sources.count++] = text;
    return true;
}

/* Copies of the embedded files, each ended by 0. They stay for as long as the process. */
static bool read_sources(void) {
    const char *at = strobe__cuda_sources, *const end = strobe__cuda_sources_end;
    for (size_t n = 0; n < sizeof own_headers / sizeof own_headers[0]; ++n)
        add_header(own_headers[n].name, own_headers[n].text);
    while (at < end) {
        char *rest;
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        if (at[0] != '@' || !line_end) return false;
        const size_t bytes = strtoul(at + 1, &rest, 10);
        char *const name = strndup(rest + 1, (size_t)(line_end - rest - 1));
        if (bytes > (size_t)(end - line_end - 1) || !add_header(name, strndup(line_end + 1, bytes))) return false;
        at = line_end + 1 + bytes;
    }
    sources.number = number_of(strobe__cuda_sources, end);
    return sources.count > (int)(sizeof own_headers / sizeof own_headers[0]);
}

static void *open_library(void) {
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
    const char *named = getenv("STROBE_NVRTC");
    void *library = named && named[0] ? dlopen(named, RTLD_NOW | RTLD_LOCAL) : NULL;
    for (size_t n = 0; n < sizeof names / sizeof names[0] && !library; ++n)
        library = dlopen(names[n], RTLD_NOW | RTLD_LOCAL);
    return library;
}

/* The compiler opens a library of its own when it first compiles, by a name that the loader looks for in the usual places
 * alone: that beside the compiler is found once it has been opened. */
static void open_builtins(int major, int minor) {
    const char *named = getenv("STROBE_NVRTC"), *end = named ? strrchr(named, '/') : NULL;
    char file[4096];
    if (!end || end - named > 4000) return;
    snprintf(file, sizeof file, "%.*s/libnvrtc-builtins.so.%d.%d", (int)(end - named), named, major, minor);
    (void)dlopen(file, RTLD_NOW | RTLD_LOCAL);
}

static bool find(void *library, const char *name, void *function) {
    void *const found = dlsym(library, name);
    memcpy(function, &found, sizeof found); /* ISO C has no cast from an object to a function pointer */
    return found;
}

static bool find_functions(void *library) {
    return find(library, "nvrtcVersion", &nvrtc.version) && find(library, "nvrtcCreateProgram", &nvrtc.create) &&
           find(library, "nvrtcCompileProgram", &nvrtc.compile) &&
           find(library, "nvrtcGetProgramLogSize", &nvrtc.log_size) && find(library, "nvrtcGetProgramLog", &nvrtc.log) &&
           find(library, "nvrtcGetCUBINSize", &nvrtc.code_size) && find(library, "nvrtcGetCUBIN", &nvrtc.code) &&
           find(library, "nvrtcGetPTXSize", &nvrtc.ptx_size) && find(library, "nvrtcGetPTX", &nvrtc.ptx) &&
           find(library, "nvrtcDestroyProgram", &nvrtc.destroy) && find(library, "nvrtcGetErrorString", &nvrtc.error);
}

static void look(void) {
    int major = 0, minor = 0;
    void *const library = open_library();
    lack = "a score function needs NVRTC on a GPU: libnvrtc.so.13 or .12 was not found; the CUDA toolkit and the Python "
           "package nvidia-cuda-nvrtc have it, STROBE_NVRTC may name its file";
    if (!library || !find_functions(library) || nvrtc.version(&major, &minor)) return;
    found_version = 1000 * major + 10 * minor;
    open_builtins(major, minor);
    lack = major >= 12 ? NULL : "the NVRTC that was found is older than 12.0; 12.0 and later are taken";
    if (!lack && !read_sources()) lack = "the kernels' text in this library is damaged";
}

const char *strobe__nvrtc_lacks(void) {
    pthread_once(&once, look);
    return lack;
}

int strobe__nvrtc_version(void) {
    pthread_once(&once, look);
    return found_version;
}

uint64_t strobe__cuda_sources_number(void) {
    pthread_once(&once, look);
    return sources.number;
}

static int compile(program made, const struct nvrtc_job *job, bool to_ptx) {
    const char *options[MOST_OPTIONS];
    char architecture[48];
    int count = 0;
    snprintf(architecture, sizeof architecture, "--gpu-architecture=%s_%d%s", to_ptx ? "compute" : "sm",
             to_ptx ? 80 : job->architecture, job->is_own ? "a" : "");
    options[count++] = architecture, options[count++] = "-std=c++17", options[count++] = "-default-device";
    options[count++] = "-DSTROBE_SCORE_FUNCTION";
    for (int n = 0; n < job->option_count && count < MOST_OPTIONS; ++n) options[count++] = job->options[n];
    return nvrtc.compile(made, count, options);
}

/* The line of the first error: warnings stand before it. */
static const char *first_error(const char *log) {
    const char *at = strstr(log, "error");
    while (at && at > log && at[-1] != '\n') --at;
    return at ? at : log;
}

/* The compiler's words, the first of them. */
static strobe_status refuse(program made, const struct nvrtc_job *job, int code) {
    size_t bytes = 0;
    char *log = NULL;
    if (nvrtc.log_size(made, &bytes) == NVRTC_SUCCESS && bytes > 0) log = calloc(1, bytes + 1);
    if (log) (void)nvrtc.log(made, log);
    const strobe_status status = strobe__fail(STROBE_DEVICE_ERROR,
                                              "%s with a score function could not be compiled: %s: %.600s", job->source,
                                              nvrtc.error(code), log ? first_error(log) : "");
    free(log);
    return status;
}

strobe_status strobe__nvrtc_compile(const struct nvrtc_job *job, void **code, size_t *bytes) {
    const char *names[MOST_HEADERS + 1], *texts[MOST_HEADERS + 1];
    char text[256];
    program made = NULL;
    *code = NULL;
    memcpy(names, sources.name, sizeof sources.name), memcpy(texts, sources.text, sizeof sources.text);
    names[sources.count] = "score_text.h", texts[sources.count] = job->text;
    snprintf(text, sizeof text, "#include \"%s\"\n", job->source);
    int error = nvrtc.create(&made, text, "kernel.cu", sources.count + 1, texts, names);
    if (error) return strobe__fail(STROBE_DEVICE_ERROR, "NVRTC could not be given a program: %s", nvrtc.error(error));
    bool to_ptx = false;
    error = compile(made, job, to_ptx);
    if (error == NVRTC_INVALID_OPTION && !job->is_own) to_ptx = true, error = compile(made, job, to_ptx);
    if (!error) error = (to_ptx ? nvrtc.ptx_size : nvrtc.code_size)(made, bytes);
    if (!error) *code = malloc(*bytes);
    if (!error && *code) error = (to_ptx ? nvrtc.ptx : nvrtc.code)(made, *code);
    strobe_status status = error ? refuse(made, job, error) : STROBE_OK;
    if (!status && !*code)
        status = strobe__fail(STROBE_OUT_OF_MEMORY, "%zu bytes for a kernel could not be allocated", *bytes);
    (void)nvrtc.destroy(&made);
    if (status) free(*code), *code = NULL;
    return status;
}
