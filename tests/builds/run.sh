#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# run.sh PRESET SOURCE [all]: builds the tree another way, by a preset of CMakePresets.json, and runs the quick tests of that
# build; with `all` (make asan) also those that take the address sanitizer minutes and have tensors between guard pages anyway.
set -eu
preset=$1
cd "$2"
cmake --preset "$preset"
cmake --build "build-$preset" -- --quiet

# The first finding ends the program. (Not detect_stack_use_after_return: gcc 12 then misaligns AVX-512 variables on the stack,
# its bug 110027.) The thread sanitizer wants its shadow memory at fixed addresses, which a kernel that spreads mappings widely
# may have given away: setarch -R turns that off. Allocations too large for any machine return NULL, as malloc does.
null=allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=strict_string_checks=1:$null TSAN_OPTIONS=halt_on_error=1:$null
set -- ctest --test-dir "build-$preset" -L quick --output-on-failure -j "$(nproc)"
# The lab, the demo and strobe check without OpenMP, and the tests of lengths and magnitudes, have one thread: minutes, and
# nothing for this sanitizer to find. The tests with threads of their own are what it is for.
if [ "$preset ${3:-}" = "asan " ]; then set -- "$@" -E '^(every kernel past |every kernel where )'; fi
if [ "$preset" = tsan ]; then set -- setarch -R "$@" -E '^(lab: |make demo: |strobe check |every kernel past |every kernel where )'; fi
exec "$@"
