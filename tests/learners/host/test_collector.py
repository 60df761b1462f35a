"""Horizons of environments elsewhere: rows are where they belong, and the same bits whoever was faster."""

import contextlib
import threading
import time

import numpy as np
import pytest
import torch
from gymnasium import spaces

from gpuenvs.errors import ConfigError
from learners.host.collector import HostCollector
from learners.networks import Policy
from learners.rollout import Rollout
from tests.learners.host.fake_pool import FakePool

STEPS, ENVS = 7, 10
BOX = spaces.Box(-1, 1, (2,))
WAYS = [
    # executors, actors, lockstep, delay, horizons open at once
    (2, 1, False, 0.0, 1),
    (1, 1, True, 0.0, 1),
    (4, 2, False, 0.003, 1),
    (2, 2, True, 0.002, 1),
    (4, 3, False, 0.003, 2),
    (1, 2, False, 0.0, 3),
    (4, 2, True, 0.002, 2),
]


def policy_for(pool, hidden=(16,), **options):
    return Policy(pool.single_observation_space, pool.single_action_space, hidden_sizes=hidden, seed=5, **options)


@contextlib.contextmanager
def collecting(pool, **options):
    collector = HostCollector(pool, seed=3, **options)
    try:
        yield collector
    finally:
        collector.close()
        pool.close()


def storage(pool, steps=STEPS):
    return Rollout(steps, pool.num_envs, pool.single_observation_space, pool.single_action_space)


def contents(rollout):
    """Everything in a rollout that means something."""
    done = rollout.done()
    found = {name: getattr(rollout, name) for name in ("obs", "action", "log_prob", "reward", "version")}
    found |= {name: getattr(rollout, name) for name in ("terminated", "truncated")}
    found |= {name: getattr(rollout, name)[done] for name in ("final_obs", "episode_return", "episode_length")}
    return {name: tensor.clone() for name, tensor in found.items()}


def same(a, b):
    return all(torch.equal(one[name], two[name]) for one, two in zip(a, b, strict=True) for name in one)


def horizons(pool, policy, count, opened=1, **options):
    """The contents of `count` horizons of which `opened` are open at once, each under other weights."""
    with collecting(pool, **options) as collector:
        return list(pipelined(collector, pool, policy, count, opened))


def pipelined(collector, pool, policy, count, opened, first=0):
    generator = torch.Generator().manual_seed(0)
    moves = [0.3 * torch.randn(policy.flat.shape, generator=generator) for _ in range(first + count)]

    def under(version):
        other = policy.copy_on("cpu")
        other.flat.add_(moves[version])
        return other

    under_way = 0
    for version in range(first, first + count):
        while under_way < opened and version + under_way < first + count:
            collector.open(under(version + under_way), storage(pool), version + under_way)
            under_way += 1
        yield contents(collector.wait())
        under_way -= 1


def test_rows_are_aligned():
    pool = FakePool(ENVS, delay=0.001)
    with collecting(pool, actors=2) as collector:
        policy, rollout = policy_for(pool), storage(pool)
        for version in range(2):
            assert collector.collect(policy, rollout, version) is rollout
    t, i = np.meshgrid(np.arange(STEPS), np.arange(ENVS), indexing="ij")
    now = STEPS + t
    obs, action = rollout.obs.numpy(), rollout.action.numpy()
    assert (obs[:-1, :, 0] == i).all() and (obs[:-1, :, 1] == now).all() and (obs[-1, :, 1] == 2 * STEPS).all()
    np.testing.assert_array_equal(rollout.reward, (1000 * i + now + action / 10).astype(np.float32))
    assert (rollout.version == 1).all() and len(np.unique(action)) == 3
    done = obs[:-1, :, 2] + 1 == 3 + i % 5
    assert (rollout.terminated.numpy() == (done & (i % 2 == 0))).all()
    assert (rollout.truncated.numpy() == (done & (i % 2 == 1))).all()
    final = rollout.final_obs.numpy()[done]
    assert (final[:, 0] == i[done] + 0.5).all() and (final[:, 1] == now[done] + 1).all()
    returns, lengths = rollout.finished_episodes()
    assert lengths.tolist() == (3 + i[done] % 5).tolist() and torch.isfinite(returns).all()
    # The action stored in a row is what the env was told there.
    past = np.where(done[:-1], 0, np.float32(0.9) * obs[:-2, :, 3] + action[:-1])
    np.testing.assert_allclose(obs[1:-1, :, 3], past, rtol=1e-5)


@pytest.mark.parametrize(
    ("space", "hidden", "image"),
    [(None, (16,), False), (BOX, (32, 16), False), (None, (9, 9), False), (BOX, (9,), False), (None, (8,), True)],
    ids=["native-discrete", "native-box", "torch-discrete", "torch-box", "images"],
)
def test_the_bits_do_not_depend_on_who_was_faster(space, hidden, image):
    def run(executors, actors, lockstep, delay, opened):
        pool = FakePool(20, executors, action_space=space, delay=delay, image=image)
        return horizons(pool, policy_for(pool, hidden), 4, opened, actors=actors, lockstep=lockstep)

    first, *others = (run(*way) for way in WAYS)
    assert all(same(first, other) for other in others)
    assert not same(first[:1], first[1:2])


