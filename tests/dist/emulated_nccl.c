/* SPDX-License-Identifier: BSD-3-Clause
 *
 * emulated_nccl.c: a libnccl.so.2 for tests on a GPU that the host plays (docs/kernels/emulator.md): the calls of NCCL that
 * dist/nccl/ and its test make, declared as NCCL's manual has them. Ranks are threads or processes of one machine, and
 * messages go through a file that all of them map, a ring of bytes for each pair. A group of sends and receives is one
 * function of the host on the stream, so that it keeps the stream's order and a graph captures it. What NCCL would hang at
 * or spoil memory by ends the process with a sentence.
 *
 *   STROBE_NCCL_BLOCKING   0: a group is in progress for a while after its end, as with config.blocking = 0 */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define SEEN __attribute__((visibility("default")))

enum { RING_BYTES = 1 << 16, MOST_OPERATIONS = 256, MOST_RANKS = 64, PATIENCE_SECONDS = 120, POLLS = 3 };
enum { OK = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, IN_PROGRESS = 7, INT8 = 0 };

/* Bytes on their way from one rank to another. */
struct ring {
    _Atomic uint64_t written, read;
    unsigned char bytes[RING_BYTES];
};
struct file {
    _Atomic int here;
    struct ring ring[]; /* [from][to] */
};

typedef struct unique_id {
    char bytes[128];
} unique_id;

struct operation {
    bool sends;
    unsigned char *data;
    uint64_t bytes, header, moved; /* moved: of the header, which says the size, and of the data */
    int peer;
};
struct group {
    struct communicator *comm;
    CUstream stream;
    bool kept; /* by a graph */
    int count;
    struct operation operation[MOST_OPERATIONS];
};
struct communicator {
    struct file *file;
    int rank, size, device, polls;
    struct group *pending; /* of a communicator that does not block */
};

static __thread int depth;
static __thread struct group *open_group;
static const char *last = "";

static struct {
    CUresult (*launch)(CUstream, CUhostFn, void *);
    CUresult (*is_capturing)(CUstream, CUstreamCaptureStatus *);
    CUresult (*attributes)(unsigned, CUpointer_attribute *, void **, CUdeviceptr);
    int (*device)(int *);
} cuda;

static bool find(void *library, void *function, const char *name) {
    void *const address = dlsym(library, name);
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

static bool open_cuda(void) {
    void *const library = dlopen("libcuda.so.1", RTLD_NOW);
    return library && find(library, &cuda.launch, "cuLaunchHostFunc") &&
           find(library, &cuda.is_capturing, "cuStreamIsCapturing") &&
           find(library, &cuda.attributes, "cuPointerGetAttributes") && find(library, &cuda.device, "cudaGetDevice");
}

static _Noreturn __attribute__((format(printf, 2, 3))) void stop(const struct communicator *comm, const char *format, ...) {
    va_list arguments;
    fprintf(stderr, "emulated NCCL: rank %d: ", comm->rank);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    abort();
}

/* ---- messages */

/* Moves what there is room for, or what there is; whether anything moved. */
static bool move(const struct communicator *comm, struct operation *o) {
    const int from = o->sends ? comm->rank : o->peer, to = o->sends ? o->peer : comm->rank;
    struct ring *ring = &comm->file->ring[from * comm->size + to];
    uint64_t written = ring->written, read = ring->read, moved = 0;
    while (o->moved < sizeof o->header + o->bytes && (o->sends ? written - read < RING_BYTES : read < written)) {
        unsigned char *own = o->moved < sizeof o->header ? (unsigned char *)&o->header + o->moved
                                                         : o->data + (o->moved - sizeof o->header);
        if (o->sends)
            ring->bytes[written++ % RING_BYTES] = *own;
        else
            *own = ring->bytes[read++ % RING_BYTES];
        ++o->moved, ++moved;
        if (!o->sends && o->moved == sizeof o->header && o->header != o->bytes)
            stop(comm, "%llu bytes are expected from rank %d, which sends %llu", (unsigned long long)o->bytes, o->peer,
                 (unsigned long long)o->header);
    }
    if (o->sends)
        ring->written = written;
    else
        ring->read = read;
    return moved > 0;
}

/* Messages of a pair keep their order. */
static bool is_first(const struct group *g, int n) {
    for (int m = 0; m < n; ++m) {
        const struct operation *before = &g->operation[m], *o = &g->operation[n];
        if (before->sends == o->sends && before->peer == o->peer && before->moved < sizeof o->header + before->bytes)
            return false;
    }
    return true;
}

static void run_group(void *of) {
    struct group *g = of;
    const time_t began = time(NULL);
    for (int n = 0; n < g->count; ++n) g->operation[n].moved = 0, g->operation[n].header = g->operation[n].bytes;
    for (bool ended = false, moved; !ended;) {
        ended = true, moved = false;
        for (int n = 0; n < g->count; ++n) {
            struct operation *o = &g->operation[n];
            if (is_first(g, n)) moved = move(g->comm, o) || moved;
            ended = ended && o->moved == sizeof o->header + o->bytes;
        }
        if (!ended && !moved) sched_yield();
        if (!ended && !moved && time(NULL) - began > PATIENCE_SECONDS) stop(g->comm, "its peers do not come");
    }
    if (!g->kept) free(g);
}

/* ---- groups */

static int submit(struct group *g) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    (void)cuda.is_capturing(g->stream, &status);
    g->kept = status != CU_STREAM_CAPTURE_STATUS_NONE;
    return cuda.launch(g->stream, run_group, g) ? SYSTEM_ERROR : OK;
}

