"""Device memory as the interpreter sees it: separate allocations at made-up addresses, every access checked.

An access must lie inside of one allocation, be aligned to its width, and read only bytes that something wrote. What one
thread wrote, no other may read or overwrite in the same launch unless a barrier of their thread block lies between.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

# Where things are. Global allocations start beyond 32 bits and far apart, so that cut or wrong addresses hit nothing.
GLOBAL_START = 0x2_1000_0000
GAP = 0x1_0000_0000
SHARED_WINDOW, LOCAL_WINDOW, WINDOW = 0x7E00_0000_0000, 0x7F00_0000_0000, 1 << 32
PRIVATE_START = 0x1000  # first address of shared and of local memory in their own spaces: 0 is nothing

_WIDTHS = (1, 2, 4, 8)
_ONES = {1: 0x01, 2: 0x0101, 4: 0x01010101, 8: 0x0101010101010101}
# What an atomic leaves behind, given what it found and its operands.
_ATOMIC: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": lambda old, new: new,
    "cas": lambda old, expected, new: new if old == expected else old,
}
_SEVERAL = np.iinfo(np.int64).max  # in `Owners.reader`: more than one thread


class Fault(Exception):
    """Something a kernel must not do.

    Args:
        kind: such as "out of bounds".
        message: one line with the kind, the instruction, the thread and the address.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Accessor(Protocol):
    """Who accesses memory: the threads of a launch that execute an instruction together."""

    epoch: int  # barriers passed
    block_size: int

    def fault(self, kind: str, site: int, lanes: Any, wrong: Any, address: Any, detail: str = "") -> Fault:
        """A Fault about the first of the threads where `wrong` is set."""
        ...

    def serials(self, lanes: Any) -> np.ndarray:
        """Number of each thread in the launch."""
        ...


