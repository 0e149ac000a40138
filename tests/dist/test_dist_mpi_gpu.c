/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_dist_mpi_gpu.c [SEQ [reads]]: mpirun -n RANKS: libstrobe_dist over MPI with tensors of GPUs: see gpu_ranks.h. An MPI
 * that does not read a GPU's memory gets it by way of the host. `reads`: this program says in place of MPI that it does;
 * that is true of any MPI beside a GPU that the host plays, and nowhere else. Exit codes: 0 passed, 1 failed, 77 no GPU. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_ranks.h"
#include "strobe/strobe_dist_mpi.h"

#if defined(STROBE_PLAYED_BY_HOST)
static int reads;
__attribute__((visibility("default"))) int MPIX_Query_cuda_support(void);
int MPIX_Query_cuda_support(void) { return reads; }
#endif

static void *share(MPI_Comm comm, int32_t rank, size_t bytes) {
    MPI_Win window;
    MPI_Aint size;
    int unit;
    void *memory;
    if (MPI_Win_allocate_shared(rank == 0 ? (MPI_Aint)bytes : 0, 1, MPI_INFO_NULL, comm, &memory, &window)) return NULL;
    return MPI_Win_shared_query(window, 0, &size, &unit, &memory) ? NULL : memory;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm comm = MPI_COMM_WORLD;
    int rank, ranks;
    MPI_Comm_rank(comm, &rank), MPI_Comm_size(comm, &ranks);
    const int64_t seq = argc > 1 ? atoi(argv[1]) : 1003;
#if defined(STROBE_PLAYED_BY_HOST)
    reads = argc > 2 && strcmp(argv[2], "reads") == 0;
#endif
    void *shared = ranks <= MOST_RANKS && seq > 0 ? share(comm, rank, gpu_ranks_bytes(seq)) : NULL;
    if (!shared) return 1;
    gpu_ranks_share(shared, seq);
    if (rank == 0) gpu_ranks_fill();
    MPI_Barrier(comm);
    struct gpu_rank r;
    int code = gpu_rank_open(&r, rank, ranks) ? 0 : SKIPPED;
    const strobe_status status = strobe_dist_mpi_create_cuda(&comm, &r.transport);
    if (code == 0 && status) fail_rank("strobe_dist_mpi_create_cuda", strobe_status_name(status));
    if (code == 0) gpu_rank_run(&r);
    if (!status) strobe_dist_mpi_destroy(&r.transport);
    MPI_Barrier(comm);
    if (code == SKIPPED && rank == 0) printf("skipped: there is no GPU\n");
    if (code == 0 && rank == 0) code = gpu_ranks_judge(ranks);
    MPI_Finalize();
    return code;
}
