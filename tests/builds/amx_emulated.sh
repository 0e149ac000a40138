#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# amx_emulated.sh SOURCE: builds the tree with the instructions of AMX emulated (preset amx), and runs the tests of that build
# that compare kernels with the oracle: the quick grid, lengths, values, layouts, threads, and random problems of a fixed seed
# for each AMX kernel. It needs AVX-512. Where the processor has AMX, all other tests run those kernels and this one is skipped.
set -eu
cd "$1"
flags=$(grep -m 1 '^flags' /proc/cpuinfo || true)
case $flags in *amx_bf16*) echo "this processor has AMX, and the other tests use it"; exit 77 ;; esac
case $flags in *avx512vl*) ;; *) echo "this processor has no AVX-512"; exit 77 ;; esac

cmake --preset amx
cmake --build build-amx -- --quiet
tests='every kernel|any strides|any number of threads|what is not seen|int8 K and V|splits of any|the workspace'
ctest --test-dir build-amx --output-on-failure -j "$(nproc)" -L quick -R "^($tests|strobe check --quick|problems that random|problems over ranks|tiles that see)"
for kernel in forward forward_fp16 forward_fp32 backward decode decode_int8; do
    if ! build-amx/strobe check --random 8 --seed 14 --cases 1000 --kernel cpu_${kernel}_amx > build-amx/random.txt; then
        cat build-amx/random.txt
        exit 1
    fi
    grep 'cases run' build-amx/random.txt
done
