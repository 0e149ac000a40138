#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""progress.py STROBE FILE: on a terminal, commands that take a while say how far they are and about how long the rest takes; off a
terminal they say nothing of it. After Ctrl-C they print what was done until then, as whole documents, and exit with 130; a second
one ends them at once. FILE: tensors in safetensors."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

STROBE, FILE = sys.argv[1:]
LINE = re.compile(r"\d+ of \d+")
LEFT = re.compile(r", about [0-9.]+ (s|min|h) left")
# Seconds that any machine takes well over a moment for.
MANY = ["fwd", "s=500..1500+1", "d=64", "fp32"]


def on_terminal(*words, interrupts=1, waits_for=LEFT):
    """Runs the command with a terminal as stderr; sends SIGINT each time that what it says since the last has the pattern.
    Returns the exit code, standard output, what stood on the terminal."""
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen([STROBE, *words], stdout=out, stderr=child, env=environment)
        os.close(child)
        said, since = "", ""
        while True:
            ready, _, _ = select.select([parent], [], [], 120)
            assert ready, f"{words}: nothing was said for two minutes; before that:\n{said}"
            try:
                piece = os.read(parent, 65536).decode(errors="replace")
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            said, since = said + piece, since + piece
            if interrupts and waits_for.search(since):
                process.send_signal(signal.SIGINT)
                interrupts, since, waits_for = interrupts - 1, "", re.compile("once more ends it")
        os.close(parent)
        code = process.wait(timeout=120)
        assert interrupts == 0, f"{words} never said what is left:\n{said}"
        out.seek(0)
        return code, out.read().decode(), said


def stopped_after(said, things):
    found = re.search(rf"stopped: results are of (\d+) of (\d+) {things}", said)
    assert found, said
    done, count = map(int, found.groups())
    assert 0 <= done < count, said
    return done


def main():
    code, out, said = on_terminal("check", "--kernel", "cpu_forward_baseline", "--each", "-o", "json", *MANY)
    assert code == 130 and LINE.search(said), (code, said)
    assert len(json.loads(out)) == stopped_after(said, "problems")

    code, out, said = on_terminal("check", "--random", "600", "--seed", "5", waits_for=re.compile("cases, 0 failed"))
    assert code == 130 and "crashed" not in said and "FAILED" not in said, (code, said)
    assert "cases run, 0 failed" in out and stopped_after(said, "runs") == 0, out

    code, out, said = on_terminal("bench", *MANY, "--seconds", "0.01", "-o", "json")
    document = json.loads(out)
    assert code == 130 and len(document["rows"]) == stopped_after(said, "problems"), (code, said)
    assert document["stopped"].startswith("by Ctrl-C after"), document
    code, out, said = on_terminal("bench", *MANY, "--seconds", "0.01", "-o", "html")
    assert code == 130 and out.rstrip().endswith("</html>") and "by Ctrl-C after" in out, (code, out[-200:])

    with tempfile.TemporaryDirectory() as folder:
        for command in ("run", "quantise"):
            written = Path(folder, f"{command}.safetensors")
            code, out, said = on_terminal(command, FILE, "-o", written, waits_for=LINE)
            assert code == 130, (code, said)
            assert stopped_after(said, "sets") == 1 and written.stat().st_size > 0
            header = written.read_bytes()
            names = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])
            assert len({name.split(".")[0] for name in names}) == 1, names

    code, out, said = on_terminal("lab", "sweep", "n=16k..31k+64", "algorithms=standard,flash1", "-o", "json", waits_for=LINE)
    assert code == 130 and len(json.loads(out)["rows"]) == stopped_after(said, "points"), (code, said)
    code, out, said = on_terminal("lab", "fp8", "-o", "json", waits_for=LINE)
    assert code == 130 and isinstance(json.loads(out), (list, dict)), (code, out)

    code, out, said = on_terminal("check", *MANY, interrupts=2, waits_for=LINE)
    assert code == -signal.SIGINT, code

    silent = subprocess.run([STROBE, "check", "fwd", "s=8..40+1", "d=8"], capture_output=True, text=True, check=True)
    assert silent.stderr == "", silent.stderr


main()
