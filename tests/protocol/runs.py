"""Trainings on the recorded machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpuenvs
from learners.collector import Collector
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


def parts(
    machine: Recorder,
    case: str,
    env_id: str = "CartPole-v1",
    algo: str = "ppo",
    runtime: Any = None,
    **changes: Any,
) -> Any:
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
    return env, learner, config, make_transfer(kind, runtime or CudaRuntime(), env, learner, config)


def schedule(machine: Recorder, case: str, **changes: Any) -> SyncSchedule:
    return SyncSchedule(*parts(machine, case, **changes))


def loop(
    machine: Recorder,
    case: str,
    iterations: int = 5,
    lag: int = 0,
    publish: Callable[[int], int] = lambda iteration: 1,
    reload: int = -1,
    runtime: Any = None,
    spoil: Callable[[Any, Any], None] = lambda algo, transfer: None,
    **changes: Any,
) -> Any:
    """Trains without ever reading a number back, so that only streams and events order anything. Returns the algorithm.

    With a `lag` of 1 a horizon is collected before the last one is learned from. `publish` says how often the collector's
    weights are refreshed in an iteration, `reload` before which one the learner's are loaded anew. `spoil` plants a fault.
    """
    env, algo, config, transfer = parts(machine, case, runtime=runtime, **changes)
    collector = Collector(env, transfer.policy.device, 1, 0.0, config.collector)
    spoil(algo, transfer)
    for iteration in range(iterations):
        if iteration == reload:
            state = algo.state_dict()  # as a checkpoint reads it: nobody waits
            transfer.drain()
            algo.load_state_dict(state)
            transfer.reset()
        rollout = transfer.begin()
        with transfer.collecting():
            collector.collect(transfer.policy, rollout, algo.version)
        transfer.send()
        if iteration < lag:
            continue
        with transfer.learning():
            algo.update(transfer.receive())
        transfer.release()
        for _ in range(publish(iteration)):
            transfer.publish()
    transfer.drain()
    return algo
