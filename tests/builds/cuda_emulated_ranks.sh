#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# cuda_emulated_ranks.sh SOURCE: libstrobe_dist with tensors of GPUs that the host plays (docs/kernels/emulator.md): builds the
# variants of head dim 64 and runs attention over ranks on 1 to 3 devices of a process, each scheme, layout and element type,
# forward, backward and decoding, with work done at once and late; then the transport over an emulated NCCL, a process a rank,
# with graphs, with communicators that block and that do not, and the one over copy engines; over MPI by way of the host, and
# as if MPI read a GPU's memory. It needs CUDA's headers.
set -eu
cd "$1"
if ! echo '#include <cuda_runtime_api.h>' | cc -I/usr/local/cuda/include -E - >/dev/null 2>&1; then
    echo "skipped: there are no CUDA headers"
    exit 77
fi
build=build-cuda-emulated-ranks
cmake -B $build -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O1 -g1" -DSTROBE_CUDA=ON \
    -DSTROBE_CUDA_EMULATED=ON -DSTROBE_CUDA_ONLY=64 -DSTROBE_BASELINE_ONLY=ON -DSTROBE_BENCH=OFF -DSTROBE_TESTS=ON >/dev/null
cmake --build $build --target strobe_command test_dist_copies test_dist_nccl -- --quiet
if command -v mpirun >/dev/null; then
    cmake --build $build --target test_dist_mpi_gpu example_ring_mpi -- --quiet
fi

# check DEVICES LATE PROBLEM...: every kernel that takes it.
check() {
    export STROBE_EMULATED_DEVICES=$1 STROBE_EMULATED_LATE=$2
    shift 2
    # shellcheck disable=SC2048,SC2086 # the problems are words
    if ! $build/strobe check --device cuda $* >$build/ranks.txt 2>&1; then
        cat $build/ranks.txt
        exit 1
    fi
    grep 'cases run' $build/ranks.txt
}
rows="h=4/2 s=202 d=64" few="b=2 h=4/2 sq=45 sk=38 d=40" packs="b=3 h=4/1 sq=21 sk=26 d=64 varlen"
check 2 1 fwd "$rows" bf16 causal=topleft ranks=3:ring:contiguous fwd "$rows" fp16 window=60,0 ranks=2:all_gather:striped
check 3 1 bwd "$rows" bf16 causal=topleft ranks=3:ring:zigzag bwd "$rows" fp16 causal=topleft ranks=2:ulysses:zigzag
check 1 0 fwd "$few" bf16 sinks softcap=15 ranks=4:ring:zigzag bwd "$few" bf16 sinks dlse causal ranks=3:ring:striped
check 2 1 bwd "$few" fp32 alibi dropout=0.2 ranks=4:all_gather:zigzag bwd "$few" fp32 bias dbias ranks=3:ring:contiguous
check 3 0 fwd "$packs" fp16 causal sinks ranks=4:ulysses:striped bwd "$packs" bf16 window=9,3 alibi ranks=4/2:two_levels:zigzag
check 2 0 fwd "$few" bf16 mask bias ranks=2:automatic:zigzag fwd b=0 h=4/2 s=1 d=32 bf16 mask=bk ranks=4:all_gather bwd "$packs" fp32 causal=topleft deterministic ranks=5:ring:zigzag

export STROBE_EMULATED_LATE=1
STROBE_EMULATED_DEVICES=2 $build/tests/test_dist_nccl 2 70
STROBE_EMULATED_DEVICES=3 STROBE_NCCL_BLOCKING=0 $build/tests/test_dist_nccl 3 45
STROBE_EMULATED_DEVICES=4 STROBE_EMULATED_SM=80 $build/tests/test_dist_nccl 4 45
STROBE_EMULATED_DEVICES=2 $build/tests/test_dist_nccl 3 131 copies
STROBE_EMULATED_DEVICES=2 $build/tests/test_dist_copies
STROBE_EMULATED_DEVICES=4 STROBE_EMULATED_LATE=0 $build/tests/test_dist_copies

# over_mpi DEVICES RANKS PROGRAM...
over_mpi() {
    export STROBE_EMULATED_DEVICES=$1
    shift
    mpirun --mca mpi_yield_when_idle 1 --oversubscribe --allow-run-as-root --timeout 300 -n "$@"
}
if command -v mpirun >/dev/null; then
    over_mpi 1 1 $build/tests/test_dist_mpi_gpu 45
    over_mpi 2 2 $build/tests/test_dist_mpi_gpu 70
    over_mpi 2 2 $build/tests/test_dist_mpi_gpu 70 reads
    over_mpi 3 3 $build/tests/test_dist_mpi_gpu 131
    over_mpi 2 4 $build/tests/test_dist_mpi_gpu 45 reads
    over_mpi 2 4 $build/examples/example_ring_mpi --device cuda
else
    echo "no mpirun here: GPUs over MPI are left out"
fi
