"""The contract of environment functions, held before they are compiled into kernels.

numba compiles more than an environment may do (dicts, arrays, printing), drops what it does not like into pages of typing
trace, and casts what it can (a float64 reward) in silence. `verify` looks first, so that a mistake is one line with the
environment, the function, the file and the line:

- `rules`: what the code may hold, read from numba's untyped intermediate code;
- `typed`: what the functions return, and arrays, read from the typed code; `messages`: why they could not be typed;
- `leaks`: float64 and 64-bit integers among float32; `located`: exceptions of functions that run or are traced.

Nothing here changes what a kernel computes.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numba

from gpuenvs.contract.faults import FUNCTIONS, Fault, head
from gpuenvs.contract.located import index_error
from gpuenvs.errors import SpecError
from gpuenvs.runtime import disk_cache
from gpuenvs.spec import EnvSpec, field_kinds

__all__ = ["FUNCTIONS", "Fault", "faults", "index_error", "verify"]

_verified: dict[tuple[int, str], EnvSpec] = {}


def verify(spec: EnvSpec, real: str) -> None:
    """Look at the functions of `spec` for the working dtype `real`, once per process and, if nothing was edited, per cache.

    Traced specs and plain functions (NUMBA_DISABLE_JIT) pass: nothing of them is compiled by numba.

    Raises:
        SpecError: the first fault, as one line.
    """
    if spec.traced or numba.config.DISABLE_JIT or _verified.get((id(spec), real)) is spec:  # type: ignore[attr-defined]
        return
    path = _stamp(spec, real)
    if path is None or disk_cache.read_entry(path) is None:
        found = faults(spec, real)
        if found:
            raise SpecError(found[0].line_of(spec.id)) from found[0].error
        if path is not None:
            disk_cache.write_entry(path, b"")
    _verified[id(spec), real] = spec


def faults(spec: EnvSpec, real: str) -> list[Fault]:
    """What breaks the contract, each fault once. Types are looked at only if the code itself holds what it may."""
    from gpuenvs.contract import rules, typed

    own = {name: head(getattr(spec, name))[0] for name in FUNCTIONS}
    found = [fault.within(name, own[name]) for name in FUNCTIONS for fault in rules.faults(spec, name)]
    if not found:
        found = [fault.within(name, own[name]) for name in FUNCTIONS for fault in typed.faults(spec, name, real)]
    return list({(fault.filename, fault.line, fault.what): fault for fault in found}.values())


def _stamp(spec: EnvSpec, real: str) -> Path | None:
    """The cache entry that says: these functions were looked at. None if that cannot be kept."""
    if os.environ.get("GPURL_CACHE", "1") == "0" or disk_cache.edited_since_start():
        return None
    try:
        functions = [disk_cache.fingerprint(getattr(spec, name)) for name in FUNCTIONS]
    except disk_cache.Unknown:
        return None
    sizes = (spec.obs_dim, spec.action_dim, spec.discrete, len(spec.metrics))
    fields = (field_kinds(spec.state), field_kinds(type(spec.params)))
    own = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))).hexdigest()
    key: Any = (functions, fields, sizes, real, own, numba.__version__)
    return disk_cache.cache_directory() / f"contract-{hashlib.sha256(repr(key).encode()).hexdigest()[:40]}.held"
