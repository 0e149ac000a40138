/* SPDX-License-Identifier: BSD-3-Clause
 *
 * meet.c: the ranks find out who is near, in three rounds of records over base: who is on which host; which memory is there
 * for whom; whom each rank has reached. What fails in such a way that no rank can go on is told to all in the first two.
 * Whatever keeps two ranks from reaching each other leaves them to base. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "copies.h"

enum { MOST_CONNECTIONS = 32 }; /* that a driver makes */

struct hello {
    int32_t status, process;
    char host[96], file[64], sentence[256]; /* host: the same for processes that can know each other */
};
struct offer {
    int32_t status, device, has_file, has_handle;
    uint64_t landing;
    char gpu[32]; /* where on the bus it is; empty: not known */
    cudaIpcMemHandle_t handle;
    char sentence[256];
};
struct verdict {
    int32_t reached_you, reached; /* reached: how many */
    char sentence[256];           /* why some were not */
};

/* Every rank's record to every other. own: at each stride for each rank, or the same for all where it is 0. */
static strobe_status tell_all(struct copies *c, const void *own, size_t stride, void *heard, size_t bytes) {
    const strobe_transport *b = &c->base_records;
    for (int32_t first = 1; first < c->size; first += AT_A_TIME) {
        strobe_message sends[AT_A_TIME], receives[AT_A_TIME];
        int64_t count = 0;
        for (int32_t d = first; d < c->size && d < first + AT_A_TIME; ++d, ++count) {
            const int32_t to = (c->rank + d) % c->size, from = (c->rank - d + c->size) % c->size;
            sends[count] = (strobe_message){(void *)((uintptr_t)own + (size_t)to * stride), bytes, to, 0};
            receives[count] = (strobe_message){(unsigned char *)heard + (size_t)from * bytes, bytes, from, 0};
        }
        if (b->start(b->self, sends, count, receives, count, NULL) || b->wait(b->self, NULL)) {
            const char *text = b->error ? b->error(b->self) : NULL;
            strobe__copies_fail(c, "the transport below failed: %s", text ? text : "it does not say why");
            return STROBE_DEVICE_ERROR;
        }
    }
    return STROBE_OK;
}

/* ---- who is there */

static void *map_file(const char *name, int flags) {
    const int file = open(name, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0) return NULL;
    void *at = MAP_FAILED;
    if (!(flags & O_CREAT) || ftruncate(file, sizeof(struct shared)) == 0)
        at = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    (void)close(file);
    if (at == MAP_FAILED && flags & O_CREAT) (void)unlink(name);
    return at == MAP_FAILED ? NULL : at;
}

/* A file of this rank's own; that of the host's first rank is then used by all. */
static void make_file(struct copies *c, struct hello *hello) {
    static _Atomic unsigned made;
    snprintf(c->file, sizeof c->file, "/dev/shm/strobe-copies-%d-%u", (int)getpid(), ++made);
    c->shared = map_file(c->file, O_RDWR | O_CREAT | O_EXCL);
    if (!c->shared) {
        snprintf(hello->sentence, sizeof hello->sentence, "no file of shared memory could be made: %s", strerror(errno));
        c->file[0] = 0;
        return;
    }
    for (int from = 0; from < MOST_NEAR; ++from)
        for (int to = 0; to < MOST_NEAR; ++to)
            for (int slot = 0; slot < SLOTS; ++slot) c->shared->channel[from][to].empty[slot] = 1;
    snprintf(hello->file, sizeof hello->file, "%s", c->file);
}

/* Processes that run under one kernel and see each other's numbers have the same text. */
static void name_host(char *host, size_t bytes) {
    char boot[64] = "";
    struct stat names;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file && !fgets(boot, sizeof boot, file)) boot[0] = 0;
    if (file) (void)fclose(file);
    boot[strcspn(boot, "\n")] = 0;
    if (boot[0] && stat("/proc/self/ns/pid", &names) == 0)
        snprintf(host, bytes, "%s %llu", boot, (unsigned long long)names.st_ino);
}

