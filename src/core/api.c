/* SPDX-License-Identifier: BSD-3-Clause
 *
 * api.c: the public calls that plan and run attention. Each reads and checks the descriptor, asks plan() once, and runs. */
#define _DEFAULT_SOURCE /* madvise() */
#include "core/accumulate.h"
#include "core/float_mode.h"
#include "core/log.h"
#include "core/plan.h"
#include "core/score/band.h"
#include "portable/posix.h"
#include "strobe/strobe_score.h"

/* Reads and checks a problem, and brings it to the form that kernels know best. */
static strobe_status settle(struct problem *problem, const strobe_attention *attention, const strobe_gradients *gradients,
                            bool runs) {
    const float_mode mode = float_mode_enter();
    strobe_status status = strobe__problem_read(problem, attention, gradients, runs);
    if (!status) status = strobe__problem_validate(problem);
    if (!status && !strobe__names_reference(problem)) strobe__score_take_band(problem);
    if (!status) strobe__accumulate_divert(problem);
    float_mode_set(mode);
    return status;
}

static strobe_status prepare(struct problem *problem, struct plan *plan, const strobe_attention *attention,
                             const strobe_gradients *gradients, bool runs) {
    const strobe_status status = settle(problem, attention, gradients, runs);
    return status ? status : strobe__plan(problem, plan);
}

/* No output has an element, or none can be reached: legal, and no kernel has to think of it. Keys without rows still have
 * gradients, zero, so backward runs. */
static bool is_empty(const struct problem *p) {
    const strobe_attention *a = &p->a;
    if (a->batch == 0) return !p->g.dsinks && !p->g.dbias && !p->g.dscore;
    return p->operation == STROBE_FORWARD && a->seq_q == 0;
}

/* Host memory for a call; NULL where there is none. Above 32 MiB allocators give what is freed back to the system, and each
 * call meets all its pages anew: where Linux has large pages, they are 512 times fewer. */
static void *allocate(size_t bytes) {
    enum { SMALL = 64, LARGE = 2 << 20, MANY = 8 << 20 };
    if (bytes > SIZE_MAX - LARGE) return NULL;
    const size_t page = bytes < MANY ? SMALL : LARGE, whole = (bytes + page - 1) / page * page;
    void *memory = aligned_alloc(page, whole);
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (memory && page == LARGE) madvise(memory, whole, MADV_HUGEPAGE);
#endif
    return memory;
}

/* What a query says, and a call asks for. */
static size_t workspace_of(const struct plan *plan) {
    if (is_empty(plan->problem)) return 0;
    return strobe__accumulate_bytes(plan->problem) + (plan->kernel->workspace(plan) + 63) / 64 * 64;
}

/* Runs the kernel, and then adds what it has written where the caller's gradients are added to. */
static strobe_status run_and_add(const struct plan *plan, struct problem *problem, struct execution execution,
                                 size_t bytes) {
    const size_t added = strobe__accumulate_bytes(problem);
    const struct backend *backend;
    strobe__accumulate_place(problem, execution.workspace);
    if (added > 0) execution.workspace = bytes > added ? (char *)execution.workspace + added : NULL;
    const strobe_status status = plan->kernel->run(plan, &execution);
    for (size_t b = 0; !status && added > 0 && (backend = strobe__backend(b)) != NULL; ++b)
        if (backend->add && backend->device == plan->kernel->device) return backend->add(problem, execution.stream);
    return status;
}

/* problem: the plan's. */
static strobe_status run_in(const struct plan *plan, struct problem *problem, struct execution execution, size_t given) {
    const size_t needed = workspace_of(plan);
    void *own = NULL;
    if (execution.workspace == NULL && given == 0 && needed > 0 && plan->kernel->device == STROBE_CPU) {
        own = allocate(needed);
        if (!own) return strobe__fail(STROBE_OUT_OF_MEMORY, "a workspace of %zu bytes could not be allocated", needed);
        execution.workspace = own;
    } else if (given < needed) {
        return strobe__fail(STROBE_WORKSPACE_TOO_SMALL, "workspace_bytes is %zu; at least %zu is accepted", given, needed);
    } else if (needed > 0 && !execution.workspace) {
        return strobe__fail(STROBE_INVALID_ARGUMENT,
                            "workspace is NULL and workspace_bytes %zu; memory of so many bytes is accepted", given);
    } else if ((uintptr_t)execution.workspace % 64 != 0) {
        return strobe__fail(STROBE_INVALID_ARGUMENT, "workspace is %p; a multiple of 64 bytes is accepted",
                            execution.workspace);
    } else if (needed == 0) {
        execution.workspace = NULL; /* of no bytes: it may point to the end of what the caller has */
    }
    const strobe_status status = run_and_add(plan, problem, execution, needed);
    aligned_free(own);
    return status;
}

