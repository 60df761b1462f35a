"""The CUDA backend of traced environments: kernels from `gpuenvs.trace.cuda`, one environment per thread.

libNVVM compiles a kernel's program to PTX for the device's compute capability; nvJitLink, or the driver where that is not
installed, makes machine code of it, which is kept on disk. cupy loads and launches it, on its current stream, without a wait.

A kernel finds the arrays and all that may change between launches through a table in device memory, so a launch that was
recorded in a CUDA graph stays valid after `reset(seed=...)`.

In numba's CUDA simulator (see `gpuenvs.runtime.cuda`) the same programs run as plain Python, row by row, on numpy arrays.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpuenvs.errors import DeviceError
from gpuenvs.runtime import disk_cache, traced, traced_python
from gpuenvs.runtime.buffers import Layout, numpy_dtype
from gpuenvs.runtime.cpu import TAIL
from gpuenvs.runtime.cuda import THREADS_PER_BLOCK, TOTALS, CudaBackend, simulated
from gpuenvs.trace.cuda import CudaPrinter, compile_ptx

# What a program counts (`traced.COUNTED`) -> its place in the backend's totals.
COUNTED = {"bad_state": "bad_states", "bad_reward": "bad_rewards", "wrong_action": "wrong_actions"}
_SETTINGS = ("seed_lo", "seed_hi", "env_offset", "limit")


class TracedCudaBackend(CudaBackend):
    """Arrays and kernels of one batch of a traced environment on one CUDA device; see `CudaBackend`."""

    def _allocate(self) -> None:
        zeros, buffers = self.array_module.zeros, self.layout.buffers
        self.arrays = {b.name: zeros((b.rows, self.num_envs), numpy_dtype(b, self.real)) for b in buffers}
        self._allocate_params()
        self._table = zeros(len(buffers) + len(TAIL), np.int64)

    def _prepare(self) -> None:
        self._settings: Any = dict.fromkeys(_SETTINGS, 0)
        self._kernels: dict[Any, Any] = {}
        if not simulated():
            self._processors = self.array_module.cuda.Device(self.index).attributes["MultiProcessorCount"]
            self._addresses = [_address(self._table), _address(self._totals)]

    @contextlib.contextmanager
    def _on_device(self) -> Any:
        if simulated():
            yield
            return
        with self.array_module.cuda.Device(self.index):
            yield

    def configure(self, seed: int, env_offset: int, limit: int, params: Any, ranges: Mapping[str, Any] = {}) -> None:
        """Set the 64-bit seed, the number of the first env, the time limit, the shared params and the ranges of others."""
        self._settings = dict(zip(_SETTINGS, (seed & 0xFFFFFFFF, seed >> 32, env_offset, limit)))
        with self._on_device():
            self._upload_params(params, ranges)
            if not simulated():
                self._upload(self._table, self._host_table())

    def _host_table(self) -> list[int]:
        fixed = {
            "num_envs": self.num_envs,
            "param_real": int(_address(self._param_real)),
            "param_int": int(_address(self._param_int)),
            "step_function": 0,  # for callers on the CPU
        }
        tail = {**fixed, **self._settings}
        return [int(_address(self.arrays[b.name])) for b in self.layout.buffers] + [tail[name] for name in TAIL]

    def step(self, action: Any) -> tuple[int, int, int]:
        """Step every row with `action`, contiguous rows of the action buffer on this device.

        Returns zeros at once; what the CPU backend would return waits in `counts()`.
        """
        with self._on_device():
            self._run("step_kernel", self.num_envs, action, None)
        return 0, 0, 0

    def _over_rows(self, name: str, rows: np.ndarray) -> None:
        if len(rows):
            with self._on_device():
                listed = self.array_module.asarray(np.ascontiguousarray(rows, np.int64))
                self._run(name, len(rows), self.arrays["action"], listed)

    def _run(self, name: str, count: int, action: Any, rows: Any) -> None:
        if simulated():
            self._simulate(name, action, range(count) if rows is None else rows.tolist())
            return
        # Loops pass the same buffer each time: make the launch's arguments once.
        seen = (name, action.data.ptr, action.dtype) if rows is None else None
        if seen is None or seen != self._action_seen:
            arguments = self._launch_arguments(name, count, action, rows)
            if seen is not None:
                self._action_seen, self._action_view = seen, (arguments, action)  # keeps the buffer alive
        else:
            arguments = self._action_view[0]
        kernel, grid, block, values = arguments
        kernel(grid, block, values)

    def _launch_arguments(self, name: str, count: int, action: Any, rows: Any) -> tuple[Any, ...]:
        block = threads_per_block(count, self._processors)
        addresses = (np.int64(count), _address(action), self._addresses[0])
        listed = np.int64(0) if rows is None else _address(rows)
        values = (*addresses, listed, self._addresses[1])
        return self.kernel(name, action.dtype), (-(-count // block),), (block,), values

    def kernel(self, name: str, action_dtype: np.dtype | None = None) -> Any:
        """Compile a kernel now; returns it."""
        dtype = np.dtype(action_dtype or self.arrays["action"].dtype)
        if (name, dtype) not in self._kernels:
            with self._on_device():
                self._kernels[name, dtype] = _loaded(self.layout, self.real.name, name, dtype.name, self.index)
        return self._kernels[name, dtype]

    def _simulate(self, name: str, action: Any, rows: Any) -> None:
        function = _python_kernel(self.layout, self.real.name, name)
        arrays = {**self.arrays, "action": action, "param_real": self._param_real, "param_int": self._param_int}
        counts = [0] * len(traced.COUNTED)
        with np.errstate(all="ignore"):
            for i in rows:
                function(i, arrays, self._settings, counts)
        for counted, total in COUNTED.items():
            self._totals[TOTALS.index(total)] += counts[traced.COUNTED.index(counted)]


def _address(array: Any) -> np.int64:
    """Device address of an array; 0 of an empty one."""
    return np.int64(array.data.ptr)


def threads_per_block(count: int, processors: int) -> int:
    """Threads of one block: fewer than the most while that leaves multiprocessors without a block."""
    threads = THREADS_PER_BLOCK
    while threads > 32 and -(-count // threads) < 4 * processors:
        threads //= 2
    return threads


# --- compiling -------------------------------------------------------------------------------------------------------


def kernel_text(layout: Layout, real: str, name: str, action_dtype: str) -> str:
    """NVVM IR of a kernel, without the target lines."""
    program = traced.record_kernel(layout, real, name, action_dtype)
    totals = {traced.COUNTED.index(counted): TOTALS.index(total) for counted, total in COUNTED.items()}
    n_slot, listed = traced.slots(layout)["num_envs"], name != "step_kernel"
    return CudaPrinter(program, real, n_slot, layout.index("action"), totals, listed).text()


def machine_code(ptx: bytes, capability: str) -> bytes:
    """Machine code of a PTX text for a compute capability such as "90"; the PTX itself where no linker does it.

    An older driver does not know the PTX of a newer libNVVM, but runs machine code of the nvJitLink that came with it.
    """
    try:
        core: Any = importlib.import_module("cuda.core")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is the driver which links
            linker = core.Linker(core.ObjectCode.from_ptx(ptx), options=core.LinkerOptions(arch=f"sm_{capability}"))
            return bytes(linker.link("cubin").code)
    except Exception:  # several kinds from several versions; loading the PTX tells what is wrong with it
        return ptx


def _compiled(layout: Layout, real: str, name: str, action_dtype: str, capability: str, driver: int) -> bytes:
    """From disk, or traced and compiled and then kept there."""
    try:
        nvvm: Any = importlib.import_module("numba.cuda.cudadrv.nvvm")
        nvrtc: Any = importlib.import_module("numba.cuda.cudadrv.nvrtc")
        version = nvvm.NVVM().get_version()
        architecture = nvrtc.get_arch_option(*divmod(int(capability), 10))
    except Exception as error:
        raise DeviceError(f"the CUDA compiler libNVVM does not load: {error}; see gpurl doctor") from error
    path = traced.cache_entry(layout, real, name, action_dtype, "cuda", capability, version, driver)
    code = disk_cache.read_entry(path) if path is not None else None
    if code is None:
        code = machine_code(compile_ptx(kernel_text(layout, real, name, action_dtype), architecture), capability)
        if path is not None:
            disk_cache.write_entry(path, code)
    return code


_lock = threading.Lock()
_cache: dict[tuple[Any, ...], tuple[Any, Any]] = {}


def _shared(key: tuple[Any, ...], spec: Any, make: Callable[[], Any]) -> Any:
    """What `make` returns, made once per process. Specs are compared by identity, so theirs is kept too."""
    with _lock:
        if key not in _cache:
            _cache[key] = (make(), spec)
        return _cache[key][0]


def _key(layout: Layout, *what: object) -> tuple[Any, ...]:
    return id(layout.spec), *layout.key, *what


def _loaded(layout: Layout, real: str, name: str, action_dtype: str, index: int) -> Any:
    """The kernel on the current device."""
    import cupy

    def make() -> Any:
        capability, driver = str(cupy.cuda.Device(index).compute_capability), cupy.cuda.runtime.driverGetVersion()
        module = cupy.cuda.function.Module()
        module.load(_compiled(layout, real, name, action_dtype, capability, driver))
        return module.get_function("kernel")

    return _shared(_key(layout, real, name, action_dtype, index), layout.spec, make)


def _python_kernel(layout: Layout, real: str, name: str) -> Callable[..., Any]:
    return _shared(_key(layout, real, name, "python"), layout.spec, lambda: traced_python.function(layout, real, name))
