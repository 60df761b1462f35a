"""Ladder step 4 for drawn params and sums of metrics: the PTX of their kernels does what the CPU kernels do."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from gpuenvs import registry
from tests.gpuenvs.ranged import SPECS, record
from tests.ptx.backend import interpreted

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the CUDA compiler wheels are for Linux")


@pytest.mark.parametrize("kind", SPECS)
def test_what_is_drawn_and_summed_up_agrees_with_the_cpu(kind, monkeypatch):
    monkeypatch.setattr(registry, "_specs", {**registry._specs, SPECS[kind].id: SPECS[kind]})
    with interpreted(log := []):
        found = record("cuda:0", kind)
    assert {name for name, _ in log} == {"step_kernel", "begin_kernel"}
    for name, values in record("cpu", kind).items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=2e-6, err_msg=name)
    assert len(np.unique(found["offset"])) > 20
