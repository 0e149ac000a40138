/* SPDX-License-Identifier: BSD-3-Clause
 *
 * compiler.c: NVRTC for the emulated GPU, found as libnvrtc.so.13 in the build folder: the host's compiler, which makes a
 * shared object of a kernel's text. The headers are those that it is given, but for libc's and for cuda/ptx/, of which
 * emulated/include/ has its own. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "emulated_compiler.h" /* of the build: COMPILER_FILES, COMPILER_LIBRARY, compiler[], texts[] */

#define SEEN __attribute__((visibility("default")))

enum {
    SUCCESS,
    OUT_OF_MEMORY,
    PROGRAM_CREATION_FAILURE,
    INVALID_INPUT,
    INVALID_PROGRAM,
    INVALID_OPTION,
    COMPILATION,
    MOST_OPTIONS = 64,
    MOST_PATH = 512,
};

typedef struct emulated_program {
    char folder[MOST_PATH];
    char *log, *code;
    size_t log_bytes, code_bytes;
} * program;

extern char **environ;

static void path_of(char path[2 * MOST_PATH], program made, const char *name) {
    snprintf(path, 2 * MOST_PATH, "%s/%s", made->folder, name);
}

static int remove_one(const char *path, const struct stat *is, int kind, struct FTW *where) {
    return (void)is, (void)kind, (void)where, remove(path);
}

static void make_folders(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        (void)mkdir(path, 0700);
        *slash = '/';
    }
}

static bool write_file(program made, const char *name, const char *text) {
    char path[2 * MOST_PATH];
    path_of(path, made, name);
    make_folders(path);
    FILE *file = fopen(path, "w");
    const bool written = file && fputs(text, file) >= 0;
    return file && fclose(file) == 0 && written;
}

/* With a 0 behind it; NULL without the file. */
static char *read_file(program made, const char *name, size_t *bytes) {
    char path[2 * MOST_PATH];
    struct stat is;
    path_of(path, made, name);
    FILE *file = fopen(path, "r");
    char *data = file && fstat(fileno(file), &is) == 0 ? malloc((size_t)is.st_size + 1) : NULL;
    if (data) *bytes = fread(data, 1, (size_t)is.st_size, file), data[*bytes] = 0;
    if (file) fclose(file);
    return data;
}

/* What the machine is told of the text's kernels; NULL for a text that is not the library's. */
static const char *kernels_of(const char *text) {
    for (size_t n = 0; n < sizeof texts / sizeof texts[0]; ++n)
        if (strstr(text, texts[n].name)) return texts[n].kernels;
    return NULL;
}

