#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# run.sh PRESET SOURCE [all]: builds the tree another way, by a preset of CMakePresets.json, and runs the quick tests of that
# build; with `all` (make asan, make clang) also those that take the address sanitizer minutes and have tensors between guard pages anyway,
# and with all kernels. Without it, AVX2's kernels are those that the address sanitizer looks at, of one text with the baseline's, which
# the fuzz targets run under it; and clang does not optimise what this processor cannot run.
set -eu
preset=$1 all=${3:-}
cd "$2"
set -- --preset "$preset"
case $preset,$all in
*,all) set -- "$@" -DSTROBE_AVX512=ON -DSTROBE_BASELINE_ONLY=OFF ;;
clang,) set -- "$@" -DCMAKE_C_FLAGS_RELWITHDEBINFO=-O1 ;; # its warnings do not depend on it
esac
baseline='' avx512=''
case $preset,$all in
asan,) if grep -qsw avx2 /proc/cpuinfo; then baseline=-fno-sanitize=all; fi ;;
clang,) if ! grep -qsw avx512f /proc/cpuinfo; then avx512=-O0; fi ;;
esac
cmake "$@" -DSTROBE_BASELINE_OPTIONS=$baseline -DSTROBE_AVX512_OPTIONS=$avx512

# The first finding ends the program. detect_stack_use_after_return, which runtimes of gcc 13 and newer have on, is off: gcc 12 then
# misaligns AVX-512 variables on the stack, its bug 110027. The thread sanitizer wants its shadow memory at fixed addresses, which a
# kernel that spreads mappings widely may have given away: setarch -R turns that off. Allocations too large for any machine return NULL,
# as malloc does.
null=allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=strict_string_checks=1:detect_stack_use_after_return=0:$null TSAN_OPTIONS=halt_on_error=1:$null
set -- ctest --test-dir "build-$preset" -L quick --output-on-failure -j "$(nproc)"
# Tests with one thread, which take minutes, have nothing for the thread sanitizer to find: the command has no OpenMP here. The
# tests with threads of their own, of ranks among them, are what it is for.
single='a row that |any strides |blocks of |command: |every kernel |expressions of |int8 K |K and V in |lab: |make demo: '
single="$single|STROBE_ISA |problems over |quantising: |softcap, |strobe check |the oracle: |the workspace: |tiles that |what is not "
single="$single|decoding on a GPU: |each header |kernels are unpacked |16-bit floats|masks: |quotients |dropout by |FP8: |structures of "
single="$single|score functions: |functions of a score |visible functions |problems that |docs/support.md |many ranks: which "
single="$single|on a GPU (partial|tensors|the FP8|appending)"
text='README: |command: pages |pages: |each header |libstrobe_dist exports|strobe.hpp |the library ' # no compiler's matter
case $preset,$all in
clang,) set -- "$@" -E "^(every kernel past |lab: |many ranks|command: |strobe check --quick|$text)" ;; # a part of the grid: below
asan,)
    slow='every kernel past |every kernel where |any number of threads |lab: every algorithm |command: what roundings |make demo: '
    set -- "$@" -E "^($slow|strobe check --quick|decoding on a GPU: |$text)"
    ;;
tsan,*) set -- setarch -R "$@" -E "^($single)" ;;
esac

# Of a sanitizer's build only what these tests run is compiled: that the rest compiles is for the builds of both compilers to say.
programs=
if [ "$preset" != clang ]; then
    "$@" -N | sed -n 's/^ *Test *#[0-9]*: //p' >"build-$preset/names.txt"
    ninja -C "build-$preset" -t targets all | sed 's/: .*//' >"build-$preset/targets.txt"
    root=$(sed -n 's/^CMAKE_CACHEFILE_DIR:INTERNAL=//p' "build-$preset/CMakeCache.txt")/
    programs=$(cat "build-$preset"/*/CTestTestfile.cmake | awk -v root="$root" '
        FILENAME != "-" && FNR == NR { name[$0]; next }
        FILENAME != "-" { target[$0]; next }
        sub(/^add_test\(/, "") { # ([=[name]=] "program" ...), or from newer CMakes ("name" "program" ...)
            words = split($0, word, "\"")
            title = word[2]
            if (sub(/^\[=*\[/, "") && match($0, /\]=*\]/)) title = substr($0, 1, RSTART - 1)
            for (n = 2; n <= words && title in name; n += 2)
                if (index(word[n], root) == 1 && substr(word[n], length(root) + 1) in target)
                    print substr(word[n], length(root) + 1)
        }' "build-$preset/names.txt" "build-$preset/targets.txt" - | sort -u)
    [ "$programs" ] || { echo "run.sh: no program of these tests was found"; exit 1; }
fi
# shellcheck disable=SC2086 # a list of files
ninja -C "build-$preset" --quiet $programs
"$@"
[ "$preset,$all" != clang, ] || "build-$preset/strobe" check --quick --part 1/7
