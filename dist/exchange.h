/* SPDX-License-Identifier: BSD-3-Clause
 *
 * exchange.h: one exchange of the transport: messages are collected, started, waited for. */
#ifndef STROBE_DIST_EXCHANGE_H
#define STROBE_DIST_EXCHANGE_H

#include "dist.h"

struct exchange {
    const strobe_transport *t;
    void *stream;                     /* the call's */
    strobe_message *sends, *receives; /* as many as were made room for */
    int64_t send_count, receive_count;
};

/* Room for so many messages each way; false where memory has run out. */
bool strobe__exchange_make(struct exchange *x, const strobe_transport *t, void *stream, int64_t capacity);
void strobe__exchange_free(struct exchange *x);

/* A message; none where bytes is 0. Its memory must not move until strobe__exchange_wait. */
void strobe__exchange_send(struct exchange *x, int32_t rank, const void *data, size_t bytes);
void strobe__exchange_receive(struct exchange *x, int32_t rank, void *data, size_t bytes);

/* Without messages both do nothing. After waiting the exchange is empty again. alone: nothing goes beside it, and a
 * transport that can move it at once does so; waiting then does nothing. */
strobe_status strobe__exchange_start(struct exchange *x, bool alone);
strobe_status strobe__exchange_wait(struct exchange *x);

#endif
