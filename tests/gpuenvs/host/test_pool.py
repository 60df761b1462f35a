"""Stepping: what the arrays hold, at any number of executors, whatever the timing."""

import gc
import threading
import weakref

import numpy as np
import pytest

from gpuenvs.errors import ConfigError, HostError
from gpuenvs.host import HostPool, host_spec
from gpuenvs.host.executor import episode_seed
from gpuenvs.host.memory import split_rows
from tests.gpuenvs.host.envs import ME
from tests.gpuenvs.host.watching import action_of, play, server_of, session_members, step_all, wait_gone


@pytest.fixture(scope="module")
def cartpole():
    return host_spec("CartPole-v1")


def by_hand(pool, row, steps):
    """What row `row` has to do, from an environment that is stepped here; in the form of `record`."""
    spec, env = pool.spec, pool.spec.make()
    episode, total, length, taken = 0, 0.0, 0, []
    obs, _ = env.reset(seed=episode_seed(pool.seed, pool.env_offset + row, 0))
    for step in range(steps):
        action = action_of(pool, row, step)
        obs, reward, terminated, truncated, _ = env.step(action if spec.discrete else action.astype(np.float32))
        total, length, last = total + float(reward), length + 1, None
        if terminated or truncated:
            last = (obs.tobytes(), float(np.float32(total)), length)
            episode, total, length = episode + 1, 0.0, 0
            obs, _ = env.reset(seed=episode_seed(pool.seed, pool.env_offset + row, episode))
        reward = np.sign(reward) if spec.clip_reward else reward
        taken.append((obs.tobytes(), float(np.float32(reward)), bool(terminated), bool(truncated), last))
    return taken


@pytest.mark.parametrize("name, keywords", [("Walk", {}), ("Push", {}), ("Walk", {"clip_reward": True})])
def test_rows_do_what_their_environment_does_alone(name, keywords):
    spec = host_spec(f"{ME}{name}", keywords)
    with HostPool(spec, 5, executors=2, seed=11, env_offset=3) as pool:
        pool.start()
        taken = play(pool, 40)
        assert any(step[4] for rows in taken for step in rows)
        for row, steps in enumerate(taken):
            assert steps == by_hand(pool, row, 40)


def test_timing_and_executors_change_nothing():
    """Random sleeps; 1, 2 and 4 executors; another seed is another story."""
    spec = host_spec(f"{ME}Walk", {"sleep": 0.003})
    stories = []
    for executors, seed in ((1, 5), (2, 5), (4, 5), (4, 6)):
        with HostPool(spec, 6, executors=executors, seed=seed) as pool:
            pool.start()
            stories.append(play(pool, 30))
    assert stories[0] == stories[1] == stories[2] != stories[3]


def test_rows_of_a_larger_pool():
    spec = host_spec(f"{ME}Walk")
    with HostPool(spec, 4, seed=1) as whole, HostPool(spec, 2, seed=1, env_offset=2) as part:
        whole.start()
        part.start()
        assert (whole.obs[2:] == part.obs).all()
        assert len({obs.tobytes() for obs in whole.obs}) == 4


def test_truth_table_of_ends():
    with HostPool(host_spec(f"{ME}Scripted", {"script": "--t-lb"}), 1) as pool:
        pool.start()
        assert pool.obs.tolist() == [[0, 0]]
        seen = []
        for action in range(6):
            step_all(pool, action)
            seen.append(
                (pool.obs[0].tolist(), bool(pool.terminated[0]), bool(pool.truncated[0]), float(pool.reward[0]))
            )
            if pool.terminated[0] or pool.truncated[0]:
                last = (pool.final_obs[0].tolist(), float(pool.episode_return[0]), int(pool.episode_length[0]))
                seen[-1] += (last,)
        assert seen == [
            ([1, 0], False, False, 1),
            ([2, 1], False, False, 2),
            ([0, 0], True, False, 3, ([3, 2], 6, 3)),
            ([1, 3], False, False, 1),
            ([0, 0], False, True, 2, ([2, 4], 3, 2)),
            ([0, 0], True, True, 1, ([1, 5], 1, 1)),
        ]


@pytest.mark.parametrize("letter", "ni")
def test_a_nonfinite_observation_ends_the_episode(letter):
    with HostPool(host_spec(f"{ME}Scripted", {"script": f"-{letter}--"}), 2, executors=1) as pool:
        pool.start()
        step_all(pool, 4)
        assert pool.nonfinite_states == 0
        step_all(pool, 5)
        assert pool.nonfinite_states == 2 and pool.nonfinite_rewards == 0
        assert pool.truncated.all() and not pool.terminated.any()
        assert pool.final_obs.tolist() == [[1, 4]] * 2 and pool.obs.tolist() == [[0, 0]] * 2
        assert pool.reward.tolist() == [0, 0] and pool.episode_return.tolist() == [1, 1]
        step_all(pool, 6)
        assert pool.nonfinite_states == 2 and not pool.truncated.any()


def test_a_nonfinite_reward_is_counted():
    with HostPool(host_spec(f"{ME}Scripted", {"script": "-r-"}), 1) as pool:
        pool.start()
        step_all(pool, 0)
        step_all(pool, 0)
        assert (pool.nonfinite_states, pool.nonfinite_rewards) == (0, 1) and np.isnan(pool.reward[0])


def test_rewards_are_clipped_but_returns_are_not():
    with HostPool(host_spec(f"{ME}Scripted", {"script": "--t", "clip_reward": True}), 1) as pool:
        pool.start()
        for _ in range(3):
            step_all(pool, 0)
            assert pool.reward[0] == 1
        assert pool.episode_return[0] == 6