/* Numbers the ranks of the host, of which the first MOST_NEAR count. The first one's number, -1 where this rank is alone. */
static int32_t count_host(struct copies *c, const struct hello *all) {
    int32_t first = -1;
    c->members = 0, c->number = -1;
    for (int32_t rank = 0; rank < c->size && all[c->rank].host[0]; ++rank) {
        if (strcmp(all[rank].host, all[c->rank].host) != 0 || !all[rank].file[0] || c->members == MOST_NEAR) continue;
        if (first < 0) first = rank;
        if (rank == c->rank) c->number = c->members;
        c->near_of[rank] = (int16_t)c->members++; /* its number, until ranks have been reached */
    }
    return c->number >= 0 && c->members > 1 ? first : -1;
}

/* ---- memory */

static void drop_file(struct copies *c) {
    if (c->is_registered) (void)cudaHostUnregister(c->shared);
    if (c->shared) (void)munmap(c->shared, sizeof *c->shared);
    c->shared = NULL, c->is_registered = false;
}

/* The host's file, where streams can wait for what is in it. */
static bool take_file(struct copies *c, const char *name, struct offer *offer) {
    if (strcmp(name, c->file) != 0) {
        drop_file(c);
        c->shared = map_file(name, O_RDWR);
    }
    void *on_device = NULL;
    cudaError_t error = cudaErrorUnknown;
    if (c->shared)
        error = cudaHostRegister(c->shared, sizeof c->shared->channel, cudaHostRegisterMapped | cudaHostRegisterPortable);
    c->is_registered = error == cudaSuccess;
    if (!error) error = cudaHostGetDevicePointer(&on_device, c->shared, 0);
    c->on_device = on_device;
    if (!error) return true;
    (void)cudaGetLastError();
    snprintf(offer->sentence, sizeof offer->sentence, "the host's file of shared memory is of no use to the GPU: %s",
             c->shared ? cudaGetErrorString(error) : strerror(errno));
    return false;
}

static void offer_memory(struct copies *c, const char *file, struct offer *offer) {
    *offer = (struct offer){.device = c->device};
    if (!file) return;
    offer->has_file = take_file(c, file, offer);
    if (!offer->has_file) return;
    const size_t slots = (size_t)(c->members - 1) * SLOTS * SLOT_BYTES,
                 count_bytes = EXCHANGED_STEPS * (sizeof *c->may_go + sizeof *c->counts), bytes = slots + count_bytes;
    if (cudaDeviceGetPCIBusId(offer->gpu, sizeof offer->gpu, c->device)) offer->gpu[0] = 0, (void)cudaGetLastError();
    cudaError_t error = cudaMalloc((void **)&c->landing, bytes);
    if (!error) error = cudaMemsetAsync(c->landing + slots, 0, count_bytes, NULL);
    if (!error) error = cudaStreamSynchronize(NULL);
    if (error) {
        (void)cudaGetLastError(), (void)cudaFree(c->landing);
        c->landing = NULL, offer->status = STROBE_OUT_OF_MEMORY;
        snprintf(offer->sentence, sizeof offer->sentence, "%zu bytes of device memory for messages: %s", bytes,
                 cudaGetErrorString(error));
        return;
    }
    offer->landing = (uint64_t)(uintptr_t)c->landing;
    error = cudaIpcGetMemHandle(&offer->handle, c->landing);
    offer->has_handle = error == cudaSuccess;
    if (error) (void)cudaGetLastError();
}

/* Ranks of one process that share a GPU share the connections on which the driver puts streams. Of two streams on one
 * connection the second does nothing while the first waits for another rank's value. If that other rank's host waits for the
 * second before it makes its call, or the driver does, to load a kernel, all wait for ever. */
static const char *lacks_connections(void) {
    const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS"), *loading = getenv("CUDA_MODULE_LOADING");
    if (!connections || atoi(connections) < MOST_CONNECTIONS)
        return "they are threads of a process and share a GPU, for which CUDA_DEVICE_MAX_CONNECTIONS=32 in the "
               "environment is accepted";
    if (!loading || strcmp(loading, "EAGER") != 0)
        return "they are threads of a process and share a GPU, for which CUDA_MODULE_LOADING=EAGER in the environment is "
               "accepted";
    return NULL;
}

