/* SPDX-License-Identifier: BSD-3-Clause
 *
 * plan.c: plan() is a pure function of the problem and the machine: the first kernel in table order that the device can run
 * and whose record declares all that the problem asks for, among those that are best for so many rows if there is one, and
 * the variants that it chooses. What a record declares is checked in declare.c. `strobe explain` prints the same walk. */
#include "core/plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct backend *const backends[] = {
    &strobe__cpu_backend,
#if defined(STROBE_CUDA_BUILD)
    &strobe__cuda_backend,
#endif
    &strobe__reference_backend,
};

const struct backend *strobe__backend(size_t index) {
    return index < sizeof backends / sizeof backends[0] ? backends[index] : NULL;
}

const struct kernel *strobe__kernel(size_t index) {
    const struct backend *backend;
    for (size_t b = 0; (backend = strobe__backend(b)) != NULL; ++b) {
        if (index < backend->count) return &backend->kernels[index];
        index -= backend->count;
    }
    return NULL;
}

const struct backend *strobe__backend_of(const struct kernel *kernel) {
    const struct backend *backend;
    for (size_t b = 0; (backend = strobe__backend(b)) != NULL; ++b)
        if (kernel >= backend->kernels && kernel < backend->kernels + backend->count) break;
    return backend;
}

/* The kernels of a problem's operation and device, in the order of choice. */
struct walk {
    size_t backend, index;
};

static const struct kernel *next(struct walk *w, const struct problem *p, const struct backend **backend) {
    for (; (*backend = strobe__backend(w->backend)) != NULL; ++w->backend, w->index = 0) {
        if ((int32_t)(*backend)->device != p->a.device) continue;
        while (w->index < (*backend)->count) {
            const struct kernel *kernel = &(*backend)->kernels[w->index++];
            if (kernel->operation == p->operation) return kernel;
        }
    }
    return NULL;
}

/* Fills in the plan if the kernel takes the problem here; why, unless NULL, gets the reason when it does not. */
static bool takes(const struct backend *backend, const struct kernel *kernel, struct plan *plan, struct reason *why) {
    const struct problem *p = plan->problem;
    const char *reason = backend->lacks ? backend->lacks(kernel->needs, p->a.device_index) : NULL;
    if (reason) {
        if (why) why->stage = OF_MACHINE, snprintf(why->sentence, sizeof why->sentence, "%s", reason);
        return false;
    }
    if (!strobe__declares(kernel, p, why)) return false;
    *plan = (struct plan){.problem = p, .kernel = kernel};
    if (kernel->choose && !kernel->choose(plan))
        reason = "no variant for its dtype and head dim was built (STROBE_CUDA_ONLY) or fits this device";
    if (!reason && kernel->denied) reason = kernel->denied();
    if (reason && why) why->stage = OF_VARIANTS, snprintf(why->sentence, sizeof why->sentence, "%s", reason);
    return !reason;
}

bool strobe__names_reference(const struct problem *p) {
    const struct backend *reference = &strobe__reference_backend;
    for (size_t n = 0; p->tuning.kernel && n < reference->count; ++n)
        if (strcmp(reference->kernels[n].name, p->tuning.kernel) == 0) return true;
    return false;
}

/* Whether the kernel is better than others for so many rows and keys. */
static bool is_best(const struct kernel *kernel, const struct problem *p) {
    const int64_t rows = p->a.seq_q * p->group;
    if (p->a.seq_k < kernel->best_seq_k) return false;
    return kernel->best_rows.most == 0 || (rows >= kernel->best_rows.least && rows <= kernel->best_rows.most);
}

/* The sentence is of the kernel that came furthest, of several the last one, which is the most general. */
static strobe_status refuse(const struct problem *p) {
    struct reason why, best = {.stage = OF_MACHINE};
    const struct kernel *kernel, *closest = NULL;
    const struct backend *backend;
    struct plan plan = {.problem = p};
    for (struct walk w = {0}; (kernel = next(&w, p, &backend)) != NULL;) {
        if (kernel->by_name_only || takes(backend, kernel, &plan, &why) || (closest && why.stage < best.stage)) continue;
        closest = kernel, best = why;
    }
    if (!closest)
        return strobe__fail(STROBE_UNSUPPORTED,
                            "device is %d (CUDA), for which this build has no kernel; 0 (the CPU) is accepted", p->a.device);
    return strobe__fail(STROBE_UNSUPPORTED, "no kernel takes this problem; %s: %s", closest->name, best.sentence);
}

static strobe_status refuse_by_name(const struct problem *p) {
    const struct kernel *kernel;
    const struct backend *backend;
    struct plan plan = {.problem = p};
    struct reason why;
    for (struct walk w = {0}; (kernel = next(&w, p, &backend)) != NULL;)
        if (strcmp(kernel->name, p->tuning.kernel) == 0 && !takes(backend, kernel, &plan, &why))
            return strobe__fail(STROBE_UNSUPPORTED, "no kernel takes this problem; %s: %s", kernel->name, why.sentence);
    return strobe__fail(STROBE_INVALID_ARGUMENT,
                        "tuning.kernel is \"%s\"; the name of a kernel of this operation and device is accepted "
                        "(strobe_kernel_at lists them)",
                        p->tuning.kernel);
}

