"""Compiled kernels on disk, keyed by everything that went into them.

numba's own cache looks at the time stamp of one source file; it does not notice that a helper, a constant in another file or
a generated text changed, and it refuses functions that have no file. Here the key is a hash of the function's code, of every
function and constant it reaches, of the sources that generate kernels, of the signature, of the processor and of the
versions. A stale entry can therefore not be found, and two environments whose functions share a name keep apart.

`GPURL_CACHE_DIR` moves the cache, `GPURL_CACHE=0` turns it off. Entries are written to a temporary file and renamed, so
processes may share the directory; one that cannot be written or read is compiled as if there were no cache.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import pickle
import sys
import sysconfig
import tempfile
import time
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core import compiler
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import _Cache
from numba.core.serialize import dumps


def _number_symbols_from_a_random_start() -> None:
    """Give the machine code of this process symbol names that no other process uses.

    numba numbers the functions it compiles from 1, and the number is what tells symbols of equal names and types apart.
    Machine code from disk brings the symbols of the process that made it: with equal numbers the linker takes a helper
    that is there already for the one that comes, and a kernel silently computes with another kernel's helper.
    """
    FunctionIdentity._unique_ids = itertools.count(int.from_bytes(os.urandom(7), "little"))


_number_symbols_from_a_random_start()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_number_symbols_from_a_random_start)

_STARTED = time.time()

# Sources that generate kernels or are compiled into them, relative to the directory of the packages. Environments are not
# among them: their functions are followed one by one, wherever they are.
_SOURCES = ("gpuenvs/*.py", "gpuenvs/runtime/*.py", "learners/native/*.py", "learners/optim.py")
# Sources that make the programs of traced environments, the tasks among them.
_TRACED_SOURCES = ("gpuenvs/*.py", "gpuenvs/runtime/*.py", "gpuenvs/trace/*.py", "gpuenvs/mjlite/**/*.py")


def cached(dispatcher: Any) -> Any:
    """Let a numba dispatcher keep its machine code on disk; returns it. A plain function passes through."""
    if hasattr(dispatcher, "py_func") and os.environ.get("GPURL_CACHE", "1") != "0":
        dispatcher._cache = _DiskCache(dispatcher.py_func)
    return dispatcher


def lacks(dispatcher: Any, arguments: tuple[Any, ...]) -> bool:
    """True where the machine code of a dispatcher for these arguments could be on disk and is not."""
    cache = getattr(dispatcher, "_cache", None)
    if not isinstance(cache, _DiskCache):
        return False
    types = tuple(dispatcher.typeof_pyval(argument) for argument in arguments)
    path = cache._path(types, dispatcher.targetctx.codegen())
    if path is None or path.exists():
        return False
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.access(path.parent, os.W_OK)
    return False


def cache_directory() -> Path:
    """Where compiled kernels are kept."""
    chosen = os.environ.get("GPURL_CACHE_DIR")
    if chosen:
        return Path(chosen)
    import platformdirs

    return platformdirs.user_cache_path("gpurl") / "kernels"


class _DiskCache(_Cache):
    """What a numba dispatcher asks before it compiles and tells after it has."""

    def __init__(self, function: types.FunctionType) -> None:
        self._function = function
        self._enabled = True

    @functools.cached_property
    def _code(self) -> str | None:
        """The hash of the function and all it reaches, made when first needed: by then every name is bound."""
        if edited_since_start():
            return None
        with contextlib.suppress(Unknown):
            return fingerprint(self._function)
        return None

    @property
    def cache_path(self) -> str:
        return str(cache_directory())

    def enable(self) -> None:
        self._enabled = True

    def disable(self) -> None:
        self._enabled = False

    def flush(self) -> None:
        """Nothing to do: entries are never stale."""

    def _path(self, signature: Any, codegen: Any) -> Path | None:
        if not self._enabled or self._code is None:
            return None
        versions = (sys.version, numba.__version__, llvmlite.__version__, np.__version__)
        key = repr((self._code, str(signature), codegen.magic_tuple(), versions))
        return cache_directory() / f"{self._function.__name__}-{hashlib.sha256(key.encode()).hexdigest()[:40]}.kernel"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        path = self._path(sig, target_context.codegen())
        if path is None:
            return None
        payload = read_entry(path)
        if payload is None:
            return None
        try:
            return compiler.CompileResult._rebuild(target_context, *pickle.loads(payload))
        except (pickle.UnpicklingError, EOFError, AttributeError, ImportError):
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        path = self._path(sig, data.codegen)
        if path is None or data.library.has_dynamic_globals or any(not x.can_cache for x in data.lifted):
            return
        write_entry(path, dumps(data._reduce()))


# --- entries ---------------------------------------------------------------------------------------------------------


def read_entry(path: Path) -> bytes | None:
    """What `write_entry` wrote, or None if there is nothing or it is damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, payload = data[:32], data[32:]
    return payload if hashlib.sha256(payload).digest() == digest else None


