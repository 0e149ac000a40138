/* SPDX-License-Identifier: BSD-3-Clause
 *
 * log.c: the log callback of the process. */
#include "core/log.h"

#include <stdio.h>

static strobe_log_callback log_callback;
static void *log_user;

void strobe_set_log(strobe_log_callback callback, void *user) {
    log_user = user;
    log_callback = callback;
}

void strobe__log_call(const struct plan *plan) {
    if (!log_callback) return;
    const struct problem *problem = plan->problem;
    const strobe_attention *a = &problem->a;
    char line[320];
    snprintf(line, sizeof line, "%s b=%lld h=%lld/%lld sq=%lld sk=%lld d=%lld dv=%lld %s: %s%s%s",
             problem->operation == STROBE_FORWARD ? "forward" : "backward", (long long)a->batch, (long long)a->heads_q,
             (long long)a->heads_kv, (long long)a->seq_q, (long long)a->seq_k, (long long)a->dim, (long long)a->dim_v,
             strobe__dtype_name(a->dtype), plan->kernel->name, plan->variant ? ", variant " : "",
             plan->variant ? plan->variant->name : "");
    log_callback(log_user, line);
}

void strobe__log_handed_over(const char *kernel, const char *to, const char *why) {
    if (!log_callback) return;
    char line[256];
    snprintf(line, sizeof line, "%s: handed over to %s, %s", kernel, to, why);
    log_callback(log_user, line);
}
