/* SPDX-License-Identifier: BSD-3-Clause
 *
 * transport.c: strobe_dist_nccl.h. An exchange is a group of sends and receives on a stream of the transport's own:
 *
 *     the call's stream    ready ........ attention ........ waits for done
 *     the transport's      waits for ready, sends, receives, done
 *
 * Records, which lie in memory of the host, go the same way by way of a small buffer of the device. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dist/cuda_memory.h"
#include "nccl.h"
#include "strobe/strobe_dist_nccl.h"

enum { MOST_RECORDS = 32, RECORD_BYTES = 2048, STAGED_BYTES = MOST_RECORDS * RECORD_BYTES };

struct state {
    const struct nccl *nccl;
    nccl_communicator comm;
    int device;
    cudaStream_t side;
    cudaEvent_t ready, done;
    unsigned char *host, *staged;           /* STAGED_BYTES each, pinned and the device's */
    strobe_message receives[MOST_RECORDS];  /* of records under way, behind those sent in `host` */
    strobe_message on_device[MOST_RECORDS]; /* the same exchange in `staged`, what is sent first */
    int64_t receive_count, sent_count;
    strobe_transport records;
    char text[512];
};

static _Thread_local char last_error[512];

static int cuda_failed(struct state *s, cudaError_t error) {
    if (error != cudaSuccess) snprintf(s->text, sizeof s->text, "CUDA: %s", cudaGetErrorString(error));
    return error != cudaSuccess;
}

/* With the communicator's device current, whatever the thread had. */
static int on_device(struct state *s, int (*work)(struct state *s)) {
    int entered;
    const char *failure = strobe__dist_cuda_enter(s->device, &entered);
    if (failure) snprintf(s->text, sizeof s->text, "CUDA: %s", failure);
    const int failed = failure ? 1 : work(s);
    strobe__dist_cuda_leave(s->device, entered);
    return failed;
}

static int nccl_failed(struct state *s, int error) {
    if (error == 0 || error == NCCL_IN_PROGRESS) return 0;
    const char *more = s->nccl->last_error ? s->nccl->last_error(s->comm) : NULL;
    snprintf(s->text, sizeof s->text, "NCCL: %s%s%s", s->nccl->error_string(error), more && *more ? "; " : "",
             more ? more : "");
    return 1;
}

/* What NCCL has found out meanwhile. Communicators that do not block are done with a group when nothing is in progress. */
static int is_broken(struct state *s) {
    int error = NCCL_IN_PROGRESS;
    while (error == NCCL_IN_PROGRESS) {
        const int asked = s->nccl->async_error(s->comm, &error);
        if (asked) return nccl_failed(s, asked);
        if (error == NCCL_IN_PROGRESS) sched_yield();
    }
    return nccl_failed(s, error);
}

static int send_and_receive(struct state *s, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                            int64_t receive_count) {
    int error = s->nccl->group_start();
    for (int64_t n = 0; n < receive_count && !error; ++n)
        error = s->nccl->receive(receives[n].data, receives[n].bytes, NCCL_BYTES, receives[n].peer, s->comm, s->side);
    for (int64_t n = 0; n < send_count && !error; ++n)
        error = s->nccl->send(sends[n].data, sends[n].bytes, NCCL_BYTES, sends[n].peer, s->comm, s->side);
    const int ended = s->nccl->group_end();
    return nccl_failed(s, error) || nccl_failed(s, ended) || (ended == NCCL_IN_PROGRESS && is_broken(s));
}

static int start(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                 int64_t receive_count, void *stream) {
    struct state *s = self;
    return is_broken(s) || cuda_failed(s, cudaEventRecord(s->ready, stream)) ||
           cuda_failed(s, cudaStreamWaitEvent(s->side, s->ready, 0)) ||
           send_and_receive(s, sends, send_count, receives, receive_count) ||
           cuda_failed(s, cudaEventRecord(s->done, s->side));
}

static int wait_for(void *self, void *stream) {
    struct state *s = self;
    return cuda_failed(s, cudaStreamWaitEvent(stream, s->done, 0));
}

static const char *text_of(void *self) { return ((struct state *)self)->text; }

/* ---- records */

static int exchange_records(struct state *s) {
    const size_t sent = (size_t)s->sent_count * RECORD_BYTES, received = (size_t)s->receive_count * RECORD_BYTES;
    return is_broken(s) ||
           (sent && cuda_failed(s, cudaMemcpyAsync(s->staged, s->host, sent, cudaMemcpyHostToDevice, s->side))) ||
           send_and_receive(s, s->on_device, s->sent_count, s->on_device + s->sent_count, s->receive_count) ||
           (received &&
            cuda_failed(s, cudaMemcpyAsync(s->host + sent, s->staged + sent, received, cudaMemcpyDeviceToHost, s->side))) ||
           cuda_failed(s, cudaEventRecord(s->done, s->side));
}

