"""The kernels of many steps, compiled to PTX and machine code on a machine without a device: `ptx(case, arch)`.

python -m tests.ladder.fused CartPole-v1/64-64/tanh sm_90 > rollout.ptx
python -m tests.ladder.fused      # writes the budget, fused.json beside this file
"""

from __future__ import annotations

import functools
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import gpuenvs
from gpuenvs.checks.ptxas import Usage, assemble, toolchain
from gpuenvs.runtime.buffers import SAME_STEP, make_layout
from gpuenvs.runtime.cuda_noise import python_noise
from gpuenvs.runtime.cuda_policy import Mlp, Staging
from gpuenvs.runtime.cuda_rollout import ACTIONS, python_rollout, python_steps
from gpuenvs.runtime.traced_rollout_text import kernel_text
from gpuenvs.spec import EnvSpec
from gpuenvs.trace.cuda import compile_ptx
from tests.gpuenvs.classic import CLASSIC
from tests.ladder.offline import ARCHITECTURES, argument_types, capability, device_stub


@dataclass(frozen=True)
class Rollout:
    """The fused rollout of one environment under one policy."""

    env_id: str
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    correlated: bool = False

    def __str__(self) -> str:
        sizes = "-".join(map(str, self.hidden))
        return f"{self.env_id}/{sizes}/{self.activation}{'/correlated' if self.correlated else ''}"

    @property
    def mlp(self) -> Mlp:
        spec = gpuenvs.get(self.env_id)
        outputs = spec.action_dim if not spec.discrete else int(spec.action_space.n)  # type: ignore[union-attr]
        return Mlp((spec.obs_dim, *self.hidden, outputs), self.activation, not spec.discrete)

    @property
    def shared_bytes(self) -> int:
        return 4 * Staging(self.mlp).size

    def make(self, cuda: Any) -> Any:
        return python_rollout(make_layout(gpuenvs.get(self.env_id), SAME_STEP), self.mlp, self.correlated, cuda)

    def types(self, spec: EnvSpec) -> list[Any]:
        from numba import types as t

        real, flag = t.float32, t.boolean
        policy = [t.Array(real, 1, "C"), t.Array(t.int32, 1, "C"), *[t.Array(real, 1, "C")] * 2, t.Array(real, 2, "C")]
        action = t.Array(t.int64, 2, "C") if spec.discrete else t.Array(real, 3, "C")
        outputs = [t.Array(real, 3, "C"), action, *[t.Array(real, 2, "C")] * 2, *[t.Array(flag, 2, "C")] * 2]
        outputs += [t.Array(real, 3, "C"), t.Array(real, 2, "C"), t.Array(t.int32, 2, "C")]
        return [*policy, *outputs, *[t.uint32] * 5, *[real] * 4, *argument_types(spec, "float32", "")[1:]]


@dataclass(frozen=True)
class TracedRollout(Rollout):
    """The fused rollout of one traced environment."""

    def text(self) -> str:
        """NVVM IR."""
        return kernel_text(make_layout(gpuenvs.get(self.env_id), SAME_STEP), self.mlp, self.correlated)


@dataclass(frozen=True)
class Steps:
    """Many steps of one environment with random or constant actions."""

    env_id: str
    actions: str

    def __str__(self) -> str:
        return f"{self.env_id}/{self.actions} actions"

    shared_bytes = 0

    def make(self, cuda: Any) -> Any:
        layout = make_layout(gpuenvs.get(self.env_id), SAME_STEP)
        return python_steps(layout, np.dtype(np.float32), self.actions, cuda)

    def types(self, spec: EnvSpec) -> list[Any]:
        from numba import types as t

        given = [t.Array(t.int32 if spec.discrete else t.float32, 2, "C"), *[t.Array(t.float32, 1, "C")] * 2, t.int64]
        return [*given, *[t.uint32] * 5, *argument_types(spec, "float32", "")[1:]]


@dataclass(frozen=True)
class Noise:
    """A learner's noise."""

    kind: str
    env_id: str = CLASSIC[0]  # of no importance

    def __str__(self) -> str:
        return f"{self.kind} noise"

    shared_bytes = 0

    def make(self, cuda: Any) -> Any:
        return python_noise(self.kind, cuda)

    def types(self, spec: EnvSpec) -> list[Any]:
        from numba import types as t

        return [t.Array(t.float32, 3, "C"), *[t.uint32] * 6]


Case = Rollout | Steps | Noise


def cases() -> list[Case]:
    """A 64-64 policy in every environment, other kinds of policies, and the kernels without one."""
    found: list[Case] = [Rollout(env_id) for env_id in CLASSIC]
    found += [
        Rollout("CartPole-v1", (64,), "relu"),
        Rollout("CartPole-v1", (32, 32, 32)),
        Rollout("CartPole-v1", (16, 16)),
    ]
    found.append(Rollout("Pendulum-v1", correlated=True))
    found += [Steps(env_id, actions) for env_id in CLASSIC for actions in ACTIONS]
    found += [
        TracedRollout("InvertedPendulum-v5"),
        TracedRollout("HalfCheetah-v5"),
        TracedRollout("Hopper-v5", correlated=True),
    ]
    return [*found, Noise("normal"), Noise("gumbel")]


@functools.cache
def ptx(case: Case, arch: str) -> str:
    """PTX of a kernel, compiled once per process."""
    from numba import cuda, types

    if isinstance(case, TracedRollout):
        return compile_ptx(case.text(), arch.replace("sm_", "compute_")).decode()
    with device_stub(arch):
        function = case.make(cuda)
        signature = types.void(*case.types(gpuenvs.get(case.env_id)))
        text, _ = cuda.compile(function, signature, cc=capability(arch), device=False, abi="numba", output="ptx")
    return text


@functools.cache
def usage(case: Case, arch: str) -> Usage:
    """What a kernel takes on `arch`."""
    return assemble(ptx(case, arch), arch)


def shared_bytes(text: str) -> int:
    """Shared memory that a PTX text declares."""
    return sum(int(size) for size in re.findall(r"\.shared\s+\.align\s+\d+\s+\.b8\s+[\w$.]+\[(\d+)\]", text))


# --- the budget ------------------------------------------------------------------------------------------------------

PATH = Path(__file__).with_name("fused.json")
UPDATE = "python -m tests.ladder.fused"


def architectures(case: Case) -> tuple[str, ...]:
    """Where a kernel is compiled: one policy everywhere, the others for one data-centre card."""
    return ARCHITECTURES if case == Rollout("CartPole-v1") else ("sm_90",)


def measure(case: Case, arch: str) -> dict[str, int]:
    """What a kernel takes on `arch`, its shared memory (bytes of a block) included."""
    return {**usage(case, arch).row(), "shared": shared_bytes(ptx(case, arch))}


def write() -> None:
    """Measure and write the table."""
    rows = {str(case): {arch: measure(case, arch) for arch in architectures(case)} for case in cases()}
    lines = ",\n".join(f' "{name}": {json.dumps(row)}' for name, row in rows.items())
    PATH.write_text(f'{{\n"toolchain": {json.dumps(toolchain())},\n"kernels": {{\n{lines}}}}}\n')


if __name__ == "__main__":
    if len(sys.argv) == 3:
        wanted = {str(case): case for case in cases()}
        print(ptx(wanted[sys.argv[1]], sys.argv[2]))
    else:
        write()
        print(f"wrote {PATH}")
