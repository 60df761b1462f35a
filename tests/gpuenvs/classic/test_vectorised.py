"""The step loops of the classic environments run on vector registers and call no library function."""

from __future__ import annotations

import platform
import re

import llvmlite.binding as llvm
import numpy as np
import pytest
from numba import types

import gpuenvs
from gpuenvs.runtime.buffers import SAME_STEP, make_layout
from gpuenvs.runtime.cpu import _Source as Source
from tests.gpuenvs.reference import IDS

AVX2 = platform.machine().lower() in ("x86_64", "amd64") and llvm.get_host_cpu_features().get("avx2", False)
LIBRARY = re.compile(r"\b(?:call|jmp)\w*\s+\S*(?:sin|cos|pow|fmod|floor|exp|log|sqrt)", re.IGNORECASE)


@pytest.mark.skipif(not AVX2, reason="reads x86-64 assembly with AVX2")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("env_id", [env_id for env_id in IDS if "classic" in gpuenvs.get(env_id).step.__module__])
def test_step_loop_is_vectorised(env_id: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = gpuenvs.get(env_id)
    real = np.dtype(dtype)
    monkeypatch.setenv("GPURL_CACHE", "0")  # machine code from the cache has no assembly
    action = np.dtype(np.int32) if spec.discrete else real
    kernel = Source(make_layout(spec, SAME_STEP), real, action).compile("step_kernel")
    kernel.compile((types.int64, types.int64, types.int64[::1], types.int64[::1]))
    (assembly,) = kernel.inspect_asm().values()
    packed = "ps" if dtype == "float32" else "pd"
    assert len(re.findall(rf"\bv(?:mul|fn?madd\d+|fn?msub\d+){packed}\s.*%[yz]mm", assembly)) >= 10
    assert not LIBRARY.findall(assembly)