SEEN int nvrtcDestroyProgram(program *made) {
    if (!*made) return INVALID_PROGRAM;
    (void)nftw((*made)->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free((*made)->log), free((*made)->code), free(*made);
    return *made = NULL, SUCCESS;
}

SEEN int nvrtcCreateProgram(program *made, const char *text, const char *name, int count, const char *const *headers,
                            const char *const *names) {
    const char *kernels = kernels_of(text), *folder = getenv("TMPDIR");
    char whole[4096];
    (void)name;
    if (!kernels) return INVALID_INPUT;
    *made = calloc(1, sizeof **made);
    if (!*made) return OUT_OF_MEMORY;
    snprintf((*made)->folder, MOST_PATH, "%s/strobe-nvrtc-XXXXXX", folder && *folder ? folder : "/tmp");
    if (!mkdtemp((*made)->folder)) return free(*made), *made = NULL, PROGRAM_CREATION_FAILURE;
    const int length = snprintf(whole, sizeof whole,
                                "#include \"cuda/emulated/language.h\"\n#define __CUDACC_RTC__\n%s"
                                "#include \"cuda/emulated/kernel.h\"\n%s\n",
                                text, kernels);
    bool ok = length < (int)sizeof whole && write_file(*made, "kernel.cpp", whole);
    for (int n = 0; n < count && ok; ++n)
        if (strchr(names[n], '/') || strcmp(names[n], "score_text.h") == 0) ok = write_file(*made, names[n], headers[n]);
    if (!ok) (void)nvrtcDestroyProgram(made);
    return ok ? SUCCESS : PROGRAM_CREATION_FAILURE;
}

/* Runs a command, with its words in log.txt; 0 if it said so. */
static int run(program made, char *const *command) {
    char log[2 * MOST_PATH];
    posix_spawn_file_actions_t files;
    pid_t process;
    int status = -1;
    path_of(log, made, "log.txt");
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    if (posix_spawnp(&process, command[0], &files, NULL, command, environ) == 0)
        while (waitpid(process, &status, 0) < 0 && errno == EINTR) {
        }
    posix_spawn_file_actions_destroy(&files);
    return status;
}

SEEN int nvrtcCompileProgram(program made, int count, const char *const *options) {
    enum { OWN = sizeof compiler / sizeof compiler[0] };
    char headers[MOST_PATH + 8], text[2 * MOST_PATH], object[2 * MOST_PATH];
    const char *command[OWN + MOST_OPTIONS + 16];
    int words = 0;
    if (count > MOST_OPTIONS) return INVALID_OPTION;
    snprintf(headers, sizeof headers, "-I%s", made->folder);
    path_of(text, made, "kernel.cpp");
    path_of(object, made, "kernel.so");
    command[words++] = compiler[0], command[words++] = "-I" COMPILER_FILES "/include", command[words++] = headers;
    for (int n = 1; n < OWN; ++n) command[words++] = compiler[n];
    for (int n = 0; n < count; ++n)
        if (strncmp(options[n], "-D", 2) == 0) command[words++] = options[n];
    command[words++] = "-shared", command[words++] = "-o", command[words++] = object, command[words++] = text;
    command[words++] = COMPILER_LIBRARY, command[words] = NULL;
    const int failed = run(made, (char *const *)(uintptr_t)command);
    free(made->log), made->log = read_file(made, "log.txt", &made->log_bytes);
    free(made->code), made->code = failed ? NULL : read_file(made, "kernel.so", &made->code_bytes);
    return made->code ? SUCCESS : COMPILATION;
}

/* Of a version that NVIDIA has not, and that changes with the files of emulated/include/: code that is kept is of no use to
 * others. */
SEEN int nvrtcVersion(int *major, int *minor) {
    static const char *const files[] = {"language.h", "kernel.h", "machine.h"};
    char path[2 * MOST_PATH];
    uint32_t number = 0;
    struct stat is;
    *major = 99;
    for (size_t n = 0; n < sizeof files / sizeof files[0]; ++n) {
        snprintf(path, sizeof path, COMPILER_FILES "/%s", files[n]);
        if (stat(path, &is) == 0) number = number * 31 + (uint32_t)is.st_mtime;
    }
    DIR *folder = opendir(COMPILER_FILES "/include/cuda/ptx");
    for (const struct dirent *file; folder && (file = readdir(folder));) {
        snprintf(path, sizeof path, COMPILER_FILES "/include/cuda/ptx/%s", file->d_name);
        if (stat(path, &is) == 0 && S_ISREG(is.st_mode)) number += (uint32_t)is.st_mtime * 31; /* in any order */
    }
    if (folder) closedir(folder);
    return *minor = (int)(number % 100000000), SUCCESS;
}

SEEN int nvrtcGetProgramLogSize(program made, size_t *bytes) {
    return *bytes = made->log ? made->log_bytes + 1 : 1, SUCCESS;
}
SEEN int nvrtcGetProgramLog(program made, char *log) {
    memcpy(log, made->log ? made->log : "", made->log ? made->log_bytes + 1 : 1);
    return SUCCESS;
}
SEEN int nvrtcGetCUBINSize(program made, size_t *bytes) {
    return *bytes = made->code_bytes, made->code ? SUCCESS : INVALID_PROGRAM;
}
SEEN int nvrtcGetCUBIN(program made, char *code) {
    if (!made->code) return INVALID_PROGRAM;
    return memcpy(code, made->code, made->code_bytes), SUCCESS;
}
SEEN int nvrtcGetPTXSize(program made, size_t *bytes) { return nvrtcGetCUBINSize(made, bytes); }
SEEN int nvrtcGetPTX(program made, char *code) { return nvrtcGetCUBIN(made, code); }
SEEN const char *nvrtcGetErrorString(int error) {
    return error == COMPILATION ? "the host's compiler refused it" : error ? "an error of the emulated NVRTC" : "no error";
}
