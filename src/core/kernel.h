/* SPDX-License-Identifier: BSD-3-Clause
 *
 * kernel.h: a kernel's record. Adding a kernel is one source file and one record in its backend's table; selection, tests,
 * benchmarks, `strobe info` and docs/support.md walk the same tables. A record says all that the kernel takes; what it does
 * not name, the planner refuses. See docs/adding-a-kernel.md. */
#ifndef STROBE_CORE_KERNEL_H
#define STROBE_CORE_KERNEL_H

#include "core/problem.h"

/* A variant of a kernel: the first member of a backend's own structure, which holds whatever else it needs. */
struct variant {
    const char *name; /* the symbol without its prefix */
};

/* What was decided about a problem, once, by strobe__plan; workspace() and run() are given it and decide nothing again. */
struct plan {
    const struct problem *problem;
    const struct kernel *kernel;
    const struct variant *variant; /* the main pass; NULL where the kernel has but one */
    const struct variant *more[4]; /* of the passes around it, NULL where not needed; their order is the kernel's own */
};

/* What a running kernel is given beside the plan. */
struct execution {
    void *workspace; /* as many bytes as kernel->workspace() said, 64-byte aligned */
    void *stream;
};

/* Numbers that are taken, both ends included. */
struct range {
    int64_t least, most;
};
#define ANY_NUMBER \
    { 0, INT64_MAX }

struct kernel {
    const char *name; /* one word, everywhere the same */
    const char *summary;
    strobe_operation operation;
    strobe_device device;
    bool by_name_only; /* a yardstick, never chosen by itself */
    int32_t needs;     /* of the machine: a level of the backend's own, for its lacks(); 0: nothing */

    /* What it takes. Nothing is taken that is not named here. */
    feature_set features;
    uint64_t allowed_by;            /* bits of flags, all of which a caller sets for whom it may be chosen; 0: for any */
    struct dtypes dtypes;           /* for each tensor the dtypes; k and v share one */
    int32_t dim, dim_v;             /* the largest */
    int32_t least_dim, least_dim_v; /* 0: from 1 on */
    bool v_in_k;                    /* V is to be the first columns of K */
    int32_t scale_block;            /* of its SCALES: block_k is a multiple of it, or 0; 0: of 1 */
    struct range seq_q, seq_k;      /* lengths, upper bounds under varlen */
    struct range rows;              /* query rows that share a K/V head: seq_q * heads_q / heads_kv */
    struct range best_rows; /* and for how many it is chosen before others; {0}: for any. By name it takes all of `rows` */
    int64_t best_seq_k;     /* as best_rows, of keys: from how many on */

    /* Further limits of numbers: NULL, or a sentence why it does not take a problem that the record lets pass. Touches no
     * data. limits: the same in words, for docs/support.md. */
    const char *(*reject)(const struct problem *problem);
    const char *limits;

    /* NULL, or a sentence: the operating system refuses it to this process. Asked last, by problems that want it. */
    const char *(*denied)(void);

    /* Fills in the plan's variants from its problem; false if none was built or fits the device. NULL: there is one. Queries
     * ask without data, with pointers that are NULL: workspace() must be enough for what a call with data may choose. */
    bool (*choose)(struct plan *plan);
    const char *variants; /* names of all of them, a blank before each; NULL: there is one */

    size_t (*workspace)(const struct plan *plan);
    /* Makes ready what run() would otherwise have to: compiles. NULL: there is nothing. */
    strobe_status (*prepare)(const struct plan *plan);
    strobe_status (*run)(const struct plan *plan, const struct execution *execution);
};

/* A strobe_merge after it has been read and checked. */
struct merge {
    strobe_partials p; /* defaults filled in; parts are still the caller's */
    strobe_parallel parallel;
};

/* Part number index with its defaults filled in. */
strobe_partial strobe__merge_part(const struct merge *merge, int64_t index);

struct quantisation; /* core/quantise.h */
struct appending;    /* core/append.h */

/* How a backend makes lists of masks (strobe_mask_lists.h), for uses, a set of STROBE_LISTS_: their bytes, NULL where a kind
 * of device needs none; and the work. reject: NULL, or a sentence. */
struct mask_lists_maker {
    const char *(*reject)(const struct problem *problem);
    size_t (*bytes)(const struct problem *problem, int32_t uses);
    strobe_status (*make)(const struct problem *problem, int32_t uses, void *data, void *stream);
};

/* A backend: its kernels, best first, its device and merge, NULL where it has none of its own. */
struct backend {
    const struct kernel *kernels;
    size_t count;
    strobe_device device;
    /* NULL, or a sentence: what device number index lacks that a kernel needs. The function NULL: nothing. */
    const char *(*lacks)(int32_t needs, int32_t index);
    /* Fills in device number index of the kind; false when there is none. */
    bool (*describe)(int32_t device, int32_t index, strobe_device_info *info);
    strobe_status (*merge)(const struct merge *merge, void *stream);
    strobe_status (*add)(const struct problem *problem, void *stream); /* what strobe__additions() says: core/accumulate.h */
    strobe_status (*quantise)(const struct quantisation *quantisation, void *stream); /* the function NULL: it has none */
    strobe_status (*append)(const struct appending *call, void *stream);              /* so here */
    const struct mask_lists_maker *mask_lists;                                        /* NULL: its kernels use none */
};

extern const struct backend strobe__cpu_backend;
extern const struct backend strobe__cuda_backend; /* where it is built */
extern const struct backend strobe__reference_backend;

/* Backends in the order of choice, NULL past the end; all their kernels in that order, and the backend of each. */
const struct backend *strobe__backend(size_t index);
const struct kernel *strobe__kernel(size_t index);
const struct backend *strobe__backend_of(const struct kernel *kernel);

#endif
