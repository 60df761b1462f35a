"""Local memory: every thread's own copy of the kernel's `.local` variables."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ptx.memory import PRIVATE_START, Accessor


class LocalMemory:
    """`size` bytes for each of `threads` threads, as words in rows: threads that access one address touch one row."""

    def __init__(self, size: int, threads: int) -> None:
        words = -(-size // 4)
        self.size, self.touched = size, False
        self._words = np.zeros((words, threads), np.uint32)
        self._written = np.zeros((words, threads), bool)
        self._whole = [False] * words  # written by every thread

    def _row(self, run: Accessor, site: int, lanes: Any, address: Any, align: int) -> Any:
        """The row of an address that is the same in all threads (maybe a plain number), else each thread's; checked."""
        uniform = isinstance(address, int)
        first = address if uniform else int(address[0])
        start = first - PRIVATE_START
        if uniform or (address == address[0]).all():
            if 0 <= start <= self.size - align and start % align == 0 and align >= 4:
                return start // 4
        else:
            offset = address.view(np.int64) - PRIVATE_START
            if offset.min() >= 0 and offset.max() <= self.size - align and not (offset % align).any() and align >= 4:
                return offset // 4
        raise self._fault(run, site, lanes, address, align)

    def _fault(self, run: Accessor, site: int, lanes: Any, address: Any, align: int) -> Exception:
        if isinstance(address, int):
            address = np.full(1, address, np.uint64)
        offset = address.view(np.int64) - PRIVATE_START
        outside = (offset < 0) | (offset > self.size - align)
        if outside.any():
            return run.fault("out of bounds", site, lanes, outside, address, f"of {self.size} bytes of local memory")
        wrong = offset % align != 0
        if wrong.any():
            return run.fault("misaligned", site, lanes, wrong, address, f"not a multiple of {align}")
        return run.fault("unsupported", site, lanes, offset == offset, address, "less than a word of local memory")

    def read(
        self,
        run: Accessor,
        site: int,
        lanes: Any,
        columns: Any,
        address: np.ndarray,
        width: int,
        wanted: tuple[bool, ...],
    ) -> list[np.ndarray | None]:
        """Values of `width` bytes, one after the other in memory, of the threads in `columns` (None: of all).

        What is not `wanted` is left out, and may hold nothing.
        """
        row = self._row(run, site, lanes, address, width * len(wanted))
        uniform = isinstance(row, int)
        if columns is None:
            columns = slice(None) if uniform else np.arange(self._words.shape[1])
        words: list[Any] = []
        for k in range(width * len(wanted) // 4):
            if not wanted[4 * k // width]:
                words.append(None)
                continue
            if not (uniform and self._whole[row + k]):
                good = self._written[row + k, columns]
                if not good.all():
                    where = np.full(good.size, address, np.uint64) if isinstance(address, int) else address
                    raise run.fault("uninitialised read", site, lanes, ~good, where, "of local memory")
            words.append(self._words[row + k, columns])
        if width == 4:
            return [None if word is None else np.array(word) for word in words]
        pairs = zip(words[::2], words[1::2])
        return [None if low is None else low | (high.astype(np.uint64) << np.uint64(32)) for low, high in pairs]

    def write(self, run: Accessor, site: int, lanes: Any, columns: Any, address: Any, values: list[np.ndarray]) -> None:
        """Store unsigned values one after the other."""
        width = values[0].dtype.itemsize
        self.touched = True
        row = self._row(run, site, lanes, address, width * len(values))
        whole = columns is None and isinstance(row, int)
        if columns is None:
            columns = slice(None) if whole else np.arange(self._words.shape[1])
        if width == 8:
            values = [
                half
                for value in values
                for half in (value.astype(np.uint32), (value >> np.uint64(32)).astype(np.uint32))
            ]
        for k, value in enumerate(values):
            self._words[row + k, columns] = value
            if not (whole and self._whole[row + k]):
                self._written[row + k, columns] = True
            if whole:
                self._whole[row + k] = True
