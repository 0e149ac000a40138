#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# header.sh INCLUDE-FOLDER: every public header compiles alone, as C11 and as C++17, those of C++ as C++20, with each compiler
# that is here, without a warning.
set -eu
tried=0
for header in "$1"/strobe/*.h*; do
    for compiler in "gcc -std=c11 -x c" "clang -std=c11 -x c" "g++ -std=c++17 -x c++" "clang++ -std=c++17 -x c++" \
        "g++ -std=c++20 -x c++" "clang++ -std=c++20 -x c++"; do
        case $header:$compiler in *.h:*c++20* | *.hpp:*c11* | *.hpp:*c++17*) continue ;; esac
        command -v "${compiler%% *}" >/dev/null || continue
        tried=$((tried + 1))
        # shellcheck disable=SC2086 # the words of $compiler are arguments
        printf '#include "strobe/%s"\n' "${header##*/}" |
            $compiler -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -fsyntax-only -I "$1" - ||
            { echo "$header does not compile alone: $compiler"; exit 1; }
    done
done
echo "$tried compilations"
[ "$tried" -gt 0 ] || exit 77
