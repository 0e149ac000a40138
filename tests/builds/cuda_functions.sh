#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# cuda_functions.sh SOURCE BUILD: tests/cuda/functions.c with the host side of a CUDA build, of which no kernel is compiled, by the NVRTC
# that STROBE_NVRTC names. Exits 77 where there is no nvcc, whose headers it needs, or no NVRTC.
set -eu
source=$1 build=$2
if ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
    echo "skipped: no nvcc here"
    exit 77
fi
cmake -S "$source" -B "$build" -G Ninja -DSTROBE_CUDA=ON -DSTROBE_COMMAND=OFF -DSTROBE_BENCH=OFF >/dev/null
cmake --build "$build" --target cuda_functions >/dev/null
exec "$build/tests/cuda_functions" "$(nproc)"
