#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# cuda_emulated.sh SOURCE BUILD VARIANTS SECONDS: builds the CUDA kernels whose names have the words of VARIANTS (STROBE_CUDA_ONLY) for
# a GPU that the host plays (docs/kernels/emulator.md), and runs there what needs a GPU elsewhere: the tests in C, with two devices too,
# and SECONDS of random problems for each kernel. It needs CUDA's headers, not nvcc; 77 where they are not.
set -eu
source=$1 build=$2 variants=$3 seconds=$4
if [ ! -e /usr/local/cuda/include/cuda_runtime_api.h ] && ! echo '#include <cuda_runtime_api.h>' | cc -E - >/dev/null 2>&1; then
    echo "skipped: no headers of CUDA here"
    exit 77
fi
tests='cuda_threads cuda_first_calls test_cuda_append test_cuda_fp8 test_cuda_merge test_cuda_quantise test_cuda_sinks'
cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_FLAGS_RELWITHDEBINFO='-O1 -g1' -DSTROBE_CUDA=ON \
    -DSTROBE_CUDA_EMULATED=ON -DSTROBE_CUDA_ONLY="$variants" -DSTROBE_BASELINE_ONLY=ON -DSTROBE_BENCH=OFF >/dev/null
# shellcheck disable=SC2086 # a list of targets
cmake --build "$build" --target strobe_command $tests -- --quiet

# Of cases that are drawn fewer where time is short: a step that has no factor in common with how many head dims take turns.
[ "$seconds" -ge 60 ] || export STROBE_APPEND_CASES=100 STROBE_QUANTISE_STEP=7
for test in $tests; do
    if ! STROBE_EMULATED_DEVICES=2 "$build/tests/$test" >"$build/test.txt" 2>&1; then
        cat "$build/test.txt"
        exit 1
    fi
    if grep -q 'PASSED  \] 0 test' "$build/test.txt"; then echo "$test: skipped"; else echo "$test: passed"; fi
done
# What was wrong on a GPU once, and is cured: a function of a score in a tile's first block and in the others.
function='score=score*(1.5-tanh(table[h][abs(j)%3]))'
for kernel in cuda_forward_sm90 cuda_backward_sm90; do
    if ! "$build/strobe" check --device cuda --kernel $kernel "fwd,bwd b=2 h=4/2 sq=75 sk=197 d=24 dv=16 bf16 causal $function" >"$build/test.txt" 2>&1; then
        cat "$build/test.txt"
        exit 1
    fi
    grep 'cases run' "$build/test.txt"
done
# Kernels of which a variant was built: the others have their own name in the column of variants.
for kernel in $("$build/strobe" info -o csv | awk -F, '$3 == "cuda" && $4 == "yes" && $5 != $1 { print $1 }'); do
    # Most problems are refused by a kernel of few variants: on a slow machine the first seconds may draw none that runs.
    for time in "$seconds" 30; do
        if ! "$build/strobe" check --device cuda --random "$time" --seed 3 --kernel "$kernel" >"$build/random.txt" 2>&1; then
            grep -v 'never given\|refused each' "$build/random.txt"
            exit 1
        fi
        cases=$(grep 'cases run' "$build/random.txt")
        case $cases in '0 cases'*) ;; *) break ;; esac
    done
    echo "$kernel: $cases"
    case $cases in '0 cases'*) exit 1 ;; esac
done
