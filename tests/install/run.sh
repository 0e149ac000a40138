#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# run.sh WAY SOURCE BUILD WORK: a program of somebody else's meets Strobe in one WAY and runs:
#   install            copies what was built in BUILD to WORK/prefix; the next two use that copy
#   find_package       CMake, shared and static, C and C++
#   pkg-config         plain compiler calls, shared and static
#   add_subdirectory   the sources as a part of the other project, with the baseline's kernels
#   add_subdirectory-all   the same with all kernels
set -eu
way=$1 source=$2 build=$3 work=$4
prefix=$work/prefix
consumer=$source/tests/install

# build_consumer FOLDER CMAKE-OPTION...: configures, builds and runs the programs.
build_consumer() {
    folder=$1
    shift
    rm -rf "$folder"
    cmake -S "$consumer" -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release "$@"
    cmake --build "$folder"
    for program in strobe static cpp dist dist_static; do "$folder/consumer_$program"; done
}

case $way in
install)
    # To one place, then moved: an installed tree must not remember where it was.
    rm -rf "$prefix" "$work/first"
    cmake --install "$build" --prefix "$work/first"
    mv "$work/first" "$prefix"
    test -s "$prefix/share/doc/strobe/LICENSE"
    if [ -x "$prefix/bin/strobe" ]; then "$prefix/bin/strobe" info; fi
    ;;
find_package)
    printf 'cmake_minimum_required(VERSION 3.22)\nproject(other C)\nfind_package(strobe 0.0 QUIET)\nif(strobe_FOUND)\nmessage(FATAL_ERROR "a version whose interface may be another was taken")\nendif()\n' \
        >"$work/CMakeLists.txt"
    cmake -S "$work" -B "$work/other_version" "-DCMAKE_PREFIX_PATH=$prefix"
    build_consumer "$work/find_package" "-DCMAKE_PREFIX_PATH=$prefix"
    ;;
pkg-config)
    folder=$work/pkg-config
    mkdir -p "$folder"
    PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name strobe.pc)")
    export PKG_CONFIG_PATH
    # shellcheck disable=SC2046 # the words that pkg-config prints are arguments
    cc -std=c11 "$consumer/consumer.c" $(pkg-config --cflags --libs strobe) -lm -o "$folder/shared"
    # shellcheck disable=SC2046
    cc -std=c11 "$consumer/consumer_dist.c" $(pkg-config --cflags --libs strobe_dist) -o "$folder/dist"
    LD_LIBRARY_PATH=$(pkg-config --variable=libdir strobe)
    export LD_LIBRARY_PATH
    "$folder/shared"
    "$folder/dist"
    # shellcheck disable=SC2046
    cc -std=c11 "$consumer/consumer.c" $(pkg-config --static --cflags --libs strobe | sed 's/-lstrobe/-l:libstrobe.a/') \
        -o "$folder/static"
    "$folder/static"
    ;;
add_subdirectory | add_subdirectory-all)
    # Whether it builds there is asked, not how fast it runs. Kernels of each level come in by the same lines of CMake.
    only=ON
    [ "$way" = add_subdirectory ] || only=OFF
    build_consumer "$work/$way" "-DSTROBE_SOURCE=$source" -DSTROBE_CUDA=OFF -DCMAKE_C_FLAGS_RELEASE=-O0 -DSTROBE_BASELINE_ONLY=$only
    ;;
*)
    echo "run.sh: no way called $way"
    exit 2
    ;;
esac
