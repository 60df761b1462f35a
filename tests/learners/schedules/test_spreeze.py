"""spreeze and sync with a replay: ratio, rounds, lag, pause, resume, errors, and what a part may read."""

import threading
import time

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

import gpuenvs
from gpuenvs.errors import ConfigError
from learners.schedules.replay_sync import ReplaySyncConfig, ReplaySyncSchedule
from learners.schedules.spreeze import SpreezeConfig, SpreezeSchedule
from tests.learners.replay_double import Config, Double, sleeping
from tests.learners.tagged_env import TaggedEnv


class Tagged(TaggedEnv):
    def __init__(self, num_envs=4):
        super().__init__(num_envs, Box(-1, 1, (1,)))

    def close(self):
        pass

    def snapshot(self):
        return {}


@pytest.fixture
def make():
    made = []

    def build(cls=SpreezeSchedule, own=None, env=None, on_update=lambda kind, number: None, seed=0, **settings):
        config = Config(**settings)
        env = env or gpuenvs.make("Pendulum-v1", config.num_envs, device="cpu", seed=seed)
        algo = Double(config, env.single_observation_space, env.single_action_space, seed, on_update)
        made.append(cls(env, algo, config, None, own))
        return made[-1]

    yield build
    for schedule in made:
        schedule.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("gpurl-")]


FAST = {"slice_seconds": 0.05}


def run(schedule, steps):
    """Iterate to so many environment steps; all results."""
    results = []
    while schedule.env_steps < steps:
        results.append(schedule.iterate())
    return results


def weights(schedule):
    return schedule.algo.policy.flat.clone()


# --- sync --------------------------------------------------------------------------------------------------------------


def test_sync_makes_the_updates_that_the_ratio_asks_for(make):
    schedule = make(ReplaySyncSchedule)
    results = run(schedule, 1024)
    # 64 steps are collected at random first; each of the other 60 horizons of 16 steps asks for 16 * 4 / 16 = 4 updates.
    assert schedule.algo.version == (1024 - 64) // 16 * 4
    assert sum(result.env_steps for result in results) == 1024
    assert all(result.lags == {0: 16} for result in results)


def test_sync_is_the_same_after_a_resume_with_its_replay(make):
    whole, first = make(ReplaySyncSchedule), make(ReplaySyncSchedule)
    run(whole, 2048)
    run(first, 1024)
    second = make(ReplaySyncSchedule)
    second.load_state_dict(first.state_dict())
    run(second, 2048)
    assert torch.equal(weights(second), weights(whole))
    assert not torch.equal(weights(first), weights(whole))


@pytest.mark.parametrize(("cls", "own"), [(ReplaySyncSchedule, ReplaySyncConfig(save_replay=False)),
                                          (SpreezeSchedule, SpreezeConfig(save_replay=False, **FAST))])  # fmt: skip
def test_without_its_replay_a_resumed_run_fills_a_new_one_first(make, cls, own):
    first, second = make(cls, own), make(cls, own)
    run(first, 1024)
    state = first.state_dict()
    assert "replay" not in state
    second.load_state_dict(state)
    at = second.env_steps
    updates = second.algo.version
    while second.loop.replay.size < 64:
        second.iterate()
    run(second, at + 320)
    made = second.algo.version - updates
    # The rows that only fill the ring are not owed for: no burst of updates follows.
    owed_before = state["ratio"]["steps"] * 4 - state["ratio"]["frames"]
    assert abs(made * 16 - (owed_before + (second.env_steps - at - 64) * 4)) <= 2 * 16 * 4 + 16


def test_settings_of_environments_that_do_not_fit_are_one_line(make):
    with pytest.raises(ConfigError, match="num_envs"):
        make(env=Tagged(3))


# --- spreeze: rounds ---------------------------------------------------------------------------------------------------


