/* SPDX-License-Identifier: BSD-3-Clause
 *
 * move.c: an exchange, as copies.h says it. Messages from one rank to another are one row of bytes that fills slot after
 * slot, each message from a multiple of 256 bytes on; both sides know the sizes, and so what lies where. */
#include <stdlib.h>
#include <string.h>

#include "copies.h"

enum { ALIGNMENT = 256, MOST_BY_KERNEL = 3 * SLOT_BYTES };

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
static void make_acquire(_Atomic uint32_t *value, CUstreamBatchMemOpParams both[2]) {
    both[0] = (CUstreamBatchMemOpParams){.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32}};
    both[0].waitValue.address = (CUdeviceptr)(uintptr_t)value, both[0].waitValue.value = 1;
    both[0].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    both[1] = write_value(value, 0);
}

static int acquire(struct copies *c, _Atomic uint32_t *value, cudaStream_t stream) {
    CUstreamBatchMemOpParams both[2];
    make_acquire(value, both);
    return stream_values(c, both, 2, stream);
}

static int release(struct copies *c, _Atomic uint32_t *value, cudaStream_t stream) {
    CUstreamBatchMemOpParams one = write_value(value, 1);
    return stream_values(c, &one, 1, stream);
}

/* What is put on a stream together: values, and pieces that one kernel copies. */
static int put_values(struct copies *c, cudaStream_t stream) {
    const unsigned count = c->value_count;
    c->value_count = 0;
    return count > 0 ? stream_values(c, c->value, count, stream) : 0;
}

static int put_pieces(struct copies *c, cudaStream_t stream) {
    const char *failure = strobe__dist_cuda_copy_pieces(c->piece, c->piece_count, stream);
    c->piece_count = 0;
    return failure ? strobe__copies_fail(c, "CUDA: a kernel that copies: %s", failure) : 0;
}

/* Who copies: the engines; a kernel for the pieces of a round; a kernel for the whole exchange, which is launched when all
 * of it has been noted. */
enum mover { BY_ENGINES, BY_KERNELS, IN_ONE_LAUNCH };

static int copy(struct copies *c, void *to, const void *from, size_t bytes, enum mover mover, cudaStream_t stream) {
    if (mover == IN_ONE_LAUNCH) {
        c->exchange.piece[c->exchange.piece_count++] = (struct copied_piece){to, from, (uint32_t)bytes, 0};
        return 0;
    }
    if (mover == BY_ENGINES)
        return strobe__copies_cuda(c, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "a copy");
    c->piece[c->piece_count++] = (struct copied_rows){to, from, bytes};
    return c->piece_count == MOST_PIECES ? put_pieces(c, stream) : 0;
}

