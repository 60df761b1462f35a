"""What an environment computes, as digests that a run keeps: a policy is not evaluated on a changed environment unawares.

Every part has a name that people understand: `my_env.py: step` (a function's text without comments and layout),
`constants.py: GRAVITY` (a value that a function uses), `params.mass`, `observation_space`, ... Functions are followed into
whatever they call, in whichever file it is; what is installed, and gpurl's own engine, counts as given.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import math
import os
import sysconfig
import textwrap
import tokenize
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import gpuenvs
from gpuenvs.errors import CheckpointError, ConfigError
from gpuenvs.mjlite.task import task_of
from gpuenvs.spec import EnvSpec, field_kinds
from learners.distributed import Group

FLAG = "--allow-changed-env"
_CURRICULUM = "curriculum "
_OWN = Path(gpuenvs.__file__).resolve().parents[1]
# Of gpurl's own files these are environments.
_OWN_ENVS = (_OWN / "gpuenvs" / "classic", _OWN / "gpuenvs" / "mjlite" / "tasks")
_LONGEST = 40  # characters of a value that is kept as it is


def fingerprint(spec: EnvSpec) -> dict[str, Any]:
    """`{"hash": digest of all, "parts": {name: digest or short value}, "file": name}`, for JSON.

    `file` is the name of the file that defines the environment.
    """
    parts = _Parts()
    task = task_of(spec)
    if task is None:
        functions = [spec.reset, spec.step, spec.observe]
    else:
        functions = list(task._functions.values())
        parts.add("model", task.model.key())
        parts.add("frame_skip", task.frame_skip)
    for function in functions:
        parts.follow(function)
    parts.add("state", field_kinds(spec.state))
    for name, value in spec.params._asdict().items():
        parts.add(f"params.{name}", value)
    for name, value in spec.ranges.items():
        parts.add(f"ranges.{name}", str(value))
    parts.add("max_episode_steps", spec.max_episode_steps)
    for name, space in (("observation_space", spec.observation_space), ("action_space", spec.action_space)):
        bounds = [int(space.n)] if hasattr(space, "n") else [space.low.tolist(), space.high.tolist()]  # type: ignore[union-attr]
        parts.add(name, bounds)
    parts.add("metrics", spec.metrics)
    if spec.curriculum is not None:
        parts.follow(spec.curriculum, _CURRICULUM)
    found = dict(sorted(parts.found.items()))
    return {"hash": _digest(repr(found)), "parts": found, "file": _place(_plain(functions[0]))}


def changes(recorded: Mapping[str, Any], spec: EnvSpec, training: bool = False) -> list[str]:
    """What differs between a `fingerprint` and the environment as it is now, in words; a curriculum only for training."""
    now = fingerprint(spec)
    after, old_file, new_file = now["parts"], f"{recorded['file']}: ", f"{now['file']}: "
    # The file itself may have another name by now.
    before = {
        new_file + name.removeprefix(old_file) if name.startswith(old_file) else name: part
        for name, part in recorded["parts"].items()
    }
    names = [name for name in {**before, **after} if training or not name.startswith(_CURRICULUM)]
    words = []
    for name in names:
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if old is None or new is None:
            words.append(f"{name} (gone)" if new is None else f"{name} (new)")
        elif old.startswith("=") and new.startswith("="):
            words.append(f"{name} ({old[1:]} -> {new[1:]})")
        else:
            words.append(name)
    return words


def check(recorded: Mapping[str, Any] | None, spec: EnvSpec, allow: bool = False, training: bool = False) -> list[str]:
    """Make sure that an environment is the one that a run was made with.

    Args:
        recorded: the run's `fingerprint`; None for a run of an older gpurl, which passes.
        spec: the environment as it is now.
        allow: go on with a changed one.
        training: training goes on, so that its curriculum counts as well.

    Returns:
        What has changed, in words; empty unless `allow`.

    Raises:
        CheckpointError: it has changed; one line that says where.
    """
    words = changes(recorded, spec, training) if recorded else []
    if words and not allow:
        more = f" and {len(words) - 6} more" if len(words) > 6 else ""
        raise CheckpointError(
            f"{spec.id} has changed since this run was made: {', '.join(words[:6])}{more}; put it back, or add {FLAG}"
        )
    return words


def agree(group: Group, spec: EnvSpec) -> None:
    """Make sure that all processes of a training step the same environment: they may be on machines with files of their own.

    Raises:
        ConfigError: they do not; one line that says where.
    """
    for rank, other in enumerate(group.objects(fingerprint(spec))):
        words = changes(other, spec, training=True)
        if words:
            raise ConfigError(
                f"{spec.id} of process {rank} is not that of process {group.rank}: {', '.join(words[:6])}; "
                "all processes need the same files"
            )


class _Parts:
    """Collects the parts of an environment: name -> digest, or `=value` of a short value."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self._seen: set[int] = set()

    def add(self, name: str, value: Any) -> None:
        text = _text(value)
        shown = f"={text}" if len(text) <= _LONGEST and not isinstance(value, bytes) else _digest(text)
        number, key = 1, name
        while self.found.get(key, shown) != shown:  # files of one name in two folders
            number += 1
            key = f"{name} #{number}"
        self.found[key] = shown

    def follow(self, function: Any, prefix: str = "") -> None:
        """A function, and all that it uses."""
        plain = _plain(function)
        if not isinstance(plain, types.FunctionType) or id(plain) in self._seen or _given(plain.__code__.co_filename):
            return
        self._seen.add(id(plain))
        label = f"{prefix}{_place(plain)}"
        self.found[_free(self.found, f"{label}: {plain.__qualname__}")] = _digest(_source(plain))
        for value in plain.__defaults__ or ():
            self._use(f"{label}: a default of {plain.__qualname__}", value, prefix, ())
        names = sorted(set(_names(plain.__code__)))
        for name, cell in zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=False):
            try:
                self._use(f"{label}: {name}", cell.cell_contents, prefix, names)
            except ValueError:  # an empty cell
                continue
        for name in names:
            if name in plain.__globals__:
                self._use(f"{label}: {name}", plain.__globals__[name], prefix, names)

    def _use(self, name: str, value: Any, prefix: str, names: Iterable[str]) -> None:
        """Something that a function uses under this name; `names` are all that it uses."""
        if isinstance(value, types.ModuleType):
            self._module(value, prefix, names, set())
        elif isinstance(value, type):
            if hasattr(value, "_fields"):
                self.add(name, field_kinds(value))
        elif callable(value):
            self.follow(value, prefix)
        elif isinstance(
            value, bool | int | float | complex | str | bytes | tuple | list | dict | np.ndarray | np.generic
        ):
            self.add(name, value)

    def _module(self, module: types.ModuleType, prefix: str, names: Iterable[str], seen: set[int]) -> None:
        file = getattr(module, "__file__", None)
        if file is None or _given(file) or id(module) in seen:
            return
        for name in names:
            if name in module.__dict__:
                value = module.__dict__[name]
                if isinstance(value, types.ModuleType):
                    self._module(value, prefix, names, seen | {id(module)})
                else:
                    self._use(f"{prefix}{Path(file).name}: {name}", value, prefix, names)


