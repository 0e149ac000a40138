#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# cpp.sh INCLUDE-FOLDER LIBRARY PROGRAM...: each program in C++20 compiles with every compiler that is here, without a warning,
# and runs to the end with success.
set -eu
include=$1 library=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tried=0
for compiler in g++ clang++; do
    command -v $compiler >/dev/null || continue
    for program in "$@"; do
        $compiler -std=c++20 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -I "$include" "$program" "$library" \
            "-Wl,-rpath,$(dirname "$library")" -o "$work/program" || { echo "$program does not compile: $compiler"; exit 1; }
        "$work/program" || { echo "$program, compiled by $compiler, failed"; exit 1; }
        tried=$((tried + 1))
    done
done
echo "$tried programs"
[ "$tried" -gt 0 ] || { echo "skipped: neither g++ nor clang++ here (tools/packages/debian.txt)"; exit 77; }