def test_deterministic_weights_depend_on_the_seed_alone(make):
    found = {}
    for name, sleep, seed in (("a", 0.0, 0), ("slow learner", 0.002, 0), ("other seed", 0.0, 1)):
        schedule = make(own=SpreezeConfig(deterministic=True), on_update=sleeping(sleep), seed=seed)
        run(schedule, 640)
        found[name] = weights(schedule)
    assert torch.equal(found["a"], found["slow learner"])
    assert not torch.equal(found["a"], found["other seed"])


def test_deterministic_resume_is_the_same_run(make):
    own = SpreezeConfig(deterministic=True)
    whole, first, second = make(own=own), make(own=own), make(own=own)
    run(whole, 1280)
    run(first, 640)
    second.load_state_dict(first.state_dict())
    run(second, 1280)
    assert torch.equal(weights(second), weights(whole))


def test_a_round_collects_while_it_learns_and_its_rows_are_one_round_old(make):
    schedule = make(own=SpreezeConfig(deterministic=True))
    results = run(schedule, 640)
    assert all(sum(result.lags.values()) == 16 for result in results)
    assert all(set(result.lags) == {4} for result in results[6:])  # four updates a round


def test_what_a_round_learns_from_was_committed_before_it(make):
    schedule = make(env=Tagged(), own=SpreezeConfig(deterministic=True))
    for _ in range(30):
        before, known = len(schedule.algo.drawn), schedule.loop.replay.committed
        schedule.iterate()
        for sample in schedule.algo.drawn[before:]:
            assert float(sample.obs[:, 1].max()) < known


# --- spreeze: free -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slow", ["learner", "sampler"])
def test_the_ratio_is_kept_whoever_is_slow(make, slow):
    env = None
    if slow == "sampler":
        env = Tagged()
        step = env.step
        env.step = lambda action: (time.sleep(0.0005), step(action))[1]
    schedule = make(own=SpreezeConfig(**FAST), env=env, on_update=sleeping(0.001 if slow == "learner" else 0.0))
    run(schedule, 3200)
    ratio = schedule.loop.ratio
    assert ratio.steps > 2000
    assert 0 <= ratio.target * ratio.steps - ratio.frames <= 2 * 4 * 16 + 16


def test_at_the_end_everything_owed_is_learned(make):
    schedule = make(own=SpreezeConfig(**FAST), on_update=sleeping(0.001), total_steps=1024)
    run(schedule, 1024)
    assert schedule.env_steps == 1024
    assert schedule.loop.ratio.owed < 16
    assert schedule.algo.version == (1024 - 64) // 16 * 4


def test_versions_of_rows_are_true_and_lag_is_counted(make):
    schedule = make(own=SpreezeConfig(publish_every=3, **FAST), on_update=sleeping(0.0002))
    results = run(schedule, 2400)
    version = schedule.loop.replay.version.numpy()
    assert version.max() > 100
    visible = np.sort(version[version > 0])
    assert set(visible) <= set(range(schedule.algo.version + 1))
    lags = {}
    for result in results:
        for lag, rows in result.lags.items():
            lags[lag] = lags.get(lag, 0) + rows
    assert sum(lags.values()) == schedule.env_steps
    assert max(lags) > 0


@pytest.mark.parametrize("split", [False, True], ids=["the learner", "the actor's part"])
def test_readers_never_see_a_row_that_is_being_overwritten(make, split):
    """A free-running sampler goes round a small ring while updates hold on to what they drew."""
    own = SpreezeConfig(split=split, actor_lag=0, **FAST)
    schedule = make(own=own, env=Tagged(), update_to_data=0, buffer_size=64)
    algo = schedule.algo
    problems = []

    def reading(replay):
        index = replay.draw(0, algo.version, 64)
        first = replay.sample(index, 1, 0.9)
        kept = [part.clone() for part in first]
        time.sleep(0.003)
        again = replay.sample(index, 1, 0.9)
        problems.extend(not torch.equal(a, b) for a, b in zip(kept, again))

    def critic_update(replay):
        if split:
            time.sleep(0.001)
        else:
            reading(replay)
        algo.version += 1
        return {}

    def actor_update(replay):
        if split:
            reading(replay)
        algo.actor_version += 1
        return {}

    algo.critic_update, algo.actor_update = critic_update, actor_update
    run(schedule, 4000)
    assert algo.version > 20
    assert len(problems) and not any(problems)