class Owners:
    """Which thread last wrote and last read each element during a launch, to find races."""

    def __init__(self, elements: int) -> None:
        self.writer = np.full(elements, -1, np.int64)
        self.reader = np.full(elements, -1, np.int64)
        self.written_at = np.zeros(elements, np.int32)
        self.read_at = np.zeros(elements, np.int32)

    def _others(self, owner: np.ndarray, at: np.ndarray, index: np.ndarray, run: Accessor, me: np.ndarray) -> Any:
        """Where another thread was there before and no barrier orders the two."""
        before = owner[index]
        other = (before >= 0) & (before != me)
        if run.epoch and other.any():
            same_block = (before // run.block_size == me // run.block_size) | (before == _SEVERAL)
            other &= ~(same_block & (at[index] < run.epoch))
        return other

    def read(
        self, index: np.ndarray, run: Accessor, site: int, lanes: Any, address: np.ndarray, coherent: bool
    ) -> None:
        me = run.serials(lanes)
        wrong = self._others(self.writer, self.written_at, index, run, me)
        if wrong.any():
            raise run.fault("race", site, lanes, wrong, address, "another thread wrote this, and no barrier followed")
        if not coherent and (self.writer[index] >= 0).any():
            wrong = self.writer[index] >= 0
            raise run.fault("stale read", site, lanes, wrong, address, "a non-coherent load of what this launch wrote")
        before = self.reader[index]
        shared = (before >= 0) & (before != me) & (self.read_at[index] == run.epoch)
        self.reader[index] = np.where(shared, _SEVERAL, me)
        self.read_at[index] = run.epoch
        again = self.reader[index]
        self.reader[index[again != np.where(shared, _SEVERAL, me)]] = _SEVERAL  # two of these threads read one element

    def write(self, index: np.ndarray, run: Accessor, site: int, lanes: Any, address: np.ndarray) -> None:
        me = run.serials(lanes)
        for owner, at, what in ((self.writer, self.written_at, "wrote"), (self.reader, self.read_at, "read")):
            wrong = self._others(owner, at, index, run, me)
            if wrong.any():
                raise run.fault("race", site, lanes, wrong, address, f"another thread {what} this, no barrier followed")
        self.writer[index] = me
        self.written_at[index] = run.epoch
        wrong = self.writer[index] != me
        if wrong.any():
            raise run.fault("race", site, lanes, wrong, address, "two threads write this at once")


class Buffer:
    """One allocation, or the shared memory of several thread blocks in a row.

    Args:
        name: for messages.
        array: its bytes; writes go straight into it.
        initialised: False if no byte counts as written yet; or one byte for each that says whether it is, kept up to date.
        writable: whether kernels may write it.
        itemsize: bytes of an element, the grain at which races are seen.
        owners: whether races are looked for.
    """

    def __init__(
        self, name: str, array: np.ndarray, initialised: Any, writable: bool, itemsize: int, owners: bool
    ) -> None:
        data = array.reshape(-1).view(np.uint8)
        self.name, self.data, self.size, self.writable, self.base = name, data, data.size, writable, 0
        self.itemsize, self._track = itemsize, owners
        self._views = self._make_views(data)
        self.shadow: np.ndarray | None = initialised if isinstance(initialised, np.ndarray) else None
        if initialised is False:
            self.shadow = np.zeros(data.size, np.uint8)
        self._shadow_views = {} if self.shadow is None else self._make_views(self.shadow)
        self.owners: Owners | None = None

    @staticmethod
    def _make_views(data: np.ndarray) -> dict[int, np.ndarray]:
        return {width: data[: data.size // width * width].view(f"u{width}") for width in _WIDTHS}

    def begin_launch(self) -> None:
        """Forget who touched what."""
        self.owners = None

    def _owners(self) -> Owners:
        if self.owners is None:
            self.owners = Owners(-(-self.size // self.itemsize))
        return self.owners

    def read(
        self, run: Accessor, site: int, lanes: Any, address: np.ndarray, offset: np.ndarray, width: int, coherent: bool
    ) -> np.ndarray:
        """Values of `width` bytes at `offset` (bytes, int64), which are aligned and inside."""
        index = offset // width if width > 1 else offset
        if self.shadow is not None:
            wrong = self._shadow_views[width][index] != _ONES[width]
            if wrong.any():
                raise run.fault("uninitialised read", site, lanes, wrong, address, f"of {self.name!r}")
        if self._track:
            self._owners().read(offset // self.itemsize, run, site, lanes, address, coherent)
        return self._views[width][index]

    def write(
        self, run: Accessor, site: int, lanes: Any, address: np.ndarray, offset: np.ndarray, values: np.ndarray
    ) -> None:
        """Store unsigned `values` at `offset` (bytes, int64), which are aligned and inside."""
        width = values.dtype.itemsize
        index = offset // width if width > 1 else offset
        if self._track:
            self._owners().write(offset // self.itemsize, run, site, lanes, address)
        self._views[width][index] = values
        if self.shadow is not None:
            self._shadow_views[width][index] = _ONES[width]

    def atomic(
        self,
        run: Accessor,
        site: int,
        lanes: Any,
        address: np.ndarray,
        offset: np.ndarray,
        name: str,
        values: list[np.ndarray],
    ) -> np.ndarray:
        """Combine values with what is there, one thread after the other; returns what each of them found."""
        dtype = values[0].dtype
        index = offset // dtype.itemsize
        if self.shadow is not None:
            wrong = self._shadow_views[dtype.itemsize][index] != _ONES[dtype.itemsize]
            if wrong.any():
                raise run.fault("uninitialised read", site, lanes, wrong, address, f"of {self.name!r}")
        data = self._views[dtype.itemsize].view(dtype)
        found = np.empty(index.size, dtype)
        for k, where in enumerate(index.tolist()):
            found[k] = data[where]
            data[where] = _ATOMIC[name](data[where], *(value[k] for value in values))
        return found

    def written(self) -> np.ndarray:
        """Which bytes hold something, as bool."""
        return np.ones(self.size, bool) if self.shadow is None else self.shadow.astype(bool)


class SparseBuffer:
    """An allocation that may be larger than this machine's memory: only the pages that are touched exist."""

    PAGE = 4096
    writable = True

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size, self.base = name, size, 0
        self._pages: dict[int, Buffer] = {}

    def begin_launch(self) -> None:
        """Races are not looked for here."""

    def _page(self, number: int) -> Buffer:
        if number not in self._pages:
            self._pages[number] = Buffer(self.name, np.zeros(self.PAGE, np.uint8), False, True, 1, False)
        return self._pages[number]

    def read(
        self, run: Accessor, site: int, lanes: Any, address: np.ndarray, offset: np.ndarray, width: int, coherent: bool
    ) -> np.ndarray:
        values = np.empty(offset.size, f"u{width}")
        for k, where in enumerate(offset.tolist()):  # few threads ever come here
            only = np.array([where % self.PAGE])
            lane = slice(k, k + 1) if lanes is None else lanes[k : k + 1]
            values[k] = self._page(where // self.PAGE).read(run, site, lane, address[k : k + 1], only, width, coherent)[
                0
            ]
        return values

    def write(
        self, run: Accessor, site: int, lanes: Any, address: np.ndarray, offset: np.ndarray, values: np.ndarray
    ) -> None:
        for k, where in enumerate(offset.tolist()):
            only, lane = np.array([where % self.PAGE]), slice(k, k + 1) if lanes is None else lanes[k : k + 1]
            self._page(where // self.PAGE).write(run, site, lane, address[k : k + 1], only, values[k : k + 1])

    def poke(self, index: int, value: np.generic) -> None:
        """Put element `index` of an array of `value`'s dtype."""
        start = index * value.dtype.itemsize
        page = self._page(start // self.PAGE)
        at = slice(start % self.PAGE, start % self.PAGE + value.dtype.itemsize)
        page.data[at] = np.frombuffer(value.tobytes(), np.uint8)
        assert page.shadow is not None
        page.shadow[at] = 1

    def peek(self, index: int, dtype: Any) -> Any:
        """Element `index` of an array of `dtype`; None if nothing wrote it."""
        dtype = np.dtype(dtype)
        start = index * dtype.itemsize
        page = self._page(start // self.PAGE)
        at = slice(start % self.PAGE, start % self.PAGE + dtype.itemsize)
        return page.data[at].view(dtype)[0] if page.written()[at].all() else None

    def touched(self) -> int:
        """Bytes that hold something."""
        return sum(int(page.written().sum()) for page in self._pages.values())


class Memory:
    """All global allocations."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._buffers: list[Any] = []
        self._next = GLOBAL_START
        self.variables: dict[Any, int] = {}  # (program, name) -> address of a kernel's global variable

    def add(self, name: str, array: np.ndarray, initialised: Any = True, writable: bool = True) -> int:
        """Make a contiguous array an allocation; returns its address. Races are looked for where kernels may write."""
        if not array.flags.c_contiguous:
            raise ValueError(f"{name} is not contiguous")
        return self._place(Buffer(name, array, initialised, writable, array.dtype.itemsize, writable))

    def reserve(self, name: str, size: int) -> SparseBuffer:
        """An allocation of `size` bytes, none of them written; its address is `.base`."""
        buffer = SparseBuffer(name, size)
        self._place(buffer)
        return buffer

    def _place(self, buffer: Any) -> int:
        buffer.base = self._next + 256  # aligned as allocators align, and to no more
        self._next += GAP + -(-buffer.size // 4096) * 4096
        self._bases.append(buffer.base)
        self._buffers.append(buffer)
        return buffer.base

    def find(self, address: int) -> Any:
        """The last allocation that starts at or below an address; None if there is none."""
        k = bisect.bisect_right(self._bases, address) - 1
        return self._buffers[k] if k >= 0 else None

    def buffer(self, base: int) -> Any:
        """The allocation with this address."""
        found = self.find(base)
        assert found is not None and found.base == base
        return found

    def begin_launch(self) -> None:
        """Races are looked for within one launch."""
        for buffer in self._buffers:
            buffer.begin_launch()

    def describe(self, address: int) -> str:
        """Where an address lies, in words."""
        nearest = min(self._buffers, key=lambda b: max(b.base - address, address - b.base - b.size, 0), default=None)
        if nearest is None:
            return "there is no allocation"
        past = address - nearest.base
        return f"byte {past} of {nearest.name!r}, which has {nearest.size}" if abs(past) < GAP else "near no allocation"