def write_entry(path: Path, payload: bytes) -> None:
    """Write an entry whole or not at all; a full disk or a read-only home is not an error."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(payload).digest() + payload)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise


def traced_entry(key: object) -> Path | None:
    """Where machine code of a traced program is kept, or None if it cannot be; `key` says what its sources do not."""
    if os.environ.get("GPURL_CACHE", "1") == "0" or edited_since_start(_TRACED_SOURCES):
        return None
    digest = hashlib.sha256((_hash_files(_TRACED_SOURCES) + repr(key)).encode()).hexdigest()
    return cache_directory() / f"traced-{digest[:40]}.object"


# --- what a function is made of --------------------------------------------------------------------------------------


class Unknown(Exception):
    """Something that cannot be hashed reliably: its function is not kept on disk."""


def fingerprint(function: Any) -> str:
    """Hash of a function's code and of all constants, functions and classes it reaches.

    What lies in `_SOURCES` is covered by a hash of these files; only values bound in closures are followed there.
    """
    sink = hashlib.sha256(_own_sources().encode())
    _feed(sink, function, set())
    return sink.hexdigest()


@functools.cache
def _own_files(patterns: tuple[str, ...] = _SOURCES) -> tuple[Path, ...]:
    root = Path(__file__).resolve().parents[2]
    return tuple(path for pattern in patterns for path in sorted(root.glob(pattern)))


def edited_since_start(patterns: tuple[str, ...] = _SOURCES) -> bool:
    """True when one of the files is newer than this process.

    Then the files no longer say what was imported: an entry made now would hold the old code under the key of the new.
    """
    with contextlib.suppress(OSError):
        return any(path.stat().st_mtime > _STARTED for path in _own_files(patterns))
    return True


def _own_sources() -> str:
    return _hash_files(_SOURCES)


@functools.cache
def _hash_files(patterns: tuple[str, ...]) -> str:
    sink = hashlib.sha256()
    for path in _own_files(patterns):
        sink.update(path.name.encode() + b"\0" + path.read_bytes())
    return sink.hexdigest()


@functools.cache
def _is_own(filename: str) -> bool:
    return not filename.startswith("<") and Path(filename).resolve() in _own_files()


def _feed(sink: Any, value: Any, seen: set[Any]) -> None:
    """Add `value` to the hash."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        sink.update(f"{type(value).__name__}:{value!r};".encode())
        return
    if isinstance(value, np.generic | np.dtype | numba.types.Type):
        sink.update(f"{type(value).__name__}:{value!r};".encode())
        return
    if callable(value):  # functions and classes live as long as the process, so their ids are not used twice
        if id(value) in seen:
            sink.update(b"seen;")
            return
        seen.add(id(value))
    if isinstance(value, np.ndarray):
        sink.update(repr((value.shape, value.dtype)).encode() + np.ascontiguousarray(value).tobytes())
    elif isinstance(value, tuple | list):
        sink.update(f"{type(value).__name__}{len(value)}:".encode())
        for item in value:
            _feed(sink, item, seen)
    elif isinstance(value, set | frozenset):
        _feed(sink, sorted(value, key=repr), seen)  # their own order differs between processes
    elif isinstance(value, dict):
        _feed(sink, [item for pair in sorted(value.items(), key=lambda pair: repr(pair[0])) for item in pair], seen)
    elif isinstance(value, types.ModuleType):
        _feed_module(sink, value, (), seen)
    elif hasattr(value, "py_func"):  # a numba dispatcher
        _feed(sink, dict(getattr(value, "targetoptions", {})), seen)
        _feed_function(sink, value.py_func, seen)
    elif hasattr(value, "_defn"):  # a numba intrinsic
        _feed_function(sink, value._defn, seen)
    elif isinstance(value, types.FunctionType):
        _feed_function(sink, value, seen)
    elif isinstance(value, types.BuiltinFunctionType | np.ufunc):
        sink.update(f"builtin:{getattr(value, '__module__', '')}.{value.__name__};".encode())
    elif isinstance(value, types.CodeType):
        _feed_code(sink, value, seen)
    elif isinstance(value, type):
        _feed_class(sink, value, seen)
    else:
        raise Unknown(f"{type(value)}")