def _plain(function: Any) -> Any:
    """The function that the user wrote, out of numba's, a bound method or a decorator's."""
    plain = inspect.unwrap(getattr(function, "py_func", function))
    return getattr(plain, "__func__", plain)


def _given(filename: str) -> bool:
    """True for what is not the user's: installed packages, Python, and gpurl but for its environments."""
    installed = tuple(sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib"))
    if filename.startswith(("<frozen", *installed)):
        return True
    path = Path(os.path.abspath(filename))
    if _OWN / "gpuenvs" in path.parents or _OWN / "learners" in path.parents:
        return not any(folder in path.parents for folder in _OWN_ENVS)
    return False


def _place(function: Any) -> str:
    """The name of a function's file; that of a notebook's or an interpreter's cell differs from session to session."""
    code = getattr(function, "__code__", None)
    filename = code.co_filename if code is not None else ""
    return Path(filename).name if os.path.isfile(filename) else "(interactive)"


def _free(found: Mapping[str, str], name: str) -> str:
    number, key = 1, name
    while key in found:
        number += 1
        key = f"{name} #{number}"
    return key


def _names(code: types.CodeType) -> list[str]:
    """Names that a code object and those nested in it may look up."""
    inner = [name for const in code.co_consts if isinstance(const, types.CodeType) for name in _names(const)]
    return [*code.co_names, *inner]


def _source(function: types.FunctionType) -> str:
    """A function's text without comments, docstring and layout; its bytecode where there is no text."""
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        code = function.__code__
        return repr((code.co_code, [c for c in code.co_consts if not isinstance(c, types.CodeType)], code.co_names))
    words: list[str] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.COMMENT, tokenize.NL):
                continue
            if token.type == tokenize.NEWLINE and len(words) > 1 and words[-1][:1] in "\"'" and words[-2] in _STARTS:
                words.pop()  # a docstring, or another statement that is only a string
                continue
            words.append(_LAYOUT.get(token.type, token.string))
    except (tokenize.TokenError, SyntaxError):  # a lambda's line need not be whole
        return text
    return "\0".join(words)


_LAYOUT = {tokenize.NEWLINE: "\n", tokenize.INDENT: "{", tokenize.DEDENT: "}"}
_STARTS = tuple(_LAYOUT.values())


def _text(value: Any) -> str:
    """A value as text that is the same in every process and for equal numbers of different types of integers."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.tolist()}"
    if isinstance(value, np.generic):
        return _text(value.item())
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{k}: {_text(v)}" for k, v in sorted(value.items(), key=lambda pair: repr(pair[0]))) + "}"
        )
    if isinstance(value, tuple | list):
        return "(" + ", ".join(map(_text, value)) + ")"
    return value if isinstance(value, str) else repr(value)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