static strobe_status run_here(const strobe_attention *attention, const strobe_gradients *gradients, void *workspace,
                              size_t workspace_bytes, void *stream) {
    struct problem problem;
    struct plan plan;
    strobe_status status = prepare(&problem, &plan, attention, gradients, true);
    if (status) return status;
    if (problem.a.device == STROBE_CPU && stream)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "stream is %p; NULL is accepted on the CPU", stream);
    if (is_empty(&problem)) return STROBE_OK;
    status = run_in(&plan, &problem, (struct execution){.workspace = workspace, .stream = stream}, workspace_bytes);
    if (!status) strobe__log_call(&plan);
    return status;
}

/* Tasks have a mode of their own (parallel.c); what is worked out around them, a scale or a sum over rows, has it here. */
static strobe_status run(const strobe_attention *attention, const strobe_gradients *gradients, void *workspace,
                         size_t workspace_bytes, void *stream) {
    const float_mode mode = float_mode_enter();
    const strobe_status status = run_here(attention, gradients, workspace, workspace_bytes, stream);
    float_mode_set(mode);
    return status;
}

strobe_status strobe_forward(const strobe_attention *attention, void *workspace, size_t workspace_bytes, void *stream) {
    return run(attention, NULL, workspace, workspace_bytes, stream);
}

strobe_status strobe_backward(const strobe_attention *attention, const strobe_gradients *gradients, void *workspace,
                              size_t workspace_bytes, void *stream) {
    if (!gradients) return strobe__fail(STROBE_INVALID_ARGUMENT, "gradients is NULL; a descriptor is accepted");
    return run(attention, gradients, workspace, workspace_bytes, stream);
}

/* Where a query has no data, some that lie as badly as their dtype allows: a kernel or a variant may want alignment, and the
 * call that follows may have to do with another. */
static void misplace_data(struct problem *p) {
    strobe_attention *a = &p->a;
    strobe_gradients *g = &p->g;
    strobe_tensor *const tensors[] = {&a->q, &a->k, &a->v, &a->out, &a->lse, &g->dout, &g->dlse, &g->dq, &g->dk, &g->dv};
    const size_t count = p->operation == STROBE_BACKWARD ? sizeof tensors / sizeof tensors[0] : 5;
    for (size_t t = 0; t < count; ++t)
        if (!tensors[t]->data) tensors[t]->data = (void *)strobe__dtype_bytes(tensors[t]->dtype);
    strobe__problem_ask(p);
}

static size_t larger(size_t x, size_t y) { return x > y ? x : y; }

/* What a call would ask for; 0 where no kernel takes it. */
static size_t needed(const struct problem *p) {
    struct plan plan;
    return strobe__plan_found(p, &plan) ? workspace_of(&plan) : 0;
}

strobe_status strobe_workspace(const strobe_attention *attention, const strobe_gradients *gradients, size_t *bytes) {
    if (!bytes) return strobe__fail(STROBE_INVALID_ARGUMENT, "bytes is NULL; a pointer to a size_t is accepted");
    struct problem problem;
    struct plan plan;
    const strobe_status status = prepare(&problem, &plan, attention, gradients, false);
    if (status) return status;
    size_t most = workspace_of(&plan);
    misplace_data(&problem);
    most = larger(most, needed(&problem));
    if (problem.visible_is_band) { /* with other scalars it may be none */
        strobe__problem_read(&problem, attention, gradients, false);
        strobe__accumulate_divert(&problem);
        most = larger(most, needed(&problem));
        misplace_data(&problem);
        most = larger(most, needed(&problem));
    }
    *bytes = most;
    return STROBE_OK;
}

strobe_status strobe_prepare(const strobe_attention *attention, const strobe_gradients *gradients) {
    struct problem problem;
    struct plan plan;
    const strobe_status status = prepare(&problem, &plan, attention, gradients, false);
    return status || !plan.kernel->prepare ? status : plan.kernel->prepare(&plan);
}

strobe_status strobe_check(const strobe_attention *attention, const strobe_gradients *gradients) {
    struct problem problem;
    struct plan plan;
    return prepare(&problem, &plan, attention, gradients, true);
}

strobe_status strobe_select(const strobe_attention *attention, const strobe_gradients *gradients, const char **name) {
    if (!name) return strobe__fail(STROBE_INVALID_ARGUMENT, "kernel is NULL; a pointer to a string is accepted");
    struct problem problem;
    struct plan plan;
    const strobe_status status = prepare(&problem, &plan, attention, gradients, false);
    if (!status) *name = plan.kernel->name;
    return status;
}

strobe_status strobe_explain(const strobe_attention *attention, const strobe_gradients *gradients, char *text,
                             size_t capacity, size_t *needed) {
    if (!text && capacity > 0) return strobe__fail(STROBE_INVALID_ARGUMENT, "text is NULL; a buffer is accepted");
    struct problem problem;
    struct plan plan;
    const strobe_status status = settle(&problem, attention, gradients, false);
    if (status) return status;
    const size_t length = strobe__plan_text(&problem, text, capacity);
    if (needed) *needed = length + 1;
    return strobe__plan(&problem, &plan);
}
