"""Each check finds what was planted for it, and nothing in an environment that is right."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import gpuenvs
from gpuenvs import checks
from gpuenvs.checks import backends, behaviour, code
from gpuenvs.checks.report import FAIL, NOTE, OK, SKIP, Finding
from gpuenvs.checks.subject import Subject
from tests.gpuenvs.checks import planted
from tests.gpuenvs.contract.planted import marked
from tests.gpuenvs.contract.planted import variant as variant_of_another
from tests.gpuenvs.user_files import write


def statuses(findings: Iterable[Finding]) -> list[str]:
    return [finding.status for finding in findings]


def only(findings: Iterable[Finding], status: str) -> Finding:
    """The one finding of this status; there is none that is worse."""
    found = list(findings)
    (chosen,) = [finding for finding in found if finding.status == status]
    assert status == FAIL or FAIL not in statuses(found)
    return chosen


def subject(**changes: Any) -> Subject:
    return Subject(planted.variant(**changes), seed=0)


@pytest.fixture(scope="module")
def good() -> checks.Report:
    return gpuenvs.check(planted.GOOD)


def test_an_environment_that_is_right_passes(good):
    assert good.ok, str(good)
    assert {finding.status for finding in good.findings} <= {OK, SKIP}
    assert {f.check for f in good.findings} >= {
        "functions", "sizes and dtypes", "float64/int64 leaks", "hidden state", "observation space", "extreme actions",
        "reset distribution", "episodes end", "determinism", "backend agreement", "indexing", "CUDA simulator", "CUDA sm_90",
        "steps/s",
    }  # fmt: skip


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_built_in_environments_pass(env_id):
    report = gpuenvs.check(env_id)
    assert report.ok, str(report)
    assert NOTE not in statuses(report.findings), str(report)


def test_a_traced_environment_passes_and_what_does_not_apply_is_said():
    pytest.importorskip("mujoco")
    report = gpuenvs.check("InvertedPendulum-v5")
    assert report.ok, str(report)
    skipped = {finding.check for finding in report.findings if finding.status == SKIP}
    assert {"float64/int64 leaks", "hidden state", "indexing", "CUDA simulator"} <= skipped
    assert all(finding.found for finding in report.findings)


def test_functions_that_break_the_contract_stop_the_rest():
    from tests.gpuenvs.contract.planted import holds_dict

    seen: list[str] = []
    report = gpuenvs.check(variant_of_another(step=holds_dict), on_check=seen.append)
    assert not report.ok
    assert seen == ["functions"]
    assert [f.check for f in report.failed] == ["functions", "functions"]  # the dict, and what is written into it
    assert f"line {marked(holds_dict)}" in report.failed[0].found
    assert "a dict is Python-only" in report.failed[0].advice
    assert set(statuses(report.findings)) == {FAIL, SKIP}


# --- the code ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "what"), [(planted.leaks, "float64"), (planted.widens, "int64")])
def test_leaks_are_named_with_their_line(step, what):
    found = [f for f in code.leaked(planted.variant(step=step)) if f.status == FAIL]
    assert any(
        what in f.found and f"planted.py, line {marked(step)})" in f.found and "# PLANTED" in f.found for f in found
    )


def test_a_leak_is_float64_in_the_machine_code_too():
    pytest.importorskip("numba_cuda")
    finding = only(backends.machine_code(subject(step=planted.leaks)), FAIL)
    assert "float64 instructions" in finding.found


def test_fast_math_that_deletes_nan_checks_fails():
    assert "lets NaN checks be deleted" in only(code.hidden_state(planted.variant(step=planted.fast)), FAIL).found


def test_numbas_own_decorator_is_noted():
    assert "gpuenvs.njit" in only(code.hidden_state(planted.variant(step=planted.numbas_own)), NOTE).found


def test_an_array_from_outside_is_noted():
    finding = only(code.hidden_state(planted.variant(step=planted.indexes_an_array)), NOTE)
    assert f"planted.py, line {marked(planted.indexes_an_array)}) reads the array TABLE" in finding.found


def test_unbounded_actions_are_noted():
    space = gpuenvs.get("Pendulum-v1").action_space
    unbounded = type(space)(-np.inf, np.inf, (1,), np.float32)
    assert "infinite bounds" in only(code.sizes(planted.variant(action_space=unbounded)), NOTE).found


# --- what it does -------------------------------------------------------------------------------------------------------


def test_observations_outside_of_their_space():
    found = list(behaviour.observations(subject(observe=planted.observes_outside)))
    assert statuses(found) == [FAIL, FAIL]
    assert "value 0 reached -" in found[0].found and "observation_space.low[0]" in found[0].advice
    assert "observation_space.high[0]" in found[1].advice
    assert any(f.status == FAIL for f in behaviour.resets(subject(observe=planted.observes_outside)))


def test_nan_is_named_with_the_line_that_makes_it():
    wide = type(planted.GOOD.observation_space)(-np.inf, np.inf, (2,), np.float32)
    found = list(behaviour.extremes(subject(step=planted.divides_by_zero, observation_space=wide)))
    assert FAIL in statuses(found)
    for finding in found:
        assert (
            f"divides_by_zero (tests/gpuenvs/checks/planted.py, line {marked(planted.divides_by_zero)})"
            in finding.found
        )
        assert "State(x=" in finding.found


def test_actions_beyond_their_space_are_only_noted():
    wide = type(planted.GOOD.observation_space)(-np.inf, np.inf, (2,), np.float32)
    finding = only(behaviour.extremes(subject(step=planted.grows_without_a_clip, observation_space=wide)), NOTE)
    assert f"line {marked(planted.grows_without_a_clip)})" in finding.found
    assert "clip(action[k], low, high)" in finding.advice


def test_infinite_rewards():
    found = list(behaviour.extremes(subject(step=planted.infinite_reward)))
    assert statuses(found) == [FAIL, FAIL]
    assert "rewards were NaN or infinite under random actions" in found[0].found


def test_resets():
    assert "same state" in only(behaviour.resets(subject(reset=planted.reset_alike)), NOTE).found
    assert "NaN or infinity in x" in only(behaviour.resets(subject(reset=planted.reset_to_infinity)), FAIL).found
    assert "same random number" in only(behaviour.resets(subject(reset=planted.reset_with_one_number)), NOTE).found


def test_episodes_that_never_end():
    finding = only(behaviour.episodes(subject(step=planted.never_ends, max_episode_steps=None)), FAIL)
    assert "there is no time limit" in finding.found
    assert only(behaviour.episodes(subject(step=planted.never_ends)), OK).found.startswith("by the time limit of 100")


def test_episodes_that_end_at_once():
    assert "with their first step" in only(behaviour.episodes(subject(step=planted.ends_at_once)), FAIL).found


def test_a_run_that_cannot_be_repeated(monkeypatch):
    """The compiled kernels repeat themselves by construction: here the numbers are disturbed on the way."""
    runs = iter(range(100))
    original = behaviour._run

    def disturbed(*args, **options):
        record = original(*args, **options)
        record["all"][0, 0, 0] += next(runs)
        return record

    monkeypatch.setattr(behaviour, "_run", disturbed)
    found = list(behaviour.determinism(subject()))
    assert set(statuses(found)) == {FAIL}
    assert "a second run with the same seed" in found[0].found


# --- backends -----------------------------------------------------------------------------------------------------------


def test_an_index_outside_of_a_tuple_is_reported_once():
    report = gpuenvs.check(planted.variant(step=planted.indexes_a_tuple))
    (finding,) = report.failed
    assert finding.check == "indexing"
    assert f"planted.py, line {marked(planted.indexes_a_tuple)})" in finding.found


def test_an_index_outside_of_an_array_shows_in_plain_python():
    found = list(backends.plain_python(subject(step=planted.indexes_an_array)))
    finding = only(found, FAIL)
    assert finding.check == "indexing"
    assert f"planted.py, line {marked(planted.indexes_an_array)})" in finding.found


def test_a_variable_without_a_value_shows_in_plain_python_and_the_simulator_is_spared():
    faulty = subject(step=planted.leaves_a_variable_unset)
    finding = only(backends.plain_python(faulty), FAIL)
    assert f"planted.py, line {marked(planted.leaves_a_variable_unset)})" in finding.found
    assert "'y'" in finding.found
    assert "plain Python raises already" in only(backends.simulator(faulty), SKIP).found


def test_functions_that_keep_something_between_calls(monkeypatch):
    calls = iter(range(10**6))
    original = backends.PlainRow.step

    def remembers(self, *given):
        moved, reward, *rest = original(self, *given)
        return (moved, reward + np.float32(next(calls)), *rest)

    monkeypatch.setattr(backends.PlainRow, "step", remembers)
    found = [finding for finding in backends.plain_python(subject()) if finding.status == FAIL]
    assert [finding.check for finding in found] == ["hidden state", "backend agreement"]
    assert "reward differs" in found[1].found and "State(x=" in found[1].found


def test_a_simulator_that_computes_something_else(monkeypatch):
    def simulate(spec, real, autoreset, scenario):
        record = backends.play("cpu", spec, real, autoreset, scenario)
        record["step2/reward"] = record["step2/reward"] + np.float32(0.5)
        return record

    monkeypatch.setattr(backends.offline, "missing", lambda: None)
    monkeypatch.setattr(backends, "simulate", simulate)
    finding = only(backends.simulator(subject()), FAIL)
    assert "step2/reward: differs by up to 0.5" in finding.found


def test_a_numpy_function_that_only_the_cpu_has():
    if backends.offline.problem():
        pytest.skip(backends.offline.problem())
    faulty = subject(step=planted.numpys_root)
    finding = only(backends.machine_code(faulty), FAIL)
    assert f"planted.py, line {marked(planted.numpys_root)}) uses np.sqrt" in finding.found
    assert finding.advice == "use gpuenvs.sqrt"
    assert "its kernels do not compile" in only(code.leaked(faulty.spec), OK).found


def test_the_simulator_finds_the_files_beside_and_nothing_of_the_current_folder(tmp_path, monkeypatch):
    """Python looks into the current folder first where it runs a module: there a name of its own library would be taken."""
    file = write(tmp_path / "env")
    (tmp_path / "array.py").write_text("raise RuntimeError('not this one')\n")
    monkeypatch.chdir(tmp_path)
    only(backends.simulator(Subject(gpuenvs.get(str(file)), seed=0)), OK)


def test_without_the_cuda_packages_that_is_said(monkeypatch):
    monkeypatch.setattr(backends.offline, "missing", lambda: "numba-cuda is not installed")
    for look in (backends.simulator, backends.machine_code):
        assert only(look(subject()), SKIP).found == "numba-cuda is not installed"
    finding = only(code.leaked(planted.GOOD), OK)
    assert "CUDA not looked at: numba-cuda is not installed" in finding.found
