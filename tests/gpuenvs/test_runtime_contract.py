"""What BatchEnv promises, for every registered environment and autoreset mode."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import gpuenvs
from gpuenvs.errors import ActionError, ConfigError, DeviceError, GpurlError
from gpuenvs.spec import EnvSpec
from tests.gpuenvs.classic import CLASSIC
from tests.gpuenvs.reference import batch_steps
from tests.gpuenvs.sampling import random_actions, sample_states

MODES = ("same_step", "next_step", "disabled")
ALL_IDS = [*CLASSIC, "InvertedPendulum-v5", "Swimmer-v5"]  # two of the traced ones, one of which never terminates

every_env = pytest.mark.parametrize("env_id", ALL_IDS)
every_mode = pytest.mark.parametrize("mode", MODES)


def make(env_id: str, num_envs: int, **options: Any) -> gpuenvs.BatchEnv:
    return gpuenvs.make(env_id, num_envs, **{"device": "cpu", **options})


def actions_for(spec: EnvSpec, rng: np.random.Generator, n: int) -> np.ndarray:
    action = random_actions(spec, rng, n)
    return action if spec.discrete else action.astype(np.float32)


@cache
def ending(env_id: str) -> tuple[np.ndarray, np.ndarray] | None:
    """A state (fields,) and an action whose step terminates, or None for an environment that never does."""
    spec, rng = gpuenvs.get(env_id), np.random.default_rng(0)
    state, action = sample_states(spec, rng, 2000), random_actions(spec, rng, 2000)
    found = np.flatnonzero(batch_steps(spec, state, action, "float32").terminated)
    return (state[found[0]], action[found[0]]) if len(found) else None


def outputs(env: gpuenvs.BatchEnv) -> dict[str, np.ndarray]:
    """Copies of all that the last call returned; what is defined only for ended rows is zero in the others."""
    ended = env.terminated | env.truncated
    info = env.info
    return {
        "obs": env.obs.copy(),
        "reward": env.reward.copy(),
        "terminated": env.terminated.copy(),
        "truncated": env.truncated.copy(),
        "nonfinite": info["nonfinite"].copy(),
        "final_obs": np.where(ended[:, None], info["final_obs"], 0),
        "episode_return": np.where(ended, info["episode_return"], 0),
        "episode_length": np.where(ended, info["episode_length"], 0),
    }


def assert_rows_equal(a: dict[str, np.ndarray], b: dict[str, np.ndarray], rows: Any = slice(None)) -> None:
    """Bit for bit."""
    for name in a:
        np.testing.assert_array_equal(a[name][rows], b[name][rows], err_msg=name)


# --- the truth table -------------------------------------------------------------------------------------------------


@every_mode
@every_env
def test_truth_table(env_id: str, mode: str) -> None:
    """Row 0 goes on, row 1 terminates before the limit, row 2 meets the limit, row 3 terminates on it."""
    spec, limit = gpuenvs.get(env_id), 4
    state, action = ending(env_id) or (None, None)
    table = {1: (2, state is not None, False), 3: (limit, state is not None, True)}
    actions = np.repeat(random_actions(spec, np.random.default_rng(1), 1), 4, axis=0)
    with make(env_id, 4, autoreset=mode, max_episode_steps=limit) as env:
        env.reset(seed=3)
        ended_in: dict[int, tuple[int, bool, bool]] = {}
        returns, lengths = np.zeros(4), np.zeros(4, int)
        for step in range(1, limit + 1):
            acts = actions.copy()
            for row, (when, possible, _) in table.items():
                if step == when and possible:
                    env.set_state(state, rows=[row])
                    acts[row] = action
            if step == limit:
                # A fresh start for row 0, so that it is not at the limit when the others are.
                env.reset(rows=[0])
            live = [row for row in range(4) if row not in ended_in and not (step == limit and row == 0)]
            _, reward, terminated, truncated, info = env.step(acts if spec.discrete else acts.astype(np.float32))
            returns[live] += reward[live]
            lengths[live] += 1
            for row in live:
                if terminated[row] or truncated[row]:
                    ended_in[row] = (step, bool(terminated[row]), bool(truncated[row]))
                    assert info["episode_length"][row] == lengths[row] == step
                    assert info["episode_return"][row] == pytest.approx(returns[row], rel=1e-5)
        assert not terminated[0]
        assert not truncated[0]
    assert ended_in[2] == (limit, False, True)
    if state is not None:
        assert ended_in[1] == (2, True, False)
        assert ended_in[3] == (limit, True, True)


@every_env
def test_modes_tell_the_same_story(env_id: str) -> None:
    """One seed and one list of actions under the three modes, up to the second episode of each row.

    The ended state's observation is SAME_STEP's final_obs, NEXT_STEP's obs and DISABLED's obs. The new episode's first
    observation is SAME_STEP's obs at once, NEXT_STEP's obs one step later with reward 0 and no flag.
    """
    spec, n, limit = gpuenvs.get(env_id), 16, 6
    rng = np.random.default_rng(4)
    state, action = ending(env_id) or (None, None)
    envs = {mode: make(env_id, n, autoreset=mode, max_episode_steps=limit) for mode in MODES}
    for env in envs.values():
        env.reset(seed=9)
    seen = np.zeros(n, bool)
    reset_obs: np.ndarray | None = None
    just_ended = np.zeros(n, bool)
    for step in range(1, limit + 2):
        acts = actions_for(spec, rng, n)
        if state is not None and step == 3:
            for env in envs.values():
                env.set_state(state, rows=np.arange(n // 2))
            acts[: n // 2] = action
        for env in envs.values():
            env.step(acts)
        out = {mode: outputs(env) for mode, env in envs.items()}
        if reset_obs is not None:
            np.testing.assert_array_equal(out["next_step"]["obs"][just_ended], reset_obs[just_ended])
            assert not out["next_step"]["reward"][just_ended].any()
            assert not (out["next_step"]["terminated"] | out["next_step"]["truncated"])[just_ended].any()
        ended = (out["same_step"]["terminated"] | out["same_step"]["truncated"]) & ~seen
        fresh = ~seen  # rows still in their first episode before this step: all modes agree on them
        for name in ("reward", "terminated", "truncated"):
            np.testing.assert_array_equal(out["same_step"][name][fresh], out["next_step"][name][fresh])
            np.testing.assert_array_equal(out["same_step"][name][fresh], out["disabled"][name][fresh])
        for name in ("final_obs", "episode_return", "episode_length"):
            np.testing.assert_array_equal(out["same_step"][name][ended], out["next_step"][name][ended])
            np.testing.assert_array_equal(out["same_step"][name][ended], out["disabled"][name][ended])
        np.testing.assert_array_equal(out["same_step"]["final_obs"][ended], out["disabled"]["obs"][ended])
        np.testing.assert_array_equal(out["next_step"]["obs"][ended], out["disabled"]["obs"][ended])
        assert np.all((out["same_step"]["obs"] != out["disabled"]["obs"]).any(axis=1)[ended])
        reset_obs, just_ended = out["same_step"]["obs"], ended
        seen |= ended
    assert seen.all()


# --- determinism -----------------------------------------------------------------------------------------------------


def run_rows(
    env: gpuenvs.BatchEnv, actions: list[np.ndarray], rows: slice, seed: int = 7
) -> list[dict[str, np.ndarray]]:
    env.reset(seed=seed)
    history = [outputs(env)]
    for action in actions:
        env.step(action[rows])
        history.append(outputs(env))
    return history


@pytest.mark.parametrize("mode", MODES[:2])
@every_env
def test_a_row_depends_on_nothing_but_itself(env_id: str, mode: str) -> None:
    """The first rows of 128 equal the runs of 1, 64 and 67 rows; rows 64.. equal a run that starts at number 64.

    67 rows leave some to the scalar end of a vectorised loop; a short limit makes rows reset all the time.
    """
    spec, rng = gpuenvs.get(env_id), np.random.default_rng(5)
    actions = [actions_for(spec, rng, 128) for _ in range(60)]
    options: dict[str, Any] = {"autoreset": mode, "max_episode_steps": 13}
    with make(env_id, 128, **options) as env:
        whole = run_rows(env, actions, slice(None))
    for start, count in ((0, 1), (0, 64), (0, 67), (64, 64), (61, 5)):
        part = slice(start, start + count)
        with make(env_id, count, env_offset=start, **options) as env:
            for a, b in zip(whole, run_rows(env, actions, part)):
                assert_rows_equal({name: value[part] for name, value in a.items()}, b)


@every_env
def test_threads_do_not_change_results(env_id: str) -> None:
    spec, rng, n = gpuenvs.get(env_id), np.random.default_rng(6), 1500
    actions = [actions_for(spec, rng, n) for _ in range(20)]
    with make(env_id, n, threads=2, max_episode_steps=9) as two, make(env_id, n, threads=1, max_episode_steps=9) as one:
        if two.threads < 2:
            pytest.skip("this process may use one core only")
        two._backend._threads.count = 2  # otherwise a batch this small stays on one thread
        for a, b in zip(run_rows(one, actions, slice(None)), run_rows(two, actions, slice(None))):
            assert_rows_equal(a, b)


@every_env
def test_seeds_and_episodes_differ(env_id: str) -> None:
    """Another seed, row or episode starts elsewhere; the same seed starts at the same place again."""
    with make(env_id, 256) as env:
        first = env.reset(seed=1)[0].copy()
        second = env.reset()[0].copy()
        other = env.reset(seed=2)[0].copy()
        again = env.reset(seed=1)[0].copy()
    np.testing.assert_array_equal(first, again)
    assert len(np.unique(first, axis=0)) > 250
    for a, b in ((first, second), (first, other), (second, other)):
        assert (a != b).any(axis=1).mean() > 0.98


# --- states that are not finite --------------------------------------------------------------------------------------


@every_mode
@every_env
def test_a_bad_state_ends_its_row_alone(env_id: str, mode: str) -> None:
    """NaN or infinity in any field ends that row in that step with reward 0, is counted, and leaves finite outputs."""
    spec, rng, n, row = gpuenvs.get(env_id), np.random.default_rng(7), 19, 5
    for field in spec.state._fields:
        for value in (np.nan, np.inf, -np.inf):
            with make(env_id, n, autoreset=mode) as env, make(env_id, n, autoreset=mode) as calm:
                env.reset(seed=3)
                calm.reset(seed=3)
                bad = env.render_state(row)._replace(**{field: value})
                env.set_state(bad, rows=[row])
                others = np.arange(n) != row
                for step in range(12):
                    acts = actions_for(spec, rng, n)
                    env.step(acts)
                    calm.step(acts)
                    assert_rows_equal(outputs(env), outputs(calm), others)
                    if step > 0:
                        continue
                    case = f"{field} = {value}"
                    assert env.nonfinite_states == 1, case
                    assert env.info["nonfinite"][row] and env.terminated[row], case
                    assert env.reward[row] == 0
                    assert np.isfinite(env.info["final_obs"][row]).all(), case
                    assert np.isfinite(env.obs).all(), case
                if mode != "disabled":
                    assert np.isfinite(env.get_state()).all()
                    assert env.nonfinite_states <= 1


@every_mode
@pytest.mark.parametrize("env_id", [env_id for env_id in ALL_IDS if not gpuenvs.get(env_id).discrete])
def test_a_nan_action_ends_its_row_with_the_last_finite_observation(env_id: str, mode: str) -> None:
    spec, rng = gpuenvs.get(env_id), np.random.default_rng(8)
    with make(env_id, 9, autoreset=mode) as env:
        env.reset(seed=3)
        env.step(actions_for(spec, rng, 9))
        before = env.obs.copy()
        acts = actions_for(spec, rng, 9)
        acts[4] = np.nan
        env.step(acts)
        np.testing.assert_array_equal(env.terminated, np.arange(9) == 4)
        np.testing.assert_array_equal(env.info["nonfinite"], np.arange(9) == 4)
        np.testing.assert_array_equal(env.info["final_obs"][4], before[4])
        assert env.reward[4] == 0
        assert env.info["episode_length"][4] == 2
        assert env.nonfinite_states == 1
        assert np.isfinite(env.obs).all()


# --- states, snapshots -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@every_env
def test_set_and_get_state(env_id: str, dtype: str) -> None:
    spec, rng = gpuenvs.get(env_id), np.random.default_rng(9)
    states = sample_states(spec, rng, 8).astype(dtype)
    with make(env_id, 8, dtype=dtype) as env:
        env.reset(seed=0)
        env.set_state(spec.state(*states.T))
        got = env.get_state()
        assert type(got) is spec.state
        np.testing.assert_array_equal(np.array(got).T, states)
        obs = env.obs.copy()

        mask = np.arange(8) % 2 == 0
        env.set_state(states[0], rows=mask)
        np.testing.assert_array_equal(np.array(env.get_state()).T, np.where(mask[:, None], states[0], states))
        np.testing.assert_array_equal(env.obs, np.where(mask[:, None], obs[0], obs))
        np.testing.assert_array_equal(np.array(got).T, states)  # a copy: it did not change
        assert env.render_state(3) == spec.state(*states[3].tolist())

        with pytest.raises(ConfigError, match="a state has"):
            env.set_state(states[0][:-1] if len(states[0]) > 1 else [0, 0])
        with pytest.raises(ConfigError, match="rows must be in"):
            env.set_state(states[0], rows=[8])
        with pytest.raises(ConfigError, match="must have shape"):
            env.set_state(spec.state(*states[:3].T))


@every_mode
@every_env
def test_snapshot_and_restore(env_id: str, mode: str) -> None:
    """Going on from a snapshot, in the same batch or a new one, repeats every bit."""
    spec, rng = gpuenvs.get(env_id), np.random.default_rng(10)
    actions = [actions_for(spec, rng, 32) for _ in range(40)]
    options: dict[str, Any] = {"autoreset": mode, "max_episode_steps": 11}
    with make(env_id, 32, **options) as env, make(env_id, 32, seed=99, env_offset=5, **options) as other:
        env.reset(seed=2**40 + 3)
        for action in actions[:17]:
            env.step(action)
        saved = env.snapshot()
        then = outputs(env)

        def go_on(batch: gpuenvs.BatchEnv) -> list[dict[str, np.ndarray]]:
            history = []
            for action in actions[17:]:
                batch.step(action)
                history.append(outputs(batch))
            return history

        first = go_on(env)
        for batch in (env, other):
            batch.restore(saved)
            assert_rows_equal(outputs(batch), then)
            for a, b in zip(first, go_on(batch)):
                assert_rows_equal(a, b)
    with make(env_id, 31, **options) as small, pytest.raises(ConfigError, match="does not fit"):
        small.restore(saved)


# --- arrays ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@every_env
def test_arrays(env_id: str, dtype: str) -> None:
    """Shapes, dtypes, layout, fixed addresses; every observation lies in its space."""
    spec, rng, n = gpuenvs.get(env_id), np.random.default_rng(11), 37
    with make(env_id, n, dtype=dtype) as env:
        obs, info = env.reset(seed=0)
        arrays = {"obs": obs, "reward": env.reward, "terminated": env.terminated, "truncated": env.truncated, **info}
        addresses = {name: array.ctypes.data for name, array in arrays.items()}
        assert obs.shape == info["final_obs"].shape == (n, spec.obs_dim)
        assert obs.strides == (obs.itemsize, n * obs.itemsize)
        for name, kind in {"obs": dtype, "final_obs": dtype, "reward": dtype, "episode_return": dtype}.items():
            assert arrays[name].dtype == kind
        for name in ("terminated", "truncated", "nonfinite"):
            assert arrays[name].dtype == np.bool_
            assert arrays[name].shape == (n,)
        assert info["episode_length"].dtype == np.int32
        space = env.single_observation_space
        slack = 1e-6 if dtype == "float64" else 0.0  # bounds are rounded to float32
        for _ in range(120):
            got = env.step(actions_for(spec, rng, n))
            assert all(a is b for a, b in zip(got, (obs, env.reward, env.terminated, env.truncated, info)))
            ended = env.terminated | env.truncated
            for values in (obs, info["final_obs"][ended]):
                assert np.all((values >= space.low - slack) & (values <= space.high + slack))
        now = {
            "obs": env.obs,
            "reward": env.reward,
            "terminated": env.terminated,
            "truncated": env.truncated,
            **env.info,
        }
        assert {name: array.ctypes.data for name, array in now.items()} == addresses
        if dtype == "float32":
            assert env.observation_space.contains(np.ascontiguousarray(obs))
        assert env.action_space.contains(env.action_space.sample())


def test_dlpack_shares_memory() -> None:
    with make("CartPole-v1", 16) as env:
        obs, info = env.reset(seed=0)
        views = {name: torch.from_dlpack(array) for name, array in {"obs": obs, **info}.items()}
        flags = torch.from_dlpack(env.terminated)
        assert flags.dtype == views["nonfinite"].dtype == torch.bool
        assert views["obs"].dtype == torch.float32
        assert views["obs"].data_ptr() == obs.ctypes.data
        assert views["obs"].stride() == (1, 16)
        env.step(np.ones(16, np.int32))
        np.testing.assert_array_equal(views["obs"].numpy(), env.obs)
        assert views["episode_length"].dtype == torch.int32
    assert torch.isfinite(views["obs"]).all()  # still valid after close


@every_env
def test_actions_of_any_make(env_id: str) -> None:
    """int32, int64, torch tensors, strided views and lists (of a Box: its dtype and float64) mean the same action."""
    spec, rng = gpuenvs.get(env_id), np.random.default_rng(12)
    plain = random_actions(spec, rng, 32)
    if spec.discrete:
        padded = np.zeros((32, 3), np.int64)
        padded[:, 1] = plain
        forms: list[Any] = [
            plain,
            plain.astype(np.int64),
            torch.tensor(plain),
            torch.tensor(plain).long(),
            padded[:, 1],
        ]
        forms += [plain.tolist(), plain.astype(np.uint8)]
    else:
        single = plain.astype(np.float32)
        column = np.asfortranarray(single)
        forms = [single, column, torch.tensor(single), torch.tensor(single.T.copy()).T, single.astype(np.float64)]
        forms += [np.repeat(single, 2, axis=0)[::2]]
    results = []
    for form in forms:
        with make(env_id, 32) as env:
            env.reset(seed=1)
            env.step(form)
            results.append(outputs(env))
    for result in results[1:]:
        assert_rows_equal(results[0], result)


def bad_actions(spec: EnvSpec) -> list[tuple[Any, str]]:
    """(action, what the message must name) for a batch of 8."""
    if spec.discrete:
        choices = int(spec.action_space.n)
        return [
            (np.zeros(7, np.int32), r"shape \(8,\)"),
            (np.zeros((8, 1), np.int32), r"shape \(8,\)"),
            (0, r"shape \(8,\)"),
            (np.zeros(8, np.float32), "float32"),
            (np.zeros(8, bool), "bool"),
            (np.full(8, choices, np.int32), f"0..{choices - 1}, got {choices}"),
            (np.full(8, -1, np.int64), f"0..{choices - 1}, got -1"),
            (np.full(8, 2**32, np.int64), f"got {2**32}"),
            (None, "action"),
            ("left", "action"),
        ]
    dim = spec.action_dim
    return [
        (np.zeros((7, dim), np.float32), rf"shape \(8, {dim}\)"),
        (np.zeros(8, np.float32), rf"shape \(8, {dim}\)"),
        (np.zeros((8, dim + 1), np.float32), rf"shape \(8, {dim}\)"),
        (np.zeros((8, dim), np.int64), "int64"),
        (np.zeros((8, dim), complex), "complex"),
        (torch.zeros(8, dim, requires_grad=True), "action"),
        (None, "action"),
        ("left", "action"),
    ]


@every_env
def test_bad_actions_are_one_clear_line_and_step_nothing(env_id: str) -> None:
    spec = gpuenvs.get(env_id)
    with make(env_id, 8) as env:
        env.reset(seed=0)
        before = env.snapshot()
        for action, words in bad_actions(spec):
            with pytest.raises(ActionError, match=words) as caught:
                env.step(action)
            assert "\n" not in str(caught.value)
            assert env_id in str(caught.value)
        for name, value in env.snapshot().items():
            np.testing.assert_array_equal(value, before[name])


# --- params and options ----------------------------------------------------------------------------------------------


@every_env
def test_params_for_all_or_for_each(env_id: str) -> None:
    """Row i of a batch whose params are all arrays equals a batch made with their i-th values."""
    spec, rng, n = gpuenvs.get(env_id), np.random.default_rng(13), 6
    actions = [actions_for(spec, rng, n) for _ in range(25)]
    arrays = {}
    for name in spec.params._fields:
        default = getattr(spec.params, name)
        spread = np.array([default] * n) if isinstance(default, int) else default * rng.uniform(0.9, 1.1, n)
        arrays[name] = spread.astype(np.int32 if isinstance(default, int) else np.float32)
    with make(env_id, n, **arrays) as env:
        each = run_rows(env, actions, slice(None))
    plain = []
    for row in range(n):
        with make(env_id, 1, env_offset=row, **{name: array[row].item() for name, array in arrays.items()}) as env:
            alone = run_rows(env, actions, slice(row, row + 1))
        for a, b in zip(each, alone):
            for key, value in a.items():
                np.testing.assert_allclose(value[row], b[key][0], rtol=1e-4, atol=1e-5, err_msg=key)
        with make(env_id, 1, env_offset=row) as env:
            plain.append(run_rows(env, actions, slice(row, row + 1))[-1]["obs"])
    assert (np.concatenate(plain) != each[-1]["obs"]).any(axis=1).all()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"num_envs": 0}, ConfigError, "num_envs"),
        ({"num_envs": -3}, ConfigError, "num_envs"),
        ({"num_envs": 2.5}, ConfigError, "num_envs"),
        ({"seed": -1}, ConfigError, "seed"),
        ({"threads": 0}, ConfigError, "threads"),
        ({"env_offset": -1}, ConfigError, "env_offset"),
        ({"max_episode_steps": 0}, ConfigError, "max_episode_steps"),
        ({"dtype": "float16"}, ConfigError, "float32 or float64"),
        ({"autoreset": "sometimes"}, ConfigError, "same_step"),
        ({"device": "gpu"}, DeviceError, "auto, cpu, cuda"),
        ({"device": "cuda:99"}, DeviceError, "cuda:99"),
        ({"gravty": 1.0}, ConfigError, "did you mean gravity"),
        ({"gravity": np.nan}, ConfigError, "finite"),
        ({"gravity": "strong"}, ConfigError, "number"),
        ({"gravity": np.ones(3)}, ConfigError, r"shape \(8,\)"),
    ],
)
def test_bad_options_are_one_clear_line(options: dict[str, Any], error: type[GpurlError], words: str) -> None:
    merged = {"num_envs": 8, "device": "cpu", **options}
    with pytest.raises(error, match=words) as caught:
        gpuenvs.make("CartPole-v1", **merged)
    assert "\n" not in str(caught.value)


def test_step_needs_a_reset_and_an_open_batch() -> None:
    env = make("CartPole-v1", 2)
    with pytest.raises(ConfigError, match="reset"):
        env.step(np.zeros(2, np.int32))
    env.reset(seed=0)
    env.close()
    env.close()
    for call in (lambda: env.step(np.zeros(2, np.int32)), env.reset, lambda: env.set_state([0, 0, 0, 0])):
        with pytest.raises(ConfigError, match="closed"):
            call()
