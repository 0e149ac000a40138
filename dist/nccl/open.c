/* SPDX-License-Identifier: BSD-3-Clause
 *
 * open.c: NCCL, as the program has it, or as the system does. A communicator must go to the library that made it: what is
 * loaded already comes first. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "nccl.h"

static struct nccl nccl;
static int is_there;

static int find(void *library, const char *name, void *function) {
    void *const address = dlsym(library, name);
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

static int find_all(void *library) {
    (void)find(library, "ncclGetLastError", &nccl.last_error);
    return find(library, "ncclGroupStart", &nccl.group_start) && find(library, "ncclGroupEnd", &nccl.group_end) &&
           find(library, "ncclSend", &nccl.send) && find(library, "ncclRecv", &nccl.receive) &&
           find(library, "ncclCommUserRank", &nccl.rank) && find(library, "ncclCommCount", &nccl.count) &&
           find(library, "ncclCommCuDevice", &nccl.device) && find(library, "ncclCommGetAsyncError", &nccl.async_error) &&
           find(library, "ncclGetErrorString", &nccl.error_string);
}

static void open_once(void) {
    if (find_all(RTLD_DEFAULT)) {
        is_there = 1;
        return;
    }
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD); /* such as one that PyTorch has opened */
    if (!library) library = dlopen("libnccl.so.2", RTLD_NOW);
    is_there = library && find_all(library);
}

const struct nccl *strobe__nccl(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_once);
    return is_there ? &nccl : NULL;
}
