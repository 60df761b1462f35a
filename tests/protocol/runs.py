"""Trainings on the recorded machine."""

from __future__ import annotations

from typing import Any

import torch

import gpuenvs
from learners.compat import algorithm
from learners.devices import CudaRuntime
from learners.schedules.sync import SyncSchedule
from learners.transfer import make_transfer
from tests.protocol.fake_env import FakeCudaEnv
from tests.protocol.recorder import Recorder

ENVS = 6
# name -> (kind, environments' GPU (None: the CPU), learner's GPU, peer access)
CASES = {
    "alias": ("alias", 0, 0, True),
    "peer": ("peer", 0, 1, True),
    "staged": ("staged", 0, 1, False),
    "remote": ("remote", 0, 1, True),
    "pinned": ("pinned", None, 0, True),
    "peer, one card": ("peer", 0, 0, True),
    "staged, one card": ("staged", 0, 0, True),
    "remote, one card": ("remote", 0, 0, True),
}
COPYING = [name for name in CASES if name != "alias"]


def recorder(case: str) -> Recorder:
    return Recorder(gpus=2, linked=CASES[case][3])


def settings(algo: str = "ppo", **changes: Any) -> Any:
    cls = algorithm(algo).config_class
    small = {"num_envs": ENVS, "num_steps": 4, "total_steps": 1000, "hidden_sizes": (16,), "engine": "torch"}
    more = {"epochs": 2, "minibatches": 2} if algo == "ppo" else {}
    return cls(**{**small, **more, "collector": "eager", "norm_obs": True, "norm_reward": True, **changes})


def parts(machine: Recorder, case: str, env_id: str = "CartPole-v1", algo: str = "ppo", **changes: Any) -> Any:
    """(env, algo, config, transfer) of a training on the machine, which must be recording."""
    kind, env_index, learner_index, _ = CASES[case]
    config = settings(algo, **changes)
    env: Any
    if env_index is None:
        env = gpuenvs.make(env_id, ENVS, device="cpu", seed=1, threads=1)
    else:
        env = FakeCudaEnv(machine, env_id, ENVS, env_index, seed=1)
    spaces = env.single_observation_space, env.single_action_space
    learner = algorithm(algo)(config, *spaces, f"cuda:{learner_index}", 1)
    return env, learner, config, make_transfer(kind, CudaRuntime(), env, learner, config)


def schedule(machine: Recorder, case: str, **changes: Any) -> SyncSchedule:
    return SyncSchedule(*parts(machine, case, **changes))


def numbers(tensor: torch.Tensor) -> list[float]:
    """The values of a tensor of the recorded machine, read after the recording."""
    return tensor.detach().double().tolist()
