"""The kernels of many steps become PTX and machine code within their budget."""

from __future__ import annotations

import json
import sys

import pytest

from gpuenvs.checks.ptxas import toolchain
from gpuenvs.runtime.cuda_policy import Mlp, Staging
from tests.ladder import fused
from tests.ladder.test_machine_code import LOCAL_MEMORY_GROWTH, regressions

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the CUDA compiler wheels are for Linux")

TABLE = json.loads(fused.PATH.read_text())


def test_table_lists_exactly_the_kernels_there_are():
    listed = {str(case): set(fused.architectures(case)) for case in fused.cases()}
    assert {name: set(rows) for name, rows in TABLE["kernels"].items()} == listed, f"run: {fused.UPDATE}"


@pytest.mark.parametrize("case", fused.cases(), ids=str)
def test_kernel_stays_within_its_budget(case):
    same = toolchain() == TABLE["toolchain"]
    for arch in fused.architectures(case):
        found = fused.measure(case, arch)
        traced = isinstance(case, fused.TracedRollout)
        growth = LOCAL_MEMORY_GROWTH if traced else 1.0
        worse = regressions(found, TABLE["kernels"][str(case)][arch], same, growth)
        assert not worse, f"{case} on {arch}: {'; '.join(worse)}. If that is meant, run: {fused.UPDATE}"
        for name in ("float64", "inexact", *(() if traced else ("stack", "spill_stores", "spill_loads"))):
            assert found[name] == 0, f"{case} on {arch}: {name}"
        assert found["shared"] == case.shared_bytes


def test_weights_are_read_four_at_a_time():
    """In the loop over the second layer's neurons too: an index that might be negative would make single loads of them."""
    text = fused.ptx(fused.Rollout("CartPole-v1"), "sm_90")
    assert text.count("ld.shared.v4.f32") >= (64 * (4 + 1) + 64) / 4
    assert text.count("ld.shared.f32") < 16
    assert text.count("fma.rn.f32") > 64 * 4 + 64


@pytest.mark.parametrize(
    ("mlp", "reason"),
    [
        (Mlp((4, 2), "tanh", False), "no hidden layer"),
        (Mlp((4, 64, 64, 2), "gelu", False), "no gelu"),
        (Mlp((4, 256, 256, 2), "tanh", False), "hidden_sizes 256,256 do not fit into a thread's registers"),
        (Mlp((376, 64, 64, 17), "tanh", True), "bytes of weights do not fit into 49152 bytes"),
        (Mlp((4, 64, 64, 2), "tanh", False), None),
        (Mlp((17, 64, 64, 6), "relu", True), None),
    ],
)
def test_policies_that_do_not_fit_are_told_so(mlp, reason):
    problem = mlp.problem()
    assert problem is None if reason is None else reason in problem


def test_every_weight_is_staged_once():
    mlp = Mlp((5, 16, 32, 16, 3), "tanh", True)
    staging = Staging(mlp)
    count = 5 * 16 + 16 + 16 * 32 + 32 + 32 * 16 + 16 + 16 * 3 + 3 + 3
    assert set(staging.order.tolist()) == set(range(count))
    assert staging.order[staging.weight[1] + 7 * staging.stride[1] + 9] == 5 * 16 + 16 + 7 * 16 + 9  # (out, in)
    assert staging.order[staging.weight[0] + 3 * staging.stride[0] + 9] == 9 * 5 + 3  # (in, out)
    assert all(start % 4 == 0 for start in (*staging.weight, *staging.bias, staging.shift, staging.std))
