"""mjlite: MuJoCo's own dynamics, compiled per model.

`load` reads MJCF, `task_spec` makes an environment of a model and a few scalar functions (`gpuenvs.mjlite.task`), and
`gpuenvs.mjlite.tasks` holds Gymnasium's eleven MuJoCo tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuenvs.mjlite.model import Model, load
    from gpuenvs.mjlite.task import task_spec

__all__ = ["Model", "load", "task_spec"]


def __getattr__(name: str) -> Any:
    if name in ("Model", "load"):
        from gpuenvs.mjlite import model

        return getattr(model, name)
    if name == "task_spec":
        from gpuenvs.mjlite.task import task_spec

        return task_spec
    raise AttributeError(f"module 'gpuenvs.mjlite' has no attribute {name!r}")
