"""The CUDA backend: cupy arrays, kernels by numba-cuda, one environment per thread.

Launches go to cupy's current stream of the calling thread, on the batch's device; nothing here waits for
the device. Work of another library is ordered by making its stream current, e.g. `with
cupy.cuda.ExternalStream(pointer):`.

Counts of non-finite states and of wrong actions stay on the device until `counts()` is called, which does
wait.

With `NUMBA_ENABLE_CUDASIM=1` in the environment the same kernels run in numba's simulator on numpy arrays: slow, for
tests on machines without a GPU (set `NUMBA_DISABLE_JIT=1` too: the simulator cannot call compiled functions).
"""

from __future__ import annotations

import contextlib
import importlib.util
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numba
import numpy as np

from gpuenvs import contract, scalar
from gpuenvs.errors import ActionError, DeviceError
from gpuenvs.runtime.buffers import Layout, numpy_dtype, shared_size, shared_values
from gpuenvs.runtime.cuda_source import GROUPS, SETTINGS, TOTALS, group_rows, python_kernel

THREADS_PER_BLOCK = 128

_INSTALL = 'pip install "gpurl[cuda12]" or "gpurl[cuda13]", whichever the driver supports (see nvidia-smi)'


def simulated() -> bool:
    """True when numba's CUDA simulator stands in for a device."""
    return bool(numba.config.ENABLE_CUDASIM)  # type: ignore[attr-defined]


def cuda_problem(index: int = 0) -> str | None:
    """Why CUDA device `index` cannot be used and what to do about it, in one line; None if it can."""
    if importlib.util.find_spec("numba_cuda") is None:
        return f"numba-cuda is not installed; {_INSTALL}"
    if simulated():
        return None if index == 0 else f"the CUDA simulator has one device, cuda:0; there is no cuda:{index}"
    if importlib.util.find_spec("cupy") is None:
        return f"cupy is not installed; {_INSTALL}"
    try:
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # cupy raises several kinds here: no driver, driver too old, library missing
        if "InsufficientDriver" in str(error):
            return f"cupy is built for a newer CUDA than the driver supports ({_one_line(error)}); {_INSTALL}"
        return f"no usable NVIDIA driver or device ({_one_line(error)}); check nvidia-smi, or use --device cpu"
    if index >= count:
        found = ", ".join(f"cuda:{k}" for k in range(count)) or "no device"
        return f"there is no cuda:{index}; this machine has {found}"
    try:
        from numba import cuda

        if not cuda.is_available():
            return f"numba-cuda finds no usable device ({_one_line(cuda.cuda_error())}); {_INSTALL}"
    except Exception as error:
        return f"numba-cuda does not load ({_one_line(error)}); {_INSTALL}"
    return None


def _one_line(error: Any) -> str:
    text = " ".join(str(error).split())
    return text[:160] or type(error).__name__