@pytest.mark.parametrize("space", [None, BOX])
@pytest.mark.parametrize("hidden", [(16, 32), (9,)])
def test_log_probs_are_those_of_the_stored_actions(space, hidden):
    pool = FakePool(ENVS, action_space=space)
    policy = policy_for(pool, hidden)
    policy.obs_norm.update(torch.randn(50, 4) * 5 + 100)
    policy.flat.add_(torch.randn_like(policy.flat), alpha=0.2)
    with collecting(pool) as collector:
        rollout = collector.collect(policy, storage(pool))
    dist = policy.distribution(policy.features(rollout.obs[:-1]))
    torch.testing.assert_close(dist.log_prob(rollout.action), rollout.log_prob, rtol=1e-5, atol=1e-5)
    assert rollout.log_prob.std() > 0.01


def test_both_ways_to_act_agree():
    """The same policy through the native kernel, and through torch because its width does not fit."""
    wide = FakePool(ENVS, action_space=BOX)
    narrow = FakePool(ENVS, action_space=BOX)
    policy, other = policy_for(wide, (16,)), policy_for(narrow, (17,))
    with torch.no_grad():  # a seventeenth unit that nobody hears
        for a, b in ((policy.actor, other.actor), (policy.critic, other.critic)):
            b[0].weight[:16], b[0].bias[:16], b[2].bias[:] = a[0].weight, a[0].bias, a[2].bias
            b[2].weight[:, :16], b[2].weight[:, 16] = a[2].weight, 0
    with collecting(wide) as collector:
        one = collector.collect(policy, storage(wide))
        assert collector.choice.why.startswith("the policy is a small MLP")
    with collecting(narrow) as collector:
        two = collector.collect(other, storage(narrow))
        assert collector.choice.why.startswith("torch")
    torch.testing.assert_close(one.action[0], two.action[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(one.log_prob[0], two.log_prob[0], rtol=1e-5, atol=1e-5)


def test_another_seed_gives_other_actions():
    def actions(seed):
        pool = FakePool(ENVS)
        collector = HostCollector(pool, seed=seed)
        with contextlib.closing(pool), contextlib.closing(collector):
            return collector.collect(policy_for(pool), storage(pool)).action.clone()

    assert torch.equal(actions(1), actions(1)) and not torch.equal(actions(1), actions(2))


def test_noise_belongs_to_environment_and_step():
    """The first rows of a wide pool see the noise of a narrow one, and horizons may be cut anywhere."""

    def run(envs, steps):
        pool = FakePool(envs)
        with collecting(pool) as collector:
            policy = policy_for(pool)
            return torch.cat([collector.collect(policy, storage(pool, k)).action.clone() for k in steps])

    assert torch.equal(run(8, [6])[:, :2], run(2, [1, 2, 3]))


@pytest.mark.parametrize("opened", [1, 2])
def test_resuming_continues_bit_for_bit(opened):
    def fresh():
        return FakePool(ENVS, action_space=BOX, delay=0.001)

    options = {"noise_correlation": 0.7, "actors": 2}
    pool = fresh()
    policy = policy_for(pool)
    whole = horizons(pool, policy, 6, opened, **options)
    pool = fresh()
    with collecting(pool, **options) as collector:
        begun = list(pipelined(collector, pool, policy, 3, opened))
        state = collector.state_dict()
        gone_on = list(pipelined(collector, pool, policy, 3, opened, first=3))
        assert same(whole, begun + gone_on)
    pool = fresh()
    with collecting(pool, **options) as collector:
        collector.load_state_dict(state)
        rest = list(pipelined(collector, pool, policy, 3, opened, first=3))
    assert same(whole, begun + rest)
    pool = fresh()
    with collecting(pool, **options) as collector:
        collector.load_state_dict({**state, "step": 0})
        wrong = list(pipelined(collector, pool, policy, 3, opened, first=3))
    assert not same(rest, wrong)


def test_a_fast_environment_runs_ahead_into_the_next_horizon():
    gate = threading.Event()
    pool = FakePool(3, 3, gate=(2, gate))
    with collecting(pool) as collector:
        policy, rollouts = policy_for(pool), [storage(pool), storage(pool)]
        for version, rollout in enumerate(rollouts, start=1):
            collector.open(policy, rollout, version)
        deadline = time.monotonic() + 60
        while pool.time[:2].min() < 2 * STEPS and time.monotonic() < deadline:
            time.sleep(0.001)
        assert pool.time.tolist() == [2 * STEPS, 2 * STEPS, 0]
        assert (rollouts[1].version[:, :2] == 2).all() and (rollouts[1].version[:, 2] == 0).all()
        gate.set()
        assert collector.wait() is rollouts[0] and collector.wait() is rollouts[1]
        assert torch.equal(rollouts[0].obs[-1], rollouts[1].obs[0])
        assert (rollouts[0].version == 1).all() and (rollouts[1].version == 2).all()


def test_in_lockstep_nobody_runs_ahead():
    pool = FakePool(4, 4, slow={3: 0.01})
    with collecting(pool, lockstep=True) as collector:
        collector.open(policy_for(pool), storage(pool))
        while pool.time[3] < STEPS:
            assert np.ptp(pool.time) <= 1
            time.sleep(0.001)
        collector.wait()


def test_in_lockstep_one_actor_decides_for_all_at_once_and_two_for_half_each(monkeypatch):
    for actors, sizes in ((1, {ENVS}), (2, {ENVS // 2})):
        pool = FakePool(ENVS, delay=0.001)
        with collecting(pool, lockstep=True, actors=actors) as collector:
            collector.choose(policy_for(pool))
            act, seen = collector._inference.act, []

            def watched(scratch, weights, horizon, rows, times, act=act, seen=seen):
                seen.append(len(rows))
                act(scratch, weights, horizon, rows, times)

            monkeypatch.setattr(collector._inference, "act", watched)
            collector.collect(policy_for(pool), storage(pool))
        assert set(seen) == sizes and len(seen) == actors * STEPS


def test_the_newest_weights_are_asked_for_every_time():
    pool = FakePool(4)
    policy = policy_for(pool)
    policies = [policy, policy.copy_on("cpu")]
    policies[1].flat.neg_()
    asked = []

    def latest():
        asked.append(None)
        version = min(len(asked) // 3, 1)
        return policies[version], version

    with collecting(pool) as collector:
        rollout = storage(pool)
        collector.open(policy, rollout, latest=latest)
        collector.wait()
    assert sorted(rollout.version.unique().tolist()) == [0, 1]
    assert (rollout.version[1:] >= rollout.version[:-1]).all()
    for version in (0, 1):
        dist = policies[version].distribution(policies[version].features(rollout.obs[:-1]))
        chosen = rollout.version == version
        torch.testing.assert_close(
            dist.log_prob(rollout.action)[chosen], rollout.log_prob[chosen], rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("actors", [1, 3])
@pytest.mark.parametrize("lockstep", [False, True])
def test_a_failing_environment_ends_the_wait_and_the_threads(actors, lockstep):
    pool = FakePool(ENVS, 3, delay=0.001, fault=(4, 5))
    before = threading.active_count()
    with collecting(pool, actors=actors, lockstep=lockstep) as collector:
        policy = policy_for(pool)
        with pytest.raises(RuntimeError, match="env 4 failed"):
            collector.collect(policy, storage(pool))
        with pytest.raises(RuntimeError, match="env 4 failed"):
            collector.open(policy, storage(pool))
        with pytest.raises(RuntimeError, match="env 4 failed"):
            collector.state_dict()
    assert threading.active_count() == before


def test_a_failing_actor_surfaces_and_ends_the_others(monkeypatch):
    pool = FakePool(ENVS, 3, delay=0.001)
    with collecting(pool, actors=3) as collector:
        policy = policy_for(pool)
        collector.collect(policy, storage(pool))
        act, calls = collector._inference.act, []

        def broken(*args):
            calls.append(None)
            if len(calls) == 20:
                raise ZeroDivisionError("in an actor")
            act(*args)

        monkeypatch.setattr(collector._inference, "act", broken)
        with pytest.raises(ZeroDivisionError, match="in an actor") as caught:
            collector.collect(policy, storage(pool))
        assert any("broken" in str(entry) for entry in caught.traceback)  # where it happened is told


def test_closing_in_the_middle_ends_the_threads_and_may_be_repeated():
    before = threading.active_count()
    pool = FakePool(ENVS, delay=0.05)
    collector = HostCollector(pool, actors=2)
    collector.open(policy_for(pool), storage(pool))
    collector.close()
    collector.close()
    with pytest.raises(RuntimeError, match="closed"):
        collector.wait()
    pool.close()
    assert threading.active_count() == before


def test_idle_actors_and_busy_environments_are_told():
    pool = FakePool(2, 2, slow={0: 0.01, 1: 0.01})
    with collecting(pool) as collector:
        policy = policy_for(pool)
        assert collector.idle_seconds == 0 and collector.spans() == []
        began = time.perf_counter()
        collector.collect(policy, storage(pool))
        ended = time.perf_counter()
        assert collector.idle_seconds > 0.05
        ((begin, end),) = collector.spans()
        assert began < begin < begin + 0.07 < end < ended
        assert collector.spans() == []
        for _ in range(2):  # two horizons at once are one span
            collector.open(policy, storage(pool))
        time.sleep(0.02)
        ((_, cut),) = collector.spans()  # what is under way is cut at the call
        collector.wait()
        collector.wait()
        ((begin, _),) = collector.spans()
        assert begin == cut


def test_misuse_is_refused():
    pool = FakePool(2)
    with pytest.raises(ConfigError, match="actors=0"):
        HostCollector(pool, actors=0)
    with collecting(pool) as collector, pytest.raises(RuntimeError, match="no horizon"):
        collector.wait()
    pool.autoreset = "next_step"
    with pytest.raises(ConfigError, match="same_step"):
        HostCollector(pool)
