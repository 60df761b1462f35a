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
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

import gpuenvs
from benchmarks.ptxas import Usage, assemble
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


@functools.cache
def usage(case: Case, arch: str) -> Usage:
    """Assemble a kernel for `arch` and read what `ptxas -v` says about it."""
    return assemble(ptx(case, arch), arch)
