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
case $shared in
*.dll)
    # Windows: names of the table of exports; the library's own name and those that it needs.
    x86_64-w64-mingw32-objdump -p "$shared" >"$work/dump"
    sed -n 's/^\t\[ *[0-9]*\] \([a-z0-9_]*\)$/\1/p' "$work/dump" | sort >"$work/exported"
    soname=$(sed -n 's/^Name[ \t]*[0-9a-f]* //p' "$work/dump")
    needed=$(sed -n 's/.*DLL Name: //p' "$work/dump")
    ;;
*)
    nm -D --defined-only "$shared" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort >"$work/exported"
    soname=$(readelf -d "$shared" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
    needed=$(readelf -d "$shared" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
    ;;
esac
[ -s "$work/declared" ] || fail "no declaration found in $*"
for missing in $(comm -23 "$work/declared" "$work/exported"); do fail "$missing is declared but not exported: see the library's .map"; done
for extra in $(comm -13 "$work/declared" "$work/exported"); do fail "$extra is exported but not declared"; done

[ "$soname" = "$name" ] || fail "SONAME is $soname; $name is expected"
for library in $needed; do
    case $library in
    libstrobe.so.0 | libstrobe-0.dll) [ "$name" != "$library" ] || fail "the shared library needs itself" ;;
    libc.so.6 | libm.so.6 | libgomp.so.1 | libomp.so.5 | libpthread.so.0 | ld-linux-* | KERNEL32.dll | msvcrt.dll) ;;
    *) fail "the shared library needs $library; only libc, libm and OpenMP are allowed" ;;
    esac
done

# .refptr.NAME is how objects for Windows hold the address of NAME. A weak symbol is a function that several objects define: the linker could keep the one compiled for AVX-512.
nm -g --defined-only "$static" 2>/dev/null | awk 'NF == 3 && $3 !~ /^\.refptr\./ { print $2, $3 }' >"$work/linked"
awk '$2 !~ /^strobe_/ { print "abi: the static library defines " $2 ", outside strobe_" }
     $1 ~ /[VWvw]/ { print "abi: " $2 " is weak in the static library" }' "$work/linked" >"$work/found"
cat "$work/found"
[ ! -s "$work/found" ] || failed=1

echo "$(wc -l <"$work/exported") functions exported, $(wc -l <"$work/linked") names in the static library"
exit $failed
