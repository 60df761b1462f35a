"""EnvSpec and the registry: what fits, what is refused, and with which words."""

from typing import NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary

import gpuenvs
from gpuenvs import registry
from gpuenvs.errors import ConfigError, DuplicateEnvError, SpecError, UnknownEnvError
from gpuenvs.scalar import njit
from gpuenvs.spec import INT, REAL, EnvSpec, field_kinds


class State(NamedTuple):
    x: float
    count: int


class Params(NamedTuple):
    gain: float = 0.5
    stride: int = 2


@njit
def reset(rng, params):
    return State(params.gain, np.int32(0))


@njit
def step(state, action, params):
    return State(state.x + params.gain, np.int32(state.count + params.stride)), state.x, False


@njit
def observe(state, params):
    return (state.x,)


def make_spec(**changes):
    parts = {
        "id": "Counter-v0", "state": State, "params": Params(), "reset": reset, "step": step, "observe": observe,
        "observation_space": Box(-np.inf, np.inf, (1,)), "action_space": Discrete(2), "max_episode_steps": 5,
    }  # fmt: skip
    return EnvSpec(**{**parts, **changes})


def test_field_kinds_keep_their_order():
    assert field_kinds(State) == {"x": REAL, "count": INT}
    assert list(field_kinds(Params)) == ["gain", "stride"]


class Odd(NamedTuple):
    x: str


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": tuple}, "state must be a typing.NamedTuple"),
        ({"state": Odd}, "state field 'x' must be annotated float or int"),
        ({"step": observe}, "step must take 3 arguments, it takes 2"),
        ({"reset": 3}, "reset must be a function"),
        ({"observation_space": Discrete(3)}, "observation_space must be a one-dimensional Box"),
        ({"action_space": MultiBinary(2)}, "action_space must be Discrete or a one-dimensional Box"),
        ({"action_space": Discrete(2, start=1)}, "must start at 0"),
        ({"max_episode_steps": 0}, "max_episode_steps must be at least 1"),
    ],
)
def test_a_spec_that_does_not_fit_is_refused_in_one_line(changes, words):
    with pytest.raises(SpecError) as caught:
        make_spec(**changes)
    assert words in str(caught.value)
    assert "Counter-v0" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_params_are_overridden_by_numbers_and_by_arrays():
    spec = make_spec()
    params, per_env = spec.with_params({"gain": 2, "stride": np.array([1, 2, 3])})
    assert params == Params(gain=2.0, stride=2)
    assert per_env["stride"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ({"gian": 1.0}, "did you mean gain"),
        ({"gain": "x"}, "must be a number"),
        ({"gain": np.nan}, "must be finite"),
    ],
)
def test_bad_params_are_refused(override, words):
    with pytest.raises(ConfigError, match=words):
        make_spec().with_params(override)


def test_unknown_ids_suggest_near_ones():
    with pytest.raises(UnknownEnvError, match="did you mean CartPole-v1"):
        gpuenvs.get("cartpole")
    with pytest.raises(UnknownEnvError, match="did you mean MountainCar"):
        gpuenvs.make("MountianCar-v0", 4)


def test_a_registered_spec_is_made_and_a_second_one_of_its_id_is_refused(monkeypatch):
    monkeypatch.setattr(registry, "_specs", dict(registry._specs))
    spec = gpuenvs.register(make_spec())
    assert "Counter-v0" in gpuenvs.ids()
    with pytest.raises(DuplicateEnvError, match="registered already"):
        gpuenvs.register(make_spec())
    with pytest.raises(DuplicateEnvError):
        gpuenvs.register(make_spec(id="CartPole-v1"))
    assert gpuenvs.get("Counter-v0") is spec


def test_integer_state_and_params_reach_the_kernel():
    with gpuenvs.make(make_spec(), 3, device="cpu", stride=np.array([1, 2, 3])) as env:
        env.reset(seed=0)
        for _ in range(3):
            env.step(np.zeros(3, np.int64))
        state = env.get_state()
    assert state.count.tolist() == [3, 6, 9]
    assert state.count.dtype == np.int32
    np.testing.assert_allclose(state.x, [2.0, 2.0, 2.0])


def test_metrics_come_out_in_info():
    @njit
    def step_with_metrics(state, action, params):
        moved = State(state.x + params.gain, state.count)
        return moved, state.x, False, (state.x, moved.x)

    spec = make_spec(step=step_with_metrics, metrics=("before", "after"))
    with gpuenvs.make(spec, 2, device="cpu") as env:
        env.reset(seed=0)
        *_, info = env.step(np.zeros(2, np.int64))
        assert info["before"].tolist() == [0.5, 0.5]
        assert info["after"].tolist() == [1.0, 1.0]
