/* SPDX-License-Identifier: BSD-3-Clause
 *
 * append_trial.c: strobe_append on the device of a problem; see append_trial.h. */
#include "problem/append_trial.h"

#include <stdio.h>

#include "problem/cuda_memory.h"
#include "problem/cuda_trial.h"

/* Memory of the device that a call has beside the inputs. */
typedef struct lent {
    void *memory[8];
    int count;
    bool failed;
} lent;

static void *lend(lent *l, const void *from, int64_t bytes) {
    if (!from || !bytes) return NULL;
    void *memory = cuda_memory_copied(from, (size_t)bytes);
    l->memory[l->count++] = memory;
    l->failed = l->failed || !memory;
    return memory;
}

/* The appender with pointers of the device; a tensor without rows is left out. */
static strobe_appender lent_appender(const inputs *in, const strobe_appender *from, const int64_t counts[3], lent *l) {
    const int64_t array = (in->problem.batch + 1) * (from->index_bits / 8);
    const int64_t last = array - from->index_bits / 8; /* without the last offset */
    static const tensor_id ids[3] = {T_Q, T_K, T_V};
    strobe_appender n = *from;
    strobe_tensor *tensors[3];
    tensors[0] = &n.q, tensors[1] = &n.k, tensors[2] = &n.v;
    for (int which = 0; which < 3; ++which) {
        const buffer *t = &in->tensor[ids[which]];
        const int64_t elements = counts[which] * t->extent[2] * t->extent[3];
        tensors[which]->data = lend(l, tensors[which]->data, elements * (int64_t)sizeof(float));
    }
    n.cu_seqlens_new = lend(l, n.cu_seqlens_new, array), n.used_new = lend(l, n.used_new, last);
    n.lengths = lend(l, n.lengths, last), n.positions = lend(l, n.positions, last);
    n.slots = lend(l, n.slots, counts[1] * (int64_t)sizeof *n.slots);
    n.total_new = n.cu_seqlens_new ? counts[1] : 0; /* which the host can't read there */
    return n;
}

static strobe_status append_to_copies(const device_copies *copies, const call *c, const strobe_appender *from,
                                      const int64_t counts[3], lent *l, char *message, size_t capacity) {
    const outputs none = {0};
    const strobe_scales *scales = c->attention.scales;
    call there;
    call_prepare(&there, &copies->in, &none);
    if (!scales) there.attention.scales = NULL;
    if (scales && !scales->q) there.scales.q = NULL;
    if (scales && !scales->k) there.scales.k = NULL;
    if (scales && !scales->v) there.scales.v = NULL;
    const strobe_appender n = lent_appender(&copies->in, from, counts, l);
    if (l->failed) {
        snprintf(message, capacity, "what is appended does not fit the memory of the GPU");
        return STROBE_OUT_OF_MEMORY;
    }
    if (!n.q.data && !n.k.data && !n.v.data) return STROBE_OK;
    const strobe_status status = strobe_append(&there.attention, &n, NULL);
    if (status) snprintf(message, capacity, "strobe_append: %s", strobe_last_error());
    if (status) return status;
    return cuda_memory_wait(message, capacity) ? STROBE_OK : STROBE_DEVICE_ERROR;
}

static strobe_status bring_back(const inputs *in, const device_copies *copies, char *message, size_t capacity) {
    for (int id = 0; id < TENSOR_COUNT; ++id) {
        const buffer *t = &in->tensor[id];
        if (!t->bytes || cuda_memory_copy_back(t->bytes, copies->in.tensor[id].bytes, t->size)) continue;
        snprintf(message, capacity, "the cache could not be copied from the GPU");
        return STROBE_DEVICE_ERROR;
    }
    return STROBE_OK;
}

static strobe_status run_on_gpu(const inputs *in, const call *c, const strobe_appender *n, const int64_t counts[3],
                                char *message, size_t capacity) {
    const outputs none = {0};
    device_copies copies;
    lent l = {.count = 0};
    strobe_status status = STROBE_OUT_OF_MEMORY;
    if (device_copies_create(&copies, in, &none, false, message, capacity)) {
        status = append_to_copies(&copies, c, n, counts, &l, message, capacity);
        if (!status) status = bring_back(in, &copies, message, capacity);
    }
    for (int i = 0; i < l.count; ++i) cuda_memory_free(l.memory[i]);
    device_copies_free(&copies);
    return status;
}

strobe_status append_trial_run(const inputs *in, const call *c, const strobe_appender *n, const int64_t counts[3],
                               char *message, size_t capacity) {
    if (in->problem.device == STROBE_CUDA) return run_on_gpu(in, c, n, counts, message, capacity);
    const strobe_status status = strobe_append(&c->attention, n, NULL);
    if (status) snprintf(message, capacity, "strobe_append: %s", strobe_last_error());
    return status;
}
