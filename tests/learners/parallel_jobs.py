"""What the processes of tests/learners/test_parallel.py do."""

import dataclasses
import functools
import itertools
import os
import signal

import numpy as np
import torch

import gpuenvs
from learners import checkpoint, session, watch
from learners.compat import algorithm
from learners.distributed import joined, learned
from learners.interrupts import StopRequest
from learners.schedules.sync import SyncSchedule

SETTINGS = {"num_envs": 64, "num_steps": 16, "total_steps": 50_000, "norm_obs": True, "norm_reward": True}
CASES = {  # name -> environment, algorithm, settings
    "ppo": ("CartPole-v1", "ppo", {"epochs": 2, "minibatches": 4, "ent_coef": 0.01, "target_kl": 0.002}),
    "continuous": ("Pendulum-v1", "ppo", {"epochs": 2, "minibatches": 4, "clip_value": 0.2, "noise_correlation": 0.5}),
    "a2c": ("CartPole-v1", "a2c", {"ent_coef": 0.01}),
}


def make(case, engine, group=None):
    """The schedule of one process, or of one that does everything."""
    env_id, name, settings = CASES[case]
    cls = algorithm(name)
    collector = "eager" if engine == "torch" else "fused"
    config = cls.config_class(**SETTINGS, **settings, engine=engine, collector=collector, hidden_sizes=(16,))
    rows = config.num_envs // (group.size if group else 1)
    offset = group.rank * rows if group else 0
    env = gpuenvs.make(env_id, rows, device="cpu", seed=5, env_offset=offset, threads=1)
    learner = cls(config, env.single_observation_space, env.single_action_space, "cpu", 5, group)
    return SyncSchedule(env, learner, config)


ROWS = ("obs", "action", "log_prob", "reward", "terminated", "truncated")


def collected(loop, horizons):
    """Everything the schedule's collector brings in that many horizons under its first weights."""
    tables = {name: [] for name in ROWS}
    for _ in range(horizons):
        loop.collector.collect(loop.algo.policy, loop.rollout, 0)
        for name in ROWS:
            tables[name].append(getattr(loop.rollout, name).numpy().copy())
    return {name: np.concatenate(table) for name, table in tables.items()}


def digest(algo):
    return checkpoint.weights_hash(learned(algo.actor_optimizer, algo.critic_optimizer))


KINDS = (("ppo", "torch"), ("ppo", "fused"), ("continuous", "torch"), ("a2c", "torch"), ("a2c", "fused"))


def noted_step(verify_step, hashes, optimizers):
    hashes.append(checkpoint.weights_hash(learned(*optimizers)))
    verify_step(optimizers)


def all_cases(updates):
    """For each case and engine: the rows that were collected, a hash after every gradient step, the last weights."""
    found = {}
    for case, engine in KINDS:
        with joined() as group:
            assert group is not None
            group.verify_steps = True
            rows = collected(make(case, engine, group), 3)
            loop = make(case, engine, group)
            hashes = []
            group.verify_step = functools.partial(noted_step, group.verify_step, hashes)
            metrics = [loop.iterate().metrics for _ in range(updates)]
            found[case, engine] = {
                "rows": rows,
                "hashes": hashes,
                "verified": group.verified,
                "weights": loop.algo.policy.flat.numpy().copy(),
                "norm": {k: v.numpy().copy() for k, v in loop.algo.policy.obs_norm.state_dict().items()},
                "metrics": [{k: float(v) for k, v in row.items()} for row in metrics],
            }
    return found


def one_changes_its_weights():
    with joined() as group:
        assert group is not None
        loop = make("ppo", "torch", group)
        if group.rank:
            loop.algo.policy.flat[3] += 1e-6
        optimizers = loop.algo.actor_optimizer, loop.algo.critic_optimizer
        group.verify(learned(*optimizers), "step 7")


def run(config, path, stop_after=None, signal_rank=None, resume=False):
    """A training as `gpurl train` and `gpurl resume` make it, stopped by a signal to one process if asked for."""
    with session.resume(path) if resume else session.begin(config, path) as begun:
        group = begun.group
        assert group is not None
        with StopRequest() as stop:

            def progress(moment):
                if moment.iteration == stop_after and group.rank == signal_rank:
                    os.kill(os.getpid(), signal.SIGINT)

            outcome = begun.trainer.train(stop, progress)
        return dataclasses.asdict(outcome), digest(begun.trainer.schedule.algo)


def exchange_until(rank, action):
    """Exchanges without end, but for process `rank`, which comes to a bad one."""
    with joined() as group:
        assert group is not None
        for count in itertools.count():
            if count == 3 and group.rank == rank:
                if action == "raise":
                    raise ValueError("a wheel came off")
                os.kill(os.getpid(), getattr(signal, action))
            group.mean(torch.ones(5))


def wait_for_ever(rank):
    """Process `rank` fails while the others wait for something that never comes."""
    watch.GRACE_SECONDS = 0.2
    with joined() as group:
        assert group is not None
        if group.rank == rank:
            raise ValueError("a wheel came off")
        while True:
            signal.pause()
