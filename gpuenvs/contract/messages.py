"""What numba says when it cannot type a function, in one line with the user's file and line.

numba's text is a page: the cause first, then for every call on the way out the place and the source line, in ANSI colours.
The cause and the innermost place that is the user's own are kept.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import numba

from gpuenvs.contract.faults import Fault, head, plain

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_PLACES = re.compile(r"""\bat (?P<at>[^\n]+?) \((?P<at_line>\d+)\)|File "(?P<file>[^"\n]+)", line (?P<line>\d+)""")
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_PACKAGES = os.path.dirname(os.path.dirname(os.path.abspath(numba.__file__)))
_MACHINERY = (
    *(os.path.join(_PACKAGES, name, "") for name in ("numba", "numba_cuda")),
    *(os.path.join(_OWN, name, "") for name in ("runtime", "contract", "checks", "trace")),
    *(os.path.join(_OWN, name) for name in ("scalar.py", "rng.py")),
)
_RETURNS = "Can't unify return type from the following types: "
_OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "lt": "<", "le": "<=",
    "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "and_": "&", "or_": "|", "xor": "^", "iadd": "+=", "isub": "-=",
    "imul": "*=", "itruediv": "/=", "getitem": "[...]", "neg": "-", "lshift": "<<", "rshift": ">>",
}  # fmt: skip


def explain(error: BaseException, function: Any) -> Fault:
    """The fault that numba's `error` is about, found while `function` was compiled."""
    text = _ANSI.sub("", str(error))
    name, filename, line = head(function)
    places = _users_places(text)
    # The innermost place is named first; of return statements that differ, in no order, the last one in the file is taken.
    place = (max(places[:2]) if _RETURNS in text else places[0]) if places else (filename, line)
    inner = _function_at(function, *place) or name
    return Fault(inner, place[0], place[1], _cause(text, type(error).__name__), error)


def _users_places(text: str) -> list[tuple[str, int]]:
    """The places named in code that is neither numba's nor gpuenvs' own nor generated, the innermost first."""
    found = []
    for match in _PLACES.finditer(text):
        filename = match["at"] or os.path.abspath(match["file"])
        if not filename.startswith("<gpuenvs") and not is_machinery(filename):
            found.append((filename, int(match["at_line"] or match["line"])))
    return found


def is_machinery(filename: str) -> bool:
    """True of files of numba and of gpuenvs' own helpers, which are no user's."""
    return os.path.abspath(filename).startswith(_MACHINERY)


def _function_at(function: Any, filename: str, line: int) -> str | None:
    """Name of the function that holds a line: `function` itself or one that it calls."""
    from gpuenvs.contract.rules import reachable

    for called in reachable(function):
        code = plain(called).__code__  # type: ignore[attr-defined]
        lines = [at for *_, at in code.co_lines() if at is not None]
        if os.path.abspath(code.co_filename) == os.path.abspath(filename) and min(lines) <= line <= max(lines):
            return code.co_name
    return None


# --- the cause ---------------------------------------------------------------------------------------------------------


def _cause(text: str, kind: str) -> str:
    for pattern, words in _CAUSES:
        match = re.search(pattern, text, re.DOTALL)
        if match:
            return words(match)
    # What comes before the first place or note, boilerplate apart.
    body = re.sub(r"Failed in \w+ mode pipeline \(step: [^)]*\)", "", text)
    first = re.split(r"\n\s*File \"|\bDuring: ", body.strip(), maxsplit=1)[0]
    return f"cannot be compiled: {' '.join(first.split())[:240] or kind}"


def _attribute(match: re.Match[str]) -> str:
    name, kind = match.groups()
    fields = re.match(r"(\w+)\(", kind)
    if kind.startswith("Module("):
        module = re.search(r"module '([\w.]+)'", kind)
        return f"{module.group(1) if module else kind}.{name} cannot be compiled; use the functions of gpuenvs.scalar"
    return f"{fields.group(1) if fields else kind} has no field {name!r}" + (f" (it is {kind})" if fields else "")


def _no_implementation(match: re.Match[str]) -> str:
    name = match["name"]
    given = re.sub(r"Literal\[\w+\]\(([^)]*)\)", r"\1", " ".join(match["given"].split()))
    if name in _OPERATORS:
        return f"`{_OPERATORS[name]}` does not work on ({given})"
    return f"{name} cannot be called with ({given})"


def _unified(match: re.Match[str]) -> str:
    return f"its return statements give different types: {' '.join(match[1].split())}; return the same kinds of value in all"


def _variable(match: re.Match[str]) -> str:
    one, other, name = match.groups()
    return f"{name.split('.')[0]} is {one} on one path and {other} on another; give it one kind of value"


_CAUSES: list[tuple[str, Callable[[re.Match[str]], str]]] = [
    (r"Unknown attribute '(\w+)' of type ([^\n]+)", _attribute),
    (r"NameError: name '(\w+)' is not defined", lambda m: f"{m[1]} is not defined"),
    (r"Untyped global name '(\w+)'", lambda m: f"{m[1]} cannot be compiled; decorate functions with gpuenvs.scalar.njit"),
    (r"No implementation of function Function\(<[\w\- ]*?(?P<name>\w+)(?: at 0x\w+)?>\) found for signature:\s*"
     r">>> [\w.]+\((?P<given>[^\n]*)\)\s*\n", _no_implementation),
    (rf"{_RETURNS}([^\n]+)", _unified),
    (r"Cannot unify ([^\n]+?) and ([^\n]+?) for '([\w.$]+)'", _variable),
    (r"missing a required argument: '(\w+)'", lambda m: f"a call lacks its argument {m[1]!r}"),
    (r"too many positional arguments", lambda m: "a call has too many arguments"),
    (r"(tuple|list) index out of range|[Cc]annot index at (-?\d+)|index (-?\d+) is out of bounds",
     lambda m: "an index lies outside of its tuple"),
    (r"wrong tuple length[^']*', 'expected (\d+), got (\d+)'", lambda m: f"unpacks {m[2]} values into {m[1]} names"),
    (r"failed to unpack ([^\n]+)", lambda m: f"unpacks what is no tuple: {m[1]}"),
]  # fmt: skip
