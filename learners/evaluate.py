"""Evaluation: N complete episodes of a frozen policy in an environment of its own, with its own seeds.

Which episodes are counted is fixed beforehand (episode k starts from seed number k, or belongs to a fixed
row), so short episodes are not favoured over long ones. The policy's weights and statistics are only read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import gpuenvs
from gpuenvs.errors import ConfigError, RunError
from gpuenvs.mjlite.quiet import mujoco_warnings_logged
from gpuenvs.spec import EnvSpec
from learners.env_options import reference_keywords
from learners.metrics import to_numpy

PLACES = ("gymnasium", "gpuenvs")
# Gymnasium's environments are plain Python: more of them at once only makes the policy's batch larger.
GYMNASIUM_ROWS = 25
GPUENVS_ROWS = 4096
# For an environment without a time limit: where an episode counts as one that never ends.
LONGEST_EPISODE = 100_000
_DOMAIN = 0x6576616C  # keeps evaluation seeds apart from training's, which are the plain numbers


@dataclass(frozen=True)
class EvalResult:
    """Returns and lengths of the evaluated episodes, in order of their seeds."""

    env_id: str
    on: str
    seed: int
    deterministic: bool
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    same_starts: bool = False

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation of the returns (of a sample: n - 1); 0 for one episode."""
        return float(np.std(self.returns, ddof=1)) if len(self.returns) > 1 else 0.0

    @property
    def stderr(self) -> float:
        """Standard error of the mean."""
        return self.std / math.sqrt(len(self.returns))

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON can hold it."""
        return {
            "env_id": self.env_id,
            "on": self.on,
            "seed": self.seed,
            "deterministic": self.deterministic,
            "same_starts": self.same_starts,
            "episodes": len(self.returns),
            "mean": self.mean,
            "std": self.std,
            "stderr": self.stderr,
            "min": min(self.returns),
            "max": max(self.returns),
            "mean_length": float(np.mean(self.lengths)),
            "returns": list(self.returns),
            "lengths": list(self.lengths),
        }


def evaluate(
    policy: Any,
    env_id: str | EnvSpec,
    episodes: int = 100,
    on: str = "gymnasium",
    seed: int = 0,
    deterministic: bool = True,
    *,
    params: dict[str, Any] | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    same_starts: bool = False,
) -> EvalResult:
    """Run `episodes` complete episodes.

    Args:
        policy: `act(obs, noise, deterministic)` as `learners.networks.Policy` has it, on `device`.
        env_id: the environment.
        episodes: how many, at least 1.
        on: `"gymnasium"` (Gymnasium's own environment of the same name) or `"gpuenvs"`.
        seed: first of the evaluation's own seeds; never the same start states as training's.
        deterministic: the policy's mode, else draws from its distribution.
        params: environment params and options; on Gymnasium those that its own constructor takes.
        device, dtype: of the environment; only for `on="gpuenvs"`.
        same_starts: episode k begins in the state that it begins in on Gymnasium with this seed, so that the two can be
            compared episode by episode; only for `on="gpuenvs"`.

    Raises:
        ConfigError: a bad argument, or no such environment in Gymnasium.
        RunError: an episode that does not end.
    """
    spec = gpuenvs.get(env_id)
    if episodes < 1:
        raise ConfigError(f"episodes must be at least 1, got {episodes}")
    if on not in PLACES:
        raise ConfigError(f"on must be one of {', '.join(PLACES)}, got {on!r}")
    if same_starts and (on != "gpuenvs" or episodes > GPUENVS_ROWS):
        raise ConfigError(f"Gymnasium's starts are for an evaluation on gpuenvs of at most {GPUENVS_ROWS} episodes")
    if on == "gymnasium":
        returns, lengths = _on_gymnasium(policy, spec, episodes, seed, deterministic, _keywords(spec, params))
    else:
        starts = gymnasium_starts(spec, episode_seeds(seed, episodes), params) if same_starts else None
        options = {"device": device, "dtype": dtype, **(params or {})}
        returns, lengths = _on_gpuenvs(policy, spec, episodes, seed, deterministic, options, starts)
    return EvalResult(spec.id, on, seed, deterministic, tuple(returns), tuple(lengths), same_starts)


def reference_id(spec: EnvSpec) -> str:
    """The id of Gymnasium's own version. Raises `ConfigError` if there is none."""
    if spec.reference is None:
        raise ConfigError(f"{spec.id} has no counterpart in Gymnasium; use gpuenvs instead")
    return spec.reference.id


def _keywords(spec: EnvSpec, params: dict[str, Any] | None) -> dict[str, Any]:
    """What Gymnasium's constructor is given for these params. Raises `ConfigError` if it cannot take them."""
    keywords = reference_keywords(spec, params or {})
    if keywords is None and params:
        names = ", ".join(params)
        raise ConfigError(f"Gymnasium's {spec.id} cannot take the params {names}; evaluate on gpuenvs")
    return keywords or {}


def gymnasium_starts(spec: EnvSpec, seeds: list[int], params: dict[str, Any] | None = None) -> Any:
    """The states in which Gymnasium's own environment begins with each of `seeds`: a State of float64 arrays.

    Raises:
        ConfigError: no such environment in Gymnasium, or not with these params.
    """
    import gymnasium

    with mujoco_warnings_logged():
        env = gymnasium.make(reference_id(spec), disable_env_checker=True, **_keywords(spec, params))
    states = []
    try:
        for seed in seeds:
            env.reset(seed=seed)
            states.append(spec.reference.from_reference(env.unwrapped))  # type: ignore[union-attr]
    finally:
        env.close()
    return spec.state(*np.array(states, np.float64).T)


def _never_ends(env_id: str, steps: int) -> str:
    """What is said of an episode that is this long."""
    return f"an episode of {env_id} did not end within {steps} steps; give the environment a max_episode_steps"


def episode_seeds(seed: int, count: int) -> list[int]:
    """Seeds of the first `count` episodes of an evaluation."""
    return [int(value) for value in np.random.SeedSequence([_DOMAIN, seed]).generate_state(count)]


class _Noise:
    """Action noise, many steps at a time; (seed, row or episode number, step) decide it."""

    def __init__(self, policy: Any, seed: int, rows: int, chunk: int) -> None:
        import gpuenvs.rng as rng

        self._fill = rng.fill_gumbel if policy.head.noise == "gumbel" else rng.fill_normal
        self._seed = seed
        self._chunk = np.zeros((chunk, rows, *policy.noise_shape), np.float32)
        self.rows = np.zeros((rows, *policy.noise_shape), np.float32)

    def draw(self, row: int, episode: int, step: int) -> None:
        """Put the noise of one row's next action into `rows`; `step` counts from the episode's start."""
        place = step % len(self._chunk)
        if place == 0:
            self._fill(self._chunk[:, row : row + 1], self._seed, env_offset=episode, step=step)
        self.rows[row] = self._chunk[place, row]

    def draw_all(self, step: int) -> None:
        """The same for all rows at once, which then share one clock."""
        place = step % len(self._chunk)
        if place == 0:
            self._fill(self._chunk, self._seed, step=step)
        self.rows[:] = self._chunk[place]


def _on_gymnasium(
    policy: Any, spec: EnvSpec, episodes: int, seed: int, deterministic: bool, keywords: dict[str, Any]
) -> tuple[list[float], list[int]]:
    import gymnasium

    rows = min(episodes, GYMNASIUM_ROWS)
    envs = []
    try:
        with mujoco_warnings_logged():
            for _ in range(rows):
                envs.append(gymnasium.make(reference_id(spec), disable_env_checker=True, **keywords))
        return play_all(policy, spec, envs, episode_seeds(seed, episodes), seed, deterministic)
    finally:
        for env in envs:
            env.close()


def play_all(
    policy: Any, spec: Any, envs: list[Any], seeds: list[int], seed: int, deterministic: bool
) -> tuple[list[float], list[int]]:
    """Returns and lengths of the episodes of `seeds`, as many at a time as there are envs; a free env takes the next one.

    `spec` is the `EnvSpec` or `HostSpec` of the envs, `seed` that of the noise.
    """
    import torch

    episodes = len(seeds)
    returns, lengths = [0.0] * episodes, [0] * episodes
    dtype = np.uint8 if getattr(spec, "image", False) else np.float32
    obs = np.zeros((len(envs), *spec.observation_space.shape), dtype)
    noise = None if deterministic else _Noise(policy, episode_seeds(seed, 1)[0], len(envs), chunk=256)
    current = list(range(len(envs)))  # which episode each env plays
    following = len(envs)
    for row, env in enumerate(envs):
        obs[row] = env.reset(seed=seeds[row])[0]
    busy = list(range(len(envs)))
    while busy:
        if noise is not None:
            for row in busy:
                noise.draw(row, current[row], lengths[current[row]])
        actions = _act(policy, torch.from_numpy(obs), noise, deterministic).cpu().numpy()
        for row in tuple(busy):
            episode = current[row]
            obs[row], reward, terminated, truncated, _ = envs[row].step(actions[row])
            returns[episode] += float(reward)
            lengths[episode] += 1
            if terminated or truncated:
                if following == episodes:
                    busy.remove(row)
                    continue
                current[row] = following
                obs[row] = envs[row].reset(seed=seeds[following])[0]
                following += 1
            elif lengths[episode] >= LONGEST_EPISODE:
                raise RunError(_never_ends(spec.id, LONGEST_EPISODE))
    return returns, lengths


def _act(policy: Any, obs: Any, noise: _Noise | None, deterministic: bool) -> Any:
    """The policy's actions for obs (N, ...), a tensor on any device, as a tensor on the policy's."""
    import torch

    drawn = None if noise is None else torch.from_numpy(noise.rows).to(policy.device)
    return policy.act(obs.to(policy.device), noise=drawn, deterministic=deterministic)


def _on_gpuenvs(
    policy: Any,
    spec: EnvSpec,
    episodes: int,
    seed: int,
    deterministic: bool,
    options: dict[str, Any],
    starts: Any = None,
) -> tuple[list[float], list[int]]:
    """Row r plays the episodes r, r + rows, r + 2 rows, … to their ends; whatever it plays beyond is not counted.

    Returns are summed in float64: a sum of a thousand float32 rewards in float32 would be off by about as much as a good
    policy's returns differ.

    `starts`: a State of arrays, where the first episode of each row begins; None for starts of the env's own.
    """
    import torch

    rows = min(episodes, GPUENVS_ROWS)
    quota = np.array([len(range(row, episodes, rows)) for row in range(rows)])
    finished = np.zeros(rows, np.int64)
    running = np.zeros(rows)
    returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
    limit = (spec.max_episode_steps or LONGEST_EPISODE) * int(quota[0])
    noise = None if deterministic else _Noise(policy, episode_seeds(seed, 1)[0], rows, chunk=16)
    with gpuenvs.make(spec, rows, seed=episode_seeds(seed, 1)[0], **options) as env:
        obs, _ = env.reset()
        if starts is not None:
            env.set_state(starts)
            obs = env.obs
        for step in range(limit):
            if noise is not None:
                noise.draw_all(step)
            action = _act(policy, torch.from_dlpack(obs), noise, deterministic)
            obs, reward, terminated, truncated, info = env.step(action.to(env.device))
            running += to_numpy(reward)
            done = to_numpy(terminated | truncated).astype(bool)
            counted = np.flatnonzero(done & (finished < quota))
            if len(counted):
                where = counted + finished[counted] * rows
                returns[where] = running[counted]
                lengths[where] = to_numpy(info["episode_length"])[counted]
                finished[counted] += 1
                if (finished == quota).all():
                    return returns.tolist(), lengths.tolist()
            running[done] = 0.0
    raise RunError(_never_ends(spec.id, limit))
