"""Basic blocks of a kernel, and which registers live from one block to another."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tests.ptx.module import Instruction, Kernel, PtxError

GOTO, BRANCH, EXIT, BARRIER = "goto", "branch", "exit", "barrier"

# Opcodes whose first operand is not a result.
_NO_RESULT = {"st", "red", "bra", "ret", "exit", "bar", "barrier", "membar", "fence", "trap"}
_NAME = re.compile(r"%[\w$]+(?:\.[xyz])?")


@dataclass
class Block:
    """Instructions without a jump between them, and what follows.

    Args:
        number: blocks are numbered in the order of the text.
        instructions: all but the one that ends the block.
        end: `GOTO`, `BRANCH`, `EXIT` or `BARRIER`.
        last: the instruction that ends the block; None if it runs on into the next one.
        target, other: the block after it, for `BRANCH` where the predicate holds and where not.
        predicate: register of `BRANCH`; `negated` exchanges the targets.
    """

    number: int
    instructions: list[Instruction] = field(default_factory=list)
    end: str = GOTO
    last: Instruction | None = None
    target: int = -1
    other: int = -1
    predicate: str = ""
    negated: bool = False
    inputs: list[str] = field(default_factory=list)  # registers read before the block writes them
    outputs: list[str] = field(default_factory=list)  # registers written here and read in another block
    doubtful: list[str] = field(default_factory=list)  # inputs that some path leaves unwritten

    def successors(self) -> list[int]:
        return {GOTO: [self.target], BRANCH: [self.target, self.other], EXIT: [], BARRIER: [self.target]}[self.end]

    def length(self) -> int:
        """Instructions in it."""
        return len(self.instructions) + (self.last is not None)


def reads(kernel: Kernel, instruction: Instruction) -> list[str]:
    """Registers whose value an instruction uses, its guard included."""
    base = instruction.opcode.split(".")[0]
    sources = instruction.operands if base in _NO_RESULT else instruction.operands[1:]
    return _registers(kernel, " ".join([instruction.guard, *sources]))


def writes(kernel: Kernel, instruction: Instruction) -> list[str]:
    """Registers an instruction sets."""
    if instruction.opcode.split(".")[0] in _NO_RESULT or not instruction.operands:
        return []
    return _registers(kernel, instruction.operands[0])


def is_copy(instruction: Instruction) -> bool:
    """Whether an instruction only hands a value on, so that a register that holds nothing does no harm in it."""
    base = instruction.opcode.split(".")[0]
    return base in ("mov", "selp") and not any(operand.startswith("{") for operand in instruction.operands)


def _registers(kernel: Kernel, text: str) -> list[str]:
    return [name for name in _NAME.findall(text) if kernel.register_type(name) is not None]


def blocks(kernel: Kernel) -> list[Block]:
    """The kernel's blocks, each with its inputs and outputs.

    A guarded instruction other than a branch becomes a block of its own that the other threads jump over.
    """
    found, labels = _split(kernel)
    for block in found:
        for name in ("target", "other"):
            label = getattr(block, name)
            if isinstance(label, str):
                if label not in labels:
                    raise PtxError(f"{block.last}: no label {label}")
                setattr(block, name, labels[label])
            if getattr(block, name) >= len(found):
                raise PtxError("the kernel runs past its end")
    _analyse(kernel, found)
    return found


def _split(kernel: Kernel) -> tuple[list[Block], dict[str, int]]:
    found, labels = [Block(0)], {}

    def close(end: str, last: Instruction | None, target: int | str = -1, other: int = -1, guard: str = "") -> None:
        block = found[-1]
        block.end, block.last, block.target, block.other = end, last, target, other  # type: ignore[assignment]
        block.predicate, block.negated = guard.lstrip("!"), guard.startswith("!")
        found.append(Block(len(found)))

    for item in kernel.body:
        following = len(found)
        if isinstance(item, str):
            if found[-1].instructions:
                close(GOTO, None, following)
            labels[item] = len(found) - 1
            continue
        base = item.opcode.split(".")[0]
        if base == "bra" and item.guard:
            close(BRANCH, item, item.operands[0], following, item.guard)
        elif base == "bra":
            close(GOTO, item, item.operands[0])
        elif item.guard:
            opposite = item.guard[1:] if item.guard.startswith("!") else f"!{item.guard}"
            plain = Instruction(item.line, item.opcode, item.operands)
            close(BRANCH, None, following + 1, following, opposite)
            _close_plain(found, plain, close)
            if len(found) == following + 1:
                close(GOTO, None, following + 1)
        else:
            _close_plain(found, item, close)
    if found[-1].instructions or found[-1].number in labels.values():
        raise PtxError("the kernel runs past its end")
    return found[:-1], labels


def _close_plain(found: list[Block], item: Instruction, close) -> None:  # type: ignore[no-untyped-def]
    """Append an instruction without a guard; end the block if it ends one."""
    base = item.opcode.split(".")[0]
    if base in ("ret", "exit"):
        close(EXIT, item)
    elif base in ("bar", "barrier") and "sync" in item.opcode and "warp" not in item.opcode:
        close(BARRIER, item, len(found))
    else:
        found[-1].instructions.append(item)


def _analyse(kernel: Kernel, found: list[Block]) -> None:
    """Fill `inputs`, `outputs` and `doubtful`. Sets of registers are the bits of integers."""
    numbers: dict[str, int] = {}

    def bit(name: str) -> int:
        return 1 << numbers.setdefault(name, len(numbers))

    used, defined = [0] * len(found), [0] * len(found)
    for k, block in enumerate(found):
        for item in block.instructions:
            for name in reads(kernel, item):
                used[k] |= bit(name) & ~defined[k]
            for name in writes(kernel, item):
                defined[k] |= bit(name)
        if block.predicate:
            used[k] |= bit(block.predicate) & ~defined[k]
    names = list(numbers)
    live_out = _live_out(found, used, defined)
    certain = _certain(found, defined, (1 << len(names)) - 1)
    for k, block in enumerate(found):
        block.inputs = _members(used[k], names)
        block.outputs = _members(defined[k] & live_out[k], names)
        block.doubtful = _members(used[k] & ~certain[k], names)


def _live_out(found: list[Block], used: list[int], defined: list[int]) -> list[int]:
    live_in, live_out = [0] * len(found), [0] * len(found)
    changed = True
    while changed:
        changed = False
        for k in reversed(range(len(found))):
            out = 0
            for successor in found[k].successors():
                out |= live_in[successor]
            into = used[k] | (out & ~defined[k])
            changed |= into != live_in[k]
            live_in[k], live_out[k] = into, out
    return live_out


def _certain(found: list[Block], defined: list[int], everything: int) -> list[int]:
    """Registers that every path to a block has written."""
    before: list[list[int]] = [[] for _ in found]
    for block in found:
        for successor in block.successors():
            before[successor].append(block.number)
    certain = [everything] * len(found)
    certain[0] = 0
    changed = True
    while changed:
        changed = False
        for k in range(1, len(found)):
            now = everything
            for predecessor in before[k]:
                now &= certain[predecessor] | defined[predecessor]
            changed |= now != certain[k]
            certain[k] = now
    return certain


def _members(bits: int, names: list[str]) -> list[str]:
    found = []
    while bits:
        low = bits & -bits
        found.append(names[low.bit_length() - 1])
        bits ^= low
    return found
