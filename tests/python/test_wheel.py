# SPDX-License-Identifier: BSD-3-Clause
"""One wheel for every CPython from 3.10: its name, what it holds and needs, and a run under each interpreter of this machine."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

WHEEL = os.environ.get("STROBE_WHEEL")  # run.sh sets it
pytestmark = pytest.mark.skipif(not WHEEL, reason="no wheel: tests/python/run.sh builds it")

PROGRAM = """
import array, sys, strobe
assert not {"numpy", "torch", "jax"} & set(sys.modules)
try:
    import numpy as np
except ImportError:  # the package does without: it loads, and says what it takes
    try:
        strobe.attention([1.0], [1.0], [1.0])
    except TypeError as error:
        assert "a tensor of NumPy, PyTorch, JAX" in str(error)
else:
    q = np.random.default_rng(0).standard_normal((2, 9, 4, 16), dtype=np.float32)
    out, lse = strobe.attention(q, q, q, causal=True, return_lse=True)
    assert np.abs(out[:, 0] - q[:, 0]).max() < 1e-6
    for _ in range(100): strobe.attention_backward(out, q, q, q, out, lse, causal=True)
data = memoryview(array.array("f", range(8))).cast("B").cast("f", [1, 2, 1, 4])
assert "chosen" in strobe.explain(data, data, data)
print(sys.version_info.minor, strobe.version())
"""


def interpreters():
    """Every CPython from 3.10 that is to be found: in the path, and where pyenv keeps its own."""
    folders = [Path(p) for p in os.environ.get("PATH", "").split(os.pathsep)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders += [p / "bin" for p in (pyenv / "versions").glob("3.*")]
    found = {sys.version_info.minor: sys.executable}
    for folder in folders:
        for path in folder.glob("python3.*") if folder.name != "shims" else ():
            minor = path.name.removeprefix("python3.")
            if minor.isdecimal() and int(minor) >= 10:
                found.setdefault(int(minor), str(path))
    return found


def test_name_and_contents():
    path = Path(WHEEL)
    assert path.name.startswith("strobe-") and "-cp310-abi3-" in path.name
    assert path.stat().st_size < 2_000_000
    names = zipfile.ZipFile(path).namelist()
    assert {"strobe/_strobe.abi3.so", "strobe/py.typed", "strobe/_strobe.pyi", "strobe/torch/__init__.py"} <= set(names)
    assert not [n for n in names if n.endswith((".c", ".h", ".a", ".cmake"))]


def test_the_extension_needs_libc_alone():
    if not shutil.which("readelf"):
        pytest.skip("no readelf")
    import strobe

    extension = str(Path(strobe.__file__).parent / "_strobe.abi3.so")
    dynamic = subprocess.run(["readelf", "-d", extension], capture_output=True, text=True, check=True).stdout
    needed = [line.split("[")[1].split("]")[0] for line in dynamic.splitlines() if "NEEDED" in line]
    assert any(name.startswith("libc.") for name in needed), dynamic
    assert all(name.startswith(("libc.", "libm.", "libpthread.", "ld-linux", "libdl.", "librt.")) for name in needed), needed
    symbols = subprocess.run(["readelf", "--dyn-syms", "-W", extension], capture_output=True, text=True, check=True).stdout
    exported = [
        line.split()[7]
        for line in symbols.splitlines()[3:]
        if len(line.split()) > 7 and line.split()[6] not in ("UND", "Ndx")
    ]
    assert exported == ["PyInit__strobe"]


@pytest.mark.parametrize("minor", sorted(interpreters()))
def test_one_wheel_under_every_cpython(minor, tmp_path):
    """Unpacked as pip would, in an environment of that interpreter: with its own NumPy where it has one, else without."""
    python = interpreters()[minor]
    zipfile.ZipFile(WHEEL).extractall(tmp_path)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{PROGRAM}"
    done = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == str(minor)


@pytest.mark.full
def test_fresh_environments_with_numpy(tmp_path):
    """pip installs the wheel and NumPy into a fresh environment, under two CPythons where there are two."""
    chosen = sorted(interpreters().items())
    for minor, python in dict([chosen[0], chosen[-1]]).items():
        venv = tmp_path / str(minor)
        made = subprocess.run([python, "-m", "venv", venv], capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"python3.{minor} makes no environments")
        pip = [venv / "bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check", WHEEL, "numpy"]
        subprocess.run(pip, check=True)
        done = subprocess.run([venv / "bin/python", "-I", "-c", PROGRAM], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split()[0] == str(minor)
