/* SPDX-License-Identifier: BSD-3-Clause
 *
 * unload.c LIBRARY: a plugin's life. The shared library is opened by name, runs on three threads, is closed, and opened
 * again; threads of OpenMP that wait for more work must not wake up in code that is gone. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "portable/posix.h"
#include "strobe/strobe.h"

enum { SEQ = 200, HEADS = 4, DIM = 32 };

typedef strobe_status forward_function(const strobe_attention *, void *, size_t, void *);

static int run(const char *path) {
    static float x[SEQ * HEADS * DIM], out[SEQ * HEADS * DIM];
    const strobe_parallel parallel = {.struct_size = sizeof parallel, .threads = 3};
    strobe_attention a = {.struct_size = sizeof a, .batch = 1, .seq_q = SEQ, .seq_k = SEQ, .heads_q = HEADS, .dim = DIM};
    a.q.data = a.k.data = a.v.data = x, a.out.data = out, a.parallel = &parallel;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), *symbol = library ? dlsym(library, "strobe_forward") : NULL;
    if (!symbol) return printf("%s\n", dlerror()), 1;
    forward_function *forward;
    memcpy(&forward, &symbol, sizeof forward); /* ISO C has no cast from an object to a function pointer */
    const int failed = forward(&a, NULL, 0, NULL) != STROBE_OK;
    return dlclose(library) || failed;
}

int main(int argc, char **argv) {
    const struct timespec while_threads_wake = {.tv_nsec = 100 * 1000 * 1000};
    for (int n = 0; n < 2; ++n) {
        if (argc != 2 || run(argv[1])) return 1;
        nanosleep(&while_threads_wake, NULL);
    }
    return 0;
}
