/* SPDX-License-Identifier: BSD-3-Clause
 *
 * move.c: an exchange, as copies.h says it. Messages from one rank to another are one row of bytes that fills slot after
 * slot, each message from a multiple of 256 bytes on; both sides know the sizes, and so what lies where. */
#include <stdlib.h>
#include <string.h>

#include "copies.h"

enum { ALIGNMENT = 256 };

/* One side of an exchange. */
struct side {
    const strobe_message *list;
    int64_t count;
    bool sends;
};

/* Finds the next message of a rank; false when there is none. */
static bool find(const struct side *side, int32_t rank, int64_t *at) {
    while (*at < side->count && side->list[*at].peer != rank) ++*at;
    return *at < side->count;
}

static struct channel *channel(struct copies *c, int32_t from, int32_t to) { return &c->on_device[from * MOST_NEAR + to]; }

static int stream_values(struct copies *c, CUstreamBatchMemOpParams *values, unsigned count, cudaStream_t stream) {
    const CUresult error = c->stream_values(stream, count, values, 0);
    return error ? strobe__copies_fail(c, "CUDA: a stream takes no value to wait for or to write (error %d)", (int)error)
                 : 0;
}

static CUstreamBatchMemOpParams write_value(_Atomic uint32_t *value, uint32_t number) {
    CUstreamBatchMemOpParams p;
    memset(&p, 0, sizeof p);
    p.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    p.writeValue.address = (CUdeviceptr)(uintptr_t)value, p.writeValue.value = number;
    return p;
}

/* The stream waits until a value is 1, and sets it to 0. */
static int acquire(struct copies *c, _Atomic uint32_t *value, cudaStream_t stream) {
    CUstreamBatchMemOpParams both[2] = {{.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32}}, write_value(value, 0)};
    both[0].waitValue.address = (CUdeviceptr)(uintptr_t)value, both[0].waitValue.value = 1;
    both[0].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    return stream_values(c, both, 2, stream);
}

static int release(struct copies *c, _Atomic uint32_t *value, cudaStream_t stream) {
    CUstreamBatchMemOpParams one = write_value(value, 1);
    return stream_values(c, &one, 1, stream);
}

/* Copies messages into a slot, or out of one, until it is full or there are no more. */
static int copy_slot(struct copies *c, const struct side *side, struct near *n) {
    int64_t *at = side->sends ? &n->send_at : &n->take_at;
    size_t *done = side->sends ? &n->send_done : &n->take_done, used = 0;
    unsigned char *slot = side->sends ? n->landing + (size_t)n->send_slot * SLOT_BYTES
                                      : n->own + (size_t)n->take_slot * SLOT_BYTES;
    int failed = 0;
    while (!failed && used < SLOT_BYTES && find(side, n->rank, at)) {
        const strobe_message *m = &side->list[*at];
        const size_t left = m->bytes - *done, bytes = left < SLOT_BYTES - used ? left : SLOT_BYTES - used;
        unsigned char *own = (unsigned char *)m->data + *done;
        failed = strobe__copies_cuda(c,
                                     cudaMemcpyAsync(side->sends ? slot + used : own, side->sends ? own : slot + used, bytes,
                                                     cudaMemcpyDeviceToDevice, side->sends ? c->send : c->take),
                                     "a copy");
        *done += bytes, used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        if (*done == m->bytes) ++*at, *done = 0;
    }
    return failed;
}

static int send_slot(struct copies *c, const struct side *side, struct near *n) {
    struct channel *to = channel(c, c->number, n->number);
    const int slot = n->send_slot;
    if (acquire(c, &to->empty[slot], c->send) || copy_slot(c, side, n)) return 1;
    n->send_slot = (slot + 1) % SLOTS;
    return release(c, &to->full[slot], c->send);
}

static int take_slot(struct copies *c, const struct side *side, struct near *n) {
    struct channel *from = channel(c, n->number, c->number);
    const int slot = n->take_slot;
    if (acquire(c, &from->full[slot], c->take) || copy_slot(c, side, n)) return 1;
    n->take_slot = (slot + 1) % SLOTS;
    return release(c, &from->empty[slot], c->take);
}

