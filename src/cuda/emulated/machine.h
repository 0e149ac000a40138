/* SPDX-License-Identifier: BSD-3-Clause
 *
 * machine.h: a GPU's threads, played by the host. A CTA's threads are coroutines of one thread of the operating system; they
 * change places where they wait for each other, in an order drawn at random, so that what lacks a barrier computes something
 * else now and then. Copies that a GPU does in the background are done at once or as late as the program allows. What a GPU
 * would hang at or fault at ends the process with a sentence. See docs/kernels/emulator.md. */
#ifndef STROBE_CUDA_EMULATED_MACHINE_H
#define STROBE_CUDA_EMULATED_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define EMULATED_NEVER_RETURNS [[noreturn]]
extern "C" {
#else
#define EMULATED_NEVER_RETURNS _Noreturn
#endif

#pragma GCC visibility push(default)

enum { EMULATED_LANES = 32, EMULATED_SHARED_BYTES = 232448, EMULATED_OPERANDS_BYTES = 64, EMULATED_MOST_ARGUMENTS = 4 };

struct emulated_index {
    unsigned x, y, z;
};

/* What the running thread is; __thread, because C++ would call a function for each use of a thread_local of another file. */
extern __thread struct emulated_index emulated_thread, emulated_cta, emulated_threads, emulated_ctas;
extern __thread unsigned emulated_rank; /* in the cluster */

/* Addresses in the shared memory of the running CTA, as 32 bits and as pointers of the host. */
uint32_t emulated_shared_address(const void *pointer);
void *emulated_shared_pointer(uint32_t address);
/* The same place in CTA `rank` of the cluster. */
uint32_t emulated_cluster_address(uint32_t address, int rank);

/* The running thread goes on once ready(of) holds. */
void emulated_wait(bool (*ready)(void *of), void *of, const char *what);
/* Others run first. */
void emulated_yield(void);

/* All of `lanes`, those that have ended left out, come here with their arguments; the last one calls operate for all: a lane
 * that did not come has NULL. */
void emulated_converge(uint32_t lanes, void (*operate)(void *arguments[EMULATED_LANES]), void *mine, const char *what);

/* Barriers of the CTA, 0 to 15, by threads; `threads` 0: all that have not ended. */
void emulated_barrier_arrive(int id, int threads);
void emulated_barrier_wait(int id, int threads);
/* Barrier 0; whether any thread came with a value that is not 0. */
int emulated_barrier_or(int value);
/* Of all threads of the cluster. */
void emulated_cluster_barrier(void);

/* Copies in the background. A LANE's copies belong to its groups, which it waits for; those of a BULK group too; those of
 * the ENGINE tell an mbarrier. `operands`: at most EMULATED_OPERANDS_BYTES, which are copied. */
enum emulated_kind { EMULATED_LANE, EMULATED_BULK, EMULATED_ENGINE };
void emulated_later(enum emulated_kind kind, void (*run)(void *operands), const void *operands, size_t bytes);
void emulated_commit(enum emulated_kind kind);
/* Until at most `pending` of this thread's youngest groups are on their way. */
void emulated_wait_groups(enum emulated_kind kind, int pending);

/* mbarriers in shared memory (PTX ISA 9.7.13.15). */
void emulated_mbarrier_init(uint64_t *barrier, uint32_t arrivals);
void emulated_mbarrier_arrive(uint64_t *barrier, uint32_t arrivals, int64_t expected_bytes, int64_t arrived_bytes);
void emulated_mbarrier_wait(uint64_t *barrier, uint32_t parity);

/* Ends the process with a sentence that names the kernel, the CTA and the thread. */
EMULATED_NEVER_RETURNS void emulated_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A kernel as the host knows it: its function, how it is called with pointers to its arguments, and the bytes of each. */
struct emulated_kernel {
    const void *function;
    void (*call)(void *const *arguments);
    size_t argument_bytes[EMULATED_MOST_ARGUMENTS];
    unsigned arguments;
    unsigned cluster;
    const char *name;
    int most_shared_bytes; /* that a launch may ask for: 48 KiB, or what was allowed */
    struct emulated_kernel *next;
};
void emulated_register(struct emulated_kernel *kernel);
/* The last one that was registered; the others follow. */
const struct emulated_kernel *emulated_kernels(void);
struct emulated_kernel *emulated_find(const void *function);

/* Runs all CTAs, and returns when they have ended. */
void emulated_run(const struct emulated_kernel *kernel, void *const *arguments, struct emulated_index ctas,
                  struct emulated_index threads, size_t shared_bytes);

/* A random number of the running OS thread's. */
uint32_t emulated_random(void);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
