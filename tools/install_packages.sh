#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# install_packages.sh GROUP...: installs the packages of tools/packages/debian.txt that the groups name and that are missing.
# Says nothing when none is. Where they cannot be installed it says which are missing and returns success: what needs them will
# say so, and what does not may go on.
set -eu
list=$(dirname "$0")/packages/debian.txt

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    echo "no apt-get here: $list names what must be there, as Debian calls it" >&2
    exit 0
fi

wanted=$(for group in "$@"; do awk -v group="$group" '$1 == group { print $2 }' "$list"; done)
missing=
for package in $wanted; do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

sudo=
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "missing packages, and neither root nor sudo here to install them:$missing" >&2
        exit 0
    fi
    sudo=sudo
fi

# shellcheck disable=SC2086 # words are package names
install() { $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing; }

# The lists of a fresh machine are empty, those of an old one out of date: fetch them only if the first try fails.
echo "installing:$missing"
log=$(mktemp)
if ! { install || { $sudo apt-get update -qq && install; }; } >"$log" 2>&1 </dev/null; then
    cat "$log" >&2
    echo "could not install all of:$missing" >&2
fi
rm -f "$log"
