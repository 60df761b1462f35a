"""Operands of PTX instructions as Python source over numpy arrays.

Registers are local variables (`%f12` is `_f12`), each an array with one element per thread that takes part. Every result is
an array of its own: nothing is a view of another register, of memory or of a constant. `S` is the launch, `I` the threads
that take part (None: all), `m` their number, `K` the constants.
"""

from __future__ import annotations

import re
from typing import Any

from tests.ptx import flow
from tests.ptx.module import SIZES, Instruction, Kernel, PtxError, immediate, register_dtype

ADDRESS = re.compile(r"\[\s*([\w$%.]+)\s*(?:\+\s*(-?\d+)\s*)?\]$")
_SPECIAL = re.compile(r"%(?:tid|ntid|ctaid|nctaid)\.[xyz]|%laneid|%warpid")


def local_name(register: str) -> str:
    """The variable of a register."""
    return "_" + register[1:].replace("$", "S_").replace(".", "_")


def dtype_of(kind: str) -> str:
    """numpy name of the values of a PTX type."""
    if kind == "pred":
        return "?"
    return f"{'f' if kind[0] == 'f' else 'i' if kind[0] == 's' else 'u'}{SIZES[kind]}"


class Operands:
    """What the source of a kernel's instructions refers to.

    `constants` lists what `K` holds: ("value", dtype name, number), ("symbol", name) or ("param", name, offset, dtype name).
    `instructions` are those that may fault, by the number the source gives them. `used` are registers that something reads.

    Args:
        kernel: whose instructions they are.
        local_variables: name -> address of its `.local` variables.
    """

    def __init__(self, kernel: Kernel, local_variables: dict[str, int]) -> None:
        self.kernel, self.local_variables = kernel, local_variables
        self.constants: list[tuple[Any, ...]] = []
        self.instructions: list[Instruction] = []
        self.used = {r for item in kernel.body if isinstance(item, Instruction) for r in flow.reads(kernel, item)}
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._defined: dict[str, list[Instruction]] = {}
        for item in kernel.body:
            if isinstance(item, Instruction):
                for name in flow.writes(kernel, item):
                    self._defined.setdefault(name, []).append(item)

    def constant(self, *what: Any) -> str:
        """Source of a constant, as an array of `m` elements that must not be kept."""
        key = (*what, repr(what[-1]))  # 0.0 and -0.0 are two constants
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.constants)
            self.constants.append(what)
        return f"K[{number}][:m]"

    def source(self, operand: str, kind: str, wider: bool = False) -> str:
        """An operand's values in the dtype of `kind`; registers may be wider only where `wider`."""
        want = dtype_of(kind)
        if operand.startswith("!"):
            return f"~{self.source(operand[1:], kind)}"
        declared = self.kernel.register_type(operand)
        if declared is not None:
            have = register_dtype(declared)
            text = local_name(operand)
            if declared == "pred" or kind == "pred":
                if declared != kind:
                    raise PtxError(f"{operand} has the wrong type")
                return text
            if have.itemsize > SIZES[kind] and wider:
                return f"{text}.astype(u{SIZES[kind]}){self.view(f'u{SIZES[kind]}', want)}"
            if have.itemsize != SIZES[kind]:
                raise PtxError(f"{operand} has the wrong width")
            return text + self.view(f"{have.kind}{have.itemsize}", want)
        if _SPECIAL.fullmatch(operand):
            if want != "u4":
                raise PtxError(f"{operand} has 32 bits")
            return f"S.special({operand[1:]!r}, I)"
        value = immediate(operand)
        if value is not None:
            return self.constant("value", want, self._fit(value, want))
        if re.fullmatch(r"[A-Za-z_$][\w$]*", operand) and SIZES[kind] == 8:
            return self.constant("symbol", operand)
        raise PtxError(f"operand {operand} is not understood")

    @staticmethod
    def view(have: str, want: str) -> str:
        return "" if have == want else f".view({want})"

    @staticmethod
    def _fit(value: Any, want: str) -> Any:
        if want[0] == "f":
            return value
        if want == "?":
            return bool(value)
        bits = 8 * int(want[1:])
        value = int(value) % (1 << bits)
        return value - (1 << bits) if want[0] == "i" and value >> (bits - 1) else value

    def result(self, operand: str, text: str, dtype: str) -> str:
        """`operand = text`, where `text` makes a new array of `dtype`, extended to the register if that is wider."""
        if operand == "_":
            return f"_unused = {text}"
        declared = self.kernel.register_type(operand)
        if declared is None:
            raise PtxError(f"{operand} is not a register")
        have = register_dtype(declared)
        name = "?" if have.kind == "b" else f"{have.kind}{have.itemsize}"
        if (name == "?") != (dtype == "?"):
            raise PtxError(f"{operand} has the wrong type")
        if name != "?" and have.itemsize != int(dtype[1:]):
            if have.itemsize < int(dtype[1:]) or "f" in (have.kind, dtype[0]):
                raise PtxError(f"{operand} has the wrong width")
            text = f"({text}).astype({dtype[0]}{have.itemsize})"
            dtype = f"{dtype[0]}{have.itemsize}"
        view = self.view(dtype, name)
        return f"{local_name(operand)} = ({text}){view}" if view else f"{local_name(operand)} = {text}"

    def site(self, item: Instruction) -> int:
        """Number by which the source refers to an instruction that may fault."""
        self.instructions.append(item)
        return len(self.instructions) - 1

    def local_address(self, operand: str) -> int | None:
        """The address that an operand stands for if it is that of a local variable plus a number, else None.

        Offset from the kernel's local variables, which lie from `PRIVATE_START` on.
        """
        match = ADDRESS.match(operand)
        base = self._local_base(match[1]) if match else None
        return None if base is None or match is None else base + int(match[2] or 0)

    def _local_base(self, name: str) -> int | None:
        if name in self.local_variables:
            return self.local_variables[name]
        found = self._defined.get(name, [])
        if len(found) != 1 or found[0].guard:
            return None
        item = found[0]
        if item.opcode in ("mov.u64", "mov.b64"):
            return self._local_base(item.operands[1])
        if item.opcode in ("add.u64", "add.s64") and isinstance(step := immediate(item.operands[2]), int):
            base = self._local_base(item.operands[1])
            return None if base is None else base + step
        return None

    def address(self, operand: str) -> str:
        match = ADDRESS.match(operand)
        if not match:
            raise PtxError(f"address {operand} is not understood")
        base, offset = match[1], int(match[2] or 0)
        text = self.source(base, "u64")
        return f"{text} + {self.constant('value', 'u8', offset % (1 << 64))}" if offset else text

    @staticmethod
    def parts(vector: str, count: int) -> list[str]:
        parts = [part.strip() for part in vector.strip("{} ").split(",")]
        if len(parts) != count:
            raise PtxError(f"{len(parts)} elements in {vector}")
        return parts
