"""An environment in numba's CUDA simulator: a second process, since numba must know before it is imported.

    NUMBA_ENABLE_CUDASIM=1 NUMBA_DISABLE_JIT=1 python -m gpuenvs.checks.simulated request.pickle results.npz

The environment travels as its plain functions, by value: it need not be importable, a notebook's cell will do. Modules that
they use go by name.
"""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from gpuenvs import folder_modules
from gpuenvs.checks.plain import plain_spec
from gpuenvs.checks.rollout import play
from gpuenvs.errors import GpurlError
from gpuenvs.spec import EnvSpec

_ROOT = Path(__file__).resolve().parents[2]


class SimulatorError(GpurlError, RuntimeError):
    """The simulator's process failed; the last line that it said."""


def simulate(
    spec: EnvSpec, real: str, autoreset: str, scenario: dict[str, np.ndarray], timeout: float = 300.0
) -> dict[str, np.ndarray]:
    """What `play` returns for the CUDA backend in the simulator; `spec` is not traced.

    Raises:
        SimulatorError: the process failed or took longer than `timeout` seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        request, results = Path(folder) / "request.pickle", Path(folder) / "results.npz"
        where = pickle.dumps(([*filter(None, sys.path), os.getcwd()], folder_modules.folders()))
        request.write_bytes(where + _packed((plain_spec(spec), real, autoreset, scenario)))
        paths = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        settings = {"NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": paths}
        command = [sys.executable, "-P", "-W", "ignore", "-m", "gpuenvs.checks.simulated", str(request), str(results)]
        try:
            done = subprocess.run(
                command, env={**os.environ, **settings}, capture_output=True, text=True, check=False, timeout=timeout
            )
        except subprocess.TimeoutExpired as error:
            raise SimulatorError(f"no answer within {timeout:g} s") from error
        if done.returncode != 0 or not results.exists():
            said = done.stderr.strip().splitlines() or ["it ended without a word"]
            raise SimulatorError(said[-1])
        with np.load(results) as found:
            return dict(found)


def _packed(request: Any) -> bytes:
    """Pickle with functions and classes by value, except those that the other process can import."""
    from numba import cloudpickle

    buffer = io.BytesIO()
    modules = _private_modules(request[0])
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        cloudpickle.CloudPickler(buffer).dump(request)
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
    return buffer.getvalue()


def _private_modules(spec: EnvSpec) -> list[Any]:
    """Modules of the spec's functions and classes that are no part of gpuenvs."""
    seen, waiting, names = set(), [spec.reset, spec.step, spec.observe, spec.state, type(spec.params)], set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        names.add(getattr(value, "__module__", None))
        cells = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
        waiting += [
            inner
            for inner in (*getattr(value, "__globals__", {}).values(), *cells)
            if isinstance(inner, type) or hasattr(inner, "__code__")
        ]
    private = [
        name for name in names if name and name.split(".")[0] not in ("gpuenvs", "builtins", "__main__", "numpy")
    ]
    return [sys.modules[name] for name in private if name in sys.modules]


def main(request: str, results: str) -> None:
    with open(request, "rb") as file:
        path, folders = pickle.load(file)
        sys.path += [entry for entry in path if entry not in sys.path]  # modules that functions use go by their names
        folder_modules.know(folders)
        spec, real, autoreset, scenario = pickle.load(file)
    np.savez(results, **play("cuda:0", spec, real, autoreset, scenario))  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
