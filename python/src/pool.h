/* SPDX-License-Identifier: BSD-3-Clause
 *
 * pool.h: the workers behind strobe_parallel, without a line of Python, so that a test and a sanitizer can have them alone.
 */
#ifndef STROBE_PYTHON_POOL_H
#define STROBE_PYTHON_POOL_H

#include <strobe/strobe.h>

typedef void task_function(void *context, int64_t index, int32_t worker);

/* strobe_parallel.run on PyTorch's threads, where they are shared and wait for the calling thread's next operator (team.c);
 * on those of pool.c elsewhere. */
void team_run(void *self, int64_t tasks, task_function *task, void *context);

/* strobe_parallel.run; self is the strobe_parallel, whose threads it starts when they are first needed. */
void pool_run(void *self, int64_t tasks, task_function *task, void *context);

#endif