def test_the_sampler_acts_on_published_weights_that_nobody_changes(make):
    schedule = make(own=SpreezeConfig(publish_every=1, **FAST), on_update=sleeping(0.0002))
    seen, sample = [], type(schedule.algo.policy).sample

    def checked(policy, obs, noise):
        before = policy.flat.clone()
        time.sleep(0.0005)
        seen.append(torch.equal(policy.flat, before) and policy is not schedule.algo.policy)
        return sample(policy, obs, noise)

    type(schedule.algo.policy).sample = checked
    try:
        run(schedule, 1600)
    finally:
        schedule.close()
        type(schedule.algo.policy).sample = sample
    assert len(seen) > 100 and all(seen)


def test_a_resumed_run_owes_what_the_first_owed(make):
    own = SpreezeConfig(**FAST)
    first, second = make(own=own, on_update=sleeping(0.001)), make(own=own, on_update=sleeping(0.001))
    run(first, 1600)
    state = first.state_dict()
    second.load_state_dict(state)
    assert second.loop.ratio.owed == state["ratio"]["steps"] * 4 - state["ratio"]["frames"]
    assert second.loop.replay.size == first.loop.replay.size
    steps, updates = second.env_steps, second.algo.version
    second.iterate()
    made, collected = second.algo.version - updates, second.env_steps - steps
    assert made * 16 <= collected * 4 + 2 * 4 * 16 + 16


def test_a_checkpoint_is_taken_while_all_parts_rest(make):
    schedule = make(own=SpreezeConfig(**FAST), on_update=sleeping(0.0005))
    run(schedule, 800)
    for _ in range(5):
        state = schedule.state_dict()
        assert state["ratio"]["frames"] == 16 * state["algo"]["version"]
        assert state["env_steps"] == 64 + state["ratio"]["steps"]
        assert state["replay"]["committed"] * 4 == state["env_steps"]
        assert state["collector"]["step"] == state["replay"]["committed"]
        schedule.iterate()


# --- split -------------------------------------------------------------------------------------------------------------


def test_split_critic_and_actor_learn_at_the_same_time_and_the_actor_keeps_up(make):
    behind, at_work, together = [], set(), []

    def on_update(kind, number):
        at_work.add(kind)
        together.append(len(at_work))
        behind.append(schedule.algo.version - schedule.algo.actor_version)
        time.sleep(0.001 if kind == "critic" else 0.003)
        at_work.discard(kind)

    schedule = make(own=SpreezeConfig(split=True, actor_lag=5, **FAST), on_update=on_update)
    results = run(schedule, 1600)
    assert 2 in together
    assert 1 < max(behind) <= 5 + 1
    assert schedule.algo.actor_version > 50
    assert results[-1].metrics["exchanged_mb"] > 0
    assert {"sampler_busy", "critic_busy", "actor_busy"} <= set(results[-1].metrics)


# --- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["critic", "actor", "sampler"])
@pytest.mark.parametrize("split", [False, True])
def test_an_error_in_any_part_is_raised_at_once(make, part, split):
    env = Tagged()
    on_update = sleeping(0.0005, fail_at=(part, 20))
    if part == "sampler":
        step = env.step

        def failing(action):
            if env.time == 100:
                raise ValueError("sampler 20")
            return step(action)

        env.step = failing
    schedule = make(own=SpreezeConfig(split=split, slice_seconds=60), env=env, on_update=on_update)
    began = time.monotonic()
    with pytest.raises(ValueError, match=f"{part} 20"):
        run(schedule, 100_000)
    assert time.monotonic() - began < 30  # and not the minute of a slice
