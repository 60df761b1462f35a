"""Ladder step 3: every kernel becomes PTX and machine code, within its budget of registers and local memory."""

from __future__ import annotations

import sys

import pytest

from tests.ladder import budget
from tests.ladder.offline import ARCHITECTURES, Case, cases, find_ptxas, instructions, ptx, toolchain, usage

# The CUDA compiler's wheels exist for Linux alone; there they are part of the dev extra and must be found.
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the CUDA compiler wheels are for Linux")

KERNELS = cases()
TABLE = budget.read()
# Local memory is exact. Registers count in the eights in which the hardware hands them out, for that is
# what occupancy sees. Instructions may grow by a tenth before somebody must look. Another version of the
# compiler may need eight registers more without anything having been made worse.
INSTRUCTION_GROWTH = 1.1
OTHER_TOOLCHAIN_REGISTERS = 8


def test_ptxas_knows_the_newest_architecture(tmp_path):
    assert find_ptxas()
    assert usage(KERNELS[0], "sm_120").registers > 0


def test_table_lists_exactly_the_kernels_there_are():
    assert set(TABLE["kernels"]) == {str(case) for case in KERNELS}, f"run: {budget.UPDATE}"
    assert all(set(rows) == set(ARCHITECTURES) for rows in TABLE["kernels"].values())


def regressions(found: dict[str, int], allowed: dict[str, int], same_toolchain: bool) -> list[str]:
    """What of `found` exceeds `allowed`, in words."""
    limit = dict(allowed)
    limit["registers"] = -(-allowed["registers"] // 8) * 8
    limit["instructions"] = int(allowed["instructions"] * INSTRUCTION_GROWTH)
    if not same_toolchain:
        limit["registers"] += OTHER_TOOLCHAIN_REGISTERS
    return [f"{name}: {value} > {limit[name]}" for name, value in found.items() if value > limit[name]]


@pytest.mark.parametrize("case", KERNELS, ids=str)
def test_kernel_stays_within_its_budget(case: Case):
    same = toolchain() == TABLE["toolchain"]
    for arch in ARCHITECTURES:
        worse = regressions(usage(case, arch).row(), TABLE["kernels"][str(case)][arch], same)
        assert not worse, f"{case} on {arch}: {'; '.join(worse)}. If that is meant, run: {budget.UPDATE}"


@pytest.mark.parametrize("case", [c for c in KERNELS if c.real == "float32"], ids=str)
def test_float32_kernel_has_no_float64_and_no_local_memory(case: Case):
    for arch in ARCHITECTURES:
        row = usage(case, arch)
        assert (row.float64, row.stack, row.spill_stores, row.spill_loads) == (0, 0, 0, 0)


@pytest.mark.parametrize("case", KERNELS, ids=str)
def test_kernel_calls_nothing_and_divides_exactly(case: Case):
    """No call left (everything is inlined), and none of the approximations that fast-math would bring."""
    opcodes = set(instructions(ptx(case, "sm_90")))
    unwanted = [o for o in opcodes if o.startswith(("call", "div.full")) or ".approx" in o or ".ftz" in o]
    assert not unwanted


def test_a_regression_is_reported():
    allowed = {"registers": 37, "stack": 0, "instructions": 500}
    assert regressions({"registers": 40, "stack": 0, "instructions": 550}, allowed, same_toolchain=True) == []
    worse = {"registers": 41, "stack": 8, "instructions": 551}
    assert regressions(worse, allowed, same_toolchain=True) == [
        "registers: 41 > 40",
        "stack: 8 > 0",
        "instructions: 551 > 550",
    ]
    assert regressions(worse, allowed, same_toolchain=False) == ["stack: 8 > 0", "instructions: 551 > 550"]
