"""One breach of the contract, and how it is put into words."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuenvs.spec import EnvSpec

FUNCTIONS = ("reset", "step", "observe")


@dataclass(frozen=True)
class Fault:
    """What is wrong, and where.

    Args:
        function: name of the function that holds the line.
        filename, line: where.
        what: what is wrong and what to do, without a place.
        error: what numba said, if that is where it comes from.
        role: `reset`, `step` or `observe`: the one that led there.
    """

    function: str
    filename: str
    line: int
    what: str
    error: BaseException | None = field(default=None, compare=False, repr=False)
    role: str = ""

    @property
    def place(self) -> str:
        """`step (my_env.py, line 12)`, or `helper (my_env.py, line 7), called by step`."""
        at = f"{self.function} ({short(self.filename)}, line {self.line})"
        return f"{at}, called by {self.role}" if self.role not in ("", self.function) else at

    def within(self, role: str, own: str) -> Fault:
        """The same fault, found on the way from `role`, whose function is called `own`."""
        return replace(self, role=role, function=role if self.function == own else self.function)

    def line_of(self, env_id: str) -> str:
        """The whole message."""
        return f"{env_id}: {self.place}: {self.what}"


def short(filename: str) -> str:
    """A path relative to the working directory if it lies below."""
    if filename.startswith("<"):
        return filename
    relative = os.path.relpath(filename)
    return filename if relative.startswith("..") else relative


def expected(spec: EnvSpec, name: str) -> str:
    """The signature that a function of this spec must have."""
    state = spec.state.__name__
    if name == "reset":
        return f"reset(rng, params) -> {state}"
    if name == "observe":
        return f"observe(state, params) -> ({spec.obs_dim} value{'s' if spec.obs_dim != 1 else ''})"
    metrics = f", ({', '.join(spec.metrics)})" if spec.metrics else ""
    return f"step(state, action, params) -> ({state}, reward, terminated{metrics})"


def plain(function: object) -> object:
    """The Python function of a compiled one."""
    return getattr(function, "py_func", function)


def head(function: object) -> tuple[str, str, int]:
    """(name, file, first line) of a function."""
    code = plain(function).__code__  # type: ignore[attr-defined]
    return code.co_name, code.co_filename, code.co_firstlineno


def where(function: object) -> str:
    """`my_env.py, line 12` of a function, or what it is if it has no code."""
    code = getattr(plain(getattr(function, "__func__", function)), "__code__", None)
    return f"{short(code.co_filename)}, line {code.co_firstlineno}" if code else repr(function)


def where_called() -> str:
    """`my_env.py, line 12` of the innermost caller that is neither in gpuenvs' machinery nor generated."""
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_code.co_filename == "<string>" or os.path.dirname(frame.f_code.co_filename).startswith(own)
    ):
        frame = frame.f_back
    return f"{short(frame.f_code.co_filename)}, line {frame.f_lineno}"
