"""Ladder step 4: the PTX of every MuJoCo task's kernels does what the compiled CPU kernels do.

Where compilers fuse a multiplication with an addition is their own choice, and a contact can make much of one rounding. So
there are two comparisons. With fused operations left out on both sides, every number must have the same bits. The kernels as
they are shipped must agree to 1e-5; where a task has contacts, all but a few in a thousand numbers.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest

from gpuenvs.runtime.buffers import AUTORESET_MODES, SAME_STEP
from tests.ladder.traced import MUJOCO
from tests.ptx import backend
from tests.ptx.backend import interpreted, without_contraction
from tests.ptx.parity import distances, exact_ones, furthest, play, scenario

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the CUDA compiler wheels are for Linux")

# Rows and steps where not 256 and 3: their steps take many seconds, almost whatever the number of rows is.
SIZES = {"HumanoidStandup-v5": (32, 1)}
PLAIN_SIZES = {"Humanoid-v5": (256, 1)}
TOLERANCE = 1e-5
# Tasks with contacts: how much of all numbers may be further apart, and how far. float32 itself is off by as much.
CONTACTS = {"HalfCheetah-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5", "HumanoidStandup-v5"}
SHARE, FURTHEST = 0.005, 0.02


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
    """Hundreds of megabytes that no other module needs."""
    yield
    backend._programs.clear()


def _start(env_id, sizes, real="float32"):
    n, steps = sizes.get(env_id, (256, 3))
    return scenario(env_id, n, real, steps)


@pytest.mark.parametrize("env_id", MUJOCO)
def test_kernels_agree_with_the_cpu(env_id):
    start, log = _start(env_id, SIZES), []
    with interpreted(log):
        found = play("cuda:0", env_id, start, "float32", SAME_STEP)
    expected = play("cpu", env_id, start, "float32", SAME_STEP, follow=found)
    assert exact_ones(found, expected) == []
    apart = distances(found, expected)
    if env_id in CONTACTS:
        beyond = sum(np.count_nonzero(values > TOLERANCE) for values in apart.values())
        assert beyond <= SHARE * sum(values.size for values in apart.values())
        assert furthest(apart) <= FURTHEST
    else:
        assert furthest(apart) <= TOLERANCE
    assert {name for name, _ in log} == {"step_kernel", "begin_kernel", "observe_kernel"}
    assert not any(statistics.inexact for _, statistics in log)
    n = start["elapsed"].size
    assert 0 < np.count_nonzero(found["step0/truncated"] | found["step0/terminated"]) < n
    assert len(np.unique(found["step0/episode"])) > 1
    assert found["step0/totals"][3] >= 1


PLAIN = [(env_id, "float32", SAME_STEP) for env_id in MUJOCO if env_id not in SIZES]
PLAIN += [("HalfCheetah-v5", "float32", mode) for mode in AUTORESET_MODES if mode != SAME_STEP]
PLAIN += [(env_id, "float64", SAME_STEP) for env_id in ("Hopper-v5", "HalfCheetah-v5")]


@pytest.mark.parametrize("variant", PLAIN, ids="-".join)
def test_without_fused_operations_every_bit_is_the_same(variant):
    env_id, real, autoreset = variant
    start, log = _start(env_id, PLAIN_SIZES, real), []
    with interpreted(log, contract=False):
        found = play("cuda:0", env_id, start, real, autoreset)
    with without_contraction():
        expected = play("cpu", env_id, start, real, autoreset, follow=found)
    assert exact_ones(found, expected) == []
    assert furthest(distances(found, expected)) == 0
    assert not any(name.startswith("fma") for _, statistics in log for name in statistics.executed)
