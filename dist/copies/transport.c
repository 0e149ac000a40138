/* SPDX-License-Identifier: BSD-3-Clause
 *
 * transport.c: strobe_dist_copies.h: a transport is made and taken apart; see copies.h. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "copies.h"
#include "dist/cuda_memory.h"
#include "strobe/strobe_dist_copies.h"

static _Thread_local char last_error[512];

int strobe__copies_fail(struct copies *c, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(c->text, sizeof c->text, format, arguments);
    va_end(arguments);
    return 1;
}

int strobe__copies_cuda(struct copies *c, cudaError_t error, const char *what) {
    return error == cudaSuccess ? 0 : strobe__copies_fail(c, "CUDA: %s: %s", what, cudaGetErrorString(error));
}

int strobe__copies_gone(struct copies *c) {
    const int32_t rank = atomic_load(&c->gone) - 1;
    return rank < 0 ? 0 : strobe__copies_fail(c, "the process of rank %d has ended", rank);
}

static const char *text_of(void *self) { return ((struct copies *)self)->text; }

/* Streams go before others, so that no copy waits for a place behind them. The kernel is loaded before any rank's stream
 * waits for another's: the driver would wait for all streams of the device, those of ranks in other threads too. */
static int make_streams(struct copies *c) {
    int least = 0, greatest = 0;
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    if (cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &function, 11070, cudaEnableDefault, &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess)
        return strobe__copies_fail(c, "CUDA: the driver's streams cannot wait for values");
    memcpy(&c->stream_values, &function, sizeof function);
    if (strobe__copies_cuda(c, cudaDeviceGetStreamPriorityRange(&least, &greatest), "a stream") ||
        strobe__copies_cuda(c, cudaEventCreateWithFlags(&c->ready, cudaEventDisableTiming), "an event") ||
        strobe__copies_cuda(c, cudaEventCreateWithFlags(&c->left, cudaEventDisableTiming), "an event"))
        return 1;
    c->senders = c->size - 1 < SENDERS ? c->size - 1 : SENDERS;
    for (int n = 0; n < SEND + c->senders; ++n)
        if (strobe__copies_cuda(c, cudaStreamCreateWithPriority(&c->stream[n], cudaStreamNonBlocking, greatest),
                                "a stream") ||
            strobe__copies_cuda(c, cudaEventCreateWithFlags(&c->done[n], cudaEventDisableTiming), "an event"))
            return 1;
    const char *failure = strobe__dist_cuda_load_copies(c->stream[TAKE]);
    if (failure) return strobe__copies_fail(c, "CUDA: a kernel that copies: %s", failure);
    return strobe__copies_cuda(c, cudaStreamSynchronize(c->stream[TAKE]), "a kernel that copies");
}

/* While processes are watched: streams may wait for one that has ended. */
static void release(struct copies *c) {
    for (int n = 0; n < STREAMS; ++n)
        if (c->stream[n]) (void)cudaStreamSynchronize(c->stream[n]), (void)cudaStreamDestroy(c->stream[n]);
    if (c->shared && c->near_count > 0) atomic_store(&c->shared->has_left[c->number], 1);
    strobe__copies_watch_no_more(c);
    strobe__copies_part(c);
    if (c->ready) (void)cudaEventDestroy(c->ready);
    if (c->left) (void)cudaEventDestroy(c->left);
    for (int n = 0; n < STREAMS; ++n)
        if (c->done[n]) (void)cudaEventDestroy(c->done[n]);
    free(c->near_of), free(c->far), free(c);
}

static strobe_status refuse(strobe_status status, const char *sentence) {
    snprintf(last_error, sizeof last_error, "%s", sentence);
    return status;
}

static strobe_status check(const strobe_transport *base, const strobe_transport *transport) {
    const size_t least = offsetof(strobe_transport, records) + sizeof base->records;
    if (!base) return refuse(STROBE_INVALID_ARGUMENT, "base is NULL; a transport is accepted");
    if (!transport) return refuse(STROBE_INVALID_ARGUMENT, "transport is NULL; a pointer is accepted");
    if (base->struct_size < least || base->size < 1 || base->rank < 0 || base->rank >= base->size || !base->start ||
        !base->wait || base->device != STROBE_CUDA)
        return refuse(STROBE_INVALID_ARGUMENT, "base is no transport for GPUs; one whose device is 1 (CUDA) is accepted");
    if (!base->records || base->records->size != base->size || !base->records->start || !base->records->wait)
        return refuse(STROBE_INVALID_ARGUMENT, "base has no records; a transport by which ranks compare calls is accepted");
    return STROBE_OK;
}

static strobe_status create(struct copies *c) {
    int entered = 0;
    strobe_status status = STROBE_OK;
    const char *failure = strobe__dist_cuda_enter(c->device, &entered);
    if (failure) {
        strobe__copies_fail(c, "device_index is %d; %s", c->device, failure);
        status = STROBE_INVALID_ARGUMENT;
    }
    if (!failure && make_streams(c)) status = STROBE_DEVICE_ERROR;
    c->all_are_near = true; /* of one rank */
    if (c->size > 1) status = strobe__copies_meet(c, status);
    strobe__dist_cuda_leave(c->device, entered);
    return status;
}

strobe_status strobe_dist_copies_create(const strobe_transport *base, int32_t device_index, strobe_transport *transport) {
    strobe_status status = check(base, transport);
    if (status) return status;
    struct copies *c = calloc(1, sizeof *c);
    int16_t *near_of = calloc((size_t)base->size, sizeof *near_of);
    if (!c || !near_of) {
        free(c), free(near_of);
        return refuse(STROBE_OUT_OF_MEMORY, "host memory for the transport could not be allocated");
    }
    for (int32_t rank = 0; rank < base->size; ++rank) near_of[rank] = -1;
    c->base = *base, c->base_records = *base->records, c->near_of = near_of, c->wake = -1;
    c->rank = base->rank, c->size = base->size, c->device = device_index;
    status = create(c);
    if (status) {
        refuse(status, c->text);
        release(c);
        return status;
    }
    c->records = (strobe_transport){.struct_size = sizeof c->records,
                                    .rank = c->rank,
                                    .size = c->size,
                                    .self = c,
                                    .start = strobe__copies_start_records,
                                    .wait = strobe__copies_wait_for_records,
                                    .error = text_of};
    *transport = c->records;
    transport->start = strobe__copies_start, transport->wait = strobe__copies_wait;
    transport->move = strobe__copies_move;
    transport->flags = c->all_are_near ? STROBE_TRANSPORT_BESIDE_KERNELS : 0;
    transport->device = STROBE_CUDA, transport->records = &c->records;
    return STROBE_OK;
}

void strobe_dist_copies_destroy(strobe_transport *transport) {
    if (!transport || transport->wait != strobe__copies_wait) return;
    release(transport->self);
    memset(transport, 0, sizeof *transport);
}

const char *strobe_dist_copies_last_error(void) { return last_error; }
