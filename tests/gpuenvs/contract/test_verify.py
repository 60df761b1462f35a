"""When functions are looked at, and that an index out of range alters nobody else's row."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import gpuenvs
from gpuenvs import contract
from gpuenvs.errors import SpecError
from gpuenvs.runtime import disk_cache
from tests.gpuenvs.contract import planted


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and a process that has verified nothing."""
    monkeypatch.setenv("GPURL_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("GPURL_CACHE", raising=False)
    monkeypatch.setattr(contract, "_verified", {})
    monkeypatch.setattr(disk_cache, "edited_since_start", lambda patterns=(): False)
    return tmp_path


def held(cache):
    return list(cache.glob("contract-*.held"))


def test_functions_that_hold_it_are_not_looked_at_again_by_the_next_process(cache, monkeypatch):
    contract.verify(planted.SPEC, "float32")
    assert len(held(cache)) == 1
    contract._verified.clear()  # what a new process begins with
    monkeypatch.setattr(contract, "faults", lambda spec, real: pytest.fail("looked at again"))
    contract.verify(planted.SPEC, "float32")


def test_another_dtype_and_other_functions_are_looked_at(cache):
    contract.verify(planted.SPEC, "float32")
    contract.verify(planted.SPEC, "float64")
    contract.verify(planted.variant(observation_space=planted.SPEC.observation_space), "float32")
    assert len(held(cache)) == 2
    with pytest.raises(SpecError):
        contract.verify(planted.variant(step=planted.float64_reward), "float32")
    with pytest.raises(SpecError):  # each time anew
        contract.verify(planted.variant(step=planted.float64_reward), "float32")
    assert len(held(cache)) == 2


def test_numbers_of_the_spec_count_too(cache):
    """The same functions do not fit a spec with a longer observation."""
    contract.verify(planted.SPEC, "float32")
    box = type(planted.SPEC.observation_space)(-1, 1, (3,))
    with pytest.raises(SpecError, match="returns 2 values where observation_space has 3"):
        contract.verify(dataclasses.replace(planted.SPEC, observation_space=box), "float32")


def test_without_a_cache_they_are_looked_at_once_per_process(cache, monkeypatch):
    monkeypatch.setenv("GPURL_CACHE", "0")
    contract.verify(planted.SPEC, "float32")
    assert held(cache) == []
    monkeypatch.setattr(contract, "faults", lambda spec, real: pytest.fail("looked at again"))
    contract.verify(planted.SPEC, "float32")


def test_an_index_out_of_range_stops_the_step_and_alters_no_other_row():
    rows, bad = 700, 300  # more than one block of rows
    with gpuenvs.make(planted.variant(step=planted.indexes), rows, device="cpu", threads=1) as env:
        env.reset(seed=0)
        x = np.arange(rows, dtype=np.float32) / 1024
        env.set_state(planted.State(x, np.zeros(rows, np.int32)))
        env.step(np.zeros((rows, 2), np.float32))
        np.testing.assert_array_equal(env.get_state().x, x + 1)
        env.set_state(planted.State(x, (np.arange(rows) == bad) * 7))
        with pytest.raises(IndexError) as caught:
            env.step(np.zeros((rows, 2), np.float32))
        others = np.arange(rows) != bad
        after = env.get_state().x
        assert (((after == x) | (after == x + 1)) | ~others).all()
    assert isinstance(caught.value, SpecError)
    assert "Planted-v0: step (" in str(caught.value)
    assert f"planted.py, line {planted.marked(planted.indexes)})" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("step", [planted.writes_outside, planted.array_copy], ids=lambda f: f.__name__)
def test_functions_that_could_write_out_of_range_do_not_begin(step):
    with pytest.raises(SpecError), gpuenvs.make(planted.variant(step=step), 2, device="cpu") as env:
        env.reset(seed=0)
