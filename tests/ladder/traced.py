"""The CUDA kernels of traced environments, compiled on a machine without a device or a driver."""

from __future__ import annotations

import functools
import hashlib

import gpuenvs
from gpuenvs.checks.ptxas import Usage, assemble
from gpuenvs.registry import BUILTIN
from gpuenvs.runtime.buffers import AUTORESET_MODES, SAME_STEP, make_layout
from gpuenvs.runtime.traced_cuda import kernel_text
from gpuenvs.trace.cuda import compile_ptx
from tests.ladder.offline import ARCHITECTURES, Case

MUJOCO = [env_id for env_id, entry in BUILTIN.items() if entry.module.startswith("gpuenvs.mjlite")]
ALL_MODES = "HalfCheetah-v5"  # the one whose steps are compiled for every autoreset mode


def cases() -> list[Case]:
    """Every kernel of every MuJoCo task in float32, and the steps in float64."""
    found = []
    for env_id in MUJOCO:
        modes = AUTORESET_MODES if env_id == ALL_MODES else (SAME_STEP,)
        found += [Case(env_id, "float32", mode, "step_kernel") for mode in modes]
        found += [Case(env_id, "float32", SAME_STEP, name) for name in ("begin_kernel", "observe_kernel")]
        found.append(Case(env_id, "float64", SAME_STEP, "step_kernel"))
    return found


def architectures(case: Case) -> tuple[str, ...]:
    """Where a kernel is compiled: float32 everywhere, float64 for one data-centre card."""
    return ARCHITECTURES if case.real == "float32" else ("sm_90",)


@functools.cache
def text(case: Case) -> str:
    """NVVM IR of a kernel, traced once per process."""
    spec = gpuenvs.get(case.env_id)
    return kernel_text(make_layout(spec, case.autoreset), case.real, case.kernel, case.real)


def digest(case: Case) -> str:
    """Stands for the source of a kernel."""
    return hashlib.sha256(text(case).encode()).hexdigest()[:16]


@functools.cache
def ptx(case: Case, arch: str) -> str:
    """PTX of a kernel, compiled once per process."""
    return compile_ptx(text(case), arch.replace("sm_", "compute_")).decode()


@functools.cache
def usage(case: Case, arch: str) -> Usage:
    """What a kernel takes on `arch`."""
    return assemble(ptx(case, arch), arch)
