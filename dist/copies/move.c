/* SPDX-License-Identifier: BSD-3-Clause
 *
 * move.c: an exchange, as copies.h says it. Messages from one rank to another are one row of bytes that fills slot after
 * slot, each message from a multiple of 256 bytes on; both sides know the sizes, and so what lies where. */
#include <stdlib.h>
#include <string.h>

#include "copies.h"

enum { ALIGNMENT = 256 };

/* Finds the next message of a rank; false when there is none. */
static bool find(const struct side *side, int32_t rank, int64_t *at) {
    while (*at < side->count && side->list[*at].peer != rank) ++*at;
    return *at < side->count;
}

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
static int copy_slot(struct copies *c, const struct side *side, struct near *n, cudaStream_t stream) {
    int64_t *at = side->sends ? &n->send_at : &n->take_at;
    size_t *done = side->sends ? &n->send_done : &n->take_done, used = 0;
    unsigned char *slot = side->sends ? n->landing + (size_t)n->send_slot * SLOT_BYTES
                                      : n->own + (size_t)n->take_slot * SLOT_BYTES;
    int failed = 0;
    while (!failed && used < SLOT_BYTES && find(side, n->rank, at)) {
        const strobe_message *m = &side->list[*at];
        const size_t left = m->bytes - *done, bytes = left < SLOT_BYTES - used ? left : SLOT_BYTES - used;
        unsigned char *own = (unsigned char *)m->data + *done, *to = side->sends ? slot + used : own;
        const unsigned char *from = side->sends ? own : slot + used;
        failed = strobe__copies_cuda(c, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "a copy");
        *done += bytes, used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        if (*done == m->bytes) ++*at, *done = 0;
    }
    return failed;
}

/* A stream that the exchange has not used yet begins when the call's has come to its start. */
static int use(struct copies *c, int number) {
    if (c->is_used[number]) return 0;
    c->is_used[number] = true;
    return strobe__copies_cuda(c, cudaStreamWaitEvent(c->stream[number], c->ready, 0), "an event");
}

static int move_slot(struct copies *c, const struct side *side, struct near *n) {
    struct channel *channel = side->sends ? &c->on_device[c->number * MOST_NEAR + n->number]
                                          : &c->on_device[n->number * MOST_NEAR + c->number];
    int *slot = side->sends ? &n->send_slot : &n->take_slot;
    const int number = side->sends ? SEND : TAKE;
    cudaStream_t stream = c->stream[number];
    _Atomic uint32_t *before = side->sends ? &channel->empty[*slot] : &channel->full[*slot],
                     *after = side->sends ? &channel->full[*slot] : &channel->empty[*slot];
    if (use(c, number) || acquire(c, before, stream) || copy_slot(c, side, n, stream)) return 1;
    *slot = (*slot + 1) % SLOTS;
    return release(c, after, stream);
}

/* All rounds. */
static int move_near(struct copies *c) {
    int failed = 0;
    for (int32_t k = 0; k < c->near_count; ++k) c->near[k].send_at = c->near[k].take_at = 0;
    bool moves = true;
    for (int64_t round = 0; moves && !failed; ++round) {
        moves = round == 0;
        for (int32_t k = 0; k < c->near_count && !failed; ++k) {
            struct near *n = &c->near[k];
            if (!n->reached || !find(&c->send_side, n->rank, &n->send_at)) continue;
            moves = true, failed = move_slot(c, &c->send_side, n);
        }
        for (int32_t k = c->near_count - 1; round > 0 && k >= 0 && !failed; --k) {
            struct near *n = &c->near[k];
            if (!n->reached || !find(&c->take_side, n->rank, &n->take_at)) continue;
            moves = true, failed = move_slot(c, &c->take_side, n);
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

static int base_failed(struct copies *c) {
    const char *text = c->base.error ? c->base.error(c->base.self) : NULL;
    return strobe__copies_fail(c, "%s", text ? text : "the transport below does not say why");
}

/* Messages of ranks that are not near, by base. */
static int start_far(struct copies *c, int64_t far_sends, int64_t far_receives, void *stream) {
    const struct side *sides[2] = {&c->send_side, &c->take_side};
    if (far_sends + far_receives > c->far_capacity) {
        strobe_message *more = realloc(c->far, (size_t)(far_sends + far_receives) * sizeof *more);
        if (!more) return strobe__copies_fail(c, "host memory for messages could not be allocated");
        c->far = more, c->far_capacity = far_sends + far_receives;
    }
    int64_t at = 0;
    for (int side = 0; side < 2; ++side)
        for (int64_t n = 0; n < sides[side]->count; ++n)
            if (c->near_of[sides[side]->list[n].peer] < 0) c->far[at++] = sides[side]->list[n];
    return c->base.start(c->base.self, c->far, far_sends, c->far + far_sends, far_receives, stream) ? base_failed(c) : 0;
}

/* What goes by copy engines is put on streams when it is waited for: by then the host has launched the kernels beside which
 * it goes, and has not kept the GPU waiting for them. */
int strobe__copies_start(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                         int64_t receive_count, void *stream) {
    struct copies *c = self;
    c->send_side = (struct side){sends, send_count, true}, c->take_side = (struct side){receives, receive_count, false};
    const int64_t near_sends = count_near(c, &c->send_side), near_receives = count_near(c, &c->take_side);
    c->base_moves = near_sends + near_receives < send_count + receive_count;
    c->copies_move = near_sends + near_receives > 0;
    if (strobe__copies_gone(c)) return 1;
    if (c->base_moves && start_far(c, send_count - near_sends, receive_count - near_receives, stream)) return 1;
    return c->copies_move ? strobe__copies_cuda(c, cudaEventRecord(c->ready, stream), "an event") : 0;
}

int strobe__copies_wait(void *self, void *stream) {
    struct copies *c = self;
    for (int n = 0; n < STREAMS; ++n) c->is_used[n] = false;
    if (c->copies_move && move_near(c)) return 1;
    if (c->base_moves && c->base.wait(c->base.self, stream)) return base_failed(c);
    for (int n = 0; n < STREAMS; ++n)
        if (c->is_used[n] && (strobe__copies_cuda(c, cudaEventRecord(c->done[n], c->stream[n]), "an event") ||
                              strobe__copies_cuda(c, cudaStreamWaitEvent(stream, c->done[n], 0), "an event")))
            return 1;
    return strobe__copies_gone(c);
}
