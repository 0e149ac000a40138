#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""lab_report.py STROBE: the page of `strobe lab report` stands alone, its numbers are those that `strobe lab sweep` counts
and those of the papers, and in Chromium, where it is here, its figures follow the sliders, with no error in the console."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from bench_pages import Page  # noqa: E402

STROBE = sys.argv[1]
FIGURES = ("traffic", "blocks", "roofline", "timeline", "errors")

# Moves sliders and chooses, as a person would, and says what the figures look like before and after.
MOVES = """
<script>
addEventListener('load', () => {
  const drawn = [], figures = %s, look = () => drawn.push(Object.fromEntries(figures.map(id => [id, document.getElementById(id).innerHTML])));
  const set = (id, value) => { const e = document.getElementById(id); e.value = value; e.dispatchEvent(new Event('input')); };
  look();
  set('n', 5), set('d', 2), set('kib', 4), look();
  set('pass', 'backward'), look();
  set('tile', 0), set('overlap', 1), look();
  const out = document.createElement('pre');
  out.id = 'outcome';
  out.textContent = JSON.stringify({
    same: figures.map(id => [id, drawn.slice(1).map((d, n) => d[id] == drawn[n][id])]),
    empty: figures.filter(id => !drawn[0][id].includes('<svg')), nan: drawn.some(d => Object.values(d).some(x => x.includes('NaN'))),
    rows: document.querySelectorAll('#numbers tr').length, n: document.getElementById('n-is').textContent});
  document.body.append(out);
});
</script>
"""


def lab(*words):
    return subprocess.run([STROBE, "lab", *words], capture_output=True, text=True, timeout=600, check=True).stdout


def check_numbers(data):
    assert data["elements"] == "fp16" and len(data["algorithms"]) == len(data["points"]) == 7
    kib, dim = data["kib"].index(100), data["d"].index(64)
    words = ("sweep", "n=256..16k*2", "fp16", "d=64", "sram=100KiB", "algorithms=" + ",".join(data["points"]), "-o", "json")
    counted = {(row["algorithm"], row["value"]): row for row in json.loads(lab(*words))["rows"]}
    for name, points in data["points"].items():
        for n, point in zip(data["n"], points[dim][kib]):
            row = counted[name, n]
            assert point == (None if row["bytes"] is None else [row["bytes"], row["flop"]]), (name, n, point, row)
    words = ("sweep", "bc=8,16,32,64,128,256,512", "n=4k", "fp16", "d=128", "sram=228KiB", "algorithms=flash1,flash2", "-o", "json")
    kib, dim = data["kib"].index(228), data["d"].index(128)
    counted = {(row["algorithm"], row["value"]): row["bytes"] for row in json.loads(lab(*words))["rows"]}
    for name, points in data["blocks"]["points"].items():
        assert points[dim][kib] == [counted[name, bc] for bc in data["blocks"]["bc"]], name
    both = [row for row in data["schedule"][1]["rows"] if row["ping_pong"] == "yes" and row["depth"] == 2]
    assert data["schedule"][1]["d"] == 128 and both[0]["published"] == "661"
    for tile in data["schedule"]:
        for line in tile["timelines"]:
            assert line["spans"] and all(a < line["end"] and b > line["start"] for _, _, _, a, b in line["spans"])
    fp8 = {row["variant"]: row for row in data["fp8"]}
    assert len(fp8) >= 7 and all(row["rmse"] > 0 for row in fp8.values())
    assert fp8["strobe_cpu_int8"]["rmse"] < 0.8 * fp8["strobe_cpu"]["rmse"]


def check_in_browser(chromium, text, folder):
    path = Path(folder, "lab.html")
    path.write_text(text.replace("</body>", MOVES % json.dumps(FIGURES) + "</body>"), encoding="utf-8")
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile", "--window-size=1280,900"]
    command += ["--timeout=20000", "--virtual-time-budget=5000", "--enable-logging=stderr", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr, done.stderr
    outcome = json.loads(re.search(r'<pre id="outcome">(.*?)</pre>', done.stdout, re.S)[1])
    assert outcome["empty"] == [] and not outcome["nan"], outcome
    assert outcome["rows"] == 3 and outcome["n"] == "8k", outcome  # the three backwards
    same = dict(map(tuple, outcome["same"]))
    for figure in ("traffic", "roofline"):
        assert same[figure] == [False, False, True], outcome
    assert same["blocks"] == [False, True, True] and same["timeline"] == [True, True, False] and all(same["errors"]), outcome


def main():
    text = lab("report", "-o", "html")
    page = Page(text)
    assert page.addresses == ["data:,"] and not re.search(r"https?://", text), "it names another host"
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])
    check_numbers(data)
    assert not [name for name in FIGURES if f'id="{name}"' not in text]
    chromium = shutil.which("chromium")
    if not chromium:
        print("no chromium here (tools/packages/debian.txt): the page was not opened")
        return
    with tempfile.TemporaryDirectory() as folder:
        check_in_browser(chromium, text, folder)


main()
