"""Plain copies of functions: nothing in them is compiled, and they compute the same."""

from __future__ import annotations

import types

import numpy as np
import pytest

import gpuenvs
from gpuenvs.checks.plain import PlainRow, first_nonfinite, plain_spec
from gpuenvs.checks.report import FAIL, NOTE, OK, Finding, Report
from gpuenvs.rng import Rng
from tests.gpuenvs.checks import planted
from tests.gpuenvs.classic import CLASSIC
from tests.gpuenvs.contract.planted import marked


def reached(function, seen=None):
    """Every value that a function refers to, and those that these refer to."""
    seen = {} if seen is None else seen
    for value in (*function.__globals__.values(), *(cell.cell_contents for cell in function.__closure__ or ())):
        if id(value) not in seen:
            seen[id(value)] = value
            if isinstance(value, types.FunctionType):
                reached(value, seen)
    return list(seen.values())


@pytest.mark.parametrize("env_id", CLASSIC)
def test_nothing_in_a_copy_is_compiled(env_id):
    spec = plain_spec(gpuenvs.get(env_id))
    for name in ("reset", "step", "observe"):
        function = getattr(spec, name)
        assert isinstance(function, types.FunctionType)
        assert not [value for value in reached(function) if hasattr(value, "py_func")]
    assert hasattr(gpuenvs.get(env_id).step, "py_func")  # the original is left alone


def test_a_copy_computes_in_the_working_dtype():
    row = PlainRow(planted.GOOD, "float32")
    params = row.numbers(planted.Params, planted.Params())
    state, obs = row.reset(Rng(*map(np.uint32, (1, 2, 3, 4))), params)
    moved, reward, terminated, extra, obs = row.step(state, np.float32([0.5]), params)
    assert {type(value) for value in (*moved[:2], reward, *obs)} == {np.float32}
    assert type(moved.n) is np.int32 and moved.n == 1
    assert terminated is False and extra == ()


def test_closures_and_modules_are_copied():
    def make(factor):
        @gpuenvs.njit
        def scale(x):
            return gpuenvs.clip(x, -factor, factor)

        return scale

    scale = make(np.float32(0.5))

    @gpuenvs.njit
    def step(state, action, params):
        return planted.State(scale(state.x), gpuenvs.sin(state.v), state.n), state.x, False

    copy = plain_spec(planted.variant(step=step)).step
    (moved, *_) = copy(planted.State(np.float32(2), np.float32(0), np.int32(0)), (np.float32(0),), planted.Params())
    assert moved == (0.5, 0.0, 0)
    assert not [value for value in reached(copy) if hasattr(value, "py_func")]


def test_where_a_nan_begins():
    function = plain_spec(planted.variant(step=planted.divides_by_zero)).step
    state = planted.State(np.float32(1), np.float32(1.39), np.int32(0))
    params = PlainRow(planted.GOOD, "float32").numbers(planted.Params, planted.Params())

    def run():
        with np.errstate(all="ignore"):
            function(state, (np.float32(0.9),), params)

    birth = first_nonfinite(run)
    assert birth is not None
    assert (birth.function, birth.line) == ("divides_by_zero", marked(planted.divides_by_zero))
    assert birth.source.startswith("x = state.x / (v - v)")
    assert first_nonfinite(lambda: function(state, (np.float32(0),), params)) is None


def test_a_report_as_text_and_as_data():
    findings = (Finding("a", OK, "fine"), Finding("bb", FAIL, "wrong " * 40, "mend it"), Finding("c", NOTE, "odd"))
    report = Report("Some-v0", findings)
    assert not report.ok
    assert report.failed == findings[1:2]
    text = str(report).splitlines()
    assert text[0] == "a   ok    fine"
    assert max(map(len, text)) <= 110
    assert text[-1] == "Some-v0: does not pass (1 failed, 1 to look at)"
    assert report.as_dict()["findings"][1]["advice"] == "mend it"
    assert Report("Some-v0", findings[:1]).verdict() == "Some-v0: passes"
