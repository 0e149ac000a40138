#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""bench_pages.py STROBE: the page of `strobe bench -o html` stands alone and has what it is to have; `--compare` finds the rows
that were changed in a copy of a document, and no others."""

import json
import re
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path

STROBE = sys.argv[1]
VOID = {"meta", "link", "input"}


class Page(HTMLParser):
    """Checks that elements close in order, and gathers their names, attributes and texts."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.addresses, self.texts = [], [], [], []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert tag in ("dt", "dd") or self.open[-1] == tag, (tag, self.open)
        self.open.pop()

    def handle_data(self, data):
        self.texts.append(data)


def bench(*words, expect=0):
    done = subprocess.run([STROBE, "bench", *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == expect, (words, done.returncode, done.stderr)
    return done.stdout


def check_page(text, circles, rows):
    page = Page(text)
    assert page.addresses == ["data:,"], page.addresses
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), "it names a host"
    assert page.tags.count("svg") == 1 and page.tags.count("circle") == circles, page.tags
    assert page.tags.count("tr") == rows + 1
    return "".join(page.texts)


def main():
    problem = ["fwd", "s=32,64", "d=16", "fp32,bf16", "--seconds", "0"]
    words = check_page(bench(*problem, "-o", "html"), circles=4, rows=4)
    for expected in ("peak: ", "device", "peak beside the rows", "ok (all)", "fwd b=1 h=1 d=16 bf16"):
        assert expected in words, expected
    document = json.loads(bench(*problem, "-o", "json"))
    assert document["refused"] == [] and len(document["rows"]) == 4 and document["time"]
    refused = bench(
        "fwd", "s=32", "d=8", "kernel=cpu_backward_baseline", "fwd", "s=32", "d=8", "--seconds", "0", "-o", "html", expect=2
    )
    assert "Not measured" in check_page(refused, circles=1, rows=1)

    with tempfile.TemporaryDirectory() as folder:
        old, new = Path(folder, "old.json"), Path(folder, "new.json")
        for row in document["rows"]:
            row["spread"] = 0.02
        old.write_text(json.dumps(document), encoding="utf-8")
        changed = json.loads(old.read_text(encoding="utf-8"))
        faster, machine, gone, renamed = changed["rows"]
        faster["ms"] /= 2
        faster["of_peak"] *= 2
        machine["ms"] *= 1.5
        renamed["kernel"] = "another"
        gone["problem"] += " causal"
        new.write_text(json.dumps(changed), encoding="utf-8")
        rows = json.loads(bench("--compare", old, new, "-o", "json"))["rows"]
        assert [row["verdict"] for row in rows] == ["faster", "machine", "only new", "same", "only old"], rows
        assert abs(rows[0]["speed"] - 2) < 1e-9 and rows[3]["kernel"].endswith(" -> another"), rows
        text = bench("--compare", old, new)
        assert "1 faster, 0 slower, 1 same, 1 as the machine's peak, 1 only new, 1 only old" in text, text
        check_page(bench("--compare", old, new, "-o", "html"), circles=8, rows=5)
        same = bench("--compare", old, old, "-o", "csv").splitlines()
        assert len(same) == 5 and all(line.endswith(",same") for line in same[1:]), same


if __name__ == "__main__":
    main()
