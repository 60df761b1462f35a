"""Ladder step 4: the PTX of every classic-control kernel does what the compiled CPU kernels do."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import gpuenvs
from gpuenvs.errors import ActionError
from gpuenvs.runtime.buffers import AUTORESET_MODES, SAME_STEP
from tests.gpuenvs.classic import CLASSIC
from tests.ptx.backend import interpreted
from tests.ptx.parity import distances, exact_ones, furthest, play, scenario

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the CUDA compiler wheels are for Linux")

ROWS = 300  # two blocks and a part of a third
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
VARIANTS = [(e, "float32", mode) for e in CLASSIC for mode in AUTORESET_MODES] + [
    (e, "float64", SAME_STEP) for e in CLASSIC
]


def assert_close(found, expected, variant, start):
    """Within the tolerance; or, in a row where float32 itself is further off, within four times what it is off by there.

    An Acrobot that turns at its greatest speed loses four digits in one step.
    """
    env_id, real, autoreset = variant
    apart = distances(found, expected)
    if furthest(apart) <= TOLERANCE[real]:
        return
    assert real == "float32"
    follow = {name: value.astype(np.float64) if value.dtype.kind == "f" else value for name, value in found.items()}
    exact = play("cpu", env_id, start, "float64", autoreset, follow=follow)
    off = distances(expected, exact)
    beyond = 0
    for name, values in apart.items():
        if values.size:
            assert (values <= TOLERANCE[real] + 4 * np.max(off[name], axis=0)).all(), name
            beyond += np.count_nonzero(values > TOLERANCE[real])
    assert beyond <= 4  # numbers of the tens of thousands


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_kernels_agree_with_the_cpu(variant):
    env_id, real, autoreset = variant
    start, log = scenario(env_id, ROWS, real), []
    with interpreted(log):
        found = play("cuda:0", env_id, start, real, autoreset)
    expected = play("cpu", env_id, start, real, autoreset, follow=found)
    assert exact_ones(found, expected) == []
    assert_close(found, expected, variant, start)
    assert {name for name, _ in log} == {"step_kernel", "begin_kernel", "observe_kernel"}
    assert not any(statistics.inexact for _, statistics in log)
    # What was to happen did: rows ended at different steps, some by the limit, one by its NaN.
    ended = [found[f"step{t}/terminated"] | found[f"step{t}/truncated"] for t in range(3)]
    assert all(0 < np.count_nonzero(rows) < ROWS for rows in ended)
    assert any(found[f"step{t}/truncated"].any() for t in range(3))
    assert found["step0/totals"][3] >= 1
    assert any(len(np.unique(found[f"step{t}/episode"])) > 1 for t in range(3))


def test_wrong_actions_are_counted():
    with interpreted(), gpuenvs.make("CartPole-v1", ROWS, device="cuda:0") as env:
        env.reset(seed=0)
        action = np.zeros(ROWS, np.int32)
        action[[3, 200]] = 2, -1
        env.step(action)
        with pytest.raises(ActionError, match="2 actions since the last check"):
            env.snapshot()