SEEN int ncclGroupStart(void) { return ++depth, OK; }
SEEN int ncclGroupEnd(void) {
    struct group *g = open_group;
    if (depth == 0) return INVALID_USAGE;
    if (--depth > 0 || !g) return OK;
    open_group = NULL;
    const char *blocking = getenv("STROBE_NCCL_BLOCKING");
    if (!blocking || strcmp(blocking, "0") != 0) return submit(g);
    g->comm->pending = g, g->comm->polls = POLLS;
    return IN_PROGRESS;
}

static int add(bool sends, void *data, size_t count, int type, int peer, struct communicator *comm, CUstream stream) {
    CUpointer_attribute wanted[2] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    unsigned kind = 0;
    int device = -1;
    void *answers[2] = {&kind, &device};
    if (comm->pending) return last = "the group before is in progress", INVALID_USAGE;
    if (depth == 0) return last = "a message outside a group", INVALID_USAGE;
    if (type != INT8 || peer < 0 || peer >= comm->size || count == 0) return last = "bad arguments", INVALID_ARGUMENT;
    for (size_t at = 0; at<count; at += count> 1 ? count - 1 : 1)
        if (cuda.attributes(2, wanted, answers, (CUdeviceptr)(uintptr_t)data + at) || kind != CU_MEMORYTYPE_DEVICE ||
            device != comm->device)
            return last = "memory that is not the device's", INVALID_ARGUMENT;
    if (!open_group) open_group = calloc(1, sizeof *open_group);
    struct group *g = open_group;
    if (!g || g->count == MOST_OPERATIONS) return last = "too many messages", SYSTEM_ERROR;
    if (g->count > 0 && (g->comm != comm || g->stream != stream)) return last = "two streams", INVALID_USAGE;
    g->comm = comm, g->stream = stream;
    g->operation[g->count++] = (struct operation){.sends = sends, .data = data, .bytes = count, .peer = peer};
    return OK;
}
SEEN int ncclSend(const void *data, size_t count, int type, int peer, struct communicator *comm, CUstream stream) {
    return add(true, (void *)(uintptr_t)data, count, type, peer, comm, stream);
}
SEEN int ncclRecv(void *data, size_t count, int type, int peer, struct communicator *comm, CUstream stream) {
    return add(false, data, count, type, peer, comm, stream);
}

/* ---- communicators */

SEEN int ncclGetUniqueId(unique_id *id) {
    static _Atomic int made;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    memset(id, 0, sizeof *id);
    snprintf(id->bytes, sizeof id->bytes, "/strobe-nccl-%d-%d-%ld", (int)getpid(), ++made, now.tv_nsec);
    return OK;
}

SEEN int ncclCommInitRank(struct communicator **made, int size, unique_id id, int rank) {
    if (size < 1 || size > MOST_RANKS || rank < 0 || rank >= size) return INVALID_ARGUMENT;
    struct communicator *comm = calloc(1, sizeof *comm);
    const size_t bytes = sizeof(struct file) + (size_t)(size * size) * sizeof(struct ring);
    const int file = shm_open(id.bytes, O_RDWR | O_CREAT, 0600);
    if (!comm || !open_cuda() || file < 0 || ftruncate(file, (off_t)bytes)) return SYSTEM_ERROR;
    *comm = (struct communicator){.rank = rank, .size = size};
    comm->file = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    (void)close(file);
    if (comm->file == MAP_FAILED || cuda.device(&comm->device)) return SYSTEM_ERROR;
    ++comm->file->here;
    for (const time_t began = time(NULL); comm->file->here < size; sched_yield())
        if (time(NULL) - began > PATIENCE_SECONDS) stop(comm, "the others do not come");
    (void)shm_unlink(id.bytes); /* the last one that comes late finds it gone, which is no error */
    return *made = comm, OK;
}
SEEN int ncclCommDestroy(struct communicator *comm) { return free(comm), OK; } /* others may still read the file */
SEEN int ncclCommUserRank(struct communicator *comm, int *rank) { return *rank = comm->rank, OK; }
SEEN int ncclCommCount(struct communicator *comm, int *count) { return *count = comm->size, OK; }
SEEN int ncclCommCuDevice(struct communicator *comm, int *device) { return *device = comm->device, OK; }
SEEN int ncclCommGetAsyncError(struct communicator *comm, int *error) {
    struct group *g = comm->pending;
    *error = g && --comm->polls > 0 ? IN_PROGRESS : OK;
    if (!g || *error) return OK;
    comm->pending = NULL;
    return *error = submit(g), OK;
}
SEEN const char *ncclGetErrorString(int error) { return error ? "an error of the emulated NCCL" : "no error"; }
SEEN const char *ncclGetLastError(struct communicator *comm) { return (void)comm, last; }
