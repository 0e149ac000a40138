#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# release.sh SOURCE WORK: tools/release.py makes the same bytes twice, in other folders, under another umask, locale and time zone; and what
# it makes is of use: sums agree, programs are built with the unpacked library, the wheel computes, that for ARM
# under qemu, the bill names every file.
set -eu
source=$1 work=$2
rm -rf "$work/first" "$work/second" "$work/temporary" "$work/use"
mkdir -p "$work/temporary/a longer name" "$work/use"

make_release() { "$source/tools/release.py" --tools "$work/tools" --arm "$work/arm" "$@" >"$work/log" || { code=$?; cat "$work/log"; exit $code; }; }
make_release "$work/first"
(umask 077 && TMPDIR="$work/temporary/a longer name" LC_ALL=C.UTF-8 TZ=Asia/Tokyo make_release "$work/second")
cat "$work/log"
diff -r "$work/first" "$work/second"

cd "$work/first"
sha256sum --check --strict --quiet SHA256SUMS
[ "$(wc -l <SHA256SUMS)" -eq "$(find . -type f ! -name SHA256SUMS | wc -l)" ]

# A user's program, with the library where nobody had foreseen it.
tar -C "$work/use" -xzf strobe-*-linux-*.tar.gz
prefix=$(echo "$work"/use/strobe-*)
[ -e "$prefix/lib/libstrobe_dist.so" ] && [ ! -e "$prefix/lib/libstrobe_dist_mpi.so" ]
PKG_CONFIG_PATH=$prefix/lib/pkgconfig
export PKG_CONFIG_PATH
# shellcheck disable=SC2046 # the words that pkg-config prints are arguments
cc -std=c11 "$source/tests/install/consumer.c" $(pkg-config --cflags --libs strobe) -lm -o "$work/use/consumer"
LD_LIBRARY_PATH=$prefix/lib "$work/use/consumer" | tail -n 1
if command -v c++ >/dev/null; then
    # shellcheck disable=SC2046
    c++ -std=c++20 "$source/examples/07_cpp.cpp" $(pkg-config --cflags --libs strobe) -o "$work/use/cpp"
    LD_LIBRARY_PATH=$prefix/lib "$work/use/cpp" | tail -n 1
fi

"$work/tools/bin/python" -m zipfile -e ./*manylinux*"$(uname -m)".whl "$work/use/package"
PYTHONPATH=$work/use/package python3 - <<'END'
import array
import strobe
data = memoryview(array.array("f", range(8))).cast("B").cast("f", [1, 2, 1, 4])
assert "chosen" in strobe.explain(data, data, data)
END

if ! ls ./*manylinux*aarch64.whl >/dev/null 2>&1; then
    echo "there is no wheel for ARM: it was neither built nor tried"
elif ! command -v qemu-aarch64 >/dev/null; then
    echo "no qemu-aarch64 here: the wheel for ARM was not tried"
elif [ "$(uname -m)" != aarch64 ]; then
    "$work/tools/bin/python" -m zipfile -e ./*manylinux*aarch64.whl "$work/use/arm"
    PYTHONPATH=$work/use/arm:$work/arm/numpy qemu-aarch64 -L "$work/arm/root" "$work/arm/root/usr/bin/python3.11" \
        "$source/tests/python/arm64.py"
fi

tar -tzf "$(echo strobe-*.tar.gz | tr ' ' '\n' | grep -v linux)" | grep -v '/$' | sed 's,^[^/]*,.,' | sort >"$work/use/files"
python3 - strobe-*.spdx.json <<'END' | sort | diff "$work/use/files" -
import json
import sys
document = json.load(open(sys.argv[1]))
known = {"SPDXRef-DOCUMENT", *(x["SPDXID"] for x in document["packages"] + document["files"])}
assert len(known) == 1 + len(document["packages"]) + len(document["files"]), "an identifier stands twice"
assert all({r["spdxElementId"], r["relatedSpdxElement"]} <= known for r in document["relationships"])
assert {"GNU C library", "GNU libgomp"} <= {p["name"] for p in document["packages"]}
print("\n".join(f["fileName"] for f in document["files"]))
END
