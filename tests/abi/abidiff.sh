#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# abidiff.sh SOURCE WORK: programs that were compiled with the last release work with this library: abidiff finds no change of the
# interface but those that are meant to be harmless, new functions and new fields at the end of a structure. Until there is a
# release, v0.1.0 or later, the library is compared with itself. Either way the comparison is tried on changes that break
# programs, each of which it has to find, and on two that do not.
#
# Only what defines public functions is compiled, src/core and dist/ as without a GPU: kernels are not a part of the interface.
set -eu
source=$1 work=$2
here=$source/tests/abi
rm -rf "$work"
mkdir -p "$work"

# library FOLDER: FOLDER/libstrobe.so and FOLDER/libstrobe_dist.so, those of $names, with what debuggers know of their types.
names="strobe strobe_dist"
library() {
    # Types that no function mentions count too; the sources' own assertions about the header are not what is tried here.
    common="-std=c11 -g -O0 -fno-eliminate-unused-debug-types -w -D_Static_assert(...)= -fPIC -shared -fvisibility=hidden -I$1/src -I$1/include -I$1 -D_DEFAULT_SOURCE"
    # shellcheck disable=SC2046,SC2086 # each word is an argument
    cc $common -DSTROBE_CPU_LEVELS='""' -Wl,--unresolved-symbols=ignore-all -Wl,--version-script="$1/src/strobe.map" \
        $(find "$1/src/core" -name '*.c') -o "$1/libstrobe.so"
    # shellcheck disable=SC2046,SC2086
    [ "$names" = strobe ] || cc $common -Wl,--unresolved-symbols=ignore-all -Wl,--version-script="$1/dist/strobe_dist.map" \
        $(find "$1/dist" -maxdepth 1 -name '*.c' ! -name cuda_device.c ! -name cuda_memory.c) -o "$1/libstrobe_dist.so"
    for name in $names; do # nothing public is defined elsewhere
        sed -n 's/^ *\(strobe_[a-z0-9_]*\);$/\1/p' "$1"/*/$name.map | sort >"$work/wanted"
        nm -D --defined-only "$1/lib$name.so" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort | diff "$work/wanted" - >"$work/log" ||
            { cat "$work/log"; echo "abidiff.sh: functions of $name.map are defined where this script does not look"; exit 1; }
    done
}

# compare OLD NEW: 0 when programs of the old one work with the new one.
compare() {
    for name in $names; do
        set -- "$1" "$2" --no-added-syms --drop-private-types --headers-dir1 "$1/include" --headers-dir2 "$2/include" \
            "$1/lib$name.so" "$2/lib$name.so"
        old=$1 new=$2
        shift 2
        abidiff --suppressions "$here/abidiff.suppressions" "$@" || return 1
        # The suppression is for structures that got a field at the end, and hides what else changed in them, or in others.
        abidiff "$@" >"$work/all" || true
        if grep -E 'offset changed from|name changed from|data member deletion' "$work/all"; then return 1; fi
        # Enumerations stand in no function, since structures hold them as int32_t: types that no function mentions, too.
        abidiff --non-reachable-types "$@" >"$work/unreachable" || true
        if grep -E "^ *\[[CD]\] '(enum|struct|union|typedef) strobe_" "$work/unreachable"; then return 1; fi
        set -- "$old" "$new"
    done
}

# changed NAME FILE SED-SCRIPT: a copy of these sources, with one thing changed in one file.
changed() {
    copy=$work/$(echo "$1" | tr ' ' -)
    cp -r "$work/new" "$copy"
    sed -i "$3" "$copy/$2"
    ! cmp -s "$work/new/$2" "$copy/$2" || { echo "abidiff.sh: the change \"$1\" finds nothing to change in $2"; exit 1; }
    library "$copy"
}
breaks() {
    changed "$@"
    ! compare "$work/new" "$copy" >"$work/log" || { echo "abidiff.sh: not found: $1"; exit 1; }
}
is_harmless() {
    changed "$@"
    compare "$work/new" "$copy" >"$work/log" || { cat "$work/log"; echo "abidiff.sh: taken for a break: $1"; exit 1; }
}

mkdir "$work/new"
cp -r "$source/src" "$source/include" "$source/dist" "$source/portable" "$work/new"
library "$work/new"

# The changes are of libstrobe.
names=strobe
header=include/strobe/strobe.h
breaks "a field in the middle" $header 's/^    int64_t batch;/    int64_t inserted;\n&/'
breaks "a wider field" $header 's/^    int32_t mask;/    int64_t mask;/'
breaks "another value" $header 's/STROBE_FP16 = 2/STROBE_FP16 = 12/'
breaks "a function less" src/strobe.map '/strobe_explain;/d'
is_harmless "a field at the end" $header 's/^} strobe_attention;/    int64_t appended;\n&/'
is_harmless "a value more" $header 's/^    STROBE_INT8 = 6 .*/    STROBE_INT8 = 6, STROBE_NEW = 7/'

names="strobe strobe_dist"
release=$(git -C "$source" tag --list 'v[0-9]*' --merged HEAD --sort=-version:refname | head -n 1)
if [ -n "$release" ]; then
    mkdir "$work/old"
    git -C "$source" archive "$release" | tar -C "$work/old" -xf -
    library "$work/old"
    compare "$work/old" "$work/new" || { echo "programs that were compiled with $release would not work with this library"; exit 1; }
    echo "programs that were compiled with $release work with this library"
else
    compare "$work/new" "$work/new"
    echo "there is no release yet, no tag v0.1.0: the comparison finds what it has to find"
fi