static bool is_wanted(const struct kernel *kernel, const struct problem *p, bool best) {
    if (p->tuning.kernel) return best && strcmp(kernel->name, p->tuning.kernel) == 0;
    return !kernel->by_name_only && is_best(kernel, p) == best;
}

bool strobe__plan_found(const struct problem *p, struct plan *plan) {
    const struct kernel *kernel;
    const struct backend *backend;
    *plan = (struct plan){.problem = p};
    for (int best = 1; best >= 0; --best) /* those that are best for so many rows, then those that take them too */
        for (struct walk w = {0}; (kernel = next(&w, p, &backend)) != NULL;)
            if (is_wanted(kernel, p, best) && takes(backend, kernel, plan, NULL)) return true;
    return false;
}

strobe_status strobe__plan(const struct problem *p, struct plan *plan) {
    if (strobe__plan_found(p, plan)) return STROBE_OK;
    return p->tuning.kernel ? refuse_by_name(p) : refuse(p);
}

/* ----------------------------------------------------------------------------------------------------------- explain -- */

struct text {
    char *at;
    size_t capacity, length;
};

static void __attribute__((format(printf, 2, 3))) append(struct text *t, const char *format, ...) {
    va_list arguments;
    const size_t room = t->length < t->capacity ? t->capacity - t->length : 0;
    va_start(arguments, format);
    t->length += (size_t)vsnprintf(room ? t->at + t->length : NULL, room, format, arguments);
    va_end(arguments);
}

static const char *mask_title(const struct problem *p) {
    const feature_set mask = p->features & BAND_FEATURES & ~FEATURE(STARTS);
    return mask ? strobe__feature_title(__builtin_ctzll(mask)) : "none";
}

static void append_chosen(struct text *t, const struct plan *plan) {
    append(t, "chosen");
    if (plan->variant) append(t, ", variant %s", plan->variant->name);
    for (size_t n = 0; n < sizeof plan->more / sizeof plan->more[0]; ++n)
        if (plan->more[n] && plan->more[n] != plan->variant) append(t, " + %s", plan->more[n]->name);
    if (plan->problem->visible_is_band) append(t, ", visible as the mask: %s", mask_title(plan->problem));
    if (plan->problem->g.accumulate) append(t, ", gradients added by a pass behind it");
    if (!(plan->problem->features & FEATURE(SCORE)) || !plan->kernel->prepare) return;
    if (plan->variant && strstr(plan->variant->name, "_alibi"))
        append(t, ", score as ALiBi");
    else
        append(t, ", compiled with the score function at the first call or by strobe_prepare()");
}

static void append_reason(struct text *t, const struct backend *backend, const struct kernel *kernel,
                          const struct problem *p) {
    struct plan plan = {.problem = p};
    struct reason why;
    if (p->tuning.kernel && strcmp(p->tuning.kernel, kernel->name) != 0)
        append(t, "tuning.kernel names another");
    else if (!p->tuning.kernel && kernel->by_name_only)
        append(t, "only chosen by name, a yardstick");
    else if (!takes(backend, kernel, &plan, &why))
        append(t, "%s", why.sentence);
    else if (p->a.seq_k < kernel->best_seq_k)
        append(t, "seq_k is %lld; it is chosen from %lld on, or by name", (long long)p->a.seq_k,
               (long long)kernel->best_seq_k);
    else if (!is_best(kernel, p) && kernel->best_rows.most == INT64_MAX)
        append(t, "%lld query rows share a K/V head; it is chosen from %lld on, or by name",
               (long long)(p->a.seq_q * p->group), (long long)kernel->best_rows.least);
    else if (!is_best(kernel, p))
        append(t, "%lld query rows share a K/V head; it is chosen for %lld to %lld, or by name",
               (long long)(p->a.seq_q * p->group), (long long)kernel->best_rows.least, (long long)kernel->best_rows.most);
    else
        append(t, "not needed, one before it was chosen");
}

size_t strobe__plan_text(const struct problem *p, char *buffer, size_t capacity) {
    struct text t = {buffer, capacity, 0};
    const struct kernel *kernel;
    const struct backend *backend;
    struct plan plan;
    if (!strobe__plan_found(p, &plan)) plan.kernel = NULL;
    for (struct walk w = {0}; (kernel = next(&w, p, &backend)) != NULL;) {
        append(&t, "%s: ", kernel->name);
        if (kernel == plan.kernel)
            append_chosen(&t, &plan);
        else
            append_reason(&t, backend, kernel, p);
        append(&t, "\n");
    }
    if (capacity && t.length == 0) buffer[0] = 0;
    return t.length;
}
