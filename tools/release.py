#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""release.py [FOLDER] [--cuda OFF|ON|80|90]: what a release consists of, made of the last commit into FOLDER (build-release):

    strobe-V.tar.gz                  the sources
    strobe-V-linux-ARCH.tar.gz       the libraries, headers, pkg-config, CMake package, to be unpacked anywhere; without
                                     libstrobe_dist_mpi, which belongs to the MPI that it was compiled with
    strobe-V-cp310-abi3-*.whl        the Python package, with the tag of the oldest glibc that it works with
    strobe-V-cp310-abi3-*aarch64.whl the same for 64-bit ARM, cross-compiled; left out where that compiler or Debian's
                                     Python for ARM (tools/arm64_python.sh) is not to be had
    strobe-V.spdx.json               the software bill of materials (tools/sbom.py)
    SHA256SUMS                       of all of these

The same commit and tools give the same bytes, in whatever folder, at whatever time, under whatever umask. SOURCE_DATE_EPOCH
is the date in archives, default the commit's. Needs git, cmake, ninja, a C compiler, readelf, and what
python/requirements/release.txt names, which is installed into an environment of its own. Exits with 77 where that cannot be had."""

import argparse
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import sbom
from pinned_tools import make_tools

ROOT = Path(__file__).resolve().parent.parent
# The build's options for each answer to --cuda.
CUDA = {
    "OFF": ["STROBE_CUDA=OFF"],
    "ON": ["STROBE_CUDA=ON"],
    "80": ["STROBE_CUDA=ON", "STROBE_CUDA_ARCHITECTURES=80"],
    "90": ["STROBE_CUDA=ON", "STROBE_CUDA_ARCHITECTURES=90", "STROBE_CUDA_PTX=OFF"],
}


def run(*command, **options):
    """The standard output of a command; what it says is shown when it fails."""
    done = subprocess.run(
        [str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options
    )
    if done.returncode:
        sys.exit(f"release.py: {' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout.strip()


def version():
    header = (ROOT / "include/strobe/strobe.h").read_text(encoding="utf-8")
    return ".".join(re.search(rf"STROBE_VERSION_{part}\s+(\d+)", header)[1] for part in ("MAJOR", "MINOR", "PATCH"))


def write_source(target, prefix):
    """The archive of the last commit; git gives its files the commit's date."""
    with target.open("wb") as out:
        tar = subprocess.Popen(
            ["git", "-C", ROOT, "archive", "--format=tar", f"--prefix={prefix}/", "HEAD"], stdout=subprocess.PIPE
        )
        subprocess.run(["gzip", "-n", "-9"], stdin=tar.stdout, stdout=out, check=True)
        if tar.wait():
            sys.exit("release.py: git archive failed; a checkout with a commit is accepted")


def write_archive(target, folder, name, epoch):
    """A folder as NAME.tar.gz that depends on names, contents and the right to execute alone."""
    run(
        "sh",
        "-c",
        'tar --sort=name --mtime="@$1" --owner=0 --group=0 --numeric-owner --mode=u+rwX,go=u,go-w --format=ustar '
        '-C "$2" -cf - "$3" | gzip -n -9 > "$4"',
        "sh",
        epoch,
        folder,
        name,
        target,
    )


def environment(epoch, *folders):
    """No path of this machine, no date of now, no locale, no object of an earlier build: compilers are given other names for the
    folders that they work in."""
    flags = shlex.join(f"-ffile-prefix-map={folder}=." for folder in folders)
    return {
        **os.environ,
        "SOURCE_DATE_EPOCH": str(epoch),
        "CFLAGS": flags,
        "LC_ALL": "C",
        "TZ": "UTC",
        "CCACHE_DISABLE": "1",
    }


def build_library(target, work, source, cuda, epoch):
    """Builds and installs from the unpacked sources, and packs what was installed. Returns the shared libraries."""
    build, name = work / "build", target.name.removesuffix(".tar.gz")
    env = environment(epoch, source, build)
    run(
        "cmake",
        "-S",
        source,
        "-B",
        build,
        "-G",
        "Ninja",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_INSTALL_PREFIX=/usr/local",
        "-DCMAKE_INSTALL_LIBDIR=lib",
        "-DSTROBE_COMMAND=OFF",
        "-DSTROBE_TESTS=OFF",
        "-DSTROBE_BENCH=OFF",
        "-DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON",
        "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
        *(f"-D{option}" for option in CUDA[cuda]),
        env=env,
    )  # that of a build is as long as its path
    run("cmake", "--build", build, env=env)
    run("cmake", "--install", build, "--prefix", work / name, env=env)
    write_archive(target, work, name, epoch)
    return [file for file in sorted((work / name / "lib").glob("*.so.*.*")) if not file.is_symlink()]


