"""CUDA kernels compiled to PTX on a machine without a device or a driver.

numba-cuda asks the current device for its compute capability whenever one compiled function calls another, and NVRTC for
the architectures it knows. `device_stub` answers in their place. Everything else is what runs on a machine with a GPU:
the same generated kernel, typed by numba-cuda and compiled by NVVM.

Needs the wheels nvidia-nvvm (compiler, libdevice), nvidia-cuda-nvcc (`ptxas`) and nvidia-cuda-nvrtc (numba-cuda looks it
up although nothing here uses it).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from gpuenvs import scalar
from gpuenvs.checks import ptxas
from gpuenvs.runtime.buffers import Layout, make_layout
from gpuenvs.runtime.cuda_source import python_kernel
from gpuenvs.spec import EnvSpec

ARCHITECTURES = ("sm_80", "sm_90", "sm_120")


def missing() -> str | None:
    """Why there is neither CUDA compiler nor simulator here; None if there is."""
    return None if importlib.util.find_spec("numba_cuda") else "numba-cuda is not installed"


def problem() -> str | None:
    """Why kernels cannot be compiled here, in words; None if they can."""
    if missing() is not None:
        return missing()
    try:
        nvvm: Any = importlib.import_module("numba.cuda.cudadrv.nvvm")
        nvvm.NVVM()
        ptxas.find_ptxas()
    except FileNotFoundError as error:
        return " ".join(str(error).split())
    except Exception as error:  # several kinds from several versions
        return f"the CUDA compiler libNVVM does not load ({' '.join(str(error).split())[:120]}); install nvidia-nvvm"
    return None


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


def make_kernel(spec: EnvSpec, real: str, autoreset: str, kernel: str) -> Any:
    """A kernel of a spec that is not traced, as a Python function."""
    from numba import cuda

    return python_kernel(make_layout(spec, autoreset), np.dtype(real), kernel, cuda)


def typed_kernel(spec: EnvSpec, real: str, autoreset: str, kernel: str) -> tuple[Any, Any]:
    """(Python function, type annotation) of such a kernel as numba-cuda types it."""
    cuda: Any = importlib.import_module("numba.cuda")
    function = make_kernel(spec, real, autoreset, kernel)
    with device_stub():
        result = cuda.jit(function, device=True).compile_device(argument_types(spec, real, kernel))
    return function, result.type_annotation


def kernel_ptx(spec: EnvSpec, real: str, autoreset: str, kernel: str, arch: str) -> str:
    """PTX of a kernel of any spec."""
    if spec.traced:
        return _traced_ptx(make_layout(spec, autoreset), real, kernel, arch)
    from numba import types

    cuda: Any = importlib.import_module("numba.cuda")
    function = make_kernel(spec, real, autoreset, kernel)
    signature = types.void(*argument_types(spec, real, kernel))
    with device_stub(arch):
        text, _ = cuda.compile(function, signature, cc=capability(arch), device=False, abi="numba", output="ptx")
    return text


def _traced_ptx(layout: Layout, real: str, kernel: str, arch: str) -> str:
    from gpuenvs.runtime.traced_cuda import kernel_text
    from gpuenvs.trace.cuda import compile_ptx

    action = "int32" if layout.spec.discrete else real
    return compile_ptx(kernel_text(layout, real, kernel, action), arch.replace("sm_", "compute_")).decode()
