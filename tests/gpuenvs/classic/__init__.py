"""Environments of numba functions; the traced MuJoCo tasks have tests of their own in `tests/gpuenvs/mjlite`."""

from gpuenvs.registry import BUILTIN

CLASSIC = [env_id for env_id, entry in BUILTIN.items() if entry.module.startswith("gpuenvs.classic")]
