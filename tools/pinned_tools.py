# SPDX-License-Identifier: BSD-3-Clause
"""Programs from PyPI that a script of tools/ needs, at the versions that python/requirements pins."""

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
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted.read_text(encoding="utf-8"):
        shutil.rmtree(venv, ignore_errors=True)
        steps = (
            [sys.executable, "-m", "venv", venv],
            [venv / "bin/python", "-m", "pip", "install", "-qq", "--disable-pip-version-check", "-r", wanted],
        )
        if any(subprocess.run(step, check=False).returncode for step in steps):
            print(f"skipped: the packages of python/requirements/{pins} could not be installed")
            sys.exit(77)
        shutil.copy(wanted, stamp)
    return venv / "bin"
