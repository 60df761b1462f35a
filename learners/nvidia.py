"""What the NVIDIA driver says, asked through libcuda itself: needs neither torch nor numba, and no GPU."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Gpu:
    """One device as the driver names it."""

    index: int
    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]


@dataclass(frozen=True)
class Driver:
    """The driver and its devices; `problem` says why there are none, `peers` are pairs with access."""

    version: str | None = None
    gpus: tuple[Gpu, ...] = ()
    peers: frozenset[tuple[int, int]] = field(default_factory=frozenset)
    problem: str | None = None


# CUdevice_attribute numbers of the CUDA driver API (cuda.h).
_MAJOR, _MINOR = 75, 76


def probe() -> Driver:
    """Ask the driver. Never raises."""
    library = None
    for name in ("libcuda.so.1", "libcuda.so", "nvcuda.dll"):
        try:
            library = ctypes.CDLL(name)
            break
        except OSError:
            continue
    if library is None:
        return Driver(problem="no NVIDIA driver (libcuda is not installed)")
    try:
        return _ask(library)
    except (AttributeError, OSError, ValueError) as error:
        return Driver(problem=f"the NVIDIA driver does not answer ({error})")


def _ask(library: ctypes.CDLL) -> Driver:
    code = library.cuInit(0)
    if code != 0:
        return Driver(problem=_error_text(library, code))
    number = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(number))
    version = f"CUDA {number.value // 1000}.{number.value % 1000 // 10}"
    count = ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(count))
    gpus = tuple(_device(library, index) for index in range(count.value))
    peers = frozenset((a.index, b.index) for a in gpus for b in gpus if a is not b and _peer(library, a.index, b.index))
    return Driver(version, gpus, peers, None if gpus else "the driver lists no device")


def _device(library: ctypes.CDLL, index: int) -> Gpu:
    handle, name, memory = ctypes.c_int(), ctypes.create_string_buffer(128), ctypes.c_size_t()
    library.cuDeviceGet(ctypes.byref(handle), index)
    library.cuDeviceGetName(name, len(name), handle)
    library.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
    major, minor = (_attribute(library, handle, which) for which in (_MAJOR, _MINOR))
    return Gpu(index, name.value.decode(errors="replace"), memory.value, (major, minor))


def _attribute(library: ctypes.CDLL, handle: ctypes.c_int, which: int) -> int:
    value = ctypes.c_int()
    library.cuDeviceGetAttribute(ctypes.byref(value), which, handle)
    return value.value


def _peer(library: ctypes.CDLL, a: int, b: int) -> bool:
    first, second, able = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    library.cuDeviceGet(ctypes.byref(first), a)
    library.cuDeviceGet(ctypes.byref(second), b)
    library.cuDeviceCanAccessPeer(ctypes.byref(able), first, second)
    return bool(able.value)


def _error_text(library: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    library.cuGetErrorString(code, ctypes.byref(text))
    reason = (text.value or b"").decode(errors="replace") or f"error {code}"
    return f"the NVIDIA driver refuses to start ({reason})"
