"""What the tasks share: Gymnasium's model files, checks of options, kinds of start, small sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuenvs import trace as T
from gpuenvs.errors import ConfigError, ModelError


def model_file(name: str | Path) -> Path:
    """Path of a task's MJCF file.

    Args:
        name: as Gymnasium's `xml_file`: a path that starts with `/`, `.` or `~`, or a file among Gymnasium's own models.

    Raises:
        ModelError: no such file.
    """
    if str(name).startswith(("/", ".", "~")):
        path = Path(name).expanduser()
    else:
        import gymnasium

        assets = Path(str(gymnasium.__file__)).parent / "envs" / "mujoco" / "assets"
        path = assets / name
        if not assets.is_dir():
            raise ModelError(f"Gymnasium's MuJoCo models are missing ({assets}); reinstall gymnasium, or pass xml_file")
    if not path.is_file():
        raise ModelError(f"there is no MJCF file {path}")
    return path


def flag(env_id: str, name: str, value: Any) -> bool:
    """`value` if it is True or False. Raises `ConfigError` otherwise."""
    if not isinstance(value, bool):
        raise ConfigError(f"{env_id}: {name} must be True or False, got {value!r}")
    return value


def pair(env_id: str, name: str, value: Any) -> tuple[float, float]:
    """`value` as (low, high). Raises `ConfigError` if it is not two numbers in order."""
    try:
        low, high = (float(x) for x in value)
    except (TypeError, ValueError):
        raise ConfigError(f"{env_id}: {name} must be two numbers (low, high), got {value!r}") from None
    if not low <= high:
        raise ConfigError(f"{env_id}: {name} must be two numbers with low <= high, got {value!r}")
    return low, high


def uniform_start(start: Any, params: Any) -> None:
    """U(-reset_noise_scale, reset_noise_scale) on every position and velocity."""
    scale = params.reset_noise_scale
    start.qpos[:] = [q + start.uniform(-scale, scale) for q in start.qpos]
    start.qvel[:] = [v + start.uniform(-scale, scale) for v in start.qvel]


def uniform_normal_start(start: Any, params: Any) -> None:
    """U(-reset_noise_scale, reset_noise_scale) on positions, N(0, reset_noise_scale) on velocities."""
    scale = params.reset_noise_scale
    start.qpos[:] = [q + start.uniform(-scale, scale) for q in start.qpos]
    start.qvel[:] = [v + start.normal(0.0, scale) for v in start.qvel]


def squares(values: Any) -> Any:
    """Sum of squares."""
    return sum(x * x for x in values)


def norm(*values: Any) -> Any:
    """Euclidean length."""
    return T.sqrt(squares(values))


def difference(a: Any, b: Any) -> list[Any]:
    """a - b, component by component."""
    return [x - y for x, y in zip(a, b, strict=True)]


def where_healthy(healthy: Any, reward: Any) -> Any:
    """`reward` if `healthy`, else 0."""
    return T.where(healthy, reward, 0.0)


def x_velocity(before: Any, after: Any) -> Any:
    """Mean velocity along x over a control step, m/s, of a model whose first coordinate is x."""
    return (after.qpos[0] - before.qpos[0]) / after.dt


def upright_info(before: Any, action: Any, after: Any, params: Any) -> dict[str, Any]:
    """Gymnasium's further numbers of the planar models that stand: their second coordinate is the height."""
    return {
        "x_position": after.qpos[0],
        "z_distance_from_origin": after.qpos[1] - after.initial_qpos[1],
        "x_velocity": x_velocity(before, after),
    }
