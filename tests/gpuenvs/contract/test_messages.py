"""Every planted mistake gives one line that names the environment, the function, the file and the line, and what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuenvs
from gpuenvs import EnvSpec
from gpuenvs.contract import faults
from gpuenvs.errors import SpecError
from tests.gpuenvs.classic import CLASSIC
from tests.gpuenvs.contract import planted


def begin(spec: EnvSpec, **options: Any) -> str:
    """What is said when a batch begins, which must be one line."""
    with pytest.raises(SpecError) as caught, gpuenvs.make(spec, 2, device="cpu", **options) as env:
        env.reset(seed=0)
    message = str(caught.value)
    assert "\n" not in message and "\x1b" not in message
    return message


@pytest.mark.parametrize(("step", "words"), planted.STEPS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_mistake_in_step(step: Any, words: str) -> None:
    message = begin(planted.variant(step=step))
    assert message.startswith("Planted-v0: step (")
    assert f"planted.py, line {planted.marked(step)})" in message
    assert words in message


@pytest.mark.parametrize(("change", "words"), planted.OTHERS, ids=lambda value: next(iter(value)) if value else "")
def test_a_mistake_elsewhere(change: dict[str, Any], words: str) -> None:
    ((role, function),) = change.items()
    message = begin(planted.variant(**change))
    assert message.startswith(f"Planted-v0: {role} (")
    assert f"planted.py, line {planted.marked(function)})" in message
    assert words in message


def test_a_mistake_in_a_helper_names_the_helper_and_who_calls_it() -> None:
    message = begin(planted.variant(step=planted.leaks_in_a_helper))
    assert (
        f"half ({planted.__file__.removeprefix(_here())}, line {planted.marked(planted.half)}), called by step"
        in message
    )
    assert "`return x * 0.5  # PLANTED`" in message


def _here() -> str:
    import os

    return os.getcwd() + os.sep


def test_a_function_that_is_not_compiled() -> None:
    def step(state, action, params):
        return state, state.x, False

    message = begin(planted.variant(step=step))
    assert "step is not compiled; decorate it with gpuenvs.scalar.njit" in message
    assert "test_messages.py, line" in message


def test_metrics_of_another_number() -> None:
    @gpuenvs.njit
    def step(state, action, params):
        return state, state.x, False, (state.x,)

    message = begin(planted.variant(step=step, metrics=("one", "two")))
    assert "returns 1 value as metrics for 2 names" in message
    assert "(State, reward, terminated, (one, two))" in message


def test_float64_batches_may_compute_in_float64() -> None:
    spec = planted.variant(step=planted.float64_state)
    with gpuenvs.make(spec, 2, device="cpu", dtype="float64") as env:
        env.reset(seed=0)
        env.step(np.zeros((2, 2)))


def test_every_fault_is_listed_once() -> None:
    """`gpuenvs.check` shows them all; two lines of one function are two faults."""
    found = faults(planted.variant(step=planted.holds_dict), "float32")
    assert [fault.line for fault in found] == [
        planted.marked(planted.holds_dict),
        planted.marked(planted.holds_dict) + 1,
    ]


@pytest.mark.parametrize("env_id", CLASSIC)
@pytest.mark.parametrize("real", ["float32", "float64"])
def test_built_in_environments_hold_the_contract(env_id: str, real: str) -> None:
    assert faults(gpuenvs.get(env_id), real) == []


def test_the_environment_without_a_mistake_holds_it() -> None:
    assert faults(planted.SPEC, "float32") == []