/* All rounds. */
static int move_near(struct copies *c, const struct side *sends, const struct side *receives) {
    int failed = 0;
    for (int32_t k = 0; k < c->near_count; ++k) c->near[k].send_at = c->near[k].take_at = 0;
    bool moves = true;
    for (int64_t round = 0; moves && !failed; ++round) {
        moves = round == 0;
        for (int32_t k = 0; k < c->near_count && !failed; ++k) {
            struct near *n = &c->near[k];
            if (n->reached && find(sends, n->rank, &n->send_at)) moves = true, failed = send_slot(c, sends, n);
        }
        for (int32_t k = c->near_count - 1; round > 0 && k >= 0 && !failed; --k) {
            struct near *n = &c->near[k];
            if (n->reached && find(receives, n->rank, &n->take_at)) moves = true, failed = take_slot(c, receives, n);
        }
    }
    return failed;
}

/* How many messages of a list are near ranks'. */
static int64_t count_near(const struct copies *c, const struct side *side) {
    int64_t count = 0;
    for (int64_t n = 0; n < side->count; ++n) count += c->near_of[side->list[n].peer] >= 0;
    return count;
}

/* Those of the others, for base. */
static int start_far(struct copies *c, const struct side *sends, const struct side *receives, int64_t far_sends,
                     int64_t far_receives, void *stream) {
    if (far_sends + far_receives > c->far_capacity) {
        strobe_message *more = realloc(c->far, (size_t)(far_sends + far_receives) * sizeof *more);
        if (!more) return strobe__copies_fail(c, "host memory for messages could not be allocated");
        c->far = more, c->far_capacity = far_sends + far_receives;
    }
    int64_t at = 0;
    for (int64_t n = 0; n < sends->count; ++n)
        if (c->near_of[sends->list[n].peer] < 0) c->far[at++] = sends->list[n];
    for (int64_t n = 0; n < receives->count; ++n)
        if (c->near_of[receives->list[n].peer] < 0) c->far[at++] = receives->list[n];
    c->base_moves = true;
    if (!c->base.start(c->base.self, c->far, far_sends, c->far + far_sends, far_receives, stream)) return 0;
    return strobe__copies_fail(c, "%s",
                               c->base.error ? c->base.error(c->base.self) : "the transport below does not say why");
}

int strobe__copies_start(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                         int64_t receive_count, void *stream) {
    struct copies *c = self;
    const struct side out = {sends, send_count, true}, in = {receives, receive_count, false};
    const int64_t near_sends = count_near(c, &out), near_receives = count_near(c, &in);
    c->base_moves = false, c->has_sent = near_sends > 0, c->has_taken = near_receives > 0;
    if (strobe__copies_gone(c)) return 1;
    if (send_count + receive_count > near_sends + near_receives &&
        start_far(c, &out, &in, send_count - near_sends, receive_count - near_receives, stream))
        return 1;
    if (!c->has_sent && !c->has_taken) return 0;
    return strobe__copies_cuda(c, cudaEventRecord(c->ready, stream), "an event") ||
           (c->has_sent && strobe__copies_cuda(c, cudaStreamWaitEvent(c->send, c->ready, 0), "an event")) ||
           (c->has_taken && strobe__copies_cuda(c, cudaStreamWaitEvent(c->take, c->ready, 0), "an event")) ||
           move_near(c, &out, &in) ||
           (c->has_sent && strobe__copies_cuda(c, cudaEventRecord(c->sent, c->send), "an event")) ||
           (c->has_taken && strobe__copies_cuda(c, cudaEventRecord(c->taken, c->take), "an event"));
}

int strobe__copies_wait(void *self, void *stream) {
    struct copies *c = self;
    if (c->base_moves && c->base.wait(c->base.self, stream))
        return strobe__copies_fail(c, "%s",
                                   c->base.error ? c->base.error(c->base.self) : "the transport below does not say why");
    return (c->has_sent && strobe__copies_cuda(c, cudaStreamWaitEvent(stream, c->sent, 0), "an event")) ||
           (c->has_taken && strobe__copies_cuda(c, cudaStreamWaitEvent(stream, c->taken, 0), "an event")) ||
           strobe__copies_gone(c);
}