/* Copies messages into a slot, or out of one, until it is full or there are no more. */
static int copy_slot(struct copies *c, const struct side *side, struct near *n, enum mover mover, cudaStream_t stream) {
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
        failed = copy(c, to, from, bytes, mover, stream);
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

/* Of the slot of a pair that is next: what is waited for before it is filled or emptied, and what is said afterwards. */
static void values_of(const struct copies *c, const struct side *side, const struct near *n, _Atomic uint32_t **before,
                      _Atomic uint32_t **after) {
    struct channel *channel = side->sends ? &c->on_device[c->number * MOST_NEAR + n->number]
                                          : &c->on_device[n->number * MOST_NEAR + c->number];
    const int slot = side->sends ? n->send_slot : n->take_slot;
    *before = side->sends ? &channel->empty[slot] : &channel->full[slot];
    *after = side->sends ? &channel->full[slot] : &channel->empty[slot];
}

static void count_slot(const struct side *side, struct near *n) {
    int *slot = side->sends ? &n->send_slot : &n->take_slot;
    *slot = (*slot + 1) % SLOTS;
}

static bool has_more(struct side *side, struct near *n) {
    return n->reached && find(side, n->rank, side->sends ? &n->send_at : &n->take_at);
}

/* A round of sends by copy engines, from the first near rank to the last. What goes to one rank stays on one stream. */
static int send_by_engines(struct copies *c, bool *moved) {
    for (int32_t k = 0; k < c->near_count; ++k) {
        struct near *n = &c->near[k];
        const int number = SEND + k % c->senders;
        _Atomic uint32_t *before, *after;
        if (!has_more(&c->send_side, n)) continue;
        *moved = true;
        values_of(c, &c->send_side, n, &before, &after);
        if (use(c, number) || acquire(c, before, c->stream[number]) ||
            copy_slot(c, &c->send_side, n, BY_ENGINES, c->stream[number]) || release(c, after, c->stream[number]))
            return 1;
        count_slot(&c->send_side, n);
    }
    return 0;
}

/* A round of one side by a kernel, all ranks together: on the call's stream, or on TAKE, beside it. */
static int move_by_kernel(struct copies *c, struct side *side, bool *moved, cudaStream_t stream) {
    _Atomic uint32_t *before, *after;
    struct near *taken[MOST_NEAR];
    int32_t count = 0;
    for (int32_t k = 0; k < c->near_count; ++k) {
        struct near *n = &c->near[k];
        if (!has_more(side, n)) continue;
        taken[count++] = n;
        values_of(c, side, n, &before, &after);
        make_acquire(before, &c->value[c->value_count]), c->value_count += 2;
    }
    if (count == 0) return 0;
    *moved = true;
    if ((stream == c->stream[TAKE] && use(c, TAKE)) || put_values(c, stream)) return 1;
    for (int32_t k = 0; k < count; ++k)
        if (copy_slot(c, side, taken[k], BY_KERNELS, stream)) return 1;
    if (put_pieces(c, stream)) return 1;
    for (int32_t k = 0; k < count; ++k) { /* with what the next round waits for, or by themselves at the end */
        values_of(c, side, taken[k], &before, &after);
        c->value[c->value_count++] = write_value(after, 1);
        count_slot(side, taken[k]);
    }
    return 0;
}

/* All rounds, on the call's stream by kernels, or beside it. */
static int move_near(struct copies *c, bool beside, cudaStream_t stream) {
    const cudaStream_t takes = beside ? c->stream[TAKE] : stream;
    int failed = 0;
    c->value_count = 0, c->piece_count = 0;
    for (int32_t k = 0; k < c->near_count; ++k) c->near[k].send_at = c->near[k].take_at = 0;
    bool moved = true;
    for (int64_t round = 0; moved && !failed; ++round) {
        moved = round == 0;
        failed = beside ? send_by_engines(c, &moved) : move_by_kernel(c, &c->send_side, &moved, stream);
        if (round > 0 && !failed) failed = move_by_kernel(c, &c->take_side, &moved, takes);
    }
    return failed ? failed : put_values(c, takes);
}

/* Notes one side's steps, round after round. */
static void note_side(struct copies *c, struct side *side) {
    struct exchange_params *x = &c->exchange;
    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t k = 0; k < c->near_count; ++k) {
            struct near *n = &c->near[side->sends ? k : c->near_count - 1 - k];
            _Atomic uint32_t *before, *after;
            if (!has_more(side, n)) continue;
            moved = true;
            values_of(c, side, n, &before, &after);
            struct exchange_step *step = &x->step[x->fills + x->empties];
            *step = (struct exchange_step){(uint32_t *)before, (uint32_t *)after, (uint16_t)x->piece_count, 0, 0};
            (void)copy_slot(c, side, n, IN_ONE_LAUNCH, NULL);
            step->pieces = (uint16_t)(x->piece_count - step->first_piece);
            ++*(side->sends ? &x->fills : &x->empties);
            count_slot(side, n);
        }
    }
}

