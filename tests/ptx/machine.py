"""A kernel's PTX run on the CPU: one numpy operation per instruction, over all threads that execute it together.

`Program` turns a kernel into one Python function per basic block. `Program.launch` runs them: of the threads that have not
finished, those at the lowest block go next, so that threads which took different branches meet again where the branches do.
At a barrier threads wait for the others of their thread block.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.ptx import arithmetic, flow
from tests.ptx.flow import BARRIER, BRANCH, EXIT, GOTO, Block, blocks
from tests.ptx.memory import LOCAL_WINDOW, PRIVATE_START, SHARED_WINDOW, Memory
from tests.ptx.module import SIZES, Instruction, Kernel, PtxError, Variable, parse, register_dtype
from tests.ptx.operands import local_name
from tests.ptx.state import Launch
from tests.ptx.translate import Translator

CHUNK = 2048  # threads that run together: their registers stay in the processor's cache
WARP = 32

_NAMESPACE: dict[str, Any] = {
    "np": np,
    "A": arithmetic,
    "COMPARE": arithmetic.COMPARISONS,
    "LOCAL_WINDOW": LOCAL_WINDOW,
    "SHARED_WINDOW": SHARED_WINDOW,
    **{f"{kind}{size}": np.dtype(f"{kind}{size}") for kind in "ui" for size in (1, 2, 4, 8)},
    **{f"f{size}": np.dtype(f"f{size}") for size in (4, 8)},
    "UINT4": np.uint32,
    "UINT8": np.uint64,
}


@dataclass
class Statistics:
    """What a launch executed.

    Args:
        executed: opcode -> instructions, counted once per thread.
        issued: instructions, counted once per warp whatever number of its threads took part.
        threads: threads launched.
        inexact: instructions executed whose result a device only approximates.
    """

    executed: Counter[str]
    issued: int
    threads: int
    inexact: list[Instruction]

    def per_thread(self) -> float:
        """Instructions that a thread executes on average."""
        return sum(self.executed.values()) / self.threads


class Program:
    """One kernel, ready to run.

    Args:
        text: PTX.
        name: which kernel; may be left out if there is only one.

    Raises:
        PtxError: something in the text is not understood.
    """

    def __init__(self, text: str, name: str = "") -> None:
        module = parse(text)
        self.kernel: Kernel = module.kernel(name)
        self.variables = module.variables
        self.blocks: list[Block] = blocks(self.kernel)
        self.private = {space: self._place(space) for space in ("local", "shared")}
        self._translator = Translator(self.kernel, {name: at for name, (at, _) in self.private["local"].items()})
        self.constants = self._translator.constants
        self.instructions = self._translator.instructions
        self.inexact = self._translator.inexact
        self._registers: dict[str, int] = {}
        self.doubtful = self._doubtful()
        self.functions = self._compile()
        self.dtypes = [register_dtype(self.kernel.register_type(name) or "") for name in self._registers]
        self.names = list(self._registers)
        self.tracked = [k for k, name in enumerate(self.names) if name in self.doubtful]

    # --- compiling --------------------------------------------------------------------------------------------------

    def _doubtful(self) -> set[str]:
        """Registers that may hold nothing: read where some path has not written them, or copied from such a one."""
        found = {name for block in self.blocks for name in block.doubtful}
        copies = [item for block in self.blocks for item in block.instructions if flow.is_copy(item)]
        size = -1
        while found and size != len(found):
            size = len(found)
            found |= {item.operands[0] for item in copies if found & set(item.operands[1:])}
        return found

    def _compile(self) -> list[Any]:
        sources = [self._source(block) for block in self.blocks]
        names = dict(_NAMESPACE)
        exec(compile("\n".join(sources), f"<ptx {self.kernel.name[:40]}>", "exec"), names)
        return [names[f"block_{block.number}"] for block in self.blocks]

    def _number(self, register: str) -> int:
        return self._registers.setdefault(register, len(self._registers))

    def _source(self, block: Block) -> str:
        """`block_7(S, I, R, K, m)`: run its instructions; returns the predicate of its branch."""
        lines = [f"def block_{block.number}(S, I, R, K, m):"]
        for where, suffix in (("if I is None:", ""), ("else:", "[I]")):
            loads = [
                f"        {local_name(name)} = R[{self._number(name)}]{suffix}"
                for name in block.inputs
                if name not in self.doubtful
            ]
            lines += [f"    {where}", *(loads or ["        pass"])]
        for name in block.inputs:
            if name in self.doubtful:
                k = self._number(name)
                lines.append(f"    {local_name(name)}, D{local_name(name)} = S.doubtful({k}, I)")
        for item in block.instructions:
            lines += [f"    {line}" for line in self._instruction(item)]
        lines += self._stores(block)
        if block.predicate in self.doubtful and block.last:
            site, name = self._translator.site(block.last), block.predicate
            lines.append(f"    S.defined({site}, I, {name!r}, D{local_name(name)})")
        lines.append(f"    return {local_name(block.predicate)}" if block.predicate else "    return None")
        return "\n".join(lines)

    def _instruction(self, item: Instruction) -> list[str]:
        """Source of one instruction; of a doubtful register, `D_f7` says in which threads it holds something."""
        lines, after = [], []
        read = [name for name in flow.reads(self.kernel, item) if name in self.doubtful]
        written = [name for name in flow.writes(self.kernel, item) if name in self.doubtful]
        if flow.is_copy(item) and written:
            sources = [f"D{local_name(o)}" if o in self.doubtful else "True" for o in item.operands[1:]]
            read = [name for name in read if name == item.operands[-1] and len(sources) == 3]
            known = sources[0]
            if len(sources) == 3:
                known = f"np.where({local_name(item.operands[3])}, {sources[0]}, {sources[1]})"
            after = [f"D{local_name(written[0])} = np.array(np.broadcast_to({known}, m))"]
        else:
            after = [f"D{local_name(name)} = np.ones(m, bool)" for name in written]
        for name in read:
            lines.append(f"S.defined({self._translator.site(item)}, I, {name!r}, D{local_name(name)})")
        return [*lines, *self._translator.lines(item), *after]

    def _stores(self, block: Block) -> list[str]:
        """Source that keeps what other blocks read."""
        if not block.outputs:
            return []
        numbers = [self._number(name) for name in block.outputs]
        stores = [f"        R[{k}] = {local_name(name)}" for k, name in zip(numbers, block.outputs)]
        values = ", ".join(local_name(name) for name in block.outputs)
        lines = ["    if I is None:", *stores, "    else:", f"        S.scatter(I, {numbers}, ({values},))"]
        tracked = [(k, name) for k, name in zip(numbers, block.outputs) if name in self.doubtful]
        return lines + [f"    S.define({k}, I, D{local_name(name)})" for k, name in tracked]

    def _place(self, space: str) -> dict[str, tuple[int, Variable]]:
        """Offsets of the variables of a private state space, in its own addresses."""
        placed, offset = {}, 0
        found = [v for v in [*self.variables, *self.kernel.variables] if v.space == space]
        for variable in sorted(found, key=lambda v: v.size == 0):  # what has its size from the launch comes last
            if variable.space == space:
                offset = -(-offset // variable.align) * variable.align
                placed[variable.name] = (PRIVATE_START + offset, variable)
                offset += variable.size
        return placed

    def private_size(self, space: str) -> int:
        """Bytes of all variables of a private state space."""
        return max((at - PRIVATE_START + variable.size for at, variable in self.private[space].values()), default=0)

    # --- running ----------------------------------------------------------------------------------------------------

    def addresses(self, memory: Memory) -> dict[str, int]:
        """Address of every variable; those of `.global` and `.const` become allocations of `memory` when first used."""
        found = {name: at for places in self.private.values() for name, (at, _) in places.items()}
        for variable in self.variables:
            if variable.space in ("global", "const"):
                key = (self, variable.name)
                if key not in memory.variables:
                    data = np.zeros(variable.size, np.uint8)
                    initial = variable.initial or b""
                    data[: len(initial)] = np.frombuffer(initial, np.uint8)
                    # Those with values are tables: nothing may write them.
                    writable = variable.space == "global" and not initial
                    memory.variables[key] = memory.add(variable.name[:60], data, writable=writable)
                found[variable.name] = memory.variables[key]
        return found

    def launch(
        self,
        memory: Memory,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        arguments: list[Any],
        *,
        dynamic_shared: int = 0,
        only_blocks: list[int] | None = None,
    ) -> Statistics:
        """Run the kernel.

        Args:
            memory: where its pointers point to.
            grid, block: thread blocks, and threads in each.
            arguments: one number per parameter.
            dynamic_shared: bytes of shared memory beside those the kernel declares.
            only_blocks: run only these thread blocks (their number along x) of the grid.

        Raises:
            Fault: it did something that it must not do.
        """
        if len(arguments) != len(self.kernel.params):
            raise PtxError(f"{len(self.kernel.params)} parameters, {len(arguments)} arguments")
        grid3, block3 = (_three(size) for size in (grid, block))
        block_size = int(np.prod(block3))
        numbers = np.arange(np.prod(grid3)) if only_blocks is None else np.asarray(only_blocks, np.int64)
        memory.begin_launch()
        parameters = self._parameter_bytes(arguments)
        statistics = Statistics(Counter(), 0, len(numbers) * block_size, [])
        runs = np.zeros(len(self.blocks), np.int64)
        addresses = self.addresses(memory)
        per_chunk = max(1, CHUNK // block_size)
        for start in range(0, len(numbers), per_chunk):
            chosen = numbers[start : start + per_chunk]
            launch = Launch(self, memory, addresses, parameters, grid3, block3, chosen, dynamic_shared)
            with np.errstate(all="ignore"):  # infinities and NaN are values like others
                statistics.issued += self._run(launch, runs)
        for found, count in zip(self.blocks, runs.tolist()):
            if count:
                self._count(found, count, statistics)
        return statistics

    def _parameter_bytes(self, arguments: list[Any]) -> dict[str, bytes]:
        found = {}
        for param, value in zip(self.kernel.params, arguments):
            if isinstance(value, bytes):
                raw = value
            elif param.type.startswith("f"):
                raw = np.dtype(f"f{param.size}").type(value).tobytes()
            else:
                raw = (int(value) % (1 << 8 * param.size)).to_bytes(param.size, "little")
            if len(raw) != param.size or param.type not in SIZES:
                raise PtxError(f"parameter {param.name}: {len(raw)} bytes for {param.size}")
            found[param.name] = raw
        return found

    def _count(self, block: Block, count: int, statistics: Statistics) -> None:
        for item in [*block.instructions, *([block.last] if block.last else [])]:
            statistics.executed[item.opcode] += count
            if item in self.inexact:
                statistics.inexact.append(item)

    def _run(self, launch: Launch, runs: np.ndarray) -> int:
        """Run some thread blocks to their end; returns the instructions issued."""
        waiting: dict[int, np.ndarray] = {0: np.arange(launch.count)}
        parked: dict[int, np.ndarray] = {}
        issued = 0
        while waiting or parked:
            if not waiting:
                waiting, parked = launch.release(parked, self.blocks), {}
                continue
            number = min(waiting)
            chosen = waiting.pop(number)
            block = self.blocks[number]
            lanes = None if chosen.size == launch.count else chosen
            predicate = self.functions[number](launch, lanes, launch.registers, launch.constants, chosen.size)
            runs[number] += chosen.size
            issued += block.length() * launch.warps(lanes)
            if block.end == GOTO:
                _join(waiting, block.target, chosen)
            elif block.end == BRANCH:
                taken = ~predicate if block.negated else predicate
                if taken.all():
                    _join(waiting, block.target, chosen)
                elif not taken.any():
                    _join(waiting, block.other, chosen)
                else:
                    _join(waiting, block.target, chosen[taken])
                    _join(waiting, block.other, chosen[~taken])
            elif block.end == BARRIER:
                _join(parked, block.number, chosen)
            elif block.end == EXIT and chosen.size < launch.count:
                waiting, parked = launch.leave(chosen, waiting, parked)
        return issued


def _three(size: int | tuple[int, ...]) -> tuple[int, int, int]:
    sizes = (size,) if isinstance(size, int) else tuple(size)
    x, y, z = (*sizes, 1, 1, 1)[:3]
    return x, y, z


def _join(places: dict[int, np.ndarray], number: int, lanes: np.ndarray) -> None:
    """Let threads wait at a block, in order of their number."""
    before = places.get(number)
    places[number] = lanes if before is None else np.sort(np.concatenate([before, lanes]))
