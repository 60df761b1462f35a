"""Every benchmark case as data: what is compared, on what, at which sizes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ENV_IDS = ("CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1")
MUJOCO_IDS = (
    "InvertedPendulum-v5", "InvertedDoublePendulum-v5", "Reacher-v5", "Swimmer-v5", "Hopper-v5", "HalfCheetah-v5",
    "Walker2d-v5", "Ant-v5", "Humanoid-v5", "HumanoidStandup-v5", "Pusher-v5",
)  # fmt: skip


@dataclass(frozen=True)
class Contender:
    """One library in one way of using it.

    Args:
        name: as printed.
        worker: module in `workers/` that measures it.
        package: import name whose absence makes it a "not installed" row.
        install: the command that brings it.
        peer: measured under the peers' interpreter; otherwise under this one.
        options: sent to the worker as they are.
        env_ids: the environments it has; None means all.
    """

    name: str
    worker: str
    package: str
    install: str
    peer: bool
    options: dict[str, Any] = field(default_factory=dict)
    env_ids: tuple[str, ...] | None = None


OWN_ENV = Contender(
    "gpurl",
    worker="gpurl_env",
    package="gpuenvs",
    install="pip install gpurl",
    peer=False,
    options={"batch_sizes": [4096, 8192, 16384, 32768, 65536, 131072]},
)

ENV_PEERS = (
    Contender(
        "EnvPool",
        worker="envpool_env",
        package="envpool",
        install="pip install envpool",
        peer=True,
        options={"batch_sizes": [32, 64, 256, 1024, 4096]},
    ),
    Contender(
        "Gymnasium numpy vector env",
        worker="gymnasium_env",
        package="gymnasium",
        install="pip install gymnasium",
        peer=False,
        options={"mode": "vector_entry_point", "batch_sizes": [1024, 4096, 8192, 16384, 32768, 65536]},
        env_ids=("CartPole-v1",),
    ),
    Contender(
        "Gymnasium SyncVectorEnv",
        worker="gymnasium_env",
        package="gymnasium",
        install="pip install gymnasium",
        peer=False,
        options={"mode": "sync", "batch_sizes": [1, 16, 64]},
    ),
)

# What the machine can do at best; measured like a contender.
FLOOR = Contender("floor", worker="machine_floor", package="numba", install="pip install numba", peer=False)

OWN_TRAIN = Contender("gpurl PPO", worker="gpurl_train", package="learners", install="pip install gpurl", peer=False)

TRAIN_PEERS = (
    Contender(
        "Stable-Baselines3 PPO",
        worker="sb3_train",
        package="stable_baselines3",
        install="pip install stable-baselines3",
        peer=True,
    ),
    Contender(
        "rejax PPO",
        worker="rejax_train",
        package="rejax",
        install='pip install rejax "gymnax<1"',
        peer=True,
        options={"normalize_observations": False},
    ),
)

# PPO with separate 64-64 tanh actor and critic and the same numbers for everyone.
_PPO = {
    "env_id": "CartPole-v1",
    "learning_rate": 3e-4,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_coef": 0.2,
    "ent_coef": 0.0,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
    "seed": 0,
}


@dataclass(frozen=True)
class TrainCase:
    """One shape of PPO's data and updates; a minibatch has num_envs * num_steps / num_minibatches rows."""

    name: str
    why: str
    num_envs: int
    num_steps: int
    update_epochs: int
    num_minibatches: int

    def request(self) -> dict[str, Any]:
        """What every contender's worker is told."""
        return {
            **_PPO,
            "num_envs": self.num_envs,
            "num_steps": self.num_steps,
            "update_epochs": self.update_epochs,
            "num_minibatches": self.num_minibatches,
        }


TRAIN_CASES = (
    TrainCase("large minibatches", "64 envs, minibatches of 1024 rows", 64, 64, 4, 4),
    TrainCase("small minibatches", "Stable-Baselines3's default update: minibatches of 64 rows", 8, 256, 10, 32),
)


@dataclass(frozen=True)
class PresetCase:
    """A preset and the return it must reach: the mean over seeds, and on each seed where that is asked.

    Args:
        env_id, algo: whose preset.
        mean_at_least: of the mean return over the seeds.
        each_at_least: of every seed's return; None asks for nothing.
        seeds: which, unless the command line says otherwise.
        compared: each policy is also evaluated in gpuenvs, from the same starting states.
        within_seconds: the longest that any seed's training may take; None asks for nothing.
        curve: the runs' learning curves are kept and drawn.
    """

    env_id: str
    algo: str
    mean_at_least: float
    each_at_least: float | None = None
    seeds: str = "0-9"
    compared: bool = False
    within_seconds: float | None = None
    curve: bool = False


PRESET_CASES = (
    PresetCase("CartPole-v1", "ppo", 490.0, each_at_least=475.0),
    PresetCase("Acrobot-v1", "ppo", -90.0),
    PresetCase("MountainCar-v0", "ppo", -120.0),
    PresetCase("MountainCarContinuous-v0", "ppo", 90.0),
    PresetCase("Pendulum-v1", "ppo", -200.0),
    PresetCase("CartPole-v1", "a2c", 475.0),
)

MUJOCO_GOALS = {
    "InvertedPendulum-v5": 990.0,
    "InvertedDoublePendulum-v5": 9000.0,
    "Reacher-v5": -6.0,
    "Pusher-v5": -40.0,
    "Swimmer-v5": 100.0,
    "Hopper-v5": 2500.0,
    "HalfCheetah-v5": 4000.0,
    "Walker2d-v5": 2500.0,
    "Ant-v5": 2000.0,
    "Humanoid-v5": 3000.0,
    "HumanoidStandup-v5": 100_000.0,
}
MUJOCO_PRESET_CASES = tuple(
    PresetCase(env_id, "ppo", goal, each_at_least=goal, seeds="0-2", compared=True)
    for env_id, goal in MUJOCO_GOALS.items()
)

# Environment -> the goal of each seed, and which seeds.
SAC_GOALS = {
    "Pendulum-v1": (-180.0, "0-4"),
    "Hopper-v5": (2500.0, "0-2"),
    "HalfCheetah-v5": (6000.0, "0-2"),
    "Walker2d-v5": (2500.0, "0"),
    "Ant-v5": (2000.0, "0"),
}
SAC_PRESET_CASES = tuple(
    PresetCase(env_id, "sac", goal, each_at_least=goal, seeds=seeds, within_seconds=1800.0, curve=True)
    for env_id, (goal, seeds) in SAC_GOALS.items()
)
