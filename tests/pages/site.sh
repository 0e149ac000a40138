#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# site.sh SOURCE WORK: tools/site/build.py makes the site without a warning, and what a browser shows of each page, but for those
# that show a source file, has no error in its console, at the width of a desk and of a phone. Without Chromium the second part is left
# out, which is said.
set -eu
source=$1 work=$2
mkdir -p "$work"
"$source/tools/site/build.py" "$work/site"
for page in index python api/strobe api/python languages benchmarks; do
    [ -s "$work/site/$page.html" ] || { echo "there is no page $page"; exit 1; }
done
grep -q 'strobe_forward' "$work/site/search/search_index.json" || { echo "the search does not know strobe_forward"; exit 1; }
if grep -rnoE '<(script|img|iframe|link rel="?(stylesheet|icon|preload))[^>]*(src|href)="?https?://[^"> ]*' "$work/site" --include='*.html'; then
    echo "pages load something from another host"
    exit 1
fi

chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || {
    echo "no chromium here (tools/packages/debian.txt): pages were not opened"
    exit 0
}
: >"$work/server"
python3 -u -m http.server 0 --bind 127.0.0.1 -d "$work/site" >"$work/server" 2>"$work/requests" &
server=$!
trap 'kill $server' EXIT
until grep -q port "$work/server"; do sleep 0.1; done
address=$(sed -n 's,.*(\(http.*\)/).*,\1,p' "$work/server")
opened=0
for size in 1280,900 390,844; do
    for page in $(cd "$work/site" && find . -name '*.html' ! -path './source/*' ! -name 404.html | sed 's,^\./,,; s,\.html$,,' | sort); do
        opened=$((opened + 1))
        "$chromium" --headless --no-sandbox --disable-gpu --user-data-dir="$work/profile" --window-size=$size --timeout=20000 \
            --virtual-time-budget=5000 --enable-logging=stderr --dump-dom "$address/$page.html" >"$work/dom" 2>"$work/console" ||
            { cat "$work/console"; exit 1; }
        grep -q '<h1' "$work/dom" || { echo "$page has no heading in the browser"; exit 1; }
        if grep 'CONSOLE' "$work/console"; then echo "$page, $size: the console says so"; exit 1; fi
    done
done
if grep ' 404 ' "$work/requests" | grep -v favicon; then echo "pages ask for what is not there"; exit 1; fi
echo "$opened pages opened, $(wc -l <"$work/requests") requests of $("$chromium" --version)"
