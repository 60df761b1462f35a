"""The example scripts, each with fewer steps: they learn."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small networks are slower on several threads, and much slower on a machine with other work to do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def load(file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{file.removesuffix('.py')}", ROOT / "examples" / file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_dlpack_torch() -> None:
    """Under a random policy an episode has about 22 steps."""
    assert load("dlpack_torch.py").train(steps=120_000) > 120


def test_dlpack_jax() -> None:
    pytest.importorskip("jax")
    assert load("dlpack_jax.py").train(updates=14) > 100


def test_sb3_ppo() -> None:
    """Under a random policy the return is below -100."""
    pytest.importorskip("stable_baselines3")
    assert load("sb3_ppo.py").train(steps=100_000) > 100


@pytest.mark.parametrize("file", ["dlpack_torch.py", "dlpack_jax.py", "sb3_ppo.py"])
def test_their_command_lines_explain_themselves(file: str) -> None:
    if file == "dlpack_jax.py":
        pytest.importorskip("jax")
    if file == "sb3_ppo.py":
        pytest.importorskip("stable_baselines3")
    command = [sys.executable, str(ROOT / "examples" / file), "--help"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "--seed" in done.stdout