class CudaBackend:
    """Arrays and kernels of one batch on one CUDA device.

    Args:
        layout: the buffer table.
        real: working dtype.
        num_envs: rows.
        index: device number.

    Raises:
        DeviceError: the device cannot be used, or has too little memory; one line that says what to do.
    """

    def __init__(self, layout: Layout, real: np.dtype, num_envs: int, index: int) -> None:
        problem = cuda_problem(index)
        if problem is not None:
            raise DeviceError(f"device 'cuda:{index}' cannot be used: {problem}")
        self.layout, self.real, self.num_envs, self.index = layout, np.dtype(real), num_envs, index
        self.array_module: Any = _array_module()
        self._action_seen: tuple[Any, ...] = ()
        self._action_view: Any = None
        with self._on_device():
            try:
                self._allocate()
            except MemoryError as error:  # cupy's OutOfMemoryError is one
                bytes_per_env = sum(b.rows * numpy_dtype(b, self.real).itemsize for b in layout.buffers)
                needed = f"{num_envs} envs of {layout.spec.id} need {bytes_per_env * num_envs / 2**20:.0f} MiB"
                raise DeviceError(f"cuda:{index} has too little free memory: {needed}; use fewer envs") from error
            self._prepare()

    def _prepare(self) -> None:
        """What launches need beside the arrays."""
        scalar.register_cuda()
        self._fixed = [self._view(self._groups[name]) for name in GROUPS]
        self._fixed += [self._view(a) for a in (self._param_real, self._param_int, self._settings, self._totals)]

    def _allocate(self) -> None:
        rows = dict.fromkeys(GROUPS, 0)
        places = group_rows(self.layout, self.real)
        for buffer in self.layout.buffers:
            if buffer.name != "action":
                rows[places[buffer.name][0]] += buffer.rows
        dtypes = {name: np.dtype(kind or self.real) for name, kind in GROUPS.items()}
        action = next(b for b in self.layout.buffers if b.name == "action")
        zeros = self.array_module.zeros
        self._groups = {g: zeros((max(1, rows[g]), self.num_envs), dtypes[g]) for g in GROUPS}
        self.arrays = {"action": zeros((action.rows, self.num_envs), numpy_dtype(action, self.real))}
        self._allocate_params()
        self._settings = zeros(len(SETTINGS), np.uint32)
        for buffer in self.layout.buffers:
            if buffer.name != "action":
                group, first = places[buffer.name]
                self.arrays[buffer.name] = self._groups[group][first : first + buffer.rows]

    def _allocate_params(self) -> None:
        """The shared params, and what the kernels count."""
        size = shared_size(self.layout)
        self._param_real = self.array_module.zeros(size, self.real)
        self._param_int = self.array_module.zeros(size, np.int32)
        self._totals = self.array_module.zeros(len(TOTALS), np.int32)

    @contextlib.contextmanager
    def _on_device(self) -> Any:
        if simulated():
            yield
            return
        from numba import cuda

        with self.array_module.cuda.Device(self.index), cuda.gpus[self.index]:
            yield

    def _view(self, array: Any) -> Any:
        """`array` in the form that launches fastest; no copy, and no wait for the stream it was made on."""
        if simulated():
            return array
        from numba import cuda

        return cuda.as_cuda_array(array, sync=False)

    def _upload(self, array: Any, values: Any) -> None:
        host = np.asarray(values, array.dtype)
        if simulated():
            array[...] = host
        else:
            array.set(host)

    def _launch(self, name: str, threads: int, *arguments: Any) -> None:
        kernel = _compiled(self.layout, self.real.name, name)
        blocks = -(-threads // THREADS_PER_BLOCK)
        kernel[blocks, THREADS_PER_BLOCK, self._stream()](*arguments, *self._fixed)

    def _stream(self) -> Any:
        if simulated():
            return 0
        from numba import cuda

        pointer = self.array_module.cuda.get_current_stream().ptr
        return cuda.external_stream(pointer) if pointer else cuda.legacy_default_stream()

    def on_device(self) -> Any:
        """A context in which this batch's device is the current one."""
        return self._on_device()

    def launch(self, kernel: Any, arrays: list[Any], scalars: tuple[Any, ...]) -> None:
        """Launch a kernel that takes long for each row, one thread per row, on the current stream; returns at once.

        Its arguments are `arrays`, which are on this device (or in memory it can reach), `scalars`, and those of every
        kernel. Blocks are smaller than the most while that leaves multiprocessors without one.
        """
        with self._on_device():
            threads = THREADS_PER_BLOCK
            while not simulated() and threads > 32 and -(-self.num_envs // threads) < 4 * self._multiprocessors():
                threads //= 2
            grid = kernel[-(-self.num_envs // threads), threads, self._stream()]
            grid(*map(self._view, arrays), *scalars, *self._fixed)

    def _multiprocessors(self) -> int:
        return int(self.array_module.cuda.Device(self.index).attributes["MultiProcessorCount"])

    def configure(self, seed: int, env_offset: int, limit: int, params: Any, ranges: Mapping[str, Any] = {}) -> None:
        """Set the 64-bit seed, the number of the first env, the time limit, the shared params and the ranges of others."""
        with self._on_device():
            self._upload(self._settings, [seed & 0xFFFFFFFF, seed >> 32, env_offset, limit])
            self._upload_params(params, ranges)

    def _upload_params(self, params: Any, ranges: Mapping[str, Any]) -> None:
        reals, integers = np.zeros(self._param_real.shape), np.zeros(self._param_int.shape, np.int64)
        for buffer, row, value in shared_values(self.layout, params, ranges):
            (reals if buffer == "param_real" else integers)[row] = value
        self._upload(self._param_real, reals)
        self._upload(self._param_int, integers)

    def step(self, action: Any) -> tuple[int, int, int]:
        """Step every row with `action`, contiguous rows of the action buffer on this device.

        Returns zeros at once; what the CPU backend would return waits in `counts()`.
        """
        with self._on_device():
            self._launch("step_kernel", self.num_envs, self._as_argument(action))
        return 0, 0, 0

    def _as_argument(self, action: Any) -> Any:
        if simulated():
            return action
        # Loops pass the same buffer each time: make its view once. The view keeps the buffer alive.
        seen = (action.data.ptr, action.shape, action.dtype)
        if seen != self._action_seen:
            self._action_seen, self._action_view = seen, self._view(action)
        return self._action_view

    def wrong_actions(self, action: Any, choices: int) -> int:
        """0: the step kernel counts them, and `counts()` tells; looking here would stall the stream."""
        return 0

    def counts(self) -> tuple[int, int]:
        """(bad states, bad rewards) of the steps since the last call. Waits for the current stream.

        Raises:
            ActionError: one of those steps was given an integer action out of range.
        """
        with self._on_device():
            states, rewards, wrong = (int(v) for v in self.to_host(self._totals))
            self._totals[...] = 0
        if wrong:
            spec = self.layout.spec
            last = spec.action_space.n - 1  # type: ignore[union-attr]
            raise ActionError(f"{spec.id}: {wrong} actions since the last check were not in 0..{last}")
        return states, rewards

    def begin(self, rows: np.ndarray) -> None:
        """Begin episode `episode[i]` in these rows (host integers)."""
        self._over_rows("begin_kernel", rows)

    def observe(self, rows: np.ndarray) -> None:
        """Refresh obs of these rows (host integers) from their state."""
        self._over_rows("observe_kernel", rows)

    def _over_rows(self, name: str, rows: np.ndarray) -> None:
        if len(rows) == 0:
            return
        with self._on_device():
            listed = self.array_module.asarray(np.ascontiguousarray(rows, np.int64))
            self._launch(name, len(rows), self._view(listed))

    def to_host(self, array: Any) -> np.ndarray:
        """A copy in host memory. Waits for the current stream."""
        return np.array(array) if simulated() else array.get()

    def close(self) -> None:
        """Nothing to stop; arrays that were handed out stay valid."""


def _array_module() -> Any:
    if simulated():
        return np
    import cupy

    return cupy


_compile_lock = threading.Lock()
_cache: dict[tuple[Any, ...], tuple[Callable[..., Any], Any]] = {}


def _compiled(layout: Layout, real: str, name: str) -> Any:
    """Kernels are shared by all batches of one layout in the process. Specs are compared by identity."""
    key = (id(layout.spec), *layout.key, real, name)
    with _compile_lock:
        if key not in _cache:
            from numba import cuda

            contract.verify(layout.spec, real)
            _cache[key] = (cuda.jit(python_kernel(layout, np.dtype(real), name, cuda)), layout.spec)
        return _cache[key][0]
