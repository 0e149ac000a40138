/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mask_lists.c: lists of what masks hide, which a caller has made once and brings to later calls (strobe_mask_lists.h): what
 * a problem's lists are made for, the check that lists are of a problem, and the public calls. A backend does the work; on
 * the CPU, whose kernels use none, there is none. */
#include "core/kernel.h"
#include "core/validate.h"

enum { BOTH_USES = STROBE_LISTS_FORWARD | STROBE_LISTS_BACKWARD };

/* Bits of strobe_mask_lists.axes. */
static int32_t axes_of(const void *mask, const int64_t stride[3]) {
    return mask ? 1 | (stride[0] ? 2 : 0) | (stride[1] ? 4 : 0) | (stride[2] ? 8 : 0) : 0;
}

/* Writes what lists of the problem's masks are made for. */
static void describe(strobe_mask_lists *l, const struct problem *p) {
    const strobe_attention *a = &p->a;
    l->made = l->uses ? l->uses : BOTH_USES;
    l->device = a->device, l->device_index = a->device_index;
    l->batch = a->batch, l->heads_q = a->heads_q, l->seq_q = a->seq_q, l->seq_k = a->seq_k;
    l->block_q = a->block_mask ? p->block_mask.block_q : 0, l->block_k = a->block_mask ? p->block_mask.block_k : 0;
    l->axes = axes_of(a->bool_mask, p->bool_mask.stride) | axes_of(a->block_mask, p->block_mask.stride) << 4;
}

static const struct mask_lists_maker *maker_of(const struct problem *p) {
    const struct backend *backend;
    for (size_t b = 0; (backend = strobe__backend(b)) != NULL; ++b)
        if ((int32_t)backend->device == p->a.device && backend->mask_lists) return backend->mask_lists;
    return NULL;
}

static size_t bytes_of(const struct problem *p, int32_t uses) {
    const struct mask_lists_maker *maker = maker_of(p);
    return maker ? maker->bytes(p, uses ? uses : BOTH_USES) : 0;
}

static strobe_status check_memory(const struct problem *p, const strobe_mask_lists *l) {
    const size_t needed = bytes_of(p, l->made ? l->made : l->uses);
    if (l->bytes < needed)
        return strobe__fail(STROBE_WORKSPACE_TOO_SMALL, "mask_lists.bytes is %zu; at least %zu is accepted", l->bytes,
                            needed);
    if (needed > 0 && !l->data)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "mask_lists.data is NULL; memory of %zu bytes is accepted", needed);
    if ((uintptr_t)l->data % 64 == 0) return STROBE_OK;
    return strobe__fail(STROBE_INVALID_ARGUMENT, "mask_lists.data is %p; a multiple of 64 bytes is accepted", l->data);
}

static strobe_status check_uses(const strobe_mask_lists *l) {
    if (l->uses < 0 || l->uses > BOTH_USES)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "mask_lists.uses is %d; 0 to %d is accepted", l->uses, BOTH_USES);
    if (l->reserved == 0) return STROBE_OK;
    return strobe__fail(STROBE_INVALID_ARGUMENT, "mask_lists.reserved is %d; 0 is accepted", l->reserved);
}

