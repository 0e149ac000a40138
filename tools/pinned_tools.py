# SPDX-License-Identifier: BSD-3-Clause
"""Programs and libraries from PyPI that scripts and tests need, at the versions that python/requirements pins.

python3 tools/pinned_tools.py VENV PINS prints the folder of programs of the environment VENV with what python/requirements/PINS has, made
where it is missing. Exits with 77 where it cannot be made.
"""

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parents[1] / "python/requirements"


def make_tools(venv: Path, pins: str) -> Path:
    """The folder of programs of an environment with what python/requirements/PINS has; kept, and made anew when the pins change.
    Exits with 77 where it cannot be made.
    """
    wanted, stamp = REQUIREMENTS / pins, venv / "stamp"
    venv.parent.mkdir(parents=True, exist_ok=True)
    with (venv.parent / f"{venv.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests that run beside each other need the same
        make_anew(venv, wanted, stamp)
    return venv / "bin"


def make_anew(venv: Path, wanted: Path, stamp: Path) -> None:
    """Make the environment, unless the stamp says that it is there."""
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted.read_text(encoding="utf-8"):
        shutil.rmtree(venv, ignore_errors=True)
        steps = (
            [sys.executable, "-m", "venv", venv],
            [venv / "bin/python", "-m", "pip", "install", "-qq", "--disable-pip-version-check", "-r", wanted],
        )
        if any(subprocess.run(step, check=False).returncode for step in steps):
            print(f"skipped: the packages of python/requirements/{wanted.name} could not be installed")
            sys.exit(77)
        shutil.copy(wanted, stamp)


if __name__ == "__main__":
    print(make_tools(Path(sys.argv[1]).resolve(), sys.argv[2]))
