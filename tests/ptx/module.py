"""PTX text as data: its variables, and each kernel's parameters, registers and instructions.

Only what the kernels' compilers emit is understood; anything else is a `PtxError` that names the line.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

SIZES = {"b8": 1, "b16": 2, "b32": 4, "b64": 8, "pred": 1}
SIZES |= {f"{kind}{8 * size}": size for kind in "us" for size in (1, 2, 4, 8)} | {"f32": 4, "f64": 8}
# Registers hold bits; `.f32`, `.f64` and `.pred` ones are kept as what they mean.
_REGISTER_DTYPES = {"f32": np.float32, "f64": np.float64, "pred": np.bool_}

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_VARIABLE = re.compile(
    r"(?P<linkage>(?:\.(?:visible|extern|weak|common)\s+)*)\.(?P<space>global|const|shared|local)\s+(?:\.align\s+(?P<align>\d+)\s+)?"
    r"\.(?P<type>\w+)\s+(?P<name>[\w$%]+)(?P<array>(?:\[\d*\])*)\s*(?:=\s*(?P<init>.*))?$",
    re.DOTALL,
)
_ENTRY = re.compile(
    r"(?:\.visible\s+|\.weak\s+)*\.entry\s+(?P<name>[\w$%]+)\s*(?:\((?P<params>[^)]*)\))?(?P<hints>[^{]*)\{"
)
_PARAM = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.(?P<type>\w+)\s+(?:\.ptr\s+[^,]*?)?(?P<name>[\w$%]+)(?:\[(?P<count>\d+)\])?$"
)
_REGISTERS = re.compile(r"\.reg\s+\.(?P<type>\w+)\s+(?P<names>.+)$", re.DOTALL)
_NUMBERED = re.compile(r"(%[\w$]*?)(\d+)")
_SOMETHING = re.compile(r"\S")
_LABEL = re.compile(r"\s*([\w$%]+)\s*:(?!:)")
_GUARD = re.compile(r"@(?P<negated>!?)(?P<name>%[\w.]+)\s+")
_HEADER = re.compile(r"\.(version|target|address_size|file|loc|pragma|section)\b[^\n]*\n?")


class PtxError(Exception):
    """Text that the interpreter does not understand."""


@dataclass(frozen=True)
class Variable:
    """A variable: `size` bytes in a state space, its first bytes given by `initial` (the rest of it is zero), or unset."""

    name: str
    space: str
    align: int
    size: int
    initial: bytes | None


@dataclass(frozen=True)
class Param:
    """One kernel parameter."""

    name: str
    type: str
    size: int


@dataclass(frozen=True)
class Instruction:
    """One instruction: `add.s32` and its operands as text. `guard` is the predicate that must be true, "!" first if false."""

    line: int
    opcode: str
    operands: tuple[str, ...]
    guard: str = ""

    def __str__(self) -> str:
        guard = f"@{self.guard} " if self.guard else ""
        return f"line {self.line}: {guard}{self.opcode} {', '.join(self.operands)}"


@dataclass
class Kernel:
    """One `.entry`. `body` holds instructions, and labels as strings, in the order of the text."""

    name: str
    params: list[Param]
    variables: list[Variable] = field(default_factory=list)
    body: list[Instruction | str] = field(default_factory=list)
    _single: dict[str, str] = field(default_factory=dict)
    _numbered: dict[str, tuple[str, int]] = field(default_factory=dict)

    def declare(self, kind: str, names: str, line: int) -> None:
        """`.reg .kind names;`"""
        if kind not in SIZES:
            raise PtxError(f"line {line}: registers of type {kind} are not known")
        for name in (part.strip() for part in names.split(",")):
            many = re.fullmatch(r"(%[\w$]*?)<(\d+)>", name)
            if many:
                self._numbered[many.group(1)] = (kind, int(many.group(2)))
            else:
                self._single[name] = kind

    def register_type(self, name: str) -> str | None:
        """The declared type of a register, None if there is no such register."""
        if name in self._single:
            return self._single[name]
        match = _NUMBERED.fullmatch(name)
        if match and match.group(1) in self._numbered:
            kind, count = self._numbered[match.group(1)]
            if int(match.group(2)) < count:
                self._single[name] = kind  # found at once the next time
                return kind
        return None


@dataclass(frozen=True)
class Module:
    """A parsed PTX text."""

    variables: list[Variable]
    kernels: dict[str, Kernel]

    def kernel(self, name: str = "") -> Kernel:
        """The kernel of that name; the only one if none is given."""
        if not name and len(self.kernels) == 1:
            return next(iter(self.kernels.values()))
        return self.kernels[name]


def register_dtype(kind: str) -> np.dtype:
    """How the interpreter keeps a register of a declared type."""
    return np.dtype(_REGISTER_DTYPES.get(kind) or f"u{SIZES[kind]}")


def parse(text: str) -> Module:
    """Read a PTX text.

    Raises:
        PtxError: something in it is not understood.
    """
    text = _COMMENT.sub(lambda match: "\n" * match.group().count("\n"), text)
    module = Module([], {})
    position = 0
    while True:
        position = _skip_blank(text, position)
        if position == len(text):
            return module
        header = _HEADER.match(text, position)
        entry = _ENTRY.match(text, position)
        if header:
            position = header.end()
        elif entry:
            end = _closing_brace(text, entry.end())
            line = text.count("\n", 0, entry.end()) + 1
            kernel = _kernel(entry, text[entry.end() : end], line)
            module.kernels[kernel.name] = kernel
            position = end + 1
        else:
            end = text.find(";", position)
            line = text.count("\n", 0, position) + 1
            if end < 0:
                raise PtxError(f"line {line}: not understood: {text[position : position + 60]!r}")
            module.variables.append(_variable(text[position:end], line))
            position = end + 1


def _skip_blank(text: str, position: int) -> int:
    match = _SOMETHING.search(text, position)
    return match.start() if match else len(text)


def _closing_brace(text: str, position: int) -> int:
    depth = 1
    for match in re.compile(r"[{}]").finditer(text, position):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return match.start()
    raise PtxError("a brace is not closed")


def _variable(text: str, line: int) -> Variable:
    match = _VARIABLE.match(text.strip())
    if not match or match["type"] not in SIZES:
        raise PtxError(f"line {line}: not understood: {text.strip()[:60]!r}")
    size = SIZES[match["type"]]
    count = 1
    for length in re.findall(r"\[(\d*)\]", match["array"]):
        count *= int(length or 0)  # `extern .shared x[]`: the launch says how many bytes
    initial = _initial(match["init"], match["type"], line) if match["init"] else None
    if initial is None and match["space"] in ("global", "const"):
        initial = b""  # PTX: variables of these spaces are zero unless initialised
    return Variable(match["name"], match["space"], int(match["align"] or size), count * size, initial)


def _initial(text: str, kind: str, line: int) -> bytes:
    words = text.replace("{", " ").replace("}", " ").replace(",", " ").split()
    values = [immediate(word) for word in words]
    if any(value is None for value in values):
        raise PtxError(f"line {line}: an initial value that is not a number")
    if kind.startswith("f"):
        return np.array(values, register_dtype(kind)).tobytes()
    size = SIZES[kind]
    return b"".join((int(v) % (1 << 8 * size)).to_bytes(size, "little") for v in values if v is not None)


def _kernel(entry: re.Match[str], body: str, line: int) -> Kernel:
    params = []
    for text in filter(None, (part.strip() for part in (entry["params"] or "").split(","))):
        match = _PARAM.match(text)
        if not match:
            raise PtxError(f"line {line}: parameter not understood: {text[:60]!r}")
        params.append(Param(match["name"], match["type"], SIZES[match["type"]] * int(match["count"] or 1)))
    kernel = Kernel(entry["name"], params)
    for number, text in _statements(body, line):
        registers = _REGISTERS.match(text)
        if text.endswith(":"):
            kernel.body.append(text[:-1].strip())
        elif registers:
            kernel.declare(registers["type"], registers["names"], number)
        elif text.split()[0] in (".loc", ".pragma"):
            continue
        elif text.startswith("."):
            kernel.variables.append(_variable(text, number))
        else:
            kernel.body.append(_instruction(text, number))
    return kernel


def _statements(body: str, line: int) -> Iterator[tuple[int, str]]:
    """(line, statement without its semicolon); labels end with a colon."""
    position = 0
    while True:
        start = _skip_blank(body, position)
        line += body.count("\n", position, start)
        position = start
        if position == len(body):
            return
        if body[position] in "{}":
            raise PtxError(f"line {line}: nested scopes (calls) are not understood")
        label = _LABEL.match(body, position)
        end = label.end() if label else body.find(";", position)
        if end < 0:
            raise PtxError(f"line {line}: a statement without an end: {body[position : position + 60]!r}")
        yield line, body[position:end]
        line += body.count("\n", position, end)
        position = end if label else end + 1


def _instruction(text: str, line: int) -> Instruction:
    guard = ""
    match = _GUARD.match(text)
    if match:
        guard, text = match["negated"] + match["name"], text[match.end() :]
    opcode, *rest = text.split(None, 1)
    return Instruction(line, opcode, tuple(split_operands(rest[0] if rest else "")), guard)


def split_operands(text: str) -> list[str]:
    """Operands at commas, but not at those inside of braces or brackets."""
    if "{" not in text and "[" not in text:
        return [part.strip() for part in text.split(",")] if text.strip() else []
    parts, depth, start = [], 0, 0
    for position, letter in enumerate(text):
        if letter in "{[":
            depth += 1
        elif letter in "}]":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def immediate(text: str) -> int | float | None:
    """The number a literal stands for; float literals give their bits' value. None if it is no literal."""
    match = re.fullmatch(r"(-?)(?:0[xX]([0-9a-fA-F]+)U?|([0-9]+)U?)", text)
    if match:
        value = int(match[2], 16) if match[2] else int(match[3])
        return -value if match[1] else value
    match = re.fullmatch(r"0[fF]([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16})", text)
    if match and match[1]:
        return struct.unpack("<f", int(match[1], 16).to_bytes(4, "little"))[0]
    if match:
        return struct.unpack("<d", int(match[2], 16).to_bytes(8, "little"))[0]
    return None