strobe_status strobe__check_mask_lists(const struct problem *p) {
    const strobe_mask_lists *l = &p->mask_lists;
    const int32_t use = p->operation == STROBE_FORWARD ? STROBE_LISTS_FORWARD : STROBE_LISTS_BACKWARD;
    strobe_mask_lists own = {.uses = l->made};
    TRY(check_uses(l));
    if (l->made < 0 || l->made > BOTH_USES || !(l->made & use))
        return strobe__fail(STROBE_INVALID_ARGUMENT,
                            "mask_lists.made is %d; lists that strobe_mask_lists_make has made for this operation, with bit "
                            "%d, are accepted",
                            l->made, use);
    describe(&own, p);
    if (p->no_rows) own.seq_q = l->seq_q; /* what the caller states, where there are none */
    if (p->no_keys) own.seq_k = l->seq_k;
    const struct {
        const char *name;
        int64_t made_for, is;
    } numbers[] = {
        {"device", l->device, own.device},    {"device_index", l->device_index, own.device_index},
        {"batch", l->batch, own.batch},       {"heads_q", l->heads_q, own.heads_q},
        {"seq_q", l->seq_q, own.seq_q},       {"seq_k", l->seq_k, own.seq_k},
        {"block_q", l->block_q, own.block_q}, {"block_k", l->block_k, own.block_k},
        {"axes", l->axes, own.axes},
    };
    for (size_t n = 0; n < sizeof numbers / sizeof numbers[0]; ++n)
        if (numbers[n].made_for != numbers[n].is)
            return strobe__fail(STROBE_INVALID_ARGUMENT,
                                "mask_lists.%s is %lld; %lld, that of this call's masks, is accepted", numbers[n].name,
                                (long long)numbers[n].made_for, (long long)numbers[n].is);
    /* Of a side without rows nothing is looked up, and lists that were made for none may be smaller than the bound says. */
    return p->runs && !p->no_rows && !p->no_keys ? check_memory(p, l) : STROBE_OK;
}

/* Reads both structures and checks that lists can be made. The lists that the descriptor may already lead to do not count.
 */
static strobe_status read(struct problem *p, strobe_mask_lists *l, const strobe_attention *attention,
                          const strobe_mask_lists *lists) {
    if (!lists) return strobe__fail(STROBE_INVALID_ARGUMENT, "lists is NULL; a structure is accepted");
    TRY(strobe__struct_copy(l, sizeof *l, lists, "mask_lists"));
    TRY(check_uses(l));
    TRY(strobe__problem_read(p, attention, NULL, false));
    p->a.mask_lists = NULL;
    TRY(strobe__problem_validate(p));
    if (!p->a.bool_mask && !p->a.block_mask)
        return strobe__fail(STROBE_INVALID_ARGUMENT,
                            "bool_mask and block_mask are NULL; a descriptor with one of them is accepted");
    const struct mask_lists_maker *maker = maker_of(p);
    const char *reason = maker ? maker->reject(p) : NULL;
    if (reason) return strobe__fail(STROBE_UNSUPPORTED, "lists of these masks cannot be made; %s", reason);
    return STROBE_OK;
}

strobe_status strobe_mask_lists_bytes(const strobe_attention *attention, const strobe_mask_lists *lists, size_t *bytes) {
    struct problem problem;
    strobe_mask_lists l;
    if (!bytes) return strobe__fail(STROBE_INVALID_ARGUMENT, "bytes is NULL; a pointer to a size_t is accepted");
    TRY(read(&problem, &l, attention, lists));
    *bytes = bytes_of(&problem, l.uses);
    return STROBE_OK;
}

strobe_status strobe_mask_lists_make(const strobe_attention *attention, strobe_mask_lists *lists, void *stream) {
    struct problem p;
    strobe_mask_lists l;
    TRY(read(&p, &l, attention, lists));
    if (lists->struct_size < sizeof l)
        return strobe__fail(STROBE_INVALID_ARGUMENT,
                            "mask_lists.struct_size is %zu; at least %zu, for what is written, is accepted",
                            lists->struct_size, sizeof l);
    if (p.a.device == STROBE_CPU && stream)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "stream is %p; NULL is accepted on the CPU", stream);
    l.made = 0;
    TRY(check_memory(&p, &l));
    describe(&l, &p);
    if (l.batch > 0 && l.seq_q > 0 && l.seq_k > 0) {
        const struct mask_lists_maker *maker = maker_of(&p);
        if (p.a.bool_mask) TRY(strobe__check_pointer("bool_mask", p.bool_mask.data, 1));
        if (p.a.block_mask) TRY(strobe__check_pointer("block_mask", p.block_mask.data, 1));
        if (maker) TRY(maker->make(&p, l.made, l.data, stream));
    }
    l.struct_size = lists->struct_size;
    *lists = l;
    return STROBE_OK;
}
