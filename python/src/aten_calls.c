/* SPDX-License-Identifier: BSD-3-Clause
 *
 * aten_calls.c: the library's calls by the kernels of PyTorch's operators: on the CPU with the threads that a call of this
 * size has, on a GPU on PyTorch's current stream there, with a workspace of its caching allocator. */
#include <stdatomic.h>

#include "arguments.h"
#include "aten.h"

static atomic_llong computed[2];

void aten_computed(long long calls[2]) {
    for (int n = 0; n < 2; ++n) calls[n] = atomic_load(&computed[n]);
}

static strobe_status run_with(const struct aten_call *c, const strobe_gradients *g, void *workspace, size_t bytes,
                              void *stream) {
    return g ? strobe_backward(&c->a, g, workspace, bytes, stream) : strobe_forward(&c->a, workspace, bytes, stream);
}

/* The workspace goes back to the allocator when the call has been put on the stream, by which the allocator orders. Most
 * forward calls need none, and planning tells: to try is half of what asking costs. */
static strobe_status run_on_stream(const struct aten_call *c, const strobe_gradients *g) {
    void *stream, *data;
    size_t bytes;
    if (!torch_abi.current_stream || torch_abi.current_stream(c->a.device_index, &stream)) return STROBE_DEVICE_ERROR;
    strobe_status status = g ? STROBE_WORKSPACE_TOO_SMALL : run_with(c, g, NULL, 0, stream);
    if (status != STROBE_WORKSPACE_TOO_SMALL) return status;
    status = strobe_workspace(&c->a, g, &bytes);
    if (status) return status;
    if (bytes == 0) return run_with(c, g, NULL, 0, stream);
    struct torch_tensor *workspace = NULL;
    const int64_t size = (int64_t)bytes;
    if (!aten_new_empty(c, torch_abi.uint8(), &size, &workspace)) return STROBE_OUT_OF_MEMORY;
    status = torch_abi.write_data(workspace, &data) ? STROBE_OUT_OF_MEMORY : run_with(c, g, data, bytes, stream);
    torch_abi.tensor_delete(workspace);
    return status;
}

static bool run(struct aten_call *c, const strobe_gradients *g) {
    strobe_status status;
    if (c->a.device == STROBE_CPU) {
        use_threads(&c->parallel, threads_of(&c->a));
        c->a.parallel = &c->parallel;
        status = run_with(c, g, NULL, 0, NULL);
    } else {
        status = run_on_stream(c, g);
    }
    if (status == STROBE_OK) atomic_fetch_add_explicit(&computed[g ? 1 : 0], 1, memory_order_relaxed);
    return status == STROBE_OK;
}

bool aten_forward(struct aten_call *c) { return run(c, NULL); }

static bool new_gradient(const struct aten_call *c, const struct view *of, bool like_inputs, struct torch_tensor **made,
                         strobe_tensor *to) {
    return like_inputs ? aten_new_like(c, of, of->size, made, to) : aten_new(c, of->size, made, to);
}

bool aten_backward(struct aten_call *c, const stable_value *from, stable_value out, stable_value lse, bool like_inputs,
                   struct torch_tensor *made[3]) {
    strobe_gradients g = {.struct_size = sizeof g};
    struct view dout = {0}, saved = {0};
    if (c->a.device == STROBE_CUDA && torch_abi.settings && torch_abi.deterministic(torch_abi.settings()))
        c->a.flags |= STROBE_DETERMINISTIC; /* the CPU's is always so */
    const bool done = aten_read(c, &dout, (struct torch_tensor *)(uintptr_t)from[0], &g.dout) &&
                      aten_read(c, &saved, (struct torch_tensor *)(uintptr_t)out, &c->a.out) &&
                      aten_read_lse(c, (struct torch_tensor *)(uintptr_t)lse) &&
                      new_gradient(c, &c->q, like_inputs, &made[0], &g.dq) &&
                      new_gradient(c, &c->k, like_inputs, &made[1], &g.dk) &&
                      new_gradient(c, &c->v, like_inputs, &made[2], &g.dv) && run(c, &g);
    aten_close_view(&dout);
    aten_close_view(&saved);
    return done;
}

/* The gradients' tensors are not there yet; no kernel asks for more of them than that they are, and where. */
bool aten_has_backward(const struct aten_call *c) {
    static _Alignas(64) char nowhere[4][64];
    strobe_gradients g = {.struct_size = sizeof g};
    g.dout.data = nowhere[0], g.dq.data = nowhere[1], g.dk.data = nowhere[2], g.dv.data = nowhere[3]; /* contiguous */
    return strobe_check(&c->a, &g) == STROBE_OK;
}