def test_rows_finish_at_their_own_pace():
    """A row that hangs holds up nobody but the rows of its own executor."""
    with HostPool(host_spec(f"{ME}Faulty", {"where": "step", "how": "hang"}), 2, executors=2) as pool:
        pool.start()
        pool.action[:] = (2, 0)
        pool.step(np.arange(2))
        for _ in range(5):
            assert pool.ready().tolist() == [1]
            pool.step([1])


def test_images_and_arrays():
    with HostPool(host_spec(f"{ME}Spaces", {"obs": "last", "act": "line"}), 3, executors=2) as pool:
        assert (pool.obs.shape, pool.obs.dtype, pool.final_obs.shape) == ((3, 3, 40, 50), np.uint8, (3, 3, 40, 50))
        assert (pool.action.shape, pool.action.dtype) == ((3, 2), np.float32)
        assert (pool.reward.dtype, pool.terminated.dtype, pool.truncated.dtype) == (np.float32, bool, bool)
        assert (pool.episode_return.dtype, pool.episode_length.dtype) == (np.float32, np.int32)
        pool.start()
        assert pool.obs.any(axis=(1, 2, 3)).all()
    assert pool.obs.any()  # still readable


def test_start_begins_anew():
    with HostPool(host_spec(f"{ME}Walk"), 3, executors=2) as pool:
        pool.start()
        first = pool.obs.copy()
        play(pool, 20)
        pool.start()
        assert (pool.obs == first).all()


def test_seeds():
    seeds = {
        episode_seed(seed, row, episode) for seed in (0, 1, 2**64 - 1) for row in range(20) for episode in range(20)
    }
    assert len(seeds) == 1200 and all(0 <= seed < 2**31 for seed in seeds)


def test_every_row_has_one_executor():
    for rows, executors in ((1, 1), (10, 4), (7, 7), (4096, 13)):
        parts = split_rows(rows, executors)
        assert [row for part in parts for row in part] == list(range(rows))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


# --- waiting ---------------------------------------------------------------------------------------------------------


def waiting_threads(pool, count):
    """Threads that wait in `ready`, and the list that they put their results into."""
    results = []

    def wait():
        try:
            results.append(pool.ready().tolist())
        except HostError as error:
            results.append(error)

    threads = [threading.Thread(target=wait) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, results


def join(threads):
    for thread in threads:
        thread.join(timeout=5)
        assert not thread.is_alive()


def test_wake_ends_as_many_waits(cartpole):
    with HostPool(cartpole, 2, executors=1) as pool:
        pool.start()
        threads, results = waiting_threads(pool, 3)
        pool.wake(2)
        while len(results) < 2:
            pass
        assert results == [[], []]
        pool.step(np.array([1]))
        join(threads)
        assert results == [[], [], [1]]


def test_a_wake_does_not_swallow_rows(cartpole):
    with HostPool(cartpole, 4, executors=2) as pool:
        pool.start()
        pool.wake(1)
        pool.step(np.arange(4))
        rows, empty = [], 0
        while len(rows) < 4 or not empty:
            got = pool.ready().tolist()
            rows += got
            empty += not got
        assert sorted(rows) == [0, 1, 2, 3] and empty == 1


def test_close_ends_waits(cartpole):
    pool = HostPool(cartpole, 2, executors=2)
    pool.start()
    threads, results = waiting_threads(pool, 3)
    pool.close()
    join(threads)
    assert [str(error) for error in results] == ["CartPole-v1: the pool is closed"] * 3


def test_many_threads_step_and_wait(cartpole):
    """Each of 3 threads steps what it gets; every row is stepped by exactly one at a time."""
    with HostPool(cartpole, 12, executors=3) as pool:
        pool.start()
        counts, lock = np.zeros(12, int), threading.Lock()

        def act():
            while True:
                rows = pool.ready()
                with lock:
                    counts[rows] += 1
                    again = rows[counts[rows] < 200]
                    done = (counts == 200).all()
                pool.step(again)
                if done:
                    pool.wake(2)
                    return
                if not rows.size:
                    return

        threads = [threading.Thread(target=act) for _ in range(3)]
        for thread in threads:
            thread.start()
        pool.step(np.arange(12))
        join(threads)
        assert counts.tolist() == [200] * 12


# --- misuse and the end ----------------------------------------------------------------------------------------------


def test_misuse(cartpole):
    for options in ({"num_envs": 0}, {"num_envs": 5000}, {"num_envs": 2, "executors": -1}, {"num_envs": 2, "seed": -1}):
        with pytest.raises(ConfigError):
            HostPool(cartpole, **options)
    with HostPool(cartpole, 2, executors=8) as pool:
        assert pool.executors == 2
        with pytest.raises(ConfigError, match="before start"):
            pool.state_dict()
        with pytest.raises(ConfigError, match="before start"):
            pool.step([0])
        pool.start()
        pool.step([0])
        with pytest.raises(ConfigError, match="row 0 is being stepped"):
            pool.step([0])
        with pytest.raises(ConfigError, match="under way"):
            pool.state_dict()
        assert pool.ready().tolist() == [0]
    for call in (pool.start, pool.ready, lambda: pool.step([0]), pool.state_dict):
        with pytest.raises(HostError, match="closed"):
            call()
    pool.wake(1)
    pool.close()


def test_a_pool_that_is_dropped_is_closed(cartpole):
    pool = HostPool(cartpole, 3, executors=2)
    pool.start()
    session, gone = server_of(pool), weakref.ref(pool)
    assert len(session_members(session)) == 3
    del pool
    gc.collect()
    assert gone() is None and wait_gone(session)
