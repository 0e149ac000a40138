# SPDX-License-Identifier: BSD-3-Clause
"""What the Python tests share. They test the installed package, from a wheel: run.sh makes the environment."""

import gc
import os
import subprocess
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # models come from packages
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # whose arrays strobe.jax takes
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")  # for shard_map

import pytest
import strobe
import torch
from hypothesis import HealthCheck, settings

# A process of tests for each core: where each has a team of PyTorch's threads, the teams wait for each other at every operator.
torch.set_num_threads(1)

COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "derandomize": True}
settings.register_profile("quick", max_examples=60, **COMMON)
settings.register_profile("full", max_examples=300, **COMMON)


def pytest_configure(config):
    full = "full or not full" in (config.getoption("markexpr") or "")
    settings.load_profile("full" if full else "quick")


def pytest_collection_finish():
    gc.freeze()  # what the frameworks consist of stays: collections, which some tests ask for, need not look through it


@pytest.fixture
def python():
    """Run a program in a fresh interpreter of this environment; its output, and no complaint, is expected."""

    def run(program: str, seconds: float = 120) -> str:
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-W", "ignore", "-c", program],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def missing(device: str) -> str:
    """Why tests on the device cannot run here; nothing where they can."""
    if device == "cpu":
        return ""
    if not torch.cuda.is_available():
        return "no CUDA device"
    usable = any(kernel.device == "cuda" and not kernel.unavailable for kernel in strobe.kernels())
    return "" if usable else "a build without CUDA kernels for this device"


@pytest.fixture
def device_or_skip():
    """A function that skips the test where it is given a device that is not here."""

    def check(device: str) -> str:
        if why := missing(device):
            pytest.skip(why)
        return device

    return check


@pytest.fixture(params=["cpu", "cuda"])
def device(request, device_or_skip):
    """Each device in turn, as PyTorch names it."""
    return device_or_skip(request.param)
