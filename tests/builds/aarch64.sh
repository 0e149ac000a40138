#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# aarch64.sh SOURCE: cross-compiles the library for 64-bit ARM, and checks every kernel against the oracle under qemu.
set -eu
cd "$1"
cmake --preset aarch64
cmake --build build-aarch64 -- --quiet
aarch64-linux-gnu-gcc -std=c11 -O2 -I include tests/builds/kernels_agree.c build-aarch64/libstrobe.a -lm -lgomp \
    -o build-aarch64/kernels_agree
qemu-aarch64 -L /usr/aarch64-linux-gnu build-aarch64/kernels_agree
