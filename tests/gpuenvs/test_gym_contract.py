"""`gymnasium.make_vec("gpuenvs/<id>")` beside Gymnasium's own vector environment of the same id."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

import gpuenvs
from gpuenvs import registry
from gpuenvs.errors import ConfigError
from tests.gpuenvs.reference import IDS
from tests.gpuenvs.sampling import mixed_actions

ROWS = 6
SAME_STEP, NEXT_STEP, DISABLED = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED

every_env = pytest.mark.parametrize("env_id", IDS)


def make_vec(env_id: str, num_envs: int = ROWS, **options: Any) -> Any:
    return gymnasium.make_vec(f"gpuenvs/{env_id}", num_envs=num_envs, **{"device": "cpu", **options})


def reference_vec(env_id: str, mode: AutoresetMode, limit: int) -> SyncVectorEnv:
    """Gymnasium's own environments with a time limit, in its own vector environment."""

    def one() -> gymnasium.Env:
        return gymnasium.make(gpuenvs.get(env_id).reference.id, max_episode_steps=limit, disable_env_checker=True)

    return SyncVectorEnv([one] * ROWS, autoreset_mode=mode)


def copy_states(env_id: str, theirs: SyncVectorEnv, ours: Any, rows: np.ndarray) -> None:
    """Put the states of Gymnasium's rows into ours: after a reset the two have drawn different ones."""
    if len(rows):
        reference = gpuenvs.get(env_id).reference
        states = [reference.from_reference(theirs.envs[k].unwrapped) for k in rows]
        ours.unwrapped.batch.set_state(np.array(states, np.float64).T, rows=rows)


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP, DISABLED])
@every_env
def test_same_answers_as_gymnasium(env_id: str, mode: AutoresetMode) -> None:
    """Same states and actions: same observations, rewards, flags, dtypes and info keys, through ends and resets."""
    spec, limit, rng = gpuenvs.get(env_id), 40, np.random.default_rng(1)
    theirs = reference_vec(env_id, mode, limit)
    # float64 inside, so that a long comparison does not drift apart; Gymnasium hands out float32.
    ours = make_vec(env_id, autoreset_mode=mode, max_episode_steps=limit, dtype="float64")
    expected, _ = theirs.reset(seed=1)
    ours.reset(seed=1)
    copy_states(env_id, theirs, ours, np.arange(ROWS))
    ended, seen_ends = np.zeros(ROWS, bool), 0
    for _ in range(110):
        if mode is DISABLED and ended.any():
            expected = expected.copy()
            expected[ended] = theirs.reset(options={"reset_mask": ended.copy()})[0][ended]
            ours.reset(options={"reset_mask": ended.copy()})
            copy_states(env_id, theirs, ours, np.flatnonzero(ended))
        actions = mixed_actions(spec, rng, expected)
        was_ended = ended
        expected, *true = theirs.step(actions)
        obs, *mine = ours.step(actions)
        for got, want in zip(mine[:3], true[:3]):
            assert type(got) is type(want)
            assert got.dtype == want.dtype
            assert got.shape == want.shape
        np.testing.assert_allclose(mine[0], true[0], rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(mine[1], true[1])
        np.testing.assert_array_equal(mine[2], true[2])
        ended = true[1] | true[2]
        seen_ends += int(ended.sum())

        assert set(mine[3]) == set(true[3])
        if "final_obs" in true[3]:
            np.testing.assert_array_equal(mine[3]["_final_obs"], true[3]["_final_obs"])
            assert mine[3]["final_obs"].dtype == true[3]["final_obs"].dtype
            for row in range(ROWS):
                if ended[row]:
                    np.testing.assert_allclose(mine[3]["final_obs"][row], true[3]["final_obs"][row], atol=1e-5)
                else:
                    assert mine[3]["final_obs"][row] is true[3]["final_obs"][row] is None
        restarted = {NEXT_STEP: was_ended, SAME_STEP: ended, DISABLED: np.zeros(ROWS, bool)}[mode]
        np.testing.assert_allclose(obs[~restarted], expected[~restarted], rtol=1e-5, atol=1e-5)
        copy_states(env_id, theirs, ours, np.flatnonzero(restarted))
    assert seen_ends >= 2 * ROWS
    theirs.close()
    ours.close()


@every_env
def test_it_is_a_vector_env_like_gymnasiums(env_id: str) -> None:
    theirs = gymnasium.make_vec(gpuenvs.get(env_id).reference.id, num_envs=3, vectorization_mode="sync")
    ours = make_vec(env_id, 3)
    assert isinstance(ours, VectorEnv)
    assert ours.num_envs == 3
    assert ours.spec.id == f"gpuenvs/{env_id}"
    assert ours.spec.max_episode_steps == theirs.spec.max_episode_steps
    assert ours.metadata["autoreset_mode"] is theirs.metadata["autoreset_mode"] is NEXT_STEP
    for name in ("single_observation_space", "single_action_space", "observation_space", "action_space"):
        assert getattr(ours, name) == getattr(theirs, name)
    obs, info = ours.reset(seed=0)
    assert obs in ours.observation_space
    assert isinstance(info, dict)
    assert ours.step(ours.action_space.sample())[0] in ours.observation_space
    assert ours.render_mode is None
    assert isinstance(repr(ours), str)
    ours.close()
    theirs.close()


@every_env
def test_observations_are_safe_to_keep(env_id: str) -> None:
    env, rng = make_vec(env_id), np.random.default_rng(2)
    spec = gpuenvs.get(env_id)
    obs, _ = env.reset(seed=0)
    kept, copies = [obs], [obs.copy()]
    for _ in range(5):
        obs, reward, terminated, truncated, _ = env.step(mixed_actions(spec, rng, obs))
        kept += [obs, reward, terminated, truncated]
        copies += [array.copy() for array in kept[-4:]]
        assert obs.flags.c_contiguous
        assert obs.flags.owndata
    for array, copy in zip(kept, copies):
        np.testing.assert_array_equal(array, copy)
    env.close()


def test_live_views_are_the_batchs_own_arrays() -> None:
    env = make_vec("CartPole-v1", live_views=True)
    obs, _ = env.reset(seed=0)
    before = obs.copy()
    got = env.step(np.ones(ROWS, np.int64))[0]
    assert got is obs or np.shares_memory(got, obs)
    assert (obs != before).any()
    env.close()


def test_seeds() -> None:
    """One seed repeats; without one, two environments differ."""
    a, b = make_vec("CartPole-v1"), make_vec("CartPole-v1")
    np.testing.assert_array_equal(a.reset(seed=5)[0], b.reset(seed=5)[0])
    assert (a.reset(seed=6)[0] != b.reset(seed=7)[0]).any()
    c, d = make_vec("CartPole-v1"), make_vec("CartPole-v1")
    assert (c.reset()[0] != d.reset()[0]).any()
    for env in (a, b, c, d):
        env.close()


def test_reset_of_some_rows() -> None:
    env = make_vec("CartPole-v1", autoreset_mode="disabled")
    obs, _ = env.reset(seed=0)
    mask = np.arange(ROWS) % 2 == 0
    again, _ = env.reset(options={"reset_mask": mask})
    np.testing.assert_array_equal((again != obs).any(axis=1), mask)
    with pytest.raises(ConfigError, match="reset_mask"):
        env.reset(options={"low": -0.1})
    env.close()


@every_env
def test_gymnasiums_statistics_wrapper_agrees(env_id: str) -> None:
    """RecordEpisodeStatistics, which knows nothing of us, counts the same episodes as the batch does."""
    inner = make_vec(env_id, max_episode_steps=30, autoreset_mode=SAME_STEP)
    env = gymnasium.wrappers.vector.RecordEpisodeStatistics(inner)
    spec, rng = gpuenvs.get(env_id), np.random.default_rng(3)
    obs, _ = env.reset(seed=0)
    found = 0
    for _ in range(70):
        obs, _, terminated, truncated, info = env.step(mixed_actions(spec, rng, obs))
        ended = terminated | truncated
        if ended.any():
            batch = inner.unwrapped.batch.info
            np.testing.assert_array_equal(info["episode"]["l"][ended], batch["episode_length"][ended])
            np.testing.assert_allclose(info["episode"]["r"][ended], batch["episode_return"][ended], rtol=1e-4)
            found += int(ended.sum())
    assert found >= 2 * ROWS
    env.close()


def test_options_reach_the_environment() -> None:
    env = make_vec("Pendulum-v1", g=9.81, dtype="float64")
    assert env.unwrapped.batch.params.g == 9.81
    assert env.reset(seed=0)[0].dtype == np.float64
    env.close()
    with pytest.raises(ConfigError, match="did you mean"):
        make_vec("CartPole-v1", masscat=1.0)
    with pytest.raises(ConfigError, match="render"):
        make_vec("CartPole-v1", render_mode="rgb_array")
    with pytest.raises(ConfigError, match="autoreset"):
        make_vec("CartPole-v1", autoreset_mode="never")


def test_every_id_is_registered() -> None:
    assert {f"gpuenvs/{env_id}" for env_id in gpuenvs.ids()} <= set(gymnasium.registry)


def test_a_seed_is_one_number_and_does_not_go_with_a_mask() -> None:
    env = gymnasium.make_vec("gpuenvs/CartPole-v1", num_envs=3)
    with pytest.raises(ConfigError, match="one whole number"):
        env.reset(seed=[1, 2, 3])
    env.reset(seed=1)
    with pytest.raises(ConfigError, match="not both"):
        env.reset(seed=1, options={"reset_mask": np.array([True, False, False])})
    env.close()


def test_a_users_environment_is_registered_with_gymnasium_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_specs", dict(registry._specs))
    monkeypatch.setitem(gymnasium.registry, "gpuenvs/Mine-v0", None)
    del gymnasium.registry["gpuenvs/Mine-v0"]
    gpuenvs.register(dataclasses.replace(gpuenvs.get("Pendulum-v1"), id="Mine-v0", reference=None))
    env = gymnasium.make_vec("gpuenvs/Mine-v0", num_envs=2)
    assert env.reset(seed=0)[0].shape == (2, 3)
    env.close()
