#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# run.sh TARGET SEEDS WORK: runs one libFuzzer target for STROBE_FUZZ_SECONDS (default 20) from the seeds of the tree and what
# earlier runs found, kept in WORK. An input that fails stays in WORK; TARGET WORK/crash-... runs it again.
set -eu
target=$1 seeds=$2 work=$3
mkdir -p "$work/corpus"
set -- "$work/corpus"
[ -d "$seeds" ] && set -- "$@" "$seeds"
exec "$target" -max_total_time="${STROBE_FUZZ_SECONDS:-20}" -timeout=10 -rss_limit_mb=2048 -max_len=4096 -print_final_stats=1 \
    -verbosity=0 -artifact_prefix="$work/" "$@"
