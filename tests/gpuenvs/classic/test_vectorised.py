"""The step loops of the classic environments run on vector registers and call no library function."""

from __future__ import annotations

import platform
import re

import llvmlite.binding as llvm
import numpy as np
import pytest

import gpuenvs
from tests.gpuenvs.reference import IDS
from tests.gpuenvs.sampling import random_actions

AVX2 = platform.machine().lower() in ("x86_64", "amd64") and llvm.get_host_cpu_features().get("avx2", False)
LIBRARY = re.compile(r"\b(?:call|jmp)\w*\s+\S*(?:sin|cos|pow|fmod|floor|exp|log|sqrt)", re.IGNORECASE)


@pytest.mark.skipif(not AVX2, reason="reads x86-64 assembly with AVX2")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("env_id", [env_id for env_id in IDS if "classic" in gpuenvs.get(env_id).step.__module__])
def test_step_loop_is_vectorised(env_id: str, dtype: str) -> None:
    spec = gpuenvs.get(env_id)
    with gpuenvs.make(spec, 64, device="cpu", dtype=dtype, threads=1) as env:
        env.reset(seed=0)
        action = random_actions(spec, np.random.default_rng(0), 64)
        env.step(action if spec.discrete else action.astype(dtype))
        kernel = env._backend.kernel("step_kernel", action.dtype if spec.discrete else env.dtype)
    (assembly,) = kernel.inspect_asm().values()
    packed = "ps" if dtype == "float32" else "pd"
    assert len(re.findall(rf"\bv(?:mul|fn?madd\d+|fn?msub\d+){packed}\s.*%[yz]mm", assembly)) >= 10
    assert not LIBRARY.findall(assembly)