/* A rank of this process. */
static const char *reach_thread(struct copies *c, const struct offer *offer, struct near *n) {
    int can = offer->device == c->device;
    const char *lack = can ? lacks_connections() : NULL;
    if (lack) return lack;
    cudaError_t error = can ? cudaSuccess : cudaDeviceCanAccessPeer(&can, c->device, offer->device);
    if (!error && can && offer->device != c->device) error = cudaDeviceEnablePeerAccess(offer->device, 0);
    if (error) (void)cudaGetLastError();
    if (error && error != cudaErrorPeerAccessAlreadyEnabled) return cudaGetErrorString(error);
    if (!can) return "its GPU has no access to the other's memory";
    n->landing = (unsigned char *)(uintptr_t)offer->landing;
    return NULL;
}

static const char *reach_process(const struct offer *offer, struct near *n) {
    if (!offer->has_handle) return "the other's memory cannot be shared between processes";
    n->descriptor = (int)syscall(SYS_pidfd_open, n->process, 0);
    if (n->descriptor < 0) return "the other's process cannot be watched";
    void *landing = NULL;
    const cudaError_t error = cudaIpcOpenMemHandle(&landing, offer->handle, cudaIpcMemLazyEnablePeerAccess);
    if (!error) {
        n->landing = landing, n->is_opened = true;
        return NULL;
    }
    (void)cudaGetLastError();
    return cudaGetErrorString(error);
}

/* What ranks `from` sends to `to` lands at this number of the receiver's memory. */
static size_t place_of(int32_t from, int32_t to) { return (size_t)(from < to ? from : from - 1) * SLOTS * SLOT_BYTES; }

static void reach_all(struct copies *c, const struct hello *hellos, const struct offer *offers, struct verdict *verdicts) {
    const char *why = offers[c->rank].sentence[0] ? offers[c->rank].sentence : hellos[c->rank].sentence;
    int32_t reached = 0, failed = -1;
    for (int32_t d = 1; d < c->size && offers[c->rank].has_file; ++d) { /* the next rank first, so that not all go to one */
        const int32_t rank = (c->rank + d) % c->size;
        if (c->near_of[rank] < 0) continue;
        struct near *n = &c->near[c->near_count++];
        *n = (struct near){.rank = rank, .number = c->near_of[rank], .process = hellos[rank].process, .descriptor = -1};
        const char *lack = !offers[rank].has_file          ? offers[rank].sentence
                           : n->process == (pid_t)getpid() ? reach_thread(c, &offers[rank], n)
                                                           : reach_process(&offers[rank], n);
        n->reached = !lack;
        verdicts[rank].reached_you = !lack, reached += !lack;
        if (lack && failed < 0) failed = rank, why = lack;
        if (lack) continue;
        n->landing += place_of(c->number, n->number), n->own = c->landing + place_of(n->number, c->number);
    }
    for (int32_t rank = 0; rank < c->size; ++rank) {
        verdicts[rank].reached = reached;
        if (failed >= 0)
            snprintf(verdicts[rank].sentence, sizeof verdicts->sentence, "rank %d does not reach rank %d: %.200s", c->rank,
                     failed, why);
        else
            snprintf(verdicts[rank].sentence, sizeof verdicts->sentence, "rank %d %.200s", c->rank,
                     *why ? why : "is the only one of its host");
    }
}

/* A rank that cannot watch the others goes by base. */
static void reach_none(const struct copies *c, struct verdict *verdicts) {
    for (int32_t rank = 0; rank < c->size; ++rank) {
        verdicts[rank].reached_you = verdicts[rank].reached = 0;
        snprintf(verdicts[rank].sentence, sizeof verdicts->sentence, "rank %d: %.200s", c->rank, c->text);
    }
}

/* Whether no other rank of the host has this one's GPU, as far as is known. */
static bool has_own_gpu(const struct copies *c, const struct hello *hellos, const struct offer *offers) {
    const struct offer *own = &offers[c->rank];
    for (int32_t rank = 0; rank < c->size; ++rank)
        if (rank != c->rank && strcmp(hellos[rank].host, hellos[c->rank].host) == 0 &&
            (!offers[rank].gpu[0] || strcmp(offers[rank].gpu, own->gpu) == 0))
            return false;
    return own->gpu[0] && c->landing;
}

