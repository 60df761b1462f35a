"""Launches the fused rollouts of traced environments; see `gpuenvs.runtime.cuda_rollout` for what they do."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from gpuenvs.errors import DeviceError
from gpuenvs.runtime import disk_cache, traced, traced_cuda
from gpuenvs.runtime.buffers import Layout
from gpuenvs.runtime.cuda import TOTALS, simulated
from gpuenvs.runtime.cuda_policy import Mlp, Staging
from gpuenvs.runtime.traced_rollout import REALS, WORDS
from gpuenvs.runtime.traced_rollout_text import kernel_text, python_rollout, shared_memory
from gpuenvs.trace.cuda import compile_ptx


class TracedRolloutKernel:
    """The counterpart of `FusedRolloutKernel` for a `TracedCudaBackend`."""

    def __init__(self, backend: Any, mlp: Mlp, correlated: bool) -> None:
        self._backend, self.mlp = backend, mlp
        layout, key = backend.layout, traced_cuda._key(backend.layout, "rollout", mlp, correlated, backend.index)
        make = _make_python if simulated() else _load
        self._kernel = traced_cuda._shared(key, layout.spec, lambda: make(layout, mlp, correlated, backend))
        with backend.on_device():
            self._order = backend.array_module.asarray(Staging(mlp).order)

    def launch(self, policy: tuple[Any, Any, Any, Any], outputs: dict[str, Any], numbers: dict[str, Any]) -> None:
        """Fill one horizon on the current stream; returns at once.

        Args:
            policy: (flat weights, shift, scale, memory), as in `FusedRolloutKernel.launch`.
            outputs: an array for each output.
            numbers: a value for each scalar of the kernel.
        """
        weights, shift, scale, memory = policy
        arrays = {"weights": weights, "order": self._order, "shift": shift, "scale": scale, "memory": memory, **outputs}
        numbers = {**numbers, "steps": outputs["reward"].shape[0]}
        if simulated():
            self._simulate(arrays, numbers)
            return
        backend = self._backend
        words = [np.int64(_address(arrays[w]) if w in arrays else int(numbers[w])) for w in WORDS]
        reals = [np.float32(numbers[r]) for r in REALS]
        count = backend.num_envs
        with backend.on_device():
            table, totals = (np.int64(array.data.ptr) for array in (backend._table, backend._totals))
            block = traced_cuda.threads_per_block(count, backend._processors)
            self._kernel((-(-count // block),), (block,), (np.int64(count), table, totals, *words, *reals))

    def _simulate(self, arrays: dict[str, Any], numbers: dict[str, Any]) -> None:
        backend = self._backend
        given = {f"rollout_{name}": array.reshape(-1) for name, array in arrays.items()}
        assert all(np.shares_memory(given[f"rollout_{name}"], array) for name, array in arrays.items())
        given |= {**backend.arrays, "param_real": backend._param_real, "param_int": backend._param_int}
        given["shared"] = shared_memory(self.mlp, arrays["weights"], arrays["shift"], arrays["scale"])
        settings = {**backend._settings, "num_envs": backend.num_envs}
        settings |= {f"rollout_{name}": value for name, value in numbers.items()}
        counts = [0] * len(traced.COUNTED)
        with np.errstate(all="ignore"):
            for i in range(backend.num_envs):
                self._kernel(i, given, settings, counts)
        for counted, total in traced_cuda.COUNTED.items():
            backend._totals[TOTALS.index(total)] += counts[traced.COUNTED.index(counted)]


def _address(array: Any) -> int:
    """Where an array of cupy or torch lies."""
    return array.__cuda_array_interface__["data"][0]


def _make_python(layout: Layout, mlp: Mlp, correlated: bool, backend: Any) -> Any:
    return python_rollout(layout, mlp, correlated)


def _load(layout: Layout, mlp: Mlp, correlated: bool, backend: Any) -> Any:
    """The kernel on the backend's device, from disk or compiled and then kept there."""
    import cupy

    try:
        nvvm: Any = importlib.import_module("numba.cuda.cudadrv.nvvm")
        nvrtc: Any = importlib.import_module("numba.cuda.cudadrv.nvrtc")
        capability = str(cupy.cuda.Device(backend.index).compute_capability)
        architecture, version = nvrtc.get_arch_option(*divmod(int(capability), 10)), nvvm.NVVM().get_version()
    except Exception as error:
        raise DeviceError(f"the CUDA compiler libNVVM does not load: {error}; see gpurl doctor") from error
    kind = (mlp.sizes, mlp.activation, mlp.continuous, correlated)
    path = traced.cache_entry(layout, "rollout", kind, capability, version, cupy.cuda.runtime.driverGetVersion())
    code = disk_cache.read_entry(path) if path is not None else None
    if code is None:
        code = traced_cuda.machine_code(compile_ptx(kernel_text(layout, mlp, correlated), architecture), capability)
        if path is not None:
            disk_cache.write_entry(path, code)
    with backend.on_device():
        module = cupy.cuda.function.Module()
        module.load(code)
        return module.get_function("kernel")
