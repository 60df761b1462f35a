"""Kernels that another process compiles for this one."""

import numpy as np
import pytest

from gpuenvs.runtime.disk_cache import lacks
from learners.native import ahead
from learners.native.epochs import make_kernels, no_minibatch
from learners.native.network import Plan

BETAS = (0.9, 0.999)
PLANS = {"discrete": Plan((2, 16, 2), "relu"), "continuous": Plan((2, 16, 1), "tanh", True)}


def job(kind, critic=False):
    plan = PLANS[kind]
    return ahead.Job(plan.sizes, plan.activation, plan.log_std, critic, BETAS, kind == "discrete")


def fresh(kind, critic=False):
    """The kernel as a new process has it: not compiled yet."""
    return make_kernels(PLANS[kind], critic, BETAS)


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GPURL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("GPURL_CACHE", "1")
    monkeypatch.setattr(ahead, "allowed_cores", lambda: 2)
    monkeypatch.setattr(ahead, "TIMEOUT_SECONDS", 600)  # a busy machine
    return tmp_path


@pytest.mark.parametrize("kind", PLANS)
def test_what_another_process_made_is_found_on_disk_and_not_made_again(empty_cache, kind):
    kernels = fresh(kind)
    arguments = no_minibatch(PLANS[kind], kind == "discrete")
    made = ahead.start([(job(kind), kernels)])
    assert made is not None
    made.wait()
    assert not lacks(kernels.epochs, arguments)
    state = arguments[0]
    state[0] = np.arange(state.shape[1])
    before = state.copy()
    kernels.epochs(*arguments)
    np.testing.assert_array_equal(state, before)  # no step was made
    assert sum(kernels.epochs.stats.cache_hits.values()) == 1
    assert not kernels.epochs.stats.cache_misses
    assert ahead.start([(job(kind), fresh(kind))]) is None
    assert [file.name.split("-")[0] for file in empty_cache.glob("*.kernel")] == ["epochs"]


def test_nothing_is_started_with_one_core_or_without_a_cache(empty_cache, monkeypatch):
    kernels = fresh("discrete")
    monkeypatch.setattr(ahead, "allowed_cores", lambda: 1)
    assert ahead.start([(job("discrete"), kernels)]) is None
    monkeypatch.setattr(ahead, "allowed_cores", lambda: 2)
    monkeypatch.setenv("GPURL_CACHE", "0")
    assert ahead.start([(job("discrete"), fresh("discrete"))]) is None


def test_a_process_that_fails_or_is_dropped_leaves_nothing_behind(empty_cache):
    failing = ahead.Ahead([job("discrete")._replace(sizes=(2, 3, 2))])
    failing.wait()
    assert not list(empty_cache.glob("*.kernel"))
    kernels = fresh("discrete")
    dropped = ahead.start([(job("discrete"), kernels)])
    assert dropped is not None
    process = dropped._process
    del dropped
    assert process.returncode is not None