/* Near are those that are reached both ways. */
static void keep_reached(struct copies *c, const struct verdict *heard) {
    for (int32_t rank = 0; rank < c->size; ++rank) c->near_of[rank] = -1;
    for (int32_t k = 0; k < c->near_count; ++k) {
        struct near *n = &c->near[k];
        n->reached = n->reached && heard[n->rank].reached_you;
        if (n->reached) c->near_of[n->rank] = (int16_t)k;
    }
}

/* ---- together */

struct meeting {
    struct hello *hellos;
    struct offer *offers;
    struct verdict *verdicts, *heard;
};

static strobe_status first_refusal(struct copies *c, int32_t rank, int32_t status, const char *sentence) {
    strobe__copies_fail(c, "rank %d: %s", rank, sentence);
    return (strobe_status)status;
}

static strobe_status meet(struct copies *c, struct meeting *m, strobe_status own_status) {
    struct hello *own = &m->hellos[c->rank];
    own->process = (int32_t)getpid(), own->status = (int32_t)own_status;
    if (own_status) {
        snprintf(own->sentence, sizeof own->sentence, "%.255s", c->text);
    } else {
        name_host(own->host, sizeof own->host);
        make_file(c, own);
    }
    strobe_status status = tell_all(c, own, 0, m->hellos, sizeof *own);
    if (status) return status;
    for (int32_t rank = 0; rank < c->size; ++rank)
        if (m->hellos[rank].status) return first_refusal(c, rank, m->hellos[rank].status, m->hellos[rank].sentence);
    const int32_t first = count_host(c, m->hellos);
    offer_memory(c, first >= 0 ? m->hellos[first].file : NULL, &m->offers[c->rank]);
    status = tell_all(c, &m->offers[c->rank], 0, m->offers, sizeof *m->offers);
    if (status) return status;
    for (int32_t rank = 0; rank < c->size; ++rank)
        if (m->offers[rank].status) return first_refusal(c, rank, m->offers[rank].status, m->offers[rank].sentence);
    reach_all(c, m->hellos, m->offers, m->verdicts);
    if (has_own_gpu(c, m->hellos, m->offers)) {
        c->may_go = (uint64_t *)(void *)(c->landing + (size_t)(c->members - 1) * SLOTS * SLOT_BYTES);
        c->counts = (uint32_t *)(void *)(c->may_go + EXCHANGED_STEPS);
    }
    if (strobe__copies_watch(c)) reach_none(c, m->verdicts);
    m->heard[c->rank] = m->verdicts[c->rank];
    status = tell_all(c, m->verdicts, sizeof *m->verdicts, m->heard, sizeof *m->heard);
    if (status) return status;
    int32_t reached = 0;
    c->all_are_near = true;
    for (int32_t rank = 0; rank < c->size; ++rank) {
        reached += m->heard[rank].reached;
        c->all_are_near = c->all_are_near && m->heard[rank].reached == c->size - 1;
    }
    if (reached == 0) {
        strobe__copies_fail(c, "copy engines move nothing here: %s", m->heard[0].sentence);
        return STROBE_UNSUPPORTED;
    }
    keep_reached(c, m->heard);
    return STROBE_OK;
}

strobe_status strobe__copies_meet(struct copies *c, strobe_status own_status) {
    struct meeting m;
    const size_t size = (size_t)c->size;
    m.hellos = calloc(size, sizeof *m.hellos), m.offers = calloc(size, sizeof *m.offers);
    m.verdicts = calloc(size, sizeof *m.verdicts), m.heard = calloc(size, sizeof *m.heard);
    strobe_status status = STROBE_OUT_OF_MEMORY;
    if (m.hellos && m.offers && m.verdicts && m.heard)
        status = meet(c, &m, own_status);
    else
        strobe__copies_fail(c, "host memory for the ranks could not be allocated");
    free(m.hellos), free(m.offers), free(m.verdicts), free(m.heard);
    if (c->file[0]) (void)unlink(c->file); /* all have it by now */
    c->file[0] = 0;
    return status;
}

void strobe__copies_part(struct copies *c) {
    for (int32_t k = 0; k < c->near_count; ++k) {
        struct near *n = &c->near[k];
        if (n->is_opened) (void)cudaIpcCloseMemHandle(n->landing - place_of(c->number, n->number));
        if (n->descriptor >= 0) (void)close(n->descriptor);
    }
    c->near_count = 0;
    if (c->landing) (void)cudaFree(c->landing);
    drop_file(c);
}
