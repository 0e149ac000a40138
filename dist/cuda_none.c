/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_none.c: builds without CUDA: no device can be entered, and so nothing else is asked for; there are no
 * transports for GPUs. */
#include "cuda_memory.h"
#include "strobe/strobe_dist_copies.h"
#include "strobe/strobe_dist_nccl.h"

static const char nothing[] = "this build has no CUDA; 0 (the CPU) is accepted";

const char *strobe__dist_cuda_move(const struct moved_rows *m, bool adds, void *stream) {
    (void)m, (void)adds, (void)stream;
    return nothing;
}
const char *strobe__dist_cuda_round(const struct rounded_rows *r, void *stream) {
    (void)r, (void)stream;
    return nothing;
}
const char *strobe__dist_cuda_zero(void *to, int64_t stride, int64_t rows, int64_t row_bytes, void *stream) {
    (void)to, (void)stride, (void)rows, (void)row_bytes, (void)stream;
    return nothing;
}
const char *strobe__dist_cuda_products(struct product_params *p, void *stream) {
    (void)p, (void)stream;
    return nothing;
}
const char *strobe__dist_cuda_fill(float *to, int64_t count, float value, void *stream) {
    (void)to, (void)count, (void)value, (void)stream;
    return nothing;
}
const char *strobe__dist_cuda_copy(void *to, const void *from, size_t bytes, void *stream) {
    (void)to, (void)from, (void)bytes, (void)stream;
    return nothing;
}
const char *strobe__dist_cuda_move_all(const struct moved_rows *moves, int64_t count, void *stream) {
    (void)moves, (void)count, (void)stream;
    return nothing;
}
const char *strobe__dist_cuda_copy_pieces(const struct copied_rows *pieces, int64_t count, void *stream) {
    (void)pieces, (void)count, (void)stream;
    return nothing;
}
const char *strobe__dist_cuda_sum_rows(struct summed_rows *r, void *stream) {
    (void)r, (void)stream;
    return nothing;
}
const char *strobe__dist_cuda_sum(float *to, const float *parts, int64_t count, int32_t ranks, void *stream) {
    (void)to, (void)parts, (void)count, (void)ranks, (void)stream;
    return nothing;
}
const char *strobe__dist_cuda_upload(int64_t *to, const int64_t *words, int64_t count, void *stream) {
    (void)to, (void)words, (void)count, (void)stream;
    return nothing;
}
const char *strobe__dist_cuda_enter(int32_t index, int *entered) {
    (void)index, (void)entered;
    return nothing;
}
void strobe__dist_cuda_leave(int32_t index, int entered) { (void)index, (void)entered; }
int strobe__dist_cuda_owner(const void *data, int32_t index) {
    (void)data, (void)index;
    return MEMORY_OF_THE_HOST;
}
int strobe__dist_cuda_stream_owner(void *stream) {
    (void)stream;
    return MEMORY_OF_ANY;
}
bool strobe__dist_cuda_is_captured(void *stream) {
    (void)stream;
    return false;
}

strobe_status strobe_dist_nccl_create(const void *communicator, strobe_transport *transport) {
    (void)communicator, (void)transport;
    return STROBE_UNSUPPORTED;
}
void strobe_dist_nccl_destroy(strobe_transport *transport) { (void)transport; }
const char *strobe_dist_nccl_last_error(void) { return nothing; }

strobe_status strobe_dist_copies_create(const strobe_transport *base, int32_t device_index, strobe_transport *transport) {
    (void)base, (void)device_index, (void)transport;
    return STROBE_UNSUPPORTED;
}
void strobe_dist_copies_destroy(strobe_transport *transport) { (void)transport; }
const char *strobe_dist_copies_last_error(void) { return nothing; }
