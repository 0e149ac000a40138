# SPDX-License-Identifier: BSD-3-Clause
"""examples/generate.py and generate.c: the characters that PyTorch finds without a cache, for weights trained here."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("safetensors")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import generate  # noqa: E402
import gpt as gpt_model  # noqa: E402
import train_gpt  # noqa: E402

CHARACTERS = 70
PROMPTS = [
    "typedef struct",
    "/",
    "Mr. Bennet replied that he had not.",
    "x" * 15,
    "It is a truth universally acknowledged, " * 2,
]


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    """A small model's weights in a file, and the text that it has for each prompt when all rows are computed anew."""
    path = tmp_path_factory.mktemp("gpt") / "gpt.safetensors"
    text = gpt_model.text()
    alphabet = sorted(set(text))
    ids = torch.tensor([alphabet.index(c) for c in text])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(gpt_model.SIZE, "cpu", gpt_model.Size(96, 64, 4, 2, 8, 5e-3, torch.float32))
        losses, _, model = train_gpt.train("torch math", ids, len(alphabet), 120)
    assert (
        sum(losses[-20:]) / 20 < 3.2
    )  # it has learnt: a guess among 93 characters costs 4.5; what is left differs by processor
    gpt_model.save(model, alphabet, path)
    texts = []
    with torch.inference_mode():
        for prompt in PROMPTS:
            row = [alphabet.index(c) for c in prompt]
            while len(row) < min(len(prompt) + CHARACTERS, model.context):
                row.append(model(torch.tensor([row]))[0, -1].argmax().item())
            texts.append("".join(alphabet[n] for n in row))
    assert len(texts[4]) == 96 and len(set("".join(texts))) > 15
    return path, texts


def test_generate_in_python(gpt, tmp_path):
    path, texts = gpt
    model, alphabet = generate.load(path)
    owners = []
    rows = generate.generate(model, [[alphabet.index(c) for c in prompt] for prompt in PROMPTS], CHARACTERS, owners)
    for step in owners:
        pages = [page for own in step.values() for page in own]
        assert len(set(pages)) == len(pages) and len(step) <= generate.AT_ONCE
    if importlib.util.find_spec("matplotlib"):
        generate.plot(owners, tmp_path / "pages.png")
        assert (tmp_path / "pages.png").read_bytes().startswith(b"\x89PNG")
    assert ["".join(alphabet[n] for n in row) for row in rows] == texts


def written(program, path, *prompts, **environment):
    """What a program writes of each prompt, in the prompts' order."""
    done = subprocess.run(
        [*program, str(path), str(CHARACTERS), *prompts],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0 and "a second" in done.stderr, done.stderr
    return [line.split(": ", 1)[1] for line in sorted(done.stdout.splitlines())]


def test_programs(gpt):
    """No line of these texts breaks, so that a line is a text."""
    path, texts = gpt
    programs = [[sys.executable, str(EXAMPLES / "generate.py")]]
    if binary := os.environ.get("STROBE_EXAMPLE_GENERATE"):
        programs.append([binary])
    shown = [n for n, text in enumerate(texts) if "\n" not in text]
    assert len(shown) >= 3
    for program in programs:
        assert written(program, path, *(PROMPTS[n] for n in shown)) == [texts[n] for n in shown]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("at_once", ["2", "4"])
def test_generate_on_a_gpu(gpt, at_once):
    """With cuBLAS where PyTorch has it. With four places sequences of one row each are there for graphs of every size."""
    binary = os.environ.get("STROBE_EXAMPLE_GENERATE")
    if not binary:
        pytest.skip("STROBE_EXAMPLE_GENERATE names no program: ctest says where it has built it")
    torch.ones(1, 1, device="cuda") @ torch.ones(1, 1, device="cuda")
    maps = Path("/proc/self/maps").read_text().split()
    cublas = next(Path(word).parent for word in maps if "/libcublas.so" in word)
    path, texts = gpt
    shown = [n for n, text in enumerate(texts) if "\n" not in text]
    program = [binary, "--device", "cuda", "--at-once", at_once]
    found = written(
        program, path, *(PROMPTS[n] for n in shown), LD_LIBRARY_PATH=f"{cublas}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    )
    assert found == [texts[n] for n in shown]


def test_generate_in_c_refuses(gpt, tmp_path):
    binary = os.environ.get("STROBE_EXAMPLE_GENERATE")
    if not binary:
        pytest.skip("STROBE_EXAMPLE_GENERATE names no program: ctest says where it has built it")
    (tmp_path / "short").write_bytes(b"abc")
    for words, sentence in (
        ([], "usage"),
        (["nowhere", "9", "a"], "cannot open: nowhere"),
        ([str(tmp_path / "short"), "9", "a"], "no safetensors file"),
        ([str(gpt[0]), "9", "\x01"], "no character that the model knows"),
    ):
        done = subprocess.run([binary, *words], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1 and sentence in done.stderr
