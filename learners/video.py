"""Videos: a policy acts in gpuenvs, and Gymnasium's or MuJoCo's own renderer draws the states it passed through.

What was trained on the host backend acts in an environment that draws itself (`learners.host_episodes`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import gpuenvs
from gpuenvs.errors import ConfigError, RunError
from gpuenvs.mjlite.quiet import mujoco_warnings_logged
from gpuenvs.spec import EnvSpec
from learners.atomic import replacing
from learners.evaluate import reference_id

if TYPE_CHECKING:
    from gpuenvs.host.spec import HostSpec

# Pictures (height, width, 3) uint8, and how many of them are a second.
Film = tuple[Iterator[np.ndarray], int]
FORMATS = (".mp4", ".gif")
INSTALL_HINT = "install the render extra: pip install 'gpurl[render]'"


@dataclass(frozen=True)
class Recording:
    """What a video shows."""

    path: Path
    frames: int
    returns: tuple[float, ...]


def check_output(path: Path) -> None:
    """Raise unless `path` has a known ending and everything that writing it imports is there."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"--out {path}: write it with an ending of {' or '.join(FORMATS)}")
    _check_modules("imageio", *(["imageio_ffmpeg"] if path.suffix.lower() == ".mp4" else []))


def _check_modules(*names: str) -> None:
    for module in names:
        try:
            __import__(module)
        except ImportError as error:
            raise RunError(f"rendering needs {module}, which is not installed; {INSTALL_HINT}") from error


def record(
    policy: Any,
    env: str | EnvSpec | HostSpec,
    path: Path,
    *,
    episodes: int = 1,
    max_steps: int = 2000,
    seed: int = 0,
    deterministic: bool = True,
    params: dict[str, Any] | None = None,
    device: str = "cpu",
    dtype: str = "float32",
) -> Recording:
    """Write `episodes` episodes, at most `max_steps` frames each, to an .mp4 or .gif file.

    `params`, `device` and `dtype` are for gpuenvs; a `HostSpec` has its own keywords.

    Raises:
        ConfigError: the env has no renderer, or the ending is unknown.
        HostError: a host environment's own code raised.
        RunError: rendering packages are missing, or the file cannot be written.
    """
    check_output(path)
    returns: list[float] = []
    if isinstance(env, str | EnvSpec):
        film = _film(policy, env, episodes, max_steps, seed, deterministic, device, dtype, params or {}, returns)
    else:
        from learners.host_episodes import film_host

        film = film_host(policy, env, episodes, max_steps, seed, deterministic, returns)
    frames = 0
    with film as (pictures, frames_per_second), _writer(path, frames_per_second) as write:
        for picture in pictures:
            write(picture)
            frames += 1
    return Recording(path, frames, tuple(returns))


@contextlib.contextmanager
def _film(
    policy: Any,
    env: str | EnvSpec,
    episodes: int,
    max_steps: int,
    seed: int,
    deterministic: bool,
    device: str,
    dtype: str,
    params: dict[str, Any],
    returns: list[float],
) -> Iterator[Film]:
    """The pictures of the episodes; appends each episode's return."""
    spec, params = gpuenvs.get(env).with_options(params)
    with drawing(spec) as (draw, frames_per_second):
        shown = states(policy, spec, episodes, max_steps, seed, deterministic, device, dtype, params, returns)
        yield (draw(state) for state in shown), frames_per_second


def states(
    policy: Any,
    spec: EnvSpec,
    episodes: int,
    max_steps: int,
    seed: int,
    deterministic: bool,
    device: str,
    dtype: str,
    params: dict[str, Any],
    returns: list[float],
) -> Generator[Any, None, None]:
    """Every state of the episodes, the last ones included; appends each episode's return."""
    import torch

    generator = torch.Generator(policy.device).manual_seed(seed)
    with gpuenvs.make(spec, 1, device=device, seed=seed, dtype=dtype, autoreset="disabled", **params) as env:
        for _ in range(episodes):
            obs, _ = env.reset()
            total = 0.0
            yield env.render_state(0)
            for _ in range(max_steps):
                rows = torch.from_dlpack(obs).to(policy.device)
                action = policy.act(rows, deterministic=deterministic, generator=generator)
                obs, reward, terminated, truncated, _ = env.step(action.to(env.device))
                total += float(reward[0])
                yield env.render_state(0)
                if terminated[0] or truncated[0]:
                    break
            returns.append(total)


@contextlib.contextmanager
def drawing(spec: EnvSpec) -> Iterator[tuple[Callable[[Any], np.ndarray], int]]:
    """A function that draws a State as (height, width, 3) uint8, and the frames per second of real time."""
    if spec.traced:
        from gpuenvs.mjlite.render import Renderer

        with Renderer(spec) as renderer:
            yield renderer.frame, renderer.frames_per_second
        return
    reference = reference_id(spec)
    _check_modules("pygame")
    with _renderer(reference) as env:

        def draw(state: Any) -> np.ndarray:
            spec.reference.to_reference(env.unwrapped, state)  # type: ignore[union-attr]
            return np.asarray(env.unwrapped.render())

        yield draw, _frame_rate(env)


@contextlib.contextmanager
def _renderer(reference: str) -> Iterator[Any]:
    """Gymnasium's environment, drawing into arrays, on a machine with or without a display."""
    import gymnasium

    without_display()
    try:
        with mujoco_warnings_logged():
            env = gymnasium.make(reference, render_mode="rgb_array", disable_env_checker=True)
    except gymnasium.error.DependencyNotInstalled as error:
        raise RunError(f"rendering {reference} needs packages that are missing; {INSTALL_HINT}") from error
    try:
        env.reset(seed=0)
        yield env
    finally:
        env.close()


def without_display() -> None:
    """Let pygame draw into arrays; it must not have been imported yet."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")


def _frame_rate(renderer: Any) -> int:
    return int(renderer.metadata.get("render_fps", 30))


@contextlib.contextmanager
def _writer(path: Path, frames_per_second: int) -> Iterator[Any]:
    """A function that appends a frame (height, width, 3) uint8; the file appears when all is written."""
    import imageio.v2 as imageio

    options: dict[str, Any]
    if path.suffix.lower() == ".gif":
        # A GIF's clock ticks in hundredths of a second and browsers slow anything below two ticks.
        options = {"duration": max(20, 1000 / frames_per_second), "loop": 0}
    else:
        options = {"fps": frames_per_second, "macro_block_size": 2, "quality": 8}
    with replacing(path) as temporary:
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = imageio.get_writer(temporary, **options)
        with contextlib.closing(writer):
            yield writer.append_data