/* All of it by one kernel, which waits for values itself. */
static int move_in_one_launch(struct copies *c, cudaStream_t stream) {
    struct exchange_params *x = &c->exchange;
    x->may_go = c->may_go, x->done = c->counts, x->fills = x->empties = x->piece_count = 0;
    for (int32_t k = 0; k < c->near_count; ++k) c->near[k].send_at = c->near[k].take_at = 0;
    note_side(c, &c->send_side), note_side(c, &c->take_side);
    const char *failure = strobe__dist_cuda_exchange(x, stream);
    return failure ? strobe__copies_fail(c, "CUDA: a kernel that exchanges messages: %s", failure) : 0;
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

/* An exchange comes after the one before, on whatever stream that was. What went beside its stream is on the transport's own
 * and has been waited for by that one alone. What a graph has captured is the caller's to order. */
static int follow(struct copies *c, cudaStream_t stream) {
    int failed = 0;
    if (!c->has_left || c->last == stream || strobe__dist_cuda_is_captured(stream)) return 0;
    if (!c->was_beside) return strobe__copies_cuda(c, cudaStreamWaitEvent(stream, c->left, 0), "an event");
    for (int n = 0; n < STREAMS && !failed; ++n)
        failed = c->is_used[n] && strobe__copies_cuda(c, cudaStreamWaitEvent(stream, c->done[n], 0), "an event");
    return failed;
}

static int leave(struct copies *c, bool beside, cudaStream_t stream) {
    c->last = stream, c->has_left = !strobe__dist_cuda_is_captured(stream), c->was_beside = beside;
    return c->has_left && !beside ? strobe__copies_cuda(c, cudaEventRecord(c->left, stream), "an event") : 0;
}

/* Takes the lists, and starts what base moves. */
static int begin(struct copies *c, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                 int64_t receive_count, void *stream) {
    c->send_side = (struct side){sends, send_count, true}, c->take_side = (struct side){receives, receive_count, false};
    const int64_t near_sends = count_near(c, &c->send_side), near_receives = count_near(c, &c->take_side);
    c->base_moves = near_sends + near_receives < send_count + receive_count;
    c->copies_move = near_sends + near_receives > 0;
    if (strobe__copies_gone(c) || (c->copies_move && follow(c, stream))) return 1;
    return c->base_moves ? start_far(c, send_count - near_sends, receive_count - near_receives, stream) : 0;
}

/* What goes by copy engines is put on streams when it is waited for: by then the host has launched the kernels beside which
 * it goes, and has not kept the GPU waiting for them. */
int strobe__copies_start(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                         int64_t receive_count, void *stream) {
    struct copies *c = self;
    if (begin(c, sends, send_count, receives, receive_count, stream)) return 1;
    return c->copies_move ? strobe__copies_cuda(c, cudaEventRecord(c->ready, stream), "an event") : 0;
}

int strobe__copies_wait(void *self, void *stream) {
    struct copies *c = self;
    for (int n = 0; n < STREAMS; ++n) c->is_used[n] = false;
    if (c->copies_move && move_near(c, true, stream)) return 1;
    if (c->base_moves && c->base.wait(c->base.self, stream)) return base_failed(c);
    for (int n = 0; n < STREAMS; ++n)
        if (c->is_used[n] && (strobe__copies_cuda(c, cudaEventRecord(c->done[n], c->stream[n]), "an event") ||
                              strobe__copies_cuda(c, cudaStreamWaitEvent(stream, c->done[n], 0), "an event")))
            return 1;
    if (c->copies_move && leave(c, !c->base_moves, stream)) return 1;
    return strobe__copies_gone(c);
}

/* Whether one launch has room for an exchange, of which every slot is used once at most: its messages, each of which may go
 * on in the next slot. */
static bool fits_one_launch(const struct copies *c) {
    const struct side *const sides[2] = {&c->send_side, &c->take_side};
    int64_t steps = 0, pieces = 0;
    for (int s = 0; s < 2; ++s)
        for (int32_t k = 0; k < c->near_count; ++k) {
            size_t used = 0;
            for (int64_t n = 0; n < sides[s]->count; ++n) {
                if (sides[s]->list[n].peer != c->near[k].rank) continue;
                used += (sides[s]->list[n].bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, ++pieces;
            }
            const int64_t slots = (int64_t)((used + SLOT_BYTES - 1) / SLOT_BYTES);
            if (slots > SLOTS) return false;
            steps += slots, pieces += slots;
        }
    return steps <= EXCHANGED_STEPS && pieces <= COPIED_PIECES;
}

static size_t bytes_near(const struct copies *c, const struct side *side) {
    size_t bytes = 0;
    for (int64_t n = 0; n < side->count; ++n)
        if (c->near_of[side->list[n].peer] >= 0) bytes += side->list[n].bytes;
    return bytes;
}

/* Long messages go by engines even so: they fill one slot while another is emptied. */
int strobe__copies_move(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                        int64_t receive_count, void *stream) {
    struct copies *c = self;
    const struct side out = {sends, send_count, true}, in = {receives, receive_count, false};
    if (bytes_near(c, &out) > MOST_BY_KERNEL || bytes_near(c, &in) > MOST_BY_KERNEL)
        return strobe__copies_start(self, sends, send_count, receives, receive_count, stream) ||
               strobe__copies_wait(self, stream);
    if (begin(c, sends, send_count, receives, receive_count, stream)) return 1;
    if (c->copies_move && (c->counts && fits_one_launch(c) ? move_in_one_launch(c, stream) : move_near(c, false, stream)))
        return 1;
    if (c->base_moves && c->base.wait(c->base.self, stream)) return base_failed(c);
    if (c->copies_move && leave(c, false, stream)) return 1;
    return strobe__copies_gone(c);
}
