"""Episodes of what was trained on the host backend, in environments made in this process: evaluated, or drawn."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.error import DependencyNotInstalled

from gpuenvs.errors import ConfigError, RunError
from learners.evaluate import GYMNASIUM_ROWS, EvalResult, episode_seeds, play_all
from learners.video import INSTALL_HINT, Film, without_display

if TYPE_CHECKING:
    from gpuenvs.host.spec import HostSpec

HOST = "host"  # where an `EvalResult` is from
ATARI_FRAMES = 60  # a second, of the console


def evaluate_host(
    policy: Any,
    spec: HostSpec,
    episodes: int = 100,
    on: str | None = None,
    seed: int = 0,
    deterministic: bool = True,
    same_starts: bool = False,
) -> EvalResult:
    """`evaluate` for what was trained on the host backend: in environments of the same spec, made in this process.

    Episode k begins from seed number k. Returns are of the environment's own rewards, also where learning clips them.

    Raises:
        ConfigError: a bad argument: `on` is None or `"host"`, and there are no other starts.
        HostError: the environment's own code raised; `traceback` says where.
        RunError: an episode that does not end.
    """
    if episodes < 1:
        raise ConfigError(f"episodes must be at least 1, got {episodes}")
    if on not in (None, HOST) or same_starts:
        asked = "--same-starts" if same_starts else f"--on {on}"
        raise ConfigError(f"{spec.id} was trained on the host backend and is evaluated there; leave {asked} out")
    envs: list[Any] = []
    try:
        for _ in range(min(episodes, GYMNASIUM_ROWS)):
            envs.append(HostEnv(spec))
        returns, lengths = play_all(policy, spec, envs, episode_seeds(seed, episodes), seed, deterministic)
    finally:
        for env in envs:
            env.close()
    return EvalResult(spec.id, HOST, seed, deterministic, tuple(returns), tuple(lengths))


class HostEnv:
    """One environment of a `HostSpec`, whose own errors become one line with a traceback beside it."""

    def __init__(self, spec: HostSpec, render_mode: str | None = None) -> None:
        self._id, self.env = spec.id, spec.make(render_mode)

    def reset(self, seed: int) -> tuple[Any, Any]:
        return self._call("reset", seed=seed)

    def step(self, action: Any) -> Any:
        return self._call("step", action)

    def picture(self) -> np.ndarray:
        """(height, width, 3) uint8. Raises ConfigError where the environment drew something else."""
        drawn = self._call("render")
        if not isinstance(drawn, np.ndarray) or drawn.ndim != 3 or drawn.dtype != np.uint8:
            raise ConfigError(f"{self._id} cannot be drawn: render gave {type(drawn).__name__}, not an array of pixels")
        return drawn

    def close(self) -> None:
        with contextlib.suppress(Exception):  # it decides nothing any more
            self.env.close()

    def _call(self, method: str, *args: Any, **keywords: Any) -> Any:
        try:
            return getattr(self.env, method)(*args, **keywords)
        except DependencyNotInstalled as error:
            raise RunError(f"{self._id}: {' '.join(str(error).split())}; {INSTALL_HINT}") from error
        except Exception as error:
            from gpuenvs.host.lookup import raised

            raised(self._id, method, error)


@contextlib.contextmanager
def film_host(
    policy: Any, spec: HostSpec, episodes: int, max_steps: int, seed: int, deterministic: bool, returns: list[float]
) -> Iterator[Film]:
    """Pictures of the first episodes of `evaluate_host`, at most `max_steps` steps of each; appends each one's return.

    Raises:
        ConfigError: the environment does not draw arrays.
        HostError: its own code raised.
        RunError: what it draws with is not installed.
    """
    from gpuenvs.host.lookup import find
    from gpuenvs.host.spec import FRAME_SKIP

    with contextlib.closing(spec.make()) as plain:
        modes, rate = plain.metadata.get("render_modes") or [], plain.metadata.get("render_fps") or 30
    if "rgb_array" not in modes:
        raise ConfigError(f"{spec.id} cannot be drawn: its render_modes are {list(modes)}, without rgb_array")
    without_display()
    with contextlib.closing(HostEnv(spec, "rgb_array")) as env:
        pictures = _pictures(policy, env, episode_seeds(seed, episodes), max_steps, seed, deterministic, returns)
        yield pictures, ATARI_FRAMES // FRAME_SKIP if find(spec.id).atari else round(rate)


def _pictures(
    policy: Any, env: HostEnv, seeds: list[int], max_steps: int, seed: int, deterministic: bool, returns: list[float]
) -> Iterator[np.ndarray]:
    import torch

    generator = torch.Generator(policy.device).manual_seed(seed)
    for episode_seed in seeds:
        obs, _ = env.reset(episode_seed)
        total = 0.0
        yield env.picture()
        for _ in range(max_steps):
            rows = torch.from_numpy(np.asarray(obs)[None]).to(policy.device)
            action = policy.act(rows, deterministic=deterministic, generator=generator)
            obs, reward, terminated, truncated, _ = env.step(action[0].cpu().numpy())
            total += float(reward)
            yield env.picture()
            if terminated or truncated:
                break
        returns.append(total)
