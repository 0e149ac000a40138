/* SPDX-License-Identifier: BSD-3-Clause
 *
 * records.c: what calls are compared by, between near ranks through mailboxes in the shared file, without the GPU; others'
 * go by base's records. Starting waits for nobody: what finds a mailbox full is put there while the exchange is waited for.
 */
#include <sched.h>
#include <string.h>

#include "copies.h"

static const char *text_of(const strobe_transport *t) {
    const char *text = t->error ? t->error(t->self) : NULL;
    return text ? text : "the transport below does not say why";
}

int strobe__copies_start_records(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                                 int64_t receive_count, void *stream) {
    struct copies *c = self;
    strobe_message far[sizeof c->kept / sizeof *c->kept];
    int64_t far_sends = 0, far_all = 0;
    const int64_t most = sizeof c->kept / sizeof *c->kept;
    if (send_count + receive_count > most) return strobe__copies_fail(c, "an exchange has more than %d records", (int)most);
    for (int64_t n = 0; n < send_count + receive_count; ++n) {
        c->kept[n] = n < send_count ? sends[n] : receives[n - send_count];
        c->record_done[n] = c->near_of[c->kept[n].peer] < 0;
        if (c->kept[n].bytes > RECORD_BYTES)
            return strobe__copies_fail(c, "a record has more than %d bytes", (int)RECORD_BYTES);
        if (c->record_done[n]) far[far_all++] = c->kept[n], far_sends += n < send_count;
    }
    c->record_send_count = send_count, c->record_receive_count = receive_count;
    c->base_records_move = far_all > 0;
    if (far_all == 0) return 0;
    const strobe_transport *b = &c->base_records;
    if (!b->start(b->self, far, far_sends, far + far_sends, far_all - far_sends, stream)) return 0;
    return strobe__copies_fail(c, "%s", text_of(b));
}

/* Whether a record before this one, of the same rank and side, is still on its way. */
static bool is_behind(const struct copies *c, int64_t n) {
    for (int64_t m = n < c->record_send_count ? 0 : c->record_send_count; m < n; ++m)
        if (!c->record_done[m] && c->kept[m].peer == c->kept[n].peer) return true;
    return false;
}

/* Puts a record into its mailbox, or takes it out of one; 0 when that is not possible yet, and -1 for a failure. */
static int move_record(struct copies *c, int64_t n) {
    const strobe_message *m = &c->kept[n];
    const bool sends = n < c->record_send_count;
    const int32_t peer = c->near[c->near_of[m->peer]].number;
    struct mailbox *box = sends ? &c->shared->mailbox[c->number][peer] : &c->shared->mailbox[peer][c->number];
    const uint32_t written = atomic_load_explicit(&box->written, memory_order_acquire),
                   read = atomic_load_explicit(&box->read, memory_order_acquire);
    if (sends ? written - read == DEEP : written == read) return 0;
    const uint32_t at = (sends ? written : read) % DEEP;
    if (sends) {
        memcpy(box->record[at], m->data, m->bytes), box->bytes[at] = (uint32_t)m->bytes;
        atomic_store_explicit(&box->written, written + 1, memory_order_release);
        return 1;
    }
    if (box->bytes[at] != m->bytes) {
        strobe__copies_fail(c, "a record of %zu bytes is expected from rank %d, which sends %u", m->bytes, m->peer,
                            box->bytes[at]);
        return -1;
    }
    memcpy(m->data, box->record[at], m->bytes);
    atomic_store_explicit(&box->read, read + 1, memory_order_release);
    return 1;
}

int strobe__copies_wait_for_records(void *self, void *stream) {
    struct copies *c = self;
    for (bool waits = true; waits;) {
        bool moved = false;
        waits = false;
        for (int64_t n = 0; n < c->record_send_count + c->record_receive_count; ++n) {
            if (c->record_done[n]) continue;
            const int done = is_behind(c, n) ? 0 : move_record(c, n);
            if (done < 0) return 1;
            c->record_done[n] = done, moved |= done, waits |= !done;
        }
        if (waits && strobe__copies_gone(c)) return 1;
        if (waits && !moved) sched_yield();
    }
    const strobe_transport *b = &c->base_records;
    if (!c->base_records_move || !b->wait(b->self, stream)) return 0;
    return strobe__copies_fail(c, "%s", text_of(b));
}
