#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# run.sh: the figures of docs/benchmarks.md on this machine's CPU; `make bench` builds and calls it. Quiet machines give better
# figures, and each table stands for itself.
set -eu
strobe=build/strobe
$strobe bench fwd b=1 h=16 s=4096 d=128 fp32 device=cpu
$strobe bench fwd b=1 h=16 s=512..8k*2 d=64 fp32 device=cpu
$strobe bench fwd b=1 h=16 s=512..8k*2 d=64 bf16 causal device=cpu
$strobe bench bwd b=1 h=16 s=1k d=64,128 fp32 device=cpu
[ ! -x build/bench/bench_standard_openblas ] || build/bench/bench_standard_openblas