def _feed_module(sink: Any, module: types.ModuleType, names: Iterable[str], seen: set[Any]) -> None:
    """The module's name, and of one that is not installed (a user's own) what it holds under any of `names`.

    Those are all names that a function uses: which of them it takes from the module is not told apart.
    """
    sink.update(f"module:{module.__name__};".encode())
    file = str(getattr(module, "__file__", None) or "")
    if not file or file.startswith(_installed()) or _is_own(file):
        return
    for name in names:
        value = module.__dict__.get(name)
        if value is None or value is module:
            continue
        sink.update(f"name:{name};".encode())
        if not isinstance(value, types.ModuleType):
            _feed(sink, value, seen)
        elif (id(module), id(value)) not in seen:  # modules may hold each other
            _feed_module(sink, value, names, seen | {(id(module), id(value))})


@functools.cache
def _installed() -> tuple[str, ...]:
    return sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")


def _feed_class(sink: Any, cls: type, seen: set[Any]) -> None:
    sink.update(f"class:{cls.__module__}.{cls.__qualname__};".encode())
    if hasattr(cls, "_fields"):  # a NamedTuple
        _feed(sink, (cls._fields, {name: str(kind) for name, kind in cls.__annotations__.items()}), seen)  # type: ignore[attr-defined]


def _feed_code(sink: Any, code: types.CodeType, seen: set[Any]) -> None:
    sink.update(code.co_code + repr((code.co_names, code.co_varnames)).encode())
    _feed(sink, code.co_consts, seen)


def _feed_function(sink: Any, function: types.FunctionType, seen: set[Any]) -> None:
    sink.update(f"function:{function.__module__}.{function.__qualname__};".encode())
    code = function.__code__
    names = sorted(set(_names(code)))
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            _feed_bound(sink, cell.cell_contents, names, seen)
    _feed(sink, function.__defaults__, seen)
    if _is_own(code.co_filename):
        return
    _feed_code(sink, code, seen)
    for name in names:
        if name in function.__globals__:
            sink.update(f"name:{name};".encode())
            _feed_bound(sink, function.__globals__[name], names, seen)


def _feed_bound(sink: Any, value: Any, names: Iterable[str], seen: set[Any]) -> None:
    """What a name of a function is bound to; `names` are all that the function uses."""
    if isinstance(value, types.ModuleType):
        _feed_module(sink, value, names, seen)
    else:
        _feed(sink, value, seen)


def _names(code: types.CodeType) -> list[str]:
    """Global names that a code object and those nested in it may use."""
    inner = [name for const in code.co_consts if isinstance(const, types.CodeType) for name in _names(const)]
    return [*code.co_names, *inner]
