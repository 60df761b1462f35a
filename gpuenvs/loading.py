"""Environments that a user wrote: `path/to/my_env.py:SPEC` or `package.module:SPEC` -> the object of that name.

The name stands for an EnvSpec or for a function without arguments that returns one. A file may be given without a name if it
holds one EnvSpec. It is run once per process and can import files beside it; files of one name in the folders of two
environments keep apart, and what is imported is always what the file says now (`gpuenvs.folder_modules`).
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import sysconfig
import threading
import traceback
import types
from pathlib import Path
from typing import Any, NoReturn

from gpuenvs import folder_modules
from gpuenvs.errors import GpurlError, LoadError, SpecError, UnknownEnvError, near_names
from gpuenvs.spec import EnvSpec

_lock = threading.RLock()
_made: dict[tuple[str, str], EnvSpec] = {}  # what functions returned


def is_reference(text: str) -> bool:
    """True for a file or `module:name`, False for an id."""
    return ":" in text or text.endswith(".py")


def canonical(text: str) -> str:
    """The same reference wherever it is used from: a file's path is made absolute. An id stays as it is."""
    if not is_reference(text):
        return text
    where, name = _split(text)
    if not _is_file(where):
        return text
    return f"{_path(where)}:{name}" if name else str(_path(where))


def load(text: str) -> EnvSpec:
    """The EnvSpec of a reference; the same object each time.

    Raises:
        UnknownEnvError: no such file, module or name.
        LoadError: it raises while it is imported or made.
        SpecError: it is something else.
    """
    with _lock:
        found = load_object(text)
        if inspect.isfunction(found):
            found = _call(text, found)
    if isinstance(found, EnvSpec):
        return found
    import gymnasium

    if isinstance(found, gymnasium.Env) or (isinstance(found, type) and issubclass(found, gymnasium.Env)):
        raise SpecError(f"{text} is a gymnasium.Env, which steps in plain Python: use it with --env-backend host")
    kind = found.__name__ if isinstance(found, type) else type(found).__name__
    raise SpecError(f"{text} must be an EnvSpec or a function that returns one, it is {kind!r}")


def load_module(where: str) -> types.ModuleType:
    """The module of a file's path or of a module's name. Raises `UnknownEnvError` or `LoadError` as `load` does."""
    with _lock:
        return _run_file(_path(where)) if _is_file(where) else _import(where)


def load_object(text: str) -> Any:
    """Whatever a reference names: an EnvSpec, a class, a function. Raises as `load` does."""
    where, name = _split(text)
    module = load_module(where)
    if name is None:
        specs = {k: v for k, v in vars(module).items() if isinstance(v, EnvSpec)}
        if len({id(spec) for spec in specs.values()}) == 1:
            return next(iter(specs.values()))
        which = f"one of its environments, {', '.join(specs)}" if specs else "the name of an EnvSpec in it"
        raise UnknownEnvError(f"{text}: say which, as {text}:NAME with {which}")
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            public = [k for k in vars(found) if not k.startswith("_")] if hasattr(found, "__dict__") else []
            specs = ", ".join(k for k in public if isinstance(vars(found)[k], EnvSpec))
            raise UnknownEnvError(
                f"{where} has no {name!r}{near_names(name, public)}; its environments: {specs or 'none'}"
            )
        found = getattr(found, part)
    return found


def _split(text: str) -> tuple[str, str | None]:
    where, colon, name = text.rpartition(":")
    return (where, name) if colon and name else (text.rstrip(":"), None)


def _is_file(where: str) -> bool:
    return where.endswith(".py") or os.sep in where


def _path(where: str) -> Path:
    return Path(os.path.abspath(Path(where).expanduser()))


def _call(text: str, function: Any) -> Any:
    """What a function without arguments returns, called once."""
    key = (function.__module__, function.__qualname__)
    if key in _made:
        return _made[key]
    needed = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty and p.kind <= 1]
    if needed:
        raise SpecError(f"{text} must be a function without arguments that returns an EnvSpec, it takes {needed[0]!r}")
    try:
        found = function()
    except Exception as error:
        _explain(text, error)
    if isinstance(found, EnvSpec):
        _made[key] = found
    return found


# --- running files ---------------------------------------------------------------------------------------------------


def _run_file(path: Path) -> types.ModuleType:
    """The module of a file, run when it is first asked for."""
    try:
        path.open("rb").close()
    except OSError as error:
        near = near_names(path.name, (p.name for p in path.parent.glob("*.py")) if path.parent.is_dir() else ())
        why = "" if isinstance(error, FileNotFoundError) else f": {error.strerror or error}"
        raise UnknownEnvError(f"no file {path}{near}{why}") from error
    try:
        return folder_modules.run_file(path)
    except (Exception, SystemExit) as error:
        _explain(str(path), error)


def _import(name: str) -> types.ModuleType:
    """A module by its name, from the import path or the current folder."""
    current = os.getcwd()
    added = current not in sys.path and "" not in sys.path
    if added:
        sys.path.append(current)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            hint = f"; for a file write {name}.py:NAME" if Path(f"{name}.py").is_file() else ""
            raise UnknownEnvError(f"no module {name!r}{hint}") from error
        _explain(name, error)
    except (Exception, SystemExit) as error:
        _explain(name, error)
    finally:
        if added:
            sys.path.remove(current)


def _explain(what: str, error: BaseException) -> NoReturn:
    """Raise `error` as one line that says where it came from."""
    if isinstance(error, SyntaxError):
        place = f"{error.filename}, line {error.lineno}"
        raise LoadError(f"{what} cannot be read: {place}: {error.msg}") from error
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    place = f"{own[-1].filename}, line {own[-1].lineno}" if own else what
    text = " ".join(str(error).split())
    if isinstance(error, GpurlError):
        told = own and f"{Path(own[-1].filename).name}, line {own[-1].lineno}" in text
        raise type(error)(text if told else f"{text} ({place})") from error
    raise LoadError(f"{what} cannot be loaded: {place}: {type(error).__name__}: {text}") from error


def _is_users(filename: str) -> bool:
    """True for a file that is neither Python's, nor installed, nor gpurl's."""
    own = str(Path(__file__).resolve().parent) + os.sep
    paths = (sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib"))
    return not filename.startswith(("<", own, *paths))  # "<string>": what dataclasses generate
