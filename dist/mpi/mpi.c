/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mpi.c: strobe_dist_mpi.h. MPI counts in int, so that a large message is several. */
#include "state.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 1 << 30 };

static int failed(struct mpi *s, int code) {
    int length = 0;
    if (code == MPI_SUCCESS) return 0;
    if (MPI_Error_string(code, s->text, &length) != MPI_SUCCESS) strcpy(s->text, "an error without a text");
    return 1;
}

static int count_of(const strobe_message *messages, int64_t count) {
    int pieces = 0;
    for (int64_t n = 0; n < count; ++n) pieces += (int)((messages[n].bytes + MOST_BYTES - 1) / MOST_BYTES);
    return pieces;
}

static int begin(struct mpi *s, const strobe_message *message, int receives) {
    char *at = message->data;
    for (size_t left = message->bytes; left > 0;) {
        const int bytes = left < MOST_BYTES ? (int)left : MOST_BYTES;
        MPI_Request *request = &s->requests[s->count];
        const int code = receives ? MPI_Irecv(at, bytes, MPI_BYTE, message->peer, STROBE_DIST_MPI_TAG, s->comm, request)
                                  : MPI_Isend(at, bytes, MPI_BYTE, message->peer, STROBE_DIST_MPI_TAG, s->comm, request);
        if (failed(s, code)) return 1;
        ++s->count, at += bytes, left -= (size_t)bytes;
    }
    return 0;
}

int strobe__mpi_start(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                      int64_t receive_count, void *stream) {
    struct mpi *s = self;
    const int needed = count_of(sends, send_count) + count_of(receives, receive_count);
    (void)stream;
    if (needed > s->capacity) {
        MPI_Request *more = realloc(s->requests, (size_t)needed * sizeof *more);
        if (!more) {
            strcpy(s->text, "no memory for the requests of an exchange");
            return 1;
        }
        s->requests = more, s->capacity = needed;
    }
    s->count = 0;
    for (int64_t n = 0; n < receive_count; ++n)
        if (begin(s, &receives[n], 1)) return 1;
    for (int64_t n = 0; n < send_count; ++n)
        if (begin(s, &sends[n], 0)) return 1;
    return 0;
}

int strobe__mpi_wait(void *self, void *stream) {
    struct mpi *s = self;
    (void)stream;
    return failed(s, MPI_Waitall(s->count, s->requests, MPI_STATUSES_IGNORE));
}

static const char *text_of(void *self) { return ((struct mpi *)self)->text; }

strobe_status strobe_dist_mpi_create(const void *communicator, strobe_transport *transport) {
    int initialised = 0, rank, size;
    if (!communicator || !transport || MPI_Initialized(&initialised) != MPI_SUCCESS || !initialised)
        return STROBE_INVALID_ARGUMENT;
    struct mpi *s = calloc(1, sizeof *s);
    if (!s) return STROBE_OUT_OF_MEMORY;
    memcpy(&s->comm, communicator, sizeof s->comm);
    if (MPI_Comm_rank(s->comm, &rank) != MPI_SUCCESS || MPI_Comm_size(s->comm, &size) != MPI_SUCCESS) {
        free(s);
        return STROBE_INVALID_ARGUMENT;
    }
    *transport = (strobe_transport){.struct_size = sizeof *transport,
                                    .rank = rank,
                                    .size = size,
                                    .self = s,
                                    .start = strobe__mpi_start,
                                    .wait = strobe__mpi_wait,
                                    .error = text_of};
    return STROBE_OK;
}

void strobe_dist_mpi_destroy(strobe_transport *transport) {
    if (!transport || transport->error != text_of) return;
    struct mpi *s = transport->self;
    if (s->gpu) strobe__mpi_release_gpu(s->gpu);
    free(s->requests);
    free(s);
    memset(transport, 0, sizeof *transport);
}
