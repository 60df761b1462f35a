"""HostSpec: what is known of an environment that Gymnasium or a user's own class steps, one at a time, in Python."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TimeLimit

from gpuenvs.errors import ConfigError, GpurlError, SpecError
from gpuenvs.host.lookup import Found, find, raised
from gpuenvs.host.wrappers import fit_action, fit_observation, is_image
from gpuenvs.runtime.options import whole

FRAME_SKIP, FRAMES = 4, 4  # Mnih et al. 2015: an action is held for 4 frames, and the last 4 such frames are seen


@dataclass(frozen=True)
class HostSpec:
    """One environment; made by `host_spec`.

    Args:
        id: a Gymnasium id, `path/to/file.py:Name` or `package.module:Name`, where `Name` is a `gymnasium.Env` subclass or a
            function that returns an environment.
        observation_space: a one-dimensional float32 `Box`, or for images a uint8 `Box` (channels, height, width).
        action_space: a `Discrete` that counts from 0, or a one-dimensional float32 `Box`.
        keywords: of the constructor.
        max_episode_steps: time limit in steps, or None.
        reward_threshold: mean return that counts as solved, if there is one.
        clip_reward: learn from the sign of the reward; returns stay what the environment gave.
        time_limit: a time limit that was asked for instead of the environment's own.
    """

    id: str
    observation_space: spaces.Box
    action_space: spaces.Space
    keywords: dict[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    reward_threshold: float | None = None
    clip_reward: bool = False
    time_limit: int | None = None

    @property
    def image(self) -> bool:
        """Whether observations are uint8 images (channels, height, width)."""
        return is_image(self.observation_space)

    @property
    def discrete(self) -> bool:
        return isinstance(self.action_space, spaces.Discrete)

    def make(self, render_mode: str | None = None) -> gymnasium.Env:
        """One environment with this spec's spaces. Rewards are the environment's own, not clipped."""
        return _wrapped(self.id, _made(self.id, find(self.id), self.keywords, self.time_limit, render_mode))


def host_spec(env_id: str, keywords: Mapping[str, Any] | None = None, *, clip_reward: bool | None = None) -> HostSpec:
    """The spec of `env_id`; makes one environment to learn its spaces.

    Atari games (`ALE/Pong-v5`) get Gymnasium's `AtariPreprocessing` (4 frames a step, 84x84 grey, up to 30 no-ops at the
    start, a life lost does not end an episode) and a stack of 4 frames.

    Args:
        env_id: see `HostSpec`.
        keywords: of the constructor. Two are not handed on: `max_episode_steps` replaces the environment's time limit and
            `clip_reward` is the argument of that name.
        clip_reward: learn from the sign of the reward; None: for Atari games only.

    Raises:
        UnknownEnvError: nothing has this name; the message names near ones.
        ConfigError: something is not installed, or a keyword has an impossible value.
        HostError: the environment's own code raised; `traceback` says where.
        SpecError: it is no Gymnasium environment, or its spaces are of a kind that policies here cannot use.
    """
    own = dict(keywords or {})
    limit = own.pop("max_episode_steps", None)
    limit = None if limit is None else whole("max_episode_steps", limit, 1, 2**31 - 1)
    asked = own.pop("clip_reward", None)
    clip = asked if clip_reward is None else clip_reward
    if clip is not None and not isinstance(clip, bool):
        raise ConfigError(f"clip_reward must be true or false, got {clip!r}")
    found = find(env_id)
    env = _made(env_id, found, own, limit, None)
    try:
        wrapped = _wrapped(env_id, env)
        entry: Any = found.registered or env.spec
        steps = _time_limit(env)
        if found.atari and steps is None:
            frames = own.get("max_num_frames_per_episode", entry.kwargs.get("max_num_frames_per_episode"))
            steps = frames // FRAME_SKIP if frames else None
        return HostSpec(
            id=env_id,
            observation_space=_plain(wrapped.observation_space),
            action_space=_plain(wrapped.action_space),
            keywords=own,
            max_episode_steps=steps,
            reward_threshold=entry.reward_threshold if entry else None,
            clip_reward=found.atari if clip is None else clip,
            time_limit=limit,
        )
    finally:
        with contextlib.suppress(Exception):
            env.close()


def _made(
    env_id: str, found: Found, keywords: Mapping[str, Any], limit: int | None, render_mode: str | None
) -> gymnasium.Env:
    """The environment as its author wrote it, with its time limit, and with Atari's preprocessing."""
    options: dict[str, Any] = dict(keywords)
    if found.atari and "frameskip" in options:
        raise ConfigError(f"{env_id}: an action is held for {FRAME_SKIP} frames here; frameskip cannot be set")
    if render_mode is not None:
        options["render_mode"] = render_mode
    try:
        if found.call is not None:
            env = found.call(**options)
        elif found.atari:
            env = gymnasium.make(found.registered, frameskip=1, disable_env_checker=True, **options)  # type: ignore[arg-type]
            env = FrameStackObservation(AtariPreprocessing(env, frame_skip=FRAME_SKIP), FRAMES)
        else:
            own = {} if limit is None else {"max_episode_steps": limit}
            env = gymnasium.make(found.registered, disable_env_checker=True, **own, **options)  # type: ignore[arg-type]
    except GpurlError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(f"{env_id}: {' '.join(str(error).split())}") from error
    except Exception as error:
        raised(env_id, "making it", error)
    if not isinstance(env, gymnasium.Env):
        raise SpecError(f"{env_id} gives a {type(env).__name__}, which is not a gymnasium.Env")
    return TimeLimit(env, limit) if limit is not None and (found.atari or found.call is not None) else env


def _wrapped(env_id: str, env: gymnasium.Env) -> gymnasium.Env:
    return fit_action(fit_observation(env, env_id), env_id)


def _time_limit(env: gymnasium.Env) -> int | None:
    """The steps after which the outermost `TimeLimit` around an environment truncates."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, TimeLimit):
            return env._max_episode_steps
        env = env.env
    return None


def _plain(space: Any) -> Any:
    """The space without what its author may have added to it: other processes read it before they import his module."""
    return (
        spaces.Discrete(space.n)
        if isinstance(space, spaces.Discrete)
        else spaces.Box(space.low, space.high, dtype=space.dtype)
    )
