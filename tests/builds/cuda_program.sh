#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# cuda_program.sh SOURCE BUILD PROGRAM [ARGUMENT...]: builds and runs PROGRAM of tests/cuda (cuda_launches, cuda_functions) with the host
# side of a CUDA build, of which no kernel is compiled. Exits 77 where there is no nvcc, whose headers it needs.
set -eu
source=$1 build=$2 program=$3
shift 3
if ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
    echo "skipped: no nvcc here"
    exit 77
fi
cmake -S "$source" -B "$build" -G Ninja -DSTROBE_CUDA=ON -DSTROBE_COMMAND=OFF -DSTROBE_BENCH=OFF >/dev/null
cmake --build "$build" --target "$program" -- --quiet
exec "$build/tests/$program" "$@"