def find_arm(folder):
    """The folder with ARM's Python, made if need be; None where the wheel for ARM cannot be built, with a line that says why."""
    if not shutil.which("aarch64-linux-gnu-gcc"):
        print("without the wheel for ARM: no aarch64-linux-gnu-gcc here (tools/packages/debian.txt)")
        return None
    done = subprocess.run([ROOT / "tools/arm64_python.sh", folder], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(f"without the wheel for ARM: {done.stdout.strip().splitlines()[-1]}")
        return None
    return folder


def build_wheel(folder, work, source, cuda, epoch, tools, arm=None):
    """Builds the wheel, for ARM with the Python in the folder `arm`, and gives it the tag of the oldest glibc that it works
    with. Returns the wheel and the extension."""
    work.mkdir(exist_ok=True)
    env = environment(epoch, source, work / "wheel-build")
    env["PATH"] = f"{tools}:{env['PATH']}"
    options = [f"-Cbuild-dir={work / 'wheel-build'}", *(f"-Ccmake.define.{option}" for option in CUDA[cuda])]
    if arm:
        env["_PYTHON_HOST_PLATFORM"] = "linux-aarch64"
        env["CMAKE_TOOLCHAIN_FILE"] = str(source / "cmake/aarch64-linux-gnu.cmake")
        env["CFLAGS"] += f" -isystem {arm / 'include'}"
        options.append(f"-Ccmake.define.Python_INCLUDE_DIR={arm / 'include/python3.11'}")
    run(
        tools / "python",
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--disable-pip-version-check",
        "-w",
        work / "plain",
        *options,
        source,
        env=env,
    )
    run(tools / "auditwheel", "repair", "-w", work / "repaired", *(work / "plain").glob("*.whl"), env=env)
    (wheel,) = (work / "repaired").glob("*.whl")
    run(tools / "python", "-m", "zipfile", "-e", wheel, work / "unpacked")
    shutil.copyfile(wheel, folder / wheel.name)
    return folder / wheel.name, work / "unpacked/strobe/_strobe.abi3.so"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="build-release", type=Path)
    parser.add_argument(
        "--cuda",
        default="OFF",
        choices=CUDA,
        help="the GPU's kernels too, which takes nvcc and minutes: for all GPUs, or smaller"
        " ones for GPUs from sm_80 on without Hopper's own (80), or for Hopper alone (90)",
    )
    parser.add_argument(
        "--arm", default=ROOT / "build-arm64", type=Path, help="where ARM's Python is kept, which its wheel is built with"
    )
    parser.add_argument(
        "--tools", default=ROOT / "build-release-tools", type=Path, help="where the environment with the tools is kept"
    )
    options = parser.parse_args()
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or run("git", "-C", ROOT, "log", "-1", "--format=%ct"))
    if run("git", "-C", ROOT, "status", "--porcelain", "--untracked-files=no"):
        print("release.py: changes that are not committed are left out", file=sys.stderr)
    name, machine = (
        f"strobe-{version()}",
        platform.machine() + {"OFF": "", "ON": "-cuda"}.get(options.cuda, f"-cuda{options.cuda}"),
    )
    tools, folder = make_tools(options.tools.resolve(), "release.txt"), options.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary).resolve()
        archive, library = folder / f"{name}.tar.gz", folder / f"{name}-linux-{machine}.tar.gz"
        write_source(archive, name)
        run("tar", "-C", work, "-xzf", archive)
        products = {library: build_library(library, work, work / name, options.cuda, epoch)}
        wheel, extension = build_wheel(folder, work / "wheel", work / name, options.cuda, epoch, tools)
        products[wheel] = [extension]
        arm = find_arm(options.arm.resolve())
        if arm:
            wheel, extension = build_wheel(folder, work / "arm", work / name, "OFF", epoch, tools, arm)
            products[wheel] = [extension]
        compiler = run(os.environ.get("CC", "cc"), "--version").splitlines()[0]
        text = sbom.document(version(), epoch, archive, products, compiler)
        (folder / f"{name}.spdx.json").write_text(json.dumps(text, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    files = sorted(folder.iterdir())
    lines = [f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n" for f in files]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    for file in sorted(folder.iterdir()):
        print(f"{file.stat().st_size:>10}  {file.name}")


if __name__ == "__main__":
    main()
