"""Kernels read what they should and write all that they should: arrays hold nothing until somebody writes them."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import gpuenvs
from gpuenvs.runtime.buffers import AUTORESET_MODES, NEXT_STEP, SAME_STEP
from tests.gpuenvs.classic import CLASSIC
from tests.gpuenvs.sampling import random_actions
from tests.ptx.backend import Written, interpreted
from tests.ptx.memory import Fault

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the CUDA compiler wheels are for Linux")

ROWS = 200
BEGUN = ("state_real", "state_int", "obs", "elapsed", "running_return")
STEPPED = (*BEGUN, "reward", "terminated", "truncated", "nonfinite", "ended", "metrics")
LEFT = ("final_obs", "episode_return", "episode_length")
VARIANTS = [(env_id, SAME_STEP) for env_id in CLASSIC] + [("CartPole-v1", mode) for mode in AUTORESET_MODES[1:]]
VARIANTS += [("Reacher-v5", SAME_STEP), *(("HalfCheetah-v5", mode) for mode in AUTORESET_MODES)]


def poisoned(env, written: Written) -> None:
    """Everything that kernels may write holds nothing."""
    groups = getattr(env._backend, "_groups", env.arrays)
    for name, array in groups.items():
        if array.size and name != "action":
            written.poison(array)


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_begin_and_step(variant):
    env_id, autoreset = variant
    written = Written()
    spec = gpuenvs.get(env_id)
    rng = np.random.default_rng(2)
    with (
        interpreted(written=written),
        gpuenvs.make(env_id, ROWS, device="cuda:0", autoreset=autoreset, max_episode_steps=2) as env,
    ):
        arrays = {name: array for name, array in env.arrays.items() if array.size and name != "action"}
        poisoned(env, written)
        written.of(arrays["episode"])[:] = 1  # the host counts episodes
        env.reset(seed=4)
        for name in arrays:
            assert written.of(arrays[name]).all() == (name in (*BEGUN, "episode")), name
        if autoreset == NEXT_STEP:
            written.of(arrays["ended"])[:] = 1  # the host says that no row has ended
        arrays["elapsed"][0, ::3] = 1
        env.step(
            random_actions(spec, rng, ROWS) if spec.discrete else random_actions(spec, rng, ROWS).astype(np.float32)
        )
        for name in set(STEPPED) & set(arrays):
            assert written.of(arrays[name]).all(), name
        done = np.asarray(env.terminated) | np.asarray(env.truncated)
        assert done.any() and not done.all()
        for name in set(LEFT) & set(arrays):
            holds = written.of(arrays[name]).all(axis=-1)
            assert np.array_equal(holds, np.broadcast_to(done, holds.shape)), name


@pytest.mark.parametrize("env_id", [*CLASSIC, "Reacher-v5", "HalfCheetah-v5"])
def test_observe(env_id):
    written = Written()
    with interpreted(written=written), gpuenvs.make(env_id, ROWS, device="cuda:0") as env:
        env.reset(seed=0)
        poisoned(env, written)
        for name in ("state_real", "state_int"):
            if env.arrays[name].size:
                written.of(env.arrays[name])[:] = 1
        state = env.get_state()
        env.set_state(state)
        assert written.of(env.arrays["obs"]).all()
        others = [n for n, a in env.arrays.items() if a.size and n not in ("obs", "state_real", "state_int", "action")]
        assert not any(written.of(env.arrays[name]).any() for name in others)


def test_a_state_that_nobody_wrote_is_reported():
    written = Written()
    with interpreted(written=written), gpuenvs.make("CartPole-v1", ROWS, device="cuda:0") as env:
        env.reset(seed=0)
        written.poison(env._backend._groups["reals"])
        with pytest.raises(Fault, match="uninitialised read"):
            env.step(np.zeros(ROWS, np.int32))
