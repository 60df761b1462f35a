"""Compiled kernels of MuJoCo models: the C engine's step, faults kept to one world, results that batches cannot change."""

import numpy as np
import pytest

import gpuenvs
from benchmarks import mujoco_accuracy as accuracy
from benchmarks.cases import MUJOCO_IDS

STATES = 200
# The reference's collider for a capsule against a cylinder iterates to about 1e-6.
EXACT = dict.fromkeys(MUJOCO_IDS, accuracy.BOUND_EXACT) | {"Pusher-v5": 1e-5}


@pytest.mark.parametrize("env_id", MUJOCO_IDS)
def test_one_compiled_step_is_the_engine_s(env_id):
    row = accuracy.measure(env_id, STATES, seed=5)
    print(row)
    assert row["exact"]["max"] <= EXACT[env_id]
    assert row["exact"]["median"] <= 1e-13
    assert row["default"]["max"] <= max(accuracy.BOUND_DEFAULT, EXACT[env_id])
    assert row["default"]["median"] <= 1e-13
    assert row["float32"]["max"] <= accuracy.BOUND_SINGLE
    seen = row["coverage"]
    assert seen["at_limit"] > 0.02
    if env_id.split("-")[0] in ("Hopper", "HalfCheetah", "Walker2d", "Ant", "Humanoid", "HumanoidStandup"):
        assert seen["in_contact"] > 0.1
        assert seen["upside_down"] > 0.2
        assert seen["fast"] > 0.1


def rollout(env_id, num_envs, *, steps=12, harm=None, **options):
    """obs, reward and flags of `steps` steps; `harm(env)` is called before the fourth."""
    spec = gpuenvs.get(env_id)
    low, high = spec.action_space.low, spec.action_space.high
    rng = np.random.default_rng(3)
    out = []
    with gpuenvs.make(env_id, num_envs, device="cpu", seed=7, **options) as env:
        env.reset(seed=7)
        for k in range(steps):
            if k == 3 and harm is not None:
                harm(env)
            action = rng.uniform(low, high, (64, len(low)))[:num_envs].astype(env.dtype)
            obs, reward, terminated, truncated, info = env.step(action)
            out.append((obs.copy(), reward.copy(), terminated.copy(), truncated.copy(), info["nonfinite"].copy()))
    return [np.stack(column) for column in zip(*out)]


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("env_id", ["Hopper-v5", "HalfCheetah-v5", "Ant-v5", "Humanoid-v5"])
def test_a_broken_world_ends_alone(env_id, value):
    row = 21

    def harm(env):
        state = [x.copy() for x in env.get_state()]
        field = next(k for k, name in enumerate(env.spec.state._fields) if name.startswith("qvel"))
        state[field][row] = value
        env.set_state(state)

    whole = rollout(env_id, 40)
    harmed = rollout(env_id, 40, harm=harm)
    others = np.arange(40) != row
    for good, after in zip(whole, harmed):
        np.testing.assert_array_equal(after[:, others], good[:, others])
    terminated, nonfinite = harmed[2], harmed[4]
    assert terminated[3, row]
    assert nonfinite[3, row]
    assert not nonfinite[4:, row].any()
    assert np.isfinite(harmed[0]).all()
    assert np.isfinite(harmed[1]).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("env_id", ["InvertedDoublePendulum-v5", "Hopper-v5", "Ant-v5", "Humanoid-v5"])
def test_a_row_does_not_depend_on_its_batch(env_id, dtype):
    whole = rollout(env_id, 64, dtype=dtype, threads=1)
    two = rollout(env_id, 64, dtype=dtype, threads=2)
    part = rollout(env_id, 13, dtype=dtype, threads=1)
    for a, b, c in zip(whole, two, part):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a[:, :13], c)
