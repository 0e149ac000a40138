#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# sass_guard.sh SOURCE BUILD DTYPE [WORDS]: tools/sass_guard.py on the variants of that dtype of a CUDA build, without those that have
# one of the WORDS in their name. The build is configured for it and not built. Exits 77 where there is no nvcc.
set -eu
source=$1 build=$2 dtype=$3 skip=${4:-}
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
if [ ! -x "$nvcc" ]; then
    echo "skipped: no nvcc here"
    exit 77
fi
cmake -S "$source" -B "$build" -G Ninja -DSTROBE_CUDA=ON -DSTROBE_COMMAND=OFF -DSTROBE_TESTS=OFF -DSTROBE_BENCH=OFF >/dev/null
exec "$source/tools/sass_guard.py" "$nvcc" "$build/src/cuda/sm90_defines.txt" --dtype "$dtype" --skip "$skip"
