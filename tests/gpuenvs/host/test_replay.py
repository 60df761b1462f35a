"""Checkpoints of a pool: the rest of a story is the same story, with any number of executors."""

import warnings

import numpy as np
import pytest

from gpuenvs.errors import ConfigError
from gpuenvs.host import HostPool, executor, host_spec, memory
from learners import checkpoint
from tests.gpuenvs.host.envs import ME
from tests.gpuenvs.host.watching import play, step_all


def stored(state, folder):
    """The state as it comes back from a checkpoint file."""
    path = checkpoint.checkpoint_path(folder, 1)
    checkpoint.save(path, state, step=1)
    return checkpoint.load(path)


@pytest.mark.parametrize("name", [f"{ME}Walk", f"{ME}Push", "CartPole-v1", "Pendulum-v1"])
def test_a_resumed_pool_goes_on(name, tmp_path):
    spec = host_spec(name)
    with HostPool(spec, 5, executors=2, seed=3) as pool:
        pool.start()
        play(pool, 17)
        state = pool.state_dict()
        onwards = play(pool, 20, begin=17)  # taking a state changes nothing
    with HostPool(spec, 5, executors=2, seed=3) as pool:
        pool.start()
        assert [rows[17:] for rows in play(pool, 37)] == onwards
    with HostPool(spec, 5, executors=5, seed=3) as pool, warnings.catch_warnings():
        warnings.simplefilter("error")
        pool.load_state_dict(stored(state, tmp_path))  # without start
        assert (pool.obs == state["obs"]).all() and (pool.episode_length[0] == 0)
        assert play(pool, 20, begin=17) == onwards
        pool.load_state_dict(state)  # and back again
        assert play(pool, 20, begin=17) == onwards


def test_every_saved_array_matters(tmp_path):
    spec = host_spec(f"{ME}Walk", {"limit": 9})
    with HostPool(spec, 3, executors=1) as pool:
        pool.start()
        play(pool, 13)
        state = pool.state_dict()
        assert state["elapsed"].tolist() == [4] * 3 and state["episode"].tolist() == [1] * 3
        assert state["actions"].shape == (12,) and state["actions"].dtype == np.uint8
        onwards = play(pool, 10, begin=13)
        for name, change in (("actions", [0] * 12), ("episode", [2] * 3), ("elapsed", [3] * 3), ("obs", 0.5)):
            with pytest.warns(RuntimeWarning, match=r"3 of 3 environments begin a new episode"):
                pool.load_state_dict({**state, name: (np.zeros_like(state[name]) + change).astype(state[name].dtype)})
            assert play(pool, 10, begin=13) != onwards


def test_an_environment_that_does_not_repeat_itself():
    """It begins a new episode, whole and with new counters, and says so once."""
    with HostPool(host_spec(f"{ME}Walk", {"careless": True, "limit": 8}), 3, executors=2) as pool:
        pool.start()
        play(pool, 5)
        state = pool.state_dict()
        with pytest.warns(RuntimeWarning, match="3 of 3 environments begin a new episode") as caught:
            pool.load_state_dict(state)
        assert len(caught) == 1
        assert pool.obs[:, 1].tolist() == [0, 0, 0]  # steps
        for _ in range(8):
            step_all(pool, 1)
        assert pool.terminated.all() and pool.episode_length.tolist() == [8, 8, 8]


def test_counts_of_nonfinite_values_are_kept():
    with HostPool(host_spec(f"{ME}Scripted", {"script": "-r-n--"}), 2, executors=1) as pool:
        pool.start()
        for _ in range(5):
            step_all(pool, 1)
        state = pool.state_dict()
    with HostPool(host_spec(f"{ME}Scripted"), 2, executors=1) as pool:
        pool.load_state_dict(state)
        assert (pool.nonfinite_states, pool.nonfinite_rewards) == (2, 2)


def test_states_that_do_not_fit():
    spec = host_spec(f"{ME}Walk")
    with HostPool(spec, 3, executors=1, seed=1) as pool:
        pool.start()
        state = pool.state_dict()
        for options in ({"num_envs": 2, "seed": 1}, {"num_envs": 3, "seed": 2}):
            with HostPool(spec, executors=1, **options) as other, pytest.raises(ConfigError, match="the state is of"):
                other.load_state_dict(state)
        with pytest.raises(ConfigError, match="the state is of 3 x Other-v0"):
            pool.load_state_dict({**state, "env": "Other-v0"})


def test_episodes_too_long_to_be_kept(monkeypatch):
    """Their actions are not stored, and the row begins a new episode."""
    monkeypatch.setattr(executor, "LONGEST_LOG", 4)
    spec = host_spec(f"{ME}Walk", {"limit": 100})
    table = memory.fields(spec, 1, 1)
    shared, log = memory.create(table), memory.anonymous_file()
    arrays = memory.attach(shared, table)
    row = executor.Row(spec, arrays, 0, 0, 0)
    row.make()
    for steps, lost in ((4, False), (5, True)):
        arrays["mismatch"][0] = False
        row.begin()
        for _ in range(steps):
            row.step()
        where = arrays["obs"].copy()
        row.dump(log)
        row.replay(log)
        assert arrays["mismatch"][0] == lost
        assert (arrays["obs"] == where).all() != lost
        assert arrays["elapsed"][0] == (0 if lost else steps)
