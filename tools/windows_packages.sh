#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# windows_packages.sh FOLDER: what the preset `windows` needs and Debian has for Linux alone, cJSON for the command and cmocka for
# the tests: Debian's own source packages, compiled for Windows by MinGW and installed in FOLDER. Does nothing when they are
# there; exits with 77 where they cannot be fetched.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
[ ! -e "$folder/made" ] || exit 0

# apt's own sources, with "deb-src" for "deb", in lists that belong to this folder alone.
work=$folder/work
rm -rf "$work"
mkdir -p "$work/lists" "$work/cache"
cat /etc/apt/sources.list.d/*.sources 2>/dev/null | sed 's/^Types: deb$/Types: deb-src/' >"$work/list.sources"
cat /etc/apt/sources.list 2>/dev/null | sed -n 's/^deb /deb-src /p' >"$work/list.list"
fetch() {
    apt-get -qq -o Dir::Etc::sourcelist="$1" -o Dir::Etc::sourceparts=/dev/null -o Dir::State::Lists="$work/lists" \
        -o Dir::Cache="$work/cache" update
    (cd "$work" && apt-get -qq -o Dir::Etc::sourcelist="$1" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" source cjson cmocka)
}
fetched=
for list in "$work/list.sources" "$work/list.list"; do
    [ -n "$fetched" ] || ! [ -s "$list" ] || ! fetch "$list" >"$work/log" 2>&1 || fetched=yes
done
if [ -z "$fetched" ]; then
    echo "skipped: Debian's source packages of cJSON and cmocka could not be fetched"
    exit 77
fi

build() { # NAME OPTION...: the unpacked source whose folder begins with NAME
    name=$1
    shift
    cmake -S "$(echo "$work/$name"-*/)" -B "$work/build-$name" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$here/cmake/x86_64-w64-mingw32.cmake" \
        -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$folder" -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_SHARED_LIBS=OFF "$@"
    cmake --build "$work/build-$name"
    cmake --install "$work/build-$name"
}
{
    build cjson -DENABLE_CJSON_TEST=OFF -DENABLE_CUSTOM_COMPILER_FLAGS=OFF
    build cmocka -DUNIT_TESTING=OFF -DWITH_EXAMPLES=OFF -DWITH_STATIC_LIB=ON
    rm "$folder/lib/libcmocka.dll.a"
    mv "$folder/lib/libcmocka-static.a" "$folder/lib/libcmocka.a" # which the tests look for
} >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
rm -rf "$work"
touch "$folder/made"
