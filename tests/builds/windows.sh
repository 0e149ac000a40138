#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# windows.sh SOURCE: cross-compiles libraries, command and tests for Windows, looks at what came out, and runs the quick tests under
# wine. The folders are build-windows and build-windows-packages.
set -eu
cd "$1"
tools/windows_packages.sh build-windows-packages
cmake --preset windows
cmake --build build-windows -- --quiet

# shellcheck disable=SC2046 # a header a word
tests/abi/symbols.sh libstrobe-0.dll build-windows/libstrobe-0.dll build-windows/libstrobe.a \
    $(ls include/strobe/*.h | grep -v strobe_dist)
tests/abi/symbols.sh libstrobe_dist-0.dll build-windows/libstrobe_dist-0.dll build-windows/libstrobe_dist.a \
    include/strobe/strobe_dist.h

# No move of a vector of 32 or 64 bytes may want more of its address than Windows gives a stack (cmake/strobe_windows.cmake). Those
# that stream past the caches do, and go to the workspace.
x86_64-w64-mingw32-objdump -d --no-show-raw-insn build-windows/libstrobe-0.dll >build-windows/code
if ! grep -qE 'vmovu.*%zmm.*\(%rsp|vmovu.*\(%rsp.*%zmm' build-windows/code; then
    echo "no spill of a vector was found: what is looked for below may have got another name"
    exit 1
fi
aligned=$(grep -E 'vmov(ap|dqa)[a-z0-9]* .*%[yz]mm' build-windows/code | grep -c '(' || true)
echo "$aligned moves of vectors want an aligned address"
[ "$aligned" -eq 0 ]

WINEPREFIX=$PWD/build-windows/wine WINEDEBUG=-all WINEDLLOVERRIDES="mscoree,mshtml="
export WINEPREFIX WINEDEBUG WINEDLLOVERRIDES
ctest --test-dir build-windows -L quick --output-on-failure
