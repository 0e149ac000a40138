/* SPDX-License-Identifier: BSD-3-Clause
 *
 * exchange.c: see exchange.h. */
#include "exchange.h"

#include <stdlib.h>

bool strobe__exchange_make(struct exchange *x, const strobe_transport *t, void *stream, int64_t capacity) {
    *x = (struct exchange){.t = t, .stream = stream};
    x->sends = malloc((size_t)capacity * sizeof *x->sends);
    x->receives = malloc((size_t)capacity * sizeof *x->receives);
    return x->sends && x->receives;
}

void strobe__exchange_free(struct exchange *x) {
    free(x->sends), free(x->receives);
    x->sends = x->receives = NULL;
}

void strobe__exchange_send(struct exchange *x, int32_t rank, const void *data, size_t bytes) {
    if (bytes == 0) return;
    x->sends[x->send_count++] = (strobe_message){.data = (void *)(uintptr_t)data, .bytes = bytes, .peer = rank};
}

void strobe__exchange_receive(struct exchange *x, int32_t rank, void *data, size_t bytes) {
    if (bytes == 0) return;
    x->receives[x->receive_count++] = (strobe_message){.data = data, .bytes = bytes, .peer = rank};
}

static strobe_status failed(const struct exchange *x) {
    const char *text = x->t->error ? x->t->error(x->t->self) : NULL;
    return strobe__dist_fail(STROBE_DEVICE_ERROR, "the transport failed: %s", text ? text : "it does not say why");
}

strobe_status strobe__exchange_start(struct exchange *x, bool alone) {
    if (x->send_count == 0 && x->receive_count == 0) return STROBE_OK;
    const bool moves = alone && x->t->move;
    const int code = (moves ? x->t->move : x->t->start)(x->t->self, x->sends, x->send_count, x->receives, x->receive_count,
                                                        x->stream);
    if (moves) x->send_count = x->receive_count = 0;
    return code ? failed(x) : STROBE_OK;
}

strobe_status strobe__exchange_wait(struct exchange *x) {
    if (x->send_count == 0 && x->receive_count == 0) return STROBE_OK;
    x->send_count = x->receive_count = 0;
    return x->t->wait(x->t->self, x->stream) ? failed(x) : STROBE_OK;
}
