#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""How long a new user's way takes from a clone to a first result: the blocks of commands in docs/first-result.md, each in a clone
of its own of the last commit, made in a temporary folder and removed.

    python3 bench/first_result.py [C] [Python] [PyTorch] [JAX] [--cores 0,1] [--folder FOLDER]

Prints seconds of the clock, processor seconds of all processes, and the last line that the block printed. What pip downloads is
a part of it, as far as pip has not kept it; exits with 77 where it cannot be had. Processor seconds divided by the cores are
what an idle machine takes at best."""

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/first-result.md"


def ways() -> dict[str, str]:
    """The commands of each heading of the page."""
    return dict(re.findall(r"^## (.+?)$.*?^```sh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.S | re.M))


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(commands: str, folder: str | None) -> tuple[float, float, str]:
    """Clock, processor and last line of one way; ends the program where a command fails."""
    environment = {name: x for name, x in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS")}
    with tempfile.TemporaryDirectory(dir=folder) as clone:
        start, before = time.monotonic(), processor_seconds()
        subprocess.run(["git", "clone", "-q", str(ROOT), clone], check=True)
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", commands], cwd=clone, env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)  # fmt: skip
        if done.returncode and re.search("No matching distribution found|Could not find a version", done.stdout):
            print("skipped: what the page installs cannot be had here")
            sys.exit(77)
        if done.returncode:
            sys.exit(f"{commands}ended with {done.returncode}:\n{done.stdout}")
        return time.monotonic() - start, processor_seconds() - before, done.stdout.strip().splitlines()[-1]


def main() -> int:
    known = ways()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"of {', '.join(known)}; default all")
    parser.add_argument("--cores", help="the cores to run on, as 0,1; default all that the process may use")
    parser.add_argument("--folder", help="where the clones are made")
    a = parser.parse_args()
    for way in a.ways:
        if way not in known:
            parser.error(f"there is no way {way!r}; {', '.join(known)} are accepted")
    if a.cores:
        os.sched_setaffinity(0, {int(core) for core in a.cores.split(",")})
    print(f"{len(os.sched_getaffinity(0))} cores")
    print(f"{'way':<10}{'seconds':>9}{'processor':>11}   last line")
    for way in a.ways or known:
        clock, processor, line = measure(known[way], a.folder)
        print(f"{way:<10}{clock:>9.0f}{processor:>11.0f}   {line}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
