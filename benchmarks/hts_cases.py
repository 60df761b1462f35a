"""The cases of `benchmarks.hts`, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

# Name -> schedule, and what is set in it. The paper's hts has a barrier after every horizon; ours does without.
SCHEDULES = {
    "sync": ("sync", ()),
    "hts": ("hts", ()),
    "hts barrier": ("hts", ("run_ahead=false",)),
    "async": ("async", ()),
    "async unbounded": ("async", ("max_lag=0",)),
}
DELAYED = "benchmarks.delays:Delayed"


@dataclass(frozen=True)
class SpeedCase:
    """Environment steps per second of one schedule on CartPole-v1 that takes its time; one executor per environment.

    Args:
        series: what it belongs to: `envs`, `variance`, `heavy` or `alpha`.
        schedule: a name of `SCHEDULES`.
        num_envs, alpha: environments and steps per horizon.
        distribution, cv, mean_ms: of a step's time; see `benchmarks.delays.draw`.
        algo: `ppo` or `a2c`, with their default settings.
    """

    series: str
    schedule: str
    num_envs: int = 16
    alpha: int = 128
    distribution: str = "gamma"
    cv: float = 1.0
    mean_ms: float = 2.0
    algo: str = "ppo"

    @property
    def name(self) -> str:
        """For progress and errors."""
        return f"{self.series}: {self.schedule}, {self.num_envs} envs, alpha {self.alpha}, {self.distribution} cv {self.cv:g}"

    @property
    def overrides(self) -> list[str]:
        """As `--set` takes them."""
        delays = {"mean_ms": self.mean_ms, "distribution": self.distribution, "cv": self.cv}
        own = [f"num_steps={self.alpha}", *SCHEDULES[self.schedule][1]]
        return own + [f"env.{name}={value}" for name, value in delays.items()]


_BOTH = ("sync", "hts", "hts barrier", "async")
HEAVY_CASES = tuple(SpeedCase("heavy", name, distribution="lognormal", cv=2.0) for name in SCHEDULES)
SPEED_CASES = (
    *HEAVY_CASES,
    *(SpeedCase("variance", name, cv=cv) for cv in (0.0, 0.5, 1.0, 1.5, 2.0) for name in _BOTH),
    *(SpeedCase("envs", name, num_envs=n) for n in (4, 8, 16, 32) for name in ("sync", "hts", "async")),
    *(SpeedCase("alpha", name, alpha=a, algo="a2c") for a in (1, 4, 16, 64, 256) for name in ("hts", "hts barrier")),
)


@dataclass(frozen=True)
class LearningCase:
    """Whole trainings of one setting, compared with others on the same environment.

    Args:
        series: `time` (required time and final time) or `corrections`.
        env_id: as the tables name it.
        algo: whose preset.
        goal: the return whose time is measured.
        seeds: how many.
        schedule: of `gpurl train`.
        options: more of its options.
        settings: of `--set`.
        host: environments that take their time, in processes of their own, instead of the device backend's.
    """

    series: str
    env_id: str
    algo: str
    goal: float
    seeds: int
    schedule: str
    options: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    host: bool = False

    @property
    def label(self) -> str:
        """What sets it apart from its rivals; also the name of its folder."""
        told = [text for text in self.settings if text.partition("=")[0] in ("lag", "correction")]
        return " ".join([self.schedule, *told])

    @property
    def place(self) -> str:
        """Cases of one place are compared."""
        return f"{self.series}-{self.env_id}-{self.algo}{'-host' * self.host}"

    def arguments(self, seed: int, run: str) -> list[str]:
        """Of `gpurl`, for one training into the folder `run`."""
        env = DELAYED if self.host else self.env_id
        words = ["train", env, "--algo", self.algo, "--schedule", self.schedule, "--seed", str(seed), "--device", "cpu"]
        words += ["--run-dir", run, "--eval-episodes", "0", "--quiet", *self.options]
        return words + [word for setting in self.settings for word in ("--set", setting)]


def _time_cases() -> list[LearningCase]:
    found = []
    for schedule in ("sync", "hts", "async"):
        found += [
            LearningCase("time", "Pendulum-v1", "ppo", -200.0, 5, schedule),
            LearningCase("time", "Acrobot-v1", "ppo", -100.0, 5, schedule),
            LearningCase("time", "Hopper-v5", "ppo", 1500.0, 3, schedule),
            _SLOW if schedule == "sync" else replace(_SLOW, schedule=schedule),
        ]
    return found


# Acrobot in 1 ms on average, exponentially distributed: what the paper is about.
_SLOW = LearningCase(
    "time",
    "Acrobot-v1",
    "ppo",
    -100.0,
    3,
    "sync",
    ("--env-backend", "host", "--num-envs", "16", "--executors", "16", "--total-steps", "100k"),
    ("num_steps=128", "env.id=Acrobot-v1", "env.mean_ms=1.0", "env.cv=1.0"),
    host=True,
)
_CORRECTED = (
    LearningCase("corrections", "CartPole-v1", "a2c", 475.0, 5, "sync"),
    LearningCase("corrections", "Acrobot-v1", "ppo", -100.0, 5, "sync", ("--total-steps", "200k")),
)
LEARNING_CASES = (
    *_time_cases(),
    *_CORRECTED,
    *(
        replace(case, schedule="hts", settings=(f"lag={lag}", f"correction={correction}"))
        for case in _CORRECTED
        for lag in (1, 8)
        for correction in ("delayed", "ratio", "vtrace", "none")
    ),
)


def as_dict(case: SpeedCase) -> dict[str, Any]:
    """The case as JSON can hold it."""
    return dict(vars(case))
