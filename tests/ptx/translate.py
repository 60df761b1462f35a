"""One PTX instruction as Python source; see `operands` for what the source refers to."""

from __future__ import annotations

from tests.ptx.arithmetic import APPROXIMATIONS, COMPARISONS, ROUNDINGS
from tests.ptx.module import SIZES, Instruction, Kernel, PtxError, immediate
from tests.ptx.operands import ADDRESS, Operands, dtype_of

_CACHE_HINTS = {"ca", "cg", "cs", "lu", "cv", "wb", "wt", "volatile", "relaxed", "weak", "gpu", "cta", "sys"}
_ATOMS = {"add", "min", "max", "exch", "and", "or", "xor", "cas"}
# Binary operations on unsigned registers that give the same bits whatever the type says.
_SAME = {"add": "np.add", "sub": "np.subtract", "and": "np.bitwise_and", "or": "np.bitwise_or", "xor": "np.bitwise_xor"}
_FLOAT = {"add": "np.add", "sub": "np.subtract", "mul": "np.multiply", "min": "A.minimum", "max": "A.maximum"}
_IGNORED = {"membar", "fence", "prefetch"}


class Translator(Operands):
    """Turns a kernel's instructions into source; `inexact` are the approximations among them."""

    def __init__(self, kernel: Kernel, local_variables: dict[str, int]) -> None:
        super().__init__(kernel, local_variables)
        self.inexact: list[Instruction] = []

    def lines(self, item: Instruction) -> list[str]:
        """Source lines of one instruction; PtxError if it is not known."""
        base, *mods = item.opcode.split(".")
        method = getattr(self, f"_do_{base}", None)
        try:
            if base in _IGNORED or item.opcode.startswith("bar.warp"):
                return []
            if method is None:
                raise PtxError("not known")
            return method(item, mods)
        except (PtxError, ValueError, IndexError) as error:
            raise PtxError(f"{item}: {error}") from error

    @staticmethod
    def _only(mods: list[str], *allowed: str) -> None:
        unknown = set(mods) - set(allowed)
        if unknown:
            raise PtxError(f"modifier .{sorted(unknown)[0]} is not known")

    def _call(self, item: Instruction, function: str, kind: str, kinds: list[str] | None = None) -> list[str]:
        """`d = function(a, b, ...)`, operands of the types `kinds` (default: all of `kind`)."""
        operands = item.operands[1:]
        kinds = kinds or [kind] * len(operands)
        if len(kinds) != len(operands):
            raise PtxError(f"{len(operands)} operands")
        sources = ", ".join(self.source(o, k) for o, k in zip(operands, kinds))
        return [self.result(item.operands[0], f"{function}({sources})", dtype_of(kind))]

    # --- arithmetic -------------------------------------------------------------------------------------------------

    def _float(self, item: Instruction, mods: list[str], function: str) -> list[str]:
        self._only(mods[:-1], "rn", "ftz", "sat")
        kind = mods[-1]
        sources = [self.source(o, kind) for o in item.operands[1:]]
        if "ftz" in mods:
            sources = [f"A.flush({s})" for s in sources]
        text = f"{function}({', '.join(sources)})"
        if "ftz" in mods:
            text = f"A.flush({text})"
        if "sat" in mods:
            text = f"A.saturate({text})"
        return [self.result(item.operands[0], text, dtype_of(kind))]

    def _binary(self, item: Instruction, mods: list[str]) -> list[str]:
        base = item.opcode.split(".")[0]
        kind = mods[-1]
        if kind[0] == "f":
            return self._float(item, mods, _FLOAT[base])
        if kind == "pred":
            self._only(mods[:-1])
            return self._call(item, _SAME[base].replace("bitwise", "logical"), "pred")
        self._only(mods[:-1])
        if base in ("min", "max"):
            return self._call(item, f"np.{base}imum", kind)
        return self._call(item, _SAME[base], f"u{8 * SIZES[kind]}")

    _do_add = _do_sub = _do_min = _do_max = _do_and = _do_or = _do_xor = _binary

    def _do_mul(self, item: Instruction, mods: list[str]) -> list[str]:
        kind = mods[-1]
        if kind[0] == "f":
            return self._float(item, mods, "np.multiply")
        self._only(mods[:-1], "lo", "hi", "wide")
        if "wide" in mods:
            double = f"{kind[0]}{16 * SIZES[kind]}"
            a, b = (self.source(o, kind) for o in item.operands[1:3])
            return [self.result(item.operands[0], f"A.mul_wide({a}, {b})", dtype_of(double))]
        return self._call(item, "A.mul_hi" if "hi" in mods else "np.multiply", kind)

    def _do_mad(self, item: Instruction, mods: list[str]) -> list[str]:
        kind = mods[-1]
        if kind[0] == "f":
            return self._do_fma(item, mods)
        self._only(mods[:-1], "lo", "hi", "wide")
        form = next(m for m in mods if m in ("lo", "hi", "wide"))
        out = f"{kind[0]}{16 * SIZES[kind]}" if form == "wide" else kind
        a, b = (self.source(o, kind) for o in item.operands[1:3])
        function = {"lo": "np.multiply", "hi": "A.mul_hi", "wide": "A.mul_wide"}[form]
        text = f"{function}({a}, {b}) + {self.source(item.operands[3], out)}"
        return [self.result(item.operands[0], text, dtype_of(out))]

    def _do_fma(self, item: Instruction, mods: list[str]) -> list[str]:
        if "rn" not in mods or len(item.operands) != 4:
            raise PtxError("only .rn")
        return self._float(item, mods, "A.fma")

    def _do_div(self, item: Instruction, mods: list[str]) -> list[str]:
        kind = mods[-1]
        if kind[0] == "f":
            return self._exact_or_not(item, mods, "np.divide", "div")
        self._only(mods[:-1])
        return self._integer_division(item, kind, "A.divide")

    def _do_rem(self, item: Instruction, mods: list[str]) -> list[str]:
        self._only(mods[:-1])
        return self._integer_division(item, mods[-1], "A.remainder")

    def _integer_division(self, item: Instruction, kind: str, function: str) -> list[str]:
        by_zero = f"S.no_zero({self.site(item)}, I, {self.source(item.operands[2], kind)})"
        return [by_zero, *self._call(item, function, kind)]

    def _exact_or_not(self, item: Instruction, mods: list[str], function: str, name: str) -> list[str]:
        kind = mods[-1]
        if "rn" in mods:
            return self._float(item, mods, function)
        self._only(mods[:-1], "approx", "full", "ftz")
        if name not in APPROXIMATIONS or not {"approx", "full"} & set(mods):
            raise PtxError("only .rn and .approx")
        self.inexact.append(item)
        sources = ", ".join(self.source(o, kind) for o in item.operands[1:])
        text = f"A.approximate({name!r}, {sources})"
        return [self.result(item.operands[0], f"A.flush({text})" if "ftz" in mods else text, dtype_of(kind))]

    def _do_rcp(self, item: Instruction, mods: list[str]) -> list[str]:
        return self._exact_or_not(item, mods, "np.reciprocal", "rcp")

    def _do_sqrt(self, item: Instruction, mods: list[str]) -> list[str]:
        return self._exact_or_not(item, mods, "np.sqrt", "sqrt")

    def _approximation(self, item: Instruction, mods: list[str]) -> list[str]:
        return self._exact_or_not(item, mods, "", item.opcode.split(".")[0])

    _do_sin = _do_cos = _do_lg2 = _do_ex2 = _do_tanh = _do_rsqrt = _approximation

    def _do_neg(self, item: Instruction, mods: list[str]) -> list[str]:
        if mods[-1][0] == "f":
            return self._float(item, mods, "np.negative")
        self._only(mods[:-1])
        return self._call(item, "np.negative", f"u{8 * SIZES[mods[-1]]}")

    def _do_abs(self, item: Instruction, mods: list[str]) -> list[str]:
        if mods[-1][0] == "f":
            return self._float(item, mods, "np.absolute")
        self._only(mods[:-1])
        return self._call(item, "np.absolute", mods[-1])

    def _do_copysign(self, item: Instruction, mods: list[str]) -> list[str]:
        self._only(mods[:-1])
        a, b = (self.source(o, mods[-1]) for o in item.operands[1:])
        return [self.result(item.operands[0], f"np.copysign({b}, {a})", dtype_of(mods[-1]))]

    def _do_not(self, item: Instruction, mods: list[str]) -> list[str]:
        kind = mods[-1] if mods[-1] == "pred" else f"u{8 * SIZES[mods[-1]]}"
        return self._call(item, "np.logical_not" if kind == "pred" else "np.invert", kind)

    def _shift(self, item: Instruction, mods: list[str]) -> list[str]:
        self._only(mods[:-1])
        name, kind = item.opcode.split(".")[0], mods[-1]
        amount = immediate(item.operands[2])
        if isinstance(amount, int) and 0 <= amount < 8 * SIZES[kind]:
            number = self.constant("value", dtype_of(kind), amount)
            function = {"shl": "np.left_shift", "shr": "np.right_shift"}[name]
            return [
                self.result(
                    item.operands[0], f"{function}({self.source(item.operands[1], kind)}, {number})", dtype_of(kind)
                )
            ]
        return self._call(item, f"A.{name}", kind, [kind, "u32"])

    _do_shl = _do_shr = _shift

    def _do_shf(self, item: Instruction, mods: list[str]) -> list[str]:
        if mods[1:] != ["wrap", "b32"]:
            raise PtxError("only .wrap.b32")
        a, b, c = (self.source(o, "u32") for o in item.operands[1:])
        function = {"l": "A.funnel_left", "r": "A.funnel_right"}[mods[0]]
        return [self.result(item.operands[0], f"{function}({a}, {b}, {c} & 31)", "u4")]

    def _do_bfe(self, item: Instruction, mods: list[str]) -> list[str]:
        if mods not in (["u32"], ["s32"]):
            raise PtxError("only of 32 bits")
        return self._call(item, "A.extract_bits", mods[0], [mods[0], "u32", "u32"])

    def _do_bfi(self, item: Instruction, mods: list[str]) -> list[str]:
        self._only(mods, "b32")
        return self._call(item, "A.insert_bits", "u32")

    def _do_prmt(self, item: Instruction, mods: list[str]) -> list[str]:
        self._only(mods, "b32")
        return self._call(item, "A.permute_bytes", "u32")

    def _do_lop3(self, item: Instruction, mods: list[str]) -> list[str]:
        self._only(mods, "b32")
        a, b, c = (self.source(o, "u32") for o in item.operands[1:4])
        text = f"A.logic3({a}, {b}, {c}, {int(immediate(item.operands[4]) or 0)})"
        return [self.result(item.operands[0], text, "u4")]

    def _do_popc(self, item: Instruction, mods: list[str]) -> list[str]:
        return [self.result(item.operands[0], f"A.population({self.source(item.operands[1], mods[0])})", "u4")]

    def _do_clz(self, item: Instruction, mods: list[str]) -> list[str]:
        return [self.result(item.operands[0], f"A.leading_zeros({self.source(item.operands[1], mods[0])})", "u4")]

    # --- choice, moves, conversions ---------------------------------------------------------------------------------

    def _do_setp(self, item: Instruction, mods: list[str]) -> list[str]:
        compare, kind = mods[0], mods[-1]
        self._only([compare], *COMPARISONS)
        join = next((m for m in mods[1:-1] if m in ("and", "or", "xor")), None)
        self._only(mods[1:-1], "and", "or", "xor", "ftz")
        sources = [self.source(o, kind) for o in item.operands[1:3]]
        if "ftz" in mods:
            sources = [f"A.flush({s})" for s in sources]
        first, *second = (part.strip() for part in item.operands[0].split("|"))
        lines = [f"_t = COMPARE[{compare!r}]({', '.join(sources)})"]
        third = self.source(item.operands[3], "pred") if join else ""
        symbol = {"and": "&", "or": "|", "xor": "^"}.get(join or "", "")
        # The second result is computed first: the first one may be an operand.
        if second:
            lines.append(f"_u = ~_t {symbol} {third}" if join else "_u = ~_t")
        lines.append(self.result(first, f"_t {symbol} {third}" if join else "_t", "?"))
        return lines + ([self.result(second[0], "_u", "?")] if second else [])

    def _do_selp(self, item: Instruction, mods: list[str]) -> list[str]:
        self._only(mods[:-1])
        kind = mods[-1]
        a, b = (self.source(o, kind) for o in item.operands[1:3])
        text = f"np.where({self.source(item.operands[3], 'pred')}, {a}, {b})"
        return [self.result(item.operands[0], text, dtype_of(kind))]

    def _do_mov(self, item: Instruction, mods: list[str]) -> list[str]:
        target, source = item.operands
        kind = mods[-1]
        self._only(mods[:-1])
        if source.startswith("{"):
            low, high = (self.source(o, f"u{4 * SIZES[kind]}") for o in self.parts(source, 2))
            half = f"UINT{SIZES[kind]}({4 * SIZES[kind]})"
            wide = f"u{SIZES[kind]}"
            return [self.result(target, f"{low}.astype({wide}) | ({high}.astype({wide}) << {half})", f"u{SIZES[kind]}")]
        if target.startswith("{"):
            half = f"UINT{SIZES[kind]}({4 * SIZES[kind]})"
            text = self.source(source, f"u{8 * SIZES[kind]}")
            low, high = self.parts(target, 2)
            narrow = f"u{SIZES[kind] // 2}"
            return [
                f"_t = {text}",
                self.result(low, f"_t.astype({narrow})", narrow),
                self.result(high, f"(_t >> {half}).astype({narrow})", narrow),
            ]
        return [self.result(target, f"({self.source(source, kind)}).copy()", dtype_of(kind))]

    def _do_cvta(self, item: Instruction, mods: list[str]) -> list[str]:
        self._only(mods, "to", "global", "local", "shared", "const", "u64")
        text = self.source(item.operands[1], "u64")
        window = {"local": "LOCAL_WINDOW", "shared": "SHARED_WINDOW"}.get(mods[-2])
        text = f"({text}).copy()" if window is None else f"{text} {'-' if 'to' in mods else '+'} UINT8({window})"
        return [self.result(item.operands[0], text, "u8")]

    def _do_cvt(self, item: Instruction, mods: list[str]) -> list[str]:
        target, kind = mods[-2:]
        rounding = [m for m in mods[:-2] if m not in ("ftz", "sat")]
        if len(rounding) > 1 or "f16" in target + kind:
            raise PtxError("modifiers")
        text = self.source(item.operands[1], kind, wider=kind[0] != "f")
        if "ftz" in mods:
            text = f"A.flush({text})" if kind == "f32" else text
        to_float, from_float = target[0] == "f", kind[0] == "f"
        if from_float and not to_float:
            self._only(rounding, *ROUNDINGS)
            text = f"A.to_integer({text}, {rounding[0]!r}, {dtype_of(target)})"
        elif from_float and rounding and rounding[0] in ROUNDINGS:
            text = f"A.ROUNDINGS[{rounding[0]!r}]({text}).astype({dtype_of(target)})"
        else:
            self._only(rounding, *(["rn"] if to_float else []))
            text = f"({text}).astype({dtype_of(target)})"
        if "sat" in mods:
            if not to_float:
                raise PtxError("only floats")
            text = f"A.saturate({text})"
        if "ftz" in mods and target == "f32":
            text = f"A.flush({text})"
        return [self.result(item.operands[0], text, dtype_of(target))]

    # --- memory -----------------------------------------------------------------------------------------------------

    def _access(self, mods: list[str]) -> tuple[str, int, str, bool]:
        """(state space, elements, type, coherent)"""
        kind = mods[-1]
        space = next((m for m in mods if m in ("global", "local", "shared", "const", "param")), "generic")
        count = next((int(m[1]) for m in mods if m in ("v2", "v4")), 1)
        if not set(mods[:-1]) <= _CACHE_HINTS | {space, f"v{count}", "nc"} or kind not in SIZES or kind == "pred":
            raise PtxError("modifiers")
        return space, count, kind, "nc" not in mods

    def _where(self, space: str, operand: str) -> str:
        """Source of an address; a plain number where it is known."""
        known = self.local_address(operand) if space == "local" else None
        return self.address(operand) if known is None else str(known)

    def _do_ld(self, item: Instruction, mods: list[str]) -> list[str]:
        space, count, kind, coherent = self._access(mods)
        targets = self.parts(item.operands[0], count) if count > 1 else [item.operands[0]]
        if count > 1:  # compilers load a vector where some element of it, which nothing uses, holds nothing
            targets = [t if t in self.used else "_" for t in targets]
        stored = f"u{SIZES[kind]}"
        if space == "param":
            match = ADDRESS.match(item.operands[1])
            if not match or count > 1:
                raise PtxError("address")
            text = self.constant("param", match[1], int(match[2] or 0), stored)
            return [self.result(targets[0], f"{text}.copy(){self.view(stored, dtype_of(kind))}", dtype_of(kind))]
        wanted = tuple(t != "_" for t in targets) if count > 1 else (True,)
        where = self._where(space, item.operands[1])
        arguments = f"{self.site(item)}, I, {where}, {SIZES[kind]}, {wanted}, {coherent}"
        lines = [f"_v = S.load_{space}({arguments})"]
        view = self.view(stored, dtype_of(kind))
        return lines + [self.result(t, f"_v[{k}]{view}", dtype_of(kind)) for k, t in enumerate(targets) if wanted[k]]

    def _do_st(self, item: Instruction, mods: list[str]) -> list[str]:
        space, count, kind, _ = self._access(mods)
        sources = self.parts(item.operands[1], count) if count > 1 else [item.operands[1]]
        values = ", ".join(
            self.source(s, f"u{8 * SIZES[kind]}" if kind[0] != "f" else kind, wider=True) for s in sources
        )
        if kind[0] == "f":
            values = ", ".join(f"{self.source(s, kind)}.view(u{SIZES[kind]})" for s in sources)
        return [f"S.store_{space}({self.site(item)}, I, {self._where(space, item.operands[0])}, [{values}])"]

    def _atomic(self, item: Instruction, mods: list[str], returns: bool) -> list[str]:
        name, kind = mods[-2:]
        space = mods[0] if mods[0] in ("global", "shared") else "generic"
        if name not in _ATOMS or not set(mods[:-2]) <= {space, *_CACHE_HINTS}:
            raise PtxError("modifiers")
        operands = item.operands[1:] if returns else item.operands
        values = ", ".join(self.source(o, kind) for o in operands[1:])
        call = f"S.atomic_{space}({self.site(item)}, I, {self.address(operands[0])}, {name!r}, [{values}])"
        return [self.result(item.operands[0], call, dtype_of(kind)) if returns else call]

    def _do_atom(self, item: Instruction, mods: list[str]) -> list[str]:
        return self._atomic(item, mods, returns=True)

    def _do_red(self, item: Instruction, mods: list[str]) -> list[str]:
        return self._atomic(item, mods, returns=False)
