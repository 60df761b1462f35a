"""Functions made from generated source text."""

from __future__ import annotations

import linecache
from typing import Any


def define(name: str, text: str, names: dict[str, Any], label: str) -> Any:
    """The function `name` that `text` defines over the globals `names`.

    `label` stands for the file name: in angle brackets, as tracebacks and profilers expect of text without a file.
    """
    filename = f"<{label} {name}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    # numba's machine code on disk names the module of its function and imports it.
    scope = {**names, "__name__": __name__}
    exec(compile(text, filename, "exec"), scope)
    return scope[name]
