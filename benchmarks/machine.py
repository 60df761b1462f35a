"""What machine the numbers were measured on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any

from gpuenvs.runtime.threads import allowed_cores

_PACKAGES = ("gymnasium", "numba", "numpy", "torch")


def describe() -> dict[str, Any]:
    """Processor, usable cores, load average at this moment, and versions."""
    return {
        "cpu": _cpu_name(),
        "cores": allowed_cores(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
