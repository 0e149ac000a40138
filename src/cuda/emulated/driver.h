/* SPDX-License-Identifier: BSD-3-Clause
 *
 * driver.h: what the emulated runtime takes from the emulated driver. */
#ifndef STROBE_CUDA_EMULATED_DRIVER_H
#define STROBE_CUDA_EMULATED_DRIVER_H

#include <cuda.h>

#include "cuda/emulated/machine.h"

#undef cuEventElapsedTime /* programs ask for the older one by name */
#define SEEN __attribute__((visibility("default")))

/* The environment's number of that name. */
long emulated_setting(const char *name, long by_default);

int emulated_device_count(void);
struct CUctx_st *emulated_primary_context(int device);
/* The thread's, NULL if it has none. */
struct CUctx_st *emulated_current_context(void);
void emulated_set_context(struct CUctx_st *context);
int emulated_device_of_context(const struct CUctx_st *context);
/* As the runtime does it: a thread without a context gets the primary one of the device that it has chosen. */
int emulated_current_device(void);
extern __thread int emulated_chosen_device;

/* NULL without memory. */
void *emulated_allocate(size_t bytes, int device);
bool emulated_release(void *data);
/* Whose memory it is: a device's number, or one of the names below. */
int emulated_device_of(const void *pointer);
enum { EMULATED_NOBODY = -1, EMULATED_PINNED = -2 }; /* memory of the host that the runtime has made */

/* An allocation's pages as a file that other processes can open; the file is the allocation's, and closed with it. */
struct emulated_pages {
    int file;
    size_t begin, bytes, pages_bytes;
};
bool emulated_share(const void *data, struct emulated_pages *pages);
/* Mapped pages of another process become an allocation of this one. NULL without memory. */
void *emulated_adopt(void *pages, size_t pages_bytes, size_t begin, size_t bytes, int device);

/* What is put on a stream. */
struct step {
    enum { LAUNCH, FILL, COPY, CALL, RECORD, AWAIT, GRAPH, AWAIT_VALUE, STORE_VALUE } what;
    const struct emulated_kernel *kernel;
    void *arguments[EMULATED_MOST_ARGUMENTS];
    struct emulated_index ctas, threads;
    size_t shared_bytes;
    unsigned char *to;
    const unsigned char *from;
    size_t bytes, pitch, rows;
    int byte;
    void (*function)(void *data); /* of the host */
    void *data;
    struct CUevent_st *event;
    uint64_t number; /* of the event's records; or the value at `to` */
    struct CUgraph_st *graph;
    struct step *next;
};

/* Does a step: at once, by the stream's own thread, or when the graph runs for which the stream is captured. The step and
 * its arguments are copied. 0, or an error's number. */
int emulated_submit(struct CUstream_st *stream, const struct step *s);
/* The same of a launch, if the device takes it. */
int emulated_launch(const struct emulated_kernel *kernel, struct emulated_index ctas, struct emulated_index threads,
                    void **arguments, size_t shared_bytes, struct CUstream_st *stream);
bool emulated_is_capturing(const struct CUstream_st *stream);
/* Until the streams of a context have done what they were given; with device, where context is NULL, those of a device. */
void emulated_drain(const struct CUctx_st *context, int device, bool blocking_alone);
/* As the legacy default stream does it: after the blocking streams, before what comes later. */
void emulated_drain_blocking(void);

#endif
