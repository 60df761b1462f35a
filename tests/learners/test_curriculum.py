"""Curricula: asked before each horizon, applied where something has changed, refused in one line."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import gpuenvs
from gpuenvs import Range
from gpuenvs.errors import ConfigError, SpecError
from learners.curriculum import Curriculum, initial, of

SPEC = gpuenvs.get("Pendulum-v1")
NAME, OTHER = SPEC.params._fields[:2]


def with_curriculum(function):
    return dataclasses.replace(SPEC, curriculum=function)


class Spy:
    """Stands for a batch; remembers what it is told."""

    num_envs, env_offset = 4, 8

    def __init__(self):
        self.told = []

    def set_params(self, **values):
        self.told.append(values)


def test_only_what_has_changed_is_set():
    spec = with_curriculum(lambda step: {NAME: 1.0 + step // 100, OTHER: Range(0, 1 + step // 200)})
    env, plan = Spy(), Curriculum(spec)
    for step in (0, 50, 100, 150, 200):
        plan.apply(env, step)
    assert env.told == [
        {NAME: 1.0, OTHER: Range(0, 1)},
        {NAME: 2.0},
        {NAME: 3.0, OTHER: Range(0, 2)},
    ]


def test_a_function_of_the_environments_gets_their_numbers():
    spec = with_curriculum(lambda step, envs: {NAME: envs / 10 + step})
    env, plan = Spy(), Curriculum(spec)
    for step in (0, 0, 1):
        plan.apply(env, step)
    assert len(env.told) == 2
    np.testing.assert_allclose(env.told[0][NAME], [0.8, 0.9, 1.0, 1.1])


def test_a_batch_made_with_its_beginning_takes_what_comes_later():
    def curriculum(step, envs):
        return {NAME: Range(1.0, 2.0 + step), OTHER: np.full(len(envs), 1.0 + step)}

    spec = with_curriculum(curriculum)
    with gpuenvs.make(spec, 6, device="cpu", **initial(spec, {}, 0, 6)) as env:
        env.reset(seed=0)
        Curriculum(spec).apply(env, 3)
        env.reset()
        params = env.get_params()
        assert (getattr(params, OTHER) == 4.0).all()
        assert ((getattr(params, NAME) >= 1) & (getattr(params, NAME) <= 5)).all()


def test_a_drawn_param_that_begins_with_a_number_may_become_a_range():
    spec = dataclasses.replace(
        SPEC, ranges={NAME: Range(1.0, 2.0)}, curriculum=lambda step: {NAME: 3.0 if step < 10 else Range(5.0, 6.0)}
    )
    with gpuenvs.make(spec, 6, device="cpu", **initial(spec, {}, 0, 6)) as env:
        env.reset(seed=0)
        assert (getattr(env.get_params(), NAME) == 3.0).all()
        Curriculum(spec).apply(env, 10)
        env.reset()
        drawn = getattr(env.get_params(), NAME)
        assert ((drawn >= 5) & (drawn <= 6)).all()


def test_what_the_user_set_is_left_alone():
    spec = with_curriculum(lambda step: {NAME: 3.0, OTHER: 4.0})
    assert initial(spec, {NAME: 7.0}, 0, 2) == {NAME: 7.0, OTHER: 4.0}
    plan, env = of(spec, {NAME: 7.0}), Spy()
    assert plan is not None
    plan.apply(env, 0)
    assert env.told == [{OTHER: 4.0}]
    assert of(SPEC, {}) is None
    assert initial(SPEC, {NAME: 7.0}, 0, 2) == {NAME: 7.0}


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda step: {"grafity": 1.0}, "has no parameter 'grafity'"),
        (lambda step: {NAME: float("nan")}, "must be finite"),
        (lambda step: 3, "must return a dict of params, got int"),
        (lambda step: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_what_does_not_fit_is_one_line(function, words):
    with pytest.raises(ConfigError, match=words) as caught:
        Curriculum(with_curriculum(function)).values(40, 0, 2)
    said = str(caught.value)
    assert said.startswith("curriculum(40) of Pendulum-v1")
    assert "\n" not in said
    if "ZeroDivision" in words:
        assert f"{__file__}, line " in said


@pytest.mark.parametrize("function", [3, lambda: {}, lambda a, b, c: {}])
def test_a_curriculum_is_a_function_of_the_step(function):
    with pytest.raises(SpecError, match="curriculum must be a function"):
        with_curriculum(function)
