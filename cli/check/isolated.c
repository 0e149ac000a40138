/* SPDX-License-Identifier: BSD-3-Clause
 *
 * isolated.c: checks in a process of their own; see isolated.h. A byte through one pipe starts a check of the problem that
 * lies in shared memory, a byte through the other one says that it is done. */
#include "check/isolated.h"

#include "commands.h"
#include "problem/cuda_memory.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct isolated_case {
    problem problem;
    verification result;
    bool lost; /* the process has lost the GPU, and is of no use for the next problem */
};

void *shared_memory(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) return memory;
    fputs("strobe: memory is short\n", stderr);
    exit(EXIT_REFUSED);
}

pid_t fork_worker(void) {
    fflush(NULL);
    const pid_t parent = getpid(), child = fork();
    if (child < 0) {
        fputs("strobe: a process could not be started\n", stderr);
        exit(EXIT_REFUSED);
    }
    if (child == 0) signal(SIGINT, SIG_IGN); /* Ctrl-C reaches all processes of the terminal; the parent decides */
    if (child == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)) _exit(EXIT_REFUSED);
    return child;
}

void describe_end(int status, char sentence[PROBLEM_MESSAGE]) {
    if (WIFSIGNALED(status))
        snprintf(sentence, PROBLEM_MESSAGE, "crashed: %s", strsignal(WTERMSIG(status)));
    else
        snprintf(sentence, PROBLEM_MESSAGE, "crashed: the process ended with exit code %d", WEXITSTATUS(status));
}

static void serve(const isolated *i, int from, int to) {
    struct isolated_case *c = i->shared;
    char byte;
    while (read(from, &byte, 1) == 1) {
        c->result = i->verify ? i->verify(&c->problem) : verify_problem(&c->problem);
        c->lost = cuda_memory_is_lost();
        if (write(to, &byte, 1) != 1) break;
    }
    _exit(EXIT_OK);
}

static void start(isolated *i) {
    int there[2], back[2];
    if (!i->shared) i->shared = shared_memory(sizeof *i->shared);
    if (pipe(there) || pipe(back)) {
        fputs("strobe: a pipe could not be opened\n", stderr);
        exit(EXIT_REFUSED);
    }
    i->process = fork_worker();
    if (i->process == 0) {
        close(there[1]);
        close(back[0]);
        serve(i, there[0], back[1]);
    }
    close(there[0]);
    close(back[1]);
    i->to = there[1], i->from = back[0];
}

/* Waits for the process to end and returns its status. */
static int finish(isolated *i) {
    int status = 0;
    close(i->to);
    close(i->from);
    waitpid(i->process, &status, 0);
    i->process = 0;
    return status;
}

static outcome check_one(isolated *i, const problem *p, int limit_seconds, char sentence[PROBLEM_MESSAGE]) {
    static const outcome of[] = {
        [VERDICT_PASSED] = OUTCOME_PASSED, [VERDICT_FAILED] = OUTCOME_WRONG, [VERDICT_REFUSED] = OUTCOME_REFUSED};
    if (!i->process) start(i);
    i->shared->problem = *p;
    char byte = 1;
    struct pollfd answer = {.fd = i->from, .events = POLLIN};
    const bool sent = write(i->to, &byte, 1) == 1;
    if (sent && poll(&answer, 1, limit_seconds * 1000) == 0) {
        kill(i->process, SIGKILL);
        finish(i);
        snprintf(sentence, PROBLEM_MESSAGE, "has not ended after %d seconds", limit_seconds);
        return OUTCOME_HUNG;
    }
    if (!sent || read(i->from, &byte, 1) != 1) {
        describe_end(finish(i), sentence);
        return OUTCOME_CRASHED;
    }
    if (i->shared->lost) finish(i);
    snprintf(sentence, PROBLEM_MESSAGE, "%s", i->shared->result.sentence);
    return of[i->shared->result.verdict];
}

outcome isolated_check(isolated *i, const problem *const *problems, int count, int limit_seconds,
                       char sentence[PROBLEM_MESSAGE]) {
    outcome last = OUTCOME_PASSED;
    if (count > 1) isolated_end(i); /* nothing but these came before */
    for (int n = 0; n < count; ++n) last = check_one(i, problems[n], limit_seconds, sentence);
    return last;
}

void isolated_end(isolated *i) {
    if (i->process) finish(i);
}
