"""The threads of a launch that run together: their registers, and their access to memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tests.ptx.flow import Block
from tests.ptx.local import LocalMemory
from tests.ptx.memory import LOCAL_WINDOW, PRIVATE_START, SHARED_WINDOW, WINDOW, Buffer, Fault, Memory

if TYPE_CHECKING:
    from tests.ptx.machine import Program

WARP = 32
Loaded = list[np.ndarray | None]


class Launch:
    """State of some thread blocks of a launch. `lanes` are positions among the threads that have not finished.

    Args:
        program: the kernel.
        memory: global memory.
        addresses: name -> address of each variable.
        parameters: name -> bytes of each parameter.
        grid, block: sizes of the whole launch.
        numbers: the thread blocks that run here.
        dynamic_shared: bytes of shared memory beside what the kernel declares.
    """

    def __init__(
        self,
        program: Program,
        memory: Memory,
        addresses: dict[str, int],
        parameters: dict[str, bytes],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        numbers: np.ndarray,
        dynamic_shared: int,
    ) -> None:
        self.program, self.memory, self._grid, self._block = program, memory, grid, block
        self.block_size = int(np.prod(block))
        self.count = len(numbers) * self.block_size
        self.epoch = 0
        self._first_thread = numbers.astype(np.int64) * self.block_size
        self._thread = np.tile(np.arange(self.block_size), len(numbers))  # within its block
        self._cta = np.repeat(numbers.astype(np.int64), self.block_size)  # number of its block in the grid
        self._slot = np.repeat(np.arange(len(numbers)), self.block_size)  # number of its block here
        self._serial = self._cta * self.block_size + self._thread
        self._warp = self._cta * -(-self.block_size // WARP) + self._thread // WARP
        self._column = np.arange(self.count)
        self._whole = True  # nobody has finished
        self.registers: list[Any] = [None] * len(program.names)
        self._defined = {k: np.zeros(self.count, bool) for k in program.tracked}
        self.constants = [self._constant(what, addresses, parameters) for what in program.constants]
        self._local_size = program.private_size("local")
        self._local = LocalMemory(self._local_size, self.count)
        self._shared_size = program.private_size("shared") + dynamic_shared
        data = np.zeros(self._shared_size * len(numbers), np.uint8)
        self._shared = Buffer("shared memory", data, False, True, 4, True)

    def _constant(self, what: tuple[Any, ...], addresses: dict[str, int], parameters: dict[str, bytes]) -> np.ndarray:
        if what[0] == "value":
            return np.full(self.count, what[2], what[1])
        if what[0] == "symbol":
            return np.full(self.count, addresses[what[1]], np.uint64)
        _, name, offset, dtype = what
        size = np.dtype(dtype).itemsize
        return np.full(self.count, np.frombuffer(parameters[name][offset : offset + size], dtype)[0])

    # --- threads ----------------------------------------------------------------------------------------------------

    def special(self, name: str, lanes: Any) -> np.ndarray:
        """A special register, as a new array."""
        here = slice(None) if lanes is None else lanes
        thread, cta = self._thread[here], self._cta[here]
        if name in ("laneid", "warpid"):
            return (thread % WARP if name == "laneid" else thread // WARP).astype(np.uint32)
        which, axis = name.split(".")
        k = "xyz".index(axis)
        sizes = self._block if which in ("tid", "ntid") else self._grid
        if which in ("ntid", "nctaid"):
            return np.full(thread.size, sizes[k], np.uint32)
        number = thread if which == "tid" else cta
        for size in sizes[:k]:
            number = number // size
        return (number % sizes[k]).astype(np.uint32)

    def serials(self, lanes: Any) -> np.ndarray:
        """Number of each thread in the launch."""
        return self._serial if lanes is None else self._serial[lanes]

    def warps(self, lanes: Any) -> int:
        """How many warps these threads are of."""
        warp = self._warp if lanes is None else self._warp[lanes]
        return int(np.count_nonzero(warp[1:] != warp[:-1])) + 1

    def leave(self, lanes: np.ndarray, *places: dict[int, np.ndarray]) -> list[dict[int, np.ndarray]]:
        """Threads finish; returns where the others wait, by their new positions."""
        stay = np.ones(self.count, bool)
        stay[lanes] = False
        position = np.cumsum(stay) - 1
        self.registers = [None if r is None else r[stay] for r in self.registers]
        self._defined = {k: flags[stay] for k, flags in self._defined.items()}
        self._thread, self._cta, self._slot = self._thread[stay], self._cta[stay], self._slot[stay]
        self._serial, self._warp, self._column = self._serial[stay], self._warp[stay], self._column[stay]
        self.count = self._thread.size
        self._whole = False
        if not self._local.touched:
            self._local, self._column, self._whole = (
                LocalMemory(self._local_size, self.count), np.arange(self.count), True,
            )  # fmt: skip
        return [{number: position[waiting] for number, waiting in place.items()} for place in places]

    def release(self, parked: dict[int, np.ndarray], blocks: list[Block]) -> dict[int, np.ndarray]:
        """Let the threads go on that wait at barriers; everybody waits at one."""
        where = np.zeros(self.count, np.int64)
        for number, lanes in parked.items():
            where[lanes] = number
        for slot in np.unique(self._slot).tolist():
            places = np.unique(where[self._slot == slot])
            if places.size > 1:
                lines = ", ".join(str(blocks[int(k)].last) for k in places)
                raise Fault("divergent barrier", f"divergent barrier: threads of one block wait at {lines}")
        self.epoch += 1
        released: dict[int, np.ndarray] = {}
        for number, lanes in parked.items():
            released[blocks[number].target] = lanes
        return released

    # --- registers --------------------------------------------------------------------------------------------------

    def scatter(self, lanes: np.ndarray, numbers: list[int], values: tuple[np.ndarray, ...]) -> None:
        """Write registers of some threads."""
        for k, value in zip(numbers, values):
            register = self.registers[k]
            if register is None:
                register = self.registers[k] = np.zeros(self.count, self.program.dtypes[k])
            register[lanes] = value

    def define(self, number: int, lanes: Any, known: np.ndarray) -> None:
        """Note where a doubtful register holds something."""
        self._defined[number][slice(None) if lanes is None else lanes] = known

    def doubtful(self, number: int, lanes: Any) -> tuple[np.ndarray, np.ndarray]:
        """A register that may hold nothing, and where it does hold something."""
        if self.registers[number] is None:
            self.registers[number] = np.zeros(self.count, self.program.dtypes[number])
        here = slice(None) if lanes is None else lanes
        return self.registers[number][here], self._defined[number][here]

    def defined(self, site: int, lanes: Any, name: str, known: np.ndarray) -> None:
        """Make sure that a register that is about to be used holds something."""
        if not known.all():
            user = self.program.instructions[site]
            raise self._fault("undefined register", user, lanes, ~known, f"{name} was never written")

    def no_zero(self, site: int, lanes: Any, divisor: np.ndarray) -> None:
        """An integer division by zero has no result."""
        if not divisor.all():
            user = self.program.instructions[site]
            raise self._fault("division by zero", user, lanes, divisor == 0, "an integer")

    # --- faults -----------------------------------------------------------------------------------------------------

    def fault(self, kind: str, site: int, lanes: Any, wrong: Any, address: np.ndarray, detail: str = "") -> Fault:
        """A Fault about the first of the threads where `wrong` is set."""
        at = int(address[int(np.flatnonzero(wrong)[0])])
        where = f"{detail}; " if detail else ""
        return self._fault(kind, self.program.instructions[site], lanes, wrong, f"{where}address {at:#x}")

    def _fault(self, kind: str, user: Any, lanes: Any, wrong: Any, detail: str) -> Fault:
        k = int(np.flatnonzero(wrong)[0])
        position = k if lanes is None else int(np.arange(self.count)[lanes][k])
        thread, cta = int(self._thread[position]), int(self._cta[position])
        return Fault(kind, f"{kind}: {user}: thread {thread} of block {cta}: {detail}")

    # --- memory -----------------------------------------------------------------------------------------------------

    def _columns(self, lanes: Any) -> Any:
        if lanes is None:
            return None if self._whole else self._column
        return self._column[lanes]

    def load_local(
        self, site: int, lanes: Any, address: Any, width: int, wanted: tuple[bool, ...], coherent: bool
    ) -> Loaded:
        return self._local.read(self, site, lanes, self._columns(lanes), address, width, wanted)

    def store_local(self, site: int, lanes: Any, address: Any, values: list[np.ndarray]) -> None:
        self._local.write(self, site, lanes, self._columns(lanes), address, values)

    def _inside(
        self, buffer: Any, site: int, lanes: Any, address: np.ndarray, offset: np.ndarray, size: int, limit: int
    ) -> None:
        """Check alignment and bounds of `size` bytes at each offset."""
        if offset.min() < 0 or offset.max() > limit - size:
            wrong = (offset < 0) | (offset > limit - size)
            first = int(address[int(np.flatnonzero(wrong)[0])])
            detail = self.memory.describe(first) if buffer is not self._shared else f"of {limit} bytes of shared memory"
            raise self.fault("out of bounds", site, lanes, wrong, address, detail)
        if size > 1 and (offset % size).any():
            raise self.fault("misaligned", site, lanes, offset % size != 0, address, f"not a multiple of {size}")

    def _shared_offset(self, site: int, lanes: Any, address: np.ndarray, size: int) -> np.ndarray:
        offset = address.view(np.int64) - PRIVATE_START
        self._inside(self._shared, site, lanes, address, offset, size, self._shared_size)
        return offset + self._shared_size * (self._slot if lanes is None else self._slot[lanes])

    def load_shared(
        self, site: int, lanes: Any, address: Any, width: int, wanted: tuple[bool, ...], coherent: bool
    ) -> Loaded:
        offset = self._shared_offset(site, lanes, address, width * len(wanted))
        return [
            self._shared.read(self, site, lanes, address, offset + k * width, width, True) if want else None
            for k, want in enumerate(wanted)
        ]

    def store_shared(self, site: int, lanes: Any, address: Any, values: list[np.ndarray]) -> None:
        width = values[0].dtype.itemsize
        offset = self._shared_offset(site, lanes, address, width * len(values))
        for k, value in enumerate(values):
            self._shared.write(self, site, lanes, address, offset + k * width, value)

    def _located(self, site: int, lanes: Any, address: np.ndarray, size: int) -> tuple[Any, np.ndarray]:
        """The allocation that all the addresses are in, and their offsets in it."""
        buffer = self.memory.find(int(address[address.size // 2]))
        if buffer is None:
            detail = self.memory.describe(int(address[0]))
            raise self.fault("out of bounds", site, lanes, address == address, address, detail)
        offset = (address - np.uint64(buffer.base)).view(np.int64)
        self._inside(buffer, site, lanes, address, offset, size, buffer.size)
        return buffer, offset

    def load_global(
        self, site: int, lanes: Any, address: Any, width: int, wanted: tuple[bool, ...], coherent: bool
    ) -> Loaded:
        buffer, offset = self._located(site, lanes, address, width * len(wanted))
        return [
            buffer.read(self, site, lanes, address, offset + k * width, width, coherent) if want else None
            for k, want in enumerate(wanted)
        ]

    load_const = load_global

    def store_global(self, site: int, lanes: Any, address: Any, values: list[np.ndarray]) -> None:
        width = values[0].dtype.itemsize
        buffer, offset = self._located(site, lanes, address, width * len(values))
        if not buffer.writable:
            raise self.fault("read-only", site, lanes, offset == offset, address, f"a store into {buffer.name!r}")
        for k, value in enumerate(values):
            buffer.write(self, site, lanes, address, offset + k * width, value)

    def _space(self, site: int, lanes: Any, address: np.ndarray) -> tuple[str, np.ndarray]:
        """The state space that generic addresses are in, and the addresses there."""
        for space, start in (("shared", SHARED_WINDOW), ("local", LOCAL_WINDOW)):
            inside = (address >= np.uint64(start)) & (address < np.uint64(start + WINDOW))
            if inside.all():
                return space, address - np.uint64(start)
            if inside.any():
                raise self.fault("unsupported", site, lanes, inside, address, "threads in several state spaces at once")
        return "global", address

    def load_generic(
        self, site: int, lanes: Any, address: Any, width: int, wanted: tuple[bool, ...], coherent: bool
    ) -> Loaded:
        space, there = self._space(site, lanes, address)
        return getattr(self, f"load_{space}")(site, lanes, there, width, wanted, coherent)

    def store_generic(self, site: int, lanes: Any, address: Any, values: list[np.ndarray]) -> None:
        space, there = self._space(site, lanes, address)
        getattr(self, f"store_{space}")(site, lanes, there, values)

    # --- atomics ----------------------------------------------------------------------------------------------------

    def atomic_global(self, site: int, lanes: Any, address: Any, name: str, values: list[np.ndarray]) -> np.ndarray:
        """What was there before; threads go one after the other, in the order of their numbers."""
        width = values[0].dtype.itemsize
        buffer, offset = self._located(site, lanes, address, width)
        return buffer.atomic(self, site, lanes, address, offset, name, values)

    def atomic_shared(self, site: int, lanes: Any, address: Any, name: str, values: list[np.ndarray]) -> np.ndarray:
        offset = self._shared_offset(site, lanes, address, values[0].dtype.itemsize)
        return self._shared.atomic(self, site, lanes, address, offset, name, values)

    def atomic_generic(self, site: int, lanes: Any, address: Any, name: str, values: list[np.ndarray]) -> np.ndarray:
        space, there = self._space(site, lanes, address)
        return getattr(self, f"atomic_{space}")(site, lanes, there, name, values)
