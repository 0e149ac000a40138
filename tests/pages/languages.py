#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""languages.py SOURCE LIBRARY WORK: the Go program of docs/languages.md runs against the library and prints what the page says,
and the page's Rust is the example that cargo tests. Exits with 77 where there is no Go."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE, LIBRARY, WORK = (Path(argument).resolve() for argument in sys.argv[1:4])
PAGE = (SOURCE / "docs/languages.md").read_text(encoding="utf-8")


def block(language):
    (text,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.S | re.M)
    return text


def check_rust():
    documentation = (SOURCE / "examples/rust/strobe/src/lib.rs").read_text(encoding="utf-8")
    example = re.search(r"^//! ```\n(.*?)^//! # Ok", documentation, flags=re.S | re.M)[1]
    assert re.sub(r"^//! ?", "", example, flags=re.M) == block("rust"), "docs/languages.md and lib.rs differ"


def check_go():
    WORK.mkdir(parents=True, exist_ok=True)
    program = WORK / "program.go"
    program.write_text(block("go").replace("#cgo pkg-config: strobe\n", ""), encoding="utf-8")
    env = {
        **os.environ,
        "CGO_ENABLED": "1",
        "GO111MODULE": "off",
        "GOFLAGS": "",
        "GOCACHE": str(WORK / "cache"),
        "CGO_CFLAGS": f"-I{SOURCE / 'include'}",
        "CGO_LDFLAGS": f"-L{LIBRARY.parent} -lstrobe -Wl,-rpath,{LIBRARY.parent}",
    }
    done = subprocess.run(["go", "run", program], env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["1 1 <nil>", "heads_kv is 2; a divisor of heads_q, 3, is accepted"], done.stdout
    formatted = subprocess.run(["gofmt", "-l", program], capture_output=True, text=True, check=True).stdout
    assert not formatted, "gofmt would write it otherwise"


check_rust()
if not shutil.which("go"):
    print("skipped: no go here (tools/packages/debian.txt)")
    sys.exit(77)
check_go()
