"""Compile CUDA kernels to PTX and to machine code on a machine without a device or a driver.

numba-cuda asks the current device for its compute capability whenever one compiled function calls another, and NVRTC for
the architectures it knows. `device_stub` answers in their place. Everything else is what runs on a machine with a GPU:
the same generated kernel, typed by numba-cuda and compiled by NVVM.

Needs the wheels nvidia-nvvm (compiler, libdevice), nvidia-cuda-nvcc (`ptxas`) and nvidia-cuda-nvrtc (numba-cuda looks it
up although nothing here uses it).
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

import gpuenvs
from gpuenvs import scalar
from gpuenvs.runtime.buffers import AUTORESET_MODES, SAME_STEP, make_layout
from gpuenvs.runtime.cuda_source import python_kernel
from gpuenvs.spec import EnvSpec
from tests.gpuenvs.classic import CLASSIC

ARCHITECTURES = ("sm_80", "sm_90", "sm_120")


@dataclass(frozen=True)
class Case:
    """One kernel of one environment."""

    env_id: str
    real: str
    autoreset: str
    kernel: str

    def __str__(self) -> str:
        return f"{self.env_id}/{self.real}/{self.autoreset}/{self.kernel}"


def cases() -> list[Case]:
    """Every kernel of every registered environment: in float32 all autoreset modes, in float64 one.

    Beginning and observing a row do not depend on the mode but for buffer offsets.
    """
    found = []
    for env_id in CLASSIC:
        for real, modes in (("float32", AUTORESET_MODES), ("float64", (SAME_STEP,))):
            found += [Case(env_id, real, mode, "step_kernel") for mode in modes]
            found += [Case(env_id, real, SAME_STEP, name) for name in ("begin_kernel", "observe_kernel")]
    return found


def capability(arch: str) -> tuple[int, int]:
    """(9, 0) for "sm_90"."""
    digits = arch.removeprefix("sm_")
    return int(digits[:-1]), int(digits[-1])


@contextlib.contextmanager
def device_stub(arch: str = ARCHITECTURES[0]) -> Iterator[None]:
    """Let numba-cuda compile for `arch` without a device."""
    import numba.cuda.dispatcher
    from numba.cuda import config

    device = SimpleNamespace(compute_capability=capability(arch))
    scalar.register_cuda()
    with (
        mock.patch.object(numba.cuda.dispatcher, "get_current_device", lambda: device),
        mock.patch.object(config, "FORCE_CUDA_CC", capability(arch)),
    ):
        yield


def argument_types(spec: EnvSpec, real: str, kernel: str) -> tuple[Any, ...]:
    """numba types of a kernel's arguments, as a launch finds them."""
    from numba import types

    def array(kind: Any, ndim: int) -> Any:
        return types.Array(kind, ndim, "C")

    working = getattr(types, real)
    first = array(types.int64, 1)
    if kernel == "step_kernel":
        first = array(types.int32 if spec.discrete else working, 2)
    groups = [working, types.int32, types.uint32, types.boolean]
    tables = [working, types.int32, types.uint32, types.int32]
    return (first, *(array(kind, 2) for kind in groups), *(array(kind, 1) for kind in tables))


def make_kernel(spec: EnvSpec, case: Case) -> Any:
    """The kernel as a Python function."""
    from numba import cuda

    return python_kernel(make_layout(spec, case.autoreset), np.dtype(case.real), case.kernel, cuda)


@functools.cache
def _python_kernel(case: Case) -> Any:
    return make_kernel(gpuenvs.get(case.env_id), case)


@functools.cache
def ptx(case: Case, arch: str) -> str:
    """PTX of a kernel, compiled once per process."""
    from numba import cuda, types

    spec = gpuenvs.get(case.env_id)
    signature = types.void(*argument_types(spec, case.real, case.kernel))
    with device_stub(arch):
        text, _ = cuda.compile(
            _python_kernel(case), signature, cc=capability(arch), device=False, abi="numba", output="ptx"
        )
    return text


@dataclass(frozen=True)
class Usage:
    """What one kernel takes on one architecture.

    Args:
        registers: per thread.
        stack, spill_stores, spill_loads: bytes of local memory per thread.
        instructions: static count in the PTX, resets and bounds check included.
        float64: PTX instructions with a float64 operand.
    """

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    instructions: int
    float64: int

    def row(self) -> dict[str, int]:
        return asdict(self)


_INSTRUCTION = re.compile(r"\s*(?:@!?%p\d+\s+)?([a-z][a-z0-9_]*(?:\.\w+|::)*)[\s;]")


def instructions(text: str) -> list[str]:
    """Opcodes in the order of the PTX text; labels and declarations are none."""
    body = text[text.index("{") + 1 :].splitlines()
    return [match.group(1) for match in map(_INSTRUCTION.match, body) if match]


@functools.cache
def usage(case: Case, arch: str) -> Usage:
    """Assemble a kernel for `arch` and read what `ptxas -v` says about it."""
    text = ptx(case, arch)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(text)
        command = [find_ptxas(), "-v", f"-arch={arch}", str(source), "-o", str(Path(folder) / "kernel.cubin")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"ptxas rejects {case} for {arch}: {done.stderr.strip()}")
    opcodes = instructions(text)
    numbers = {
        "registers": r"Used (\d+) registers",
        "stack": r"(\d+) bytes stack frame",
        "spill_stores": r"(\d+) bytes spill stores",
        "spill_loads": r"(\d+) bytes spill loads",
    }
    found = {name: int(re.search(pattern, done.stderr).group(1)) for name, pattern in numbers.items()}  # type: ignore[union-attr]
    return Usage(**found, instructions=len(opcodes), float64=sum(".f64" in opcode for opcode in opcodes))


@functools.cache
def find_ptxas() -> str:
    """Path of the `ptxas` of the nvcc wheel, or else of the one on PATH.

    The wheel comes first: an older `ptxas` rejects the PTX of a newer NVVM. Raises FileNotFoundError if there is neither.
    """
    for name in ("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            for file in importlib.metadata.files(name) or []:
                if file.name == "ptxas":
                    return str(file.locate())
    found = shutil.which("ptxas")
    if found is None:
        raise FileNotFoundError("no ptxas; install the wheels of the dev extra: pip install -e '.[dev]'")
    return found


@functools.cache
def toolchain() -> dict[str, str]:
    """Versions that decide what a kernel takes."""
    said = subprocess.run([find_ptxas(), "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"release [\d.]+, V([\d.]+)", said)
    return {
        "ptxas": version.group(1) if version else "unknown",
        "nvvm": importlib.metadata.version("nvidia-nvvm"),
        "numba-cuda": importlib.metadata.version("numba-cuda"),
    }
