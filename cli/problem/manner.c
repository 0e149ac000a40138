/* SPDX-License-Identifier: BSD-3-Clause
 *
 * manner.c: one call of the library, in several manners; see manner.h. */
#include "problem/manner.h"

#include "portable/posix.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 4096, POISON = 0xFF }; /* the guard keeps the workspace aligned to 64 bytes */

/* What a library's log line has between the kernel that was chosen and the one that answered. */
static const char handed_over[] = ": handed over to ";

static char helper[PROBLEM_KERNEL];

static void listen(void *user, const char *line) {
    const char *at = strstr(line, handed_over);
    (void)user;
    if (at) snprintf(helper, sizeof helper, "%.*s", (int)strcspn(at + strlen(handed_over), " ,;"), at + strlen(handed_over));
}

const char *manner_helper(void) { return helper; }

typedef struct job {
    const call *c;
    void *workspace, *stream;
    size_t bytes;
    strobe_status status;
    char message[MANNER_MESSAGE];
} job;

static void *work(void *context) {
    job *j = context;
    j->status = j->c->backward ? strobe_backward(&j->c->attention, &j->c->gradients, j->workspace, j->bytes, j->stream)
                               : strobe_forward(&j->c->attention, j->workspace, j->bytes, j->stream);
    snprintf(j->message, sizeof j->message, "%s", j->status ? strobe_last_error() : "");
    return NULL;
}

strobe_status manner_call(const call *c, const manner *how, void *workspace, size_t bytes, void *stream, char *message,
                          size_t capacity) {
    job j = {.c = c, .workspace = workspace, .stream = stream, .bytes = bytes};
    pthread_t thread;
    helper[0] = 0;
    strobe_set_log(listen, NULL);
    if (!how->fresh_thread)
        work(&j);
    else if (pthread_create(&thread, NULL, work, &j) || pthread_join(thread, NULL)) {
        j.status = STROBE_OUT_OF_MEMORY;
        snprintf(j.message, sizeof j.message, "a thread could not be started");
    }
    strobe_set_log(NULL, NULL);
    snprintf(message, capacity, "%s", j.message);
    return j.status;
}

bool manner_wants_lists(call *c, const manner *how) {
    strobe_mask_lists *l = &c->mask_lists;
    if (!how->lists || (!c->attention.bool_mask && !c->attention.block_mask)) return false;
    *l = (strobe_mask_lists){.struct_size = sizeof *l};
    if (how->workspace == WORKSPACE_USED) l->uses = c->backward ? STROBE_LISTS_BACKWARD : STROBE_LISTS_FORWARD;
    return strobe_mask_lists_bytes(&c->attention, l, &l->bytes) == STROBE_OK;
}

strobe_status manner_make_lists(call *c, char *message, size_t capacity) {
    const strobe_status status = strobe_mask_lists_make(&c->attention, &c->mask_lists, NULL);
    snprintf(message, capacity, "%s", status ? strobe_last_error() : "");
    if (status) return status;
    c->attention.mask_lists = &c->mask_lists;
    /* With lists a function that shows a band stays a function, which the kernel that is named may not take. */
    const char *kernel;
    if (c->attention.score && strobe_select(&c->attention, call_gradients(c), &kernel) == STROBE_UNSUPPORTED)
        c->attention.mask_lists = NULL;
    return status;
}

static bool is_poison(const unsigned char *bytes, size_t count) {
    for (size_t i = 0; i < count; ++i)
        if (bytes[i] != POISON) return false;
    return true;
}

/* The one block that all calls with a workspace of ours have used: guard, workspace, guard. NULL if memory is short. */
static unsigned char *block_of(size_t bytes, bool fresh) {
    static unsigned char *block;
    static size_t capacity;
    const size_t wanted = (bytes + 2 * GUARD + GUARD - 1) / GUARD * GUARD;
    if (wanted > capacity) {
        aligned_free(block);
        block = aligned_alloc(GUARD, wanted);
        capacity = block ? wanted : 0;
        if (block) memset(block, POISON, wanted);
    }
    if (block && fresh) memset(block + GUARD, POISON, bytes);
    if (block) memset(block, POISON, GUARD), memset(block + GUARD + bytes, POISON, GUARD);
    return block;
}

strobe_status manner_run(const call *c, const manner *how, char *message, size_t capacity) {
    call listed = *c; /* on the CPU lists take no memory */
    if (manner_wants_lists(&listed, how)) {
        const manner without = {.name = how->name, .workspace = how->workspace, .fresh_thread = how->fresh_thread};
        const strobe_status made = manner_make_lists(&listed, message, capacity);
        return made ? made : manner_run(&listed, &without, message, capacity);
    }
    if (how->workspace == WORKSPACE_LIBRARY) return manner_call(c, how, NULL, 0, NULL, message, capacity);
    size_t bytes = 0;
    strobe_status status = strobe_workspace(&c->attention, call_gradients(c), &bytes);
    snprintf(message, capacity, "%s", status ? strobe_last_error() : "");
    if (status) return status;
    unsigned char *block = block_of(bytes, how->workspace == WORKSPACE_FRESH);
    if (!block) {
        snprintf(message, capacity, "a workspace of %zu bytes could not be allocated", bytes);
        return STROBE_OUT_OF_MEMORY;
    }
    status = manner_call(c, how, bytes ? block + GUARD : NULL, bytes, NULL, message, capacity);
    if (status || (is_poison(block, GUARD) && is_poison(block + GUARD + bytes, GUARD))) return status;
    snprintf(message, capacity, "memory outside the workspace of %zu bytes was written", bytes);
    return STROBE_DEVICE_ERROR;
}
