#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# arm64_python.sh FOLDER: Debian's CPython for 64-bit ARM in FOLDER/root, its headers in FOLDER/include, and NumPy in
# FOLDER/numpy: what the wheel of that architecture is built with here, and tried with under qemu. Nothing is installed: apt
# fetches into lists of the folder's own, as on an ARM machine that has no package yet. Does nothing when all is there; exits
# with 77 where it cannot be fetched.
set -eu
pins=$(cd "$(dirname "$0")/../python/requirements" && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
numpy=$(grep '^numpy==' "$pins/test.txt")
[ "$(cat "$folder/made" 2>/dev/null)" != "$numpy" ] || exit 0
rm -rf "$folder/made" "$folder/root" "$folder/include" "$folder/numpy" "$folder/work"

work=$folder/work
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/wheels"
: >"$work/status"
skip() {
    cat "$work/log"
    echo "skipped: $1 could not be fetched"
    exit 77
}
arm_apt() {
    apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State::Lists="$work/lists" \
        -o Dir::Cache="$work/cache" -o Dir::State::status="$work/status" "$@"
}
{ arm_apt update && arm_apt install -d -y --no-install-recommends python3.11 libpython3.11-dev libstdc++6; } >"$work/log" 2>&1 ||
    skip "Debian's Python for ARM"
python3 -m pip download -qq --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.11 \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux2014_aarch64 -d "$work/wheels" "$numpy" \
    >"$work/log" 2>&1 || skip "NumPy for ARM"

mkdir -p "$folder/root" "$folder/include"
for package in "$work"/cache/archives/*.deb; do dpkg-deb -x "$package" "$folder/root"; done
cp -r "$folder/root/usr/include/python3.11" "$folder/include"
mkdir "$folder/include/aarch64-linux-gnu"
cp -r "$folder/root/usr/include/aarch64-linux-gnu/python3.11" "$folder/include/aarch64-linux-gnu"
python3 -m zipfile -e "$work"/wheels/numpy-*.whl "$folder/numpy"
rm -rf "$work"
echo "$numpy" >"$folder/made"