static int start_records(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                         int64_t receive_count, void *stream) {
    struct state *s = self;
    (void)stream;
    if (send_count + receive_count > MOST_RECORDS) {
        snprintf(s->text, sizeof s->text, "an exchange has more than %d records", MOST_RECORDS);
        return 1;
    }
    for (int64_t n = 0; n < send_count + receive_count; ++n) {
        const strobe_message *message = n < send_count ? &sends[n] : &receives[n - send_count];
        if (message->bytes > RECORD_BYTES) {
            snprintf(s->text, sizeof s->text, "a record has more than %d bytes", RECORD_BYTES);
            return 1;
        }
        s->on_device[n] = *message, s->on_device[n].data = s->staged + n * RECORD_BYTES;
        if (n < send_count) memcpy(s->host + n * RECORD_BYTES, message->data, message->bytes);
    }
    memcpy(s->receives, receives, (size_t)receive_count * sizeof *receives);
    s->receive_count = receive_count, s->sent_count = send_count;
    return on_device(s, exchange_records); /* a rank that refuses has no device current */
}

static int wait_for_records(void *self, void *stream) {
    struct state *s = self;
    cudaError_t state;
    (void)stream;
    while ((state = cudaEventQuery(s->done)) == cudaErrorNotReady) {
        if (is_broken(s)) return 1;
        sched_yield();
    }
    if (cuda_failed(s, state)) return 1;
    for (int64_t n = 0; n < s->receive_count; ++n)
        memcpy(s->receives[n].data, s->host + (s->sent_count + n) * RECORD_BYTES, s->receives[n].bytes);
    return 0;
}

/* ---- the transport */

static strobe_status refuse(strobe_status status, const char *sentence) {
    snprintf(last_error, sizeof last_error, "%s", sentence);
    return status;
}

static void release(struct state *s) {
    if (s->side) (void)cudaStreamSynchronize(s->side), (void)cudaStreamDestroy(s->side);
    if (s->ready) (void)cudaEventDestroy(s->ready);
    if (s->done) (void)cudaEventDestroy(s->done);
    if (s->host) (void)cudaFreeHost(s->host);
    if (s->staged) (void)cudaFree(s->staged);
    free(s);
}

/* The stream goes before others, whose blocks it would wait for. */
static int make(struct state *s) {
    int least = 0, greatest = 0;
    return cuda_failed(s, cudaDeviceGetStreamPriorityRange(&least, &greatest)) ||
           cuda_failed(s, cudaStreamCreateWithPriority(&s->side, cudaStreamNonBlocking, greatest)) ||
           cuda_failed(s, cudaEventCreateWithFlags(&s->ready, cudaEventDisableTiming)) ||
           cuda_failed(s, cudaEventCreateWithFlags(&s->done, cudaEventDisableTiming)) ||
           cuda_failed(s, cudaHostAlloc((void **)&s->host, STAGED_BYTES, cudaHostAllocDefault)) ||
           cuda_failed(s, cudaMalloc((void **)&s->staged, STAGED_BYTES));
}

strobe_status strobe_dist_nccl_create(const void *communicator, strobe_transport *transport) {
    const struct nccl *nccl = strobe__nccl();
    int rank = 0, count = 0;
    if (!communicator || !transport)
        return refuse(STROBE_INVALID_ARGUMENT, communicator
                                                   ? "transport is NULL; a pointer is accepted"
                                                   : "communicator is NULL; a pointer to an ncclComm_t is accepted");
    if (!nccl) return refuse(STROBE_UNSUPPORTED, "there is no NCCL in the program, and no libnccl.so.2 could be opened");
    struct state *s = calloc(1, sizeof *s);
    if (!s) return refuse(STROBE_OUT_OF_MEMORY, "host memory for the transport could not be allocated");
    s->nccl = nccl;
    memcpy(&s->comm, communicator, sizeof s->comm);
    if (!s->comm) {
        free(s);
        return refuse(STROBE_INVALID_ARGUMENT, "*communicator is NULL; an ncclComm_t is accepted");
    }
    const int failed = nccl_failed(s, nccl->rank(s->comm, &rank)) || nccl_failed(s, nccl->count(s->comm, &count)) ||
                       nccl_failed(s, nccl->device(s->comm, &s->device)) || on_device(s, make);
    if (failed) {
        refuse(STROBE_DEVICE_ERROR, s->text);
        release(s);
        return STROBE_DEVICE_ERROR;
    }
    s->records = (strobe_transport){.struct_size = sizeof s->records,
                                    .rank = rank,
                                    .size = count,
                                    .self = s,
                                    .start = start_records,
                                    .wait = wait_for_records,
                                    .error = text_of};
    *transport = s->records;
    transport->start = start, transport->wait = wait_for;
    transport->device = STROBE_CUDA, transport->records = &s->records;
    return STROBE_OK;
}

void strobe_dist_nccl_destroy(strobe_transport *transport) {
    if (!transport || transport->wait != wait_for) return;
    release(transport->self);
    memset(transport, 0, sizeof *transport);
}

const char *strobe_dist_nccl_last_error(void) { return last_error; }
