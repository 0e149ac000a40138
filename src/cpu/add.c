/* SPDX-License-Identifier: BSD-3-Clause
 *
 * add.c (cpu): adds gradients to the caller's tensors. A task is some rows of a sequence; each element is one sum, so that
 * no result depends on who adds it. */
#include "cpu/add.h"

#include "core/accumulate.h"
#include "core/parallel.h"

enum { ROWS_OF_TASK = 64 };

struct job {
    const struct problem *problem;
    struct addition add;
    int64_t tasks_of_entry;
};

static void add_row(float *restrict to, const float *restrict from, int64_t columns) {
    for (int64_t x = 0; x < columns; ++x) to[x] += from[x];
}

static void add_task(void *context, int64_t index, int32_t worker) {
    const struct job *job = context;
    const struct addition *add = &job->add;
    const struct sequence s = strobe__sequence(job->problem, index / job->tasks_of_entry);
    const int64_t first = index % job->tasks_of_entry * ROWS_OF_TASK, length = add->of_rows ? s.rows : s.keys;
    const int64_t end = first + ROWS_OF_TASK < length ? first + ROWS_OF_TASK : length;
    (void)worker;
    for (int64_t i = first; i < end; ++i)
        for (int64_t h = 0; h < add->heads; ++h) {
            const int64_t to = add->of_rows ? strobe__row_offset(&add->to, &s, i, h)
                                            : strobe__key_offset(&add->to, &s, i, h),
                          from = add->of_rows ? strobe__row_offset(&add->from, &s, i, h)
                                              : strobe__key_offset(&add->from, &s, i, h);
            add_row((float *)add->to.data + to, (const float *)add->from.data + from, add->columns);
        }
}

strobe_status strobe__cpu_add(const struct problem *p, void *stream) {
    struct addition all[3];
    const int count = strobe__additions(p, all);
    (void)stream;
    for (int n = 0; n < count; ++n) {
        struct job job = {p, all[n], (all[n].seq + ROWS_OF_TASK - 1) / ROWS_OF_TASK};
        strobe__parallel_for(p->a.parallel, p->a.batch * job.tasks_of_entry, add_task, &job);
    }
    return STROBE_OK;
}
