/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_dist_nccl.c [RANKS [SEQ [copies | death]]]: libstrobe_dist over NCCL, or with `copies` over copy engines where they
 * reach, a process a rank (2; 1003 positions): see gpu_ranks.h. With `death` the last rank is killed between calls, messages
 * going through sockets, by which NCCL learns of it: the others' calls return its error, and when they have aborted the
 * communicator nothing is left that waits. Where there are fewer GPUs than ranks, several ranks have the same one: each then
 * tells NCCL that it is a host of its own (NCCL_HOSTID), and messages go through sockets. That proves results, not speed.
 * Exit codes: 0 passed, 1 failed, 77 no GPU or no NCCL. */
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu_ranks.h"
#include "strobe/strobe_dist_copies.h"
#include "strobe/strobe_dist_nccl.h"

enum { PATIENCE = 60 }; /* seconds until a rank of a death is taken to hang */

struct unique_id {
    char bytes[128];
};

struct start {
    struct unique_id id;
    volatile int has_id;
};

/* Before NCCL is loaded, which reads the environment. */
static void settle(const struct gpu_rank *r, bool dies) {
    char name[64];
    if (cuda_driver_devices() >= r->ranks && !dies) return;
    snprintf(name, sizeof name, "strobe-rank-%d", r->rank);
    setenv("NCCL_HOSTID", name, 0), setenv("NCCL_SOCKET_IFNAME", "lo", 0), setenv("NCCL_IB_DISABLE", "1", 0);
}

/* The communicator is aborted, as the program of a caller would do it; the transport's stream then comes to its end. */
static _Noreturn void outlive(struct gpu_rank *r, void *nccl, void *communicator, strobe_transport *transport) {
    int (*abort_all)(void *);
    if (!cuda_driver_find(nccl, &abort_all, "ncclCommAbort")) _exit(SKIPPED);
    r->transport = *transport;
    gpu_rank_outlive(r, "NCCL: ");
    if (abort_all(communicator)) fail_rank("ncclCommAbort", "failed");
    strobe_dist_nccl_destroy(transport);
    _exit(0);
}

static void run_rank(struct start *start, int32_t rank, int32_t ranks, const char *mode) {
    const bool copies = strcmp(mode, "copies") == 0, dies = strcmp(mode, "death") == 0;
    int (*unique)(struct unique_id *), (*init)(void **, int, struct unique_id, int), (*destroy)(void *);
    struct gpu_rank r;
    if (!gpu_rank_open(&r, rank, ranks)) _exit(SKIPPED);
    settle(&r, dies);
    if (dies) alarm(PATIENCE);
    void *nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL), *communicator = NULL;
    if (!nccl) _exit(SKIPPED);
    if (!cuda_driver_find(nccl, &unique, "ncclGetUniqueId") || !cuda_driver_find(nccl, &init, "ncclCommInitRank") ||
        !cuda_driver_find(nccl, &destroy, "ncclCommDestroy"))
        _exit(SKIPPED);
    if (rank == 0) {
        if (unique(&start->id)) fail_rank("ncclGetUniqueId", "failed");
        __sync_synchronize();
        start->has_id = 1;
    }
    while (!start->has_id) sched_yield();
    if (init(&communicator, ranks, start->id, rank)) fail_rank("ncclCommInitRank", "failed");
    strobe_transport nccl_transport;
    if (strobe_dist_nccl_create(&communicator, &nccl_transport))
        fail_rank("strobe_dist_nccl_create", strobe_dist_nccl_last_error());
    if (dies) outlive(&r, nccl, communicator, &nccl_transport);
    r.transport = nccl_transport, r.graphs = true;
    if (copies && strobe_dist_copies_create(&nccl_transport, r.device, &r.transport))
        fail_rank("strobe_dist_copies_create", strobe_dist_copies_last_error());
    gpu_rank_run(&r);
    if (copies) strobe_dist_copies_destroy(&r.transport);
    strobe_dist_nccl_destroy(&nccl_transport);
    (void)destroy(communicator);
    _exit(0);
}

static void *share(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

int main(int argc, char **argv) {
    const int32_t ranks = argc > 1 ? atoi(argv[1]) : 2;
    const int64_t seq = argc > 2 ? atoi(argv[2]) : 1003;
    const char *mode = argc > 3 ? argv[3] : "";
    const bool dies = strcmp(mode, "death") == 0;
    if (ranks < 1 || ranks > MOST_RANKS || seq < 1) return 2;
    struct start *start = share(sizeof *start);
    void *shared = share(gpu_ranks_bytes(seq));
    if (!start || !shared) return 1;
    gpu_ranks_share(shared, seq);
    gpu_ranks_fill();
    int code = 0;
    pid_t children[MOST_RANKS];
    for (int32_t rank = 0; rank < ranks; ++rank)
        if ((children[rank] = fork()) == 0) run_rank(start, rank, ranks, mode);
    for (int32_t n = 0; n < ranks; ++n) {
        int status = 0;
        const bool is_dead = waitpid(children[n], &status, 0) > 0 && WIFSIGNALED(status);
        const int own = WIFEXITED(status) ? WEXITSTATUS(status) : dies && is_dead && n == ranks - 1 ? 0 : 1;
        if (own && code != 1) code = own;
    }
    if (code == SKIPPED) printf("skipped: there is no GPU or no NCCL\n");
    return code || dies ? code : gpu_ranks_judge(ranks);
}
