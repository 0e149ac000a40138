#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# symbols.sh SONAME SHARED STATIC HEADER...: the binary interface that the libraries show: exported functions are those that the
# headers declare, no more and no less; the SONAME; the libraries needed; and no name outside strobe_ in the static library, where
# nothing hides. Prints one line a finding.
set -eu
name=$1 shared=$2 static=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
fail() {
    echo "abi: $*"
    failed=1
}

sed -n 's/^STROBE_API [^(]*[ *]\(strobe_[a-z0-9_]*\)(.*/\1/p' "$@" | sort >"$work/declared"
nm -D --defined-only "$shared" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort >"$work/exported"
[ -s "$work/declared" ] || fail "no declaration found in $*"
for name in $(comm -23 "$work/declared" "$work/exported"); do fail "$name is declared but not exported: see the library's .map"; done
for name in $(comm -13 "$work/declared" "$work/exported"); do fail "$name is exported but not declared"; done

soname=$(readelf -d "$shared" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
[ "$soname" = "$name" ] || fail "SONAME is $soname; $name is expected"
for library in $(readelf -d "$shared" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
    case $library in
    libstrobe.so.0) [ "$name" != libstrobe.so.0 ] || fail "the shared library needs itself" ;;
    libc.so.6 | libm.so.6 | libgomp.so.1 | libomp.so.5 | libpthread.so.0 | ld-linux-*) ;;
    *) fail "the shared library needs $library; only libc, libm and OpenMP are allowed" ;;
    esac
done

# A weak symbol is a function that several objects define: the linker could keep the one compiled for AVX-512.
nm -g --defined-only "$static" 2>/dev/null | awk 'NF == 3 { print $2, $3 }' >"$work/linked"
awk '$2 !~ /^strobe_/ { print "abi: the static library defines " $2 ", outside strobe_" }
     $1 ~ /[VWvw]/ { print "abi: " $2 " is weak in the static library" }' "$work/linked" >"$work/found"
cat "$work/found"
[ ! -s "$work/found" ] || failed=1

echo "$(wc -l <"$work/exported") functions exported, $(wc -l <"$work/linked") names in the static library"
exit $failed
