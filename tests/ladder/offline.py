"""Every kernel of the classic environments compiled on a machine without a device; see `gpuenvs.checks.offline`."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import gpuenvs
from gpuenvs.checks import offline
from gpuenvs.checks.offline import ARCHITECTURES, argument_types, capability, device_stub
from gpuenvs.checks.ptxas import Usage, assemble
from gpuenvs.runtime.buffers import AUTORESET_MODES, SAME_STEP
from gpuenvs.spec import EnvSpec
from tests.gpuenvs.classic import CLASSIC

__all__ = [
    "ARCHITECTURES",
    "Case",
    "argument_types",
    "capability",
    "cases",
    "device_stub",
    "make_kernel",
    "ptx",
    "usage",
]


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


def make_kernel(spec: EnvSpec, case: Case) -> Any:
    """The kernel as a Python function."""
    return offline.make_kernel(spec, case.real, case.autoreset, case.kernel)


@functools.cache
def ptx(case: Case, arch: str) -> str:
    """PTX of a kernel, compiled once per process."""
    return offline.kernel_ptx(gpuenvs.get(case.env_id), case.real, case.autoreset, case.kernel, arch)


@functools.cache
def usage(case: Case, arch: str) -> Usage:
    """Assemble a kernel for `arch` and read what `ptxas -v` says about it."""
    return assemble(ptx(case, arch), arch)
