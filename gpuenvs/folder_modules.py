"""The Python files of one folder as modules of their own, whatever other folders of this process hold under the same names.

Every folder is a package with a name that nobody writes, made from its path. Files of the folder that import each other, also
inside of functions, find this package's modules first: `import helper` gives the helper beside them, never one that another
environment or the program brought under that name, and leaves nothing in the import path. They are compiled from what the
files say now; nothing is read from `__pycache__` or left there.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import importlib
import importlib.util
import linecache
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

_PREFIX = "gpurl_folder_"
_OWN = ("gpuenvs", "learners", "cli", "benchmarks")  # also for a file that lies beside them


def run_file(path: Path) -> types.ModuleType:
    """The module of a file, run when it is first asked for.

    Raises what the file raises; then its folder's modules are as before, and the next call reads everything anew.
    """
    package = _package(path.parent)
    name = f"{package}.{path.stem.replace('.', '_')}"
    if name in sys.modules:
        return sys.modules[name]
    before = set(sys.modules)
    spec = importlib.util.spec_from_file_location(name, path, loader=_Loader(name, str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        for new in [key for key in sys.modules if key.startswith(f"{package}.") and key not in before]:
            del sys.modules[new]
        raise
    return module


def holds(module: types.ModuleType) -> bool:
    """True for a module that is from here."""
    return module.__name__.startswith(_PREFIX)


def folders() -> list[Path]:
    """The folders whose files have run: another process that is to unpickle what is theirs gives them to `know`."""
    names = [name for name in sys.modules if name.startswith(_PREFIX) and "." not in name]
    return [Path(sys.modules[name].__path__[0]) for name in names]


def know(found: Iterable[Path]) -> None:
    """Let modules of these folders be imported by the names that they have in the process that said `folders`."""
    for folder in found:
        _package(folder)


def _package(folder: Path) -> str:
    """The name of the package that a folder's modules are in; makes it."""
    name = f"{_PREFIX}{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        package.__spec__ = ModuleSpec(name, None, is_package=True)
        sys.modules[name] = package
    importlib.invalidate_caches()  # files may be newer than the last look into the folder
    return name


class _Loader(SourceFileLoader):
    """Reads source alone, and gives it an `import` that looks into its folder first."""

    def get_code(self, fullname: str) -> types.CodeType:
        source = self.get_data(self.path)
        # Tracebacks and `inspect` then show what was run, also when the file is edited later.
        lines = source.decode("utf-8", "replace").splitlines(keepends=True)
        linecache.cache[self.path] = (len(source), None, lines, self.path)
        return self.source_to_code(source, self.path)

    def exec_module(self, module: types.ModuleType) -> None:
        package = module.__name__.partition(".")[0]

        def imported(
            name: str,
            globals: Mapping[str, object] | None = None,
            locals: Mapping[str, object] | None = None,
            fromlist: Sequence[str] | None = (),
            level: int = 0,
        ) -> Any:
            top = name.partition(".")[0]
            if level or not _is_in(package, top):
                return builtins.__import__(name, globals, locals, fromlist or (), level)
            try:
                found = builtins.__import__(f"{package}.{name}", globals, locals, fromlist or (), 0)
            except ModuleNotFoundError as error:
                missing = (error.name or "").removeprefix(f"{package}.")
                raise ModuleNotFoundError(f"No module named {missing!r}", name=missing) from None
            return found if fromlist else sys.modules[f"{package}.{top}"]

        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": imported}
        super().exec_module(module)


class _Finder:
    """Finds the modules inside of the packages; in front of Python's finders, which would read `__pycache__`."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: types.ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(_PREFIX):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(name, spec.loader.path)
            spec.cached = None
        return spec


sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type]


def _is_in(package: str, top: str) -> bool:
    """True if files of the package's folder mean a module of that folder by this name."""
    if f"{package}.{top}" in sys.modules:
        return True
    spec = PathFinder.find_spec(top, sys.modules[package].__path__) if top not in _OWN else None
    if spec is None:
        return False
    if spec.loader is None:  # a folder without __init__.py counts last, as everywhere in Python
        with contextlib.suppress(ValueError):  # a module that says nothing of where it is from
            return importlib.util.find_spec(top) is None
        return False
    # The program may have imported the very same file.
    return getattr(sys.modules.get(top), "__file__", None) != spec.origin
