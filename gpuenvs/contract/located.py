"""Exceptions that come out of environment functions when they run or are traced: which function, which line."""

from __future__ import annotations

import os

from gpuenvs.contract.faults import FUNCTIONS, Fault, expected, head
from gpuenvs.contract.messages import is_machinery
from gpuenvs.errors import GpurlError, SpecError
from gpuenvs.spec import EnvSpec

_ENGINE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "mjlite", "")
_TASKS = os.path.join(_ENGINE, "tasks", "")


class OutOfRangeError(SpecError, IndexError):
    """A function used an index outside of its tuple while it ran."""


def _is_users(filename: str) -> bool:
    engine = filename.startswith(_ENGINE) and not filename.startswith(_TASKS)
    return not (filename.startswith("<gpuenvs") or filename.endswith(" row>") or engine or is_machinery(filename))


def users_place(error: BaseException) -> tuple[str, str, int] | None:
    """(function, file, line) of the innermost frame in the user's own code that `error` passed through."""
    found, traceback = None, error.__traceback__
    entered = False  # frames before the generated row are the caller's
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename.endswith(" row>") or code.co_filename.startswith("<gpuenvs"):
            entered = True
        elif entered and _is_users(code.co_filename):
            found = code.co_name, code.co_filename, traceback.tb_lineno
        traceback = traceback.tb_next
    return found


def traced_error(spec: EnvSpec, error: Exception, lines: list[str]) -> SpecError:
    """The one line for what went wrong while the generated `lines` of a row called a traced spec's functions."""
    text = " ".join(str(error).split()) or "no message"
    if text.startswith(f"{spec.id}:"):
        text = text.removeprefix(f"{spec.id}:").strip()
    what = text if isinstance(error, GpurlError) else f"{type(error).__name__}: {text}"
    role = _called(error, lines)
    place = users_place(error)
    if place is not None:
        own = getattr(getattr(spec, role), "__name__", role) if role else place[0]
        return SpecError(Fault(*place, what).within(role or own, own).line_of(spec.id))
    if role is None:
        return SpecError(f"{spec.id}: {what}")
    return SpecError(Fault(*_head(spec, role), f"{what}; expected {expected(spec, role)}").line_of(spec.id))


def _head(spec: EnvSpec, role: str) -> tuple[str, str, int]:
    function = getattr(spec, role)
    return (role, *head(getattr(function, "__func__", function))[1:])


def _called(error: BaseException, lines: list[str]) -> str | None:
    """Which of a spec's functions the generated line calls that `error` passed through."""
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename.endswith(" row>"):
            line = lines[traceback.tb_lineno - 1]
            return next((name for name in FUNCTIONS if f"_{name}(" in line), None)
        traceback = traceback.tb_next
    return None


def index_error(spec: EnvSpec) -> OutOfRangeError:
    """The one line for a compiled kernel that stopped at an index outside of its tuple.

    Kernels do not say where: named is each line that indexes with a variable.
    """
    from gpuenvs.contract.rules import variable_indexes

    places = {(fault.filename, fault.line): fault for name in FUNCTIONS for fault in variable_indexes(spec, name)}
    what = "an index lies outside of its tuple; limit it with min and max"
    if not places:
        return OutOfRangeError(f"{spec.id}: {what}")
    where = " or ".join(fault.place for fault in places.values())
    return OutOfRangeError(f"{spec.id}: {where}: {what}. The batch stands in the middle of a step: reset it")
