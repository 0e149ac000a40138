#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# aarch64.sh SOURCE: cross-compiles the library for 64-bit ARM, and `strobe check` as a program of its own, build-aarch64/check_alone,
# which qemu can run: it needs libc alone. What prints JSON stays open in it, since cJSON is not there for ARM, and is not called.
set -eu
cd "$1"
cmake --preset aarch64
cmake --build build-aarch64 --target strobe_static strobe_dist_static strobe_cli strobe_lab -- --quiet
aarch64-linux-gnu-gcc -std=c11 -O2 -I cli tests/builds/check_alone.c build-aarch64/cli/libstrobe_cli.a build-aarch64/libstrobe_dist.a \
    build-aarch64/lab/libstrobe_lab.a build-aarch64/libstrobe.a -lgomp -lm -no-pie -Wl,--unresolved-symbols=ignore-all \
    -o build-aarch64/check_alone
