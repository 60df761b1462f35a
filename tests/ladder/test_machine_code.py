"""Ladder step 3: every kernel becomes PTX and machine code, within its budget of registers and local memory."""

from __future__ import annotations

import sys

import pytest

from gpuenvs.checks.ptxas import find_ptxas
from tests.ladder import budget, traced
from tests.ladder.offline import ARCHITECTURES, Case, cases, usage

# The CUDA compiler's wheels exist for Linux alone; there they are part of the dev extra and must be found.
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the CUDA compiler wheels are for Linux")

KERNELS = cases()
TRACED = traced.cases()
TABLE = budget.read()
# Local memory is exact. Registers count in the eights in which the hardware hands them out, for that is
# what occupancy sees. Instructions may grow by a tenth before somebody must look. Another version of the
# compiler may need eight registers more without anything having been made worse.
INSTRUCTION_GROWTH = 1.1
OTHER_TOOLCHAIN_REGISTERS = 8
# Traced kernels that need local memory at all: what the compiler spills moves with every change of the physics.
LOCAL_MEMORY_GROWTH = 1.1
CHANGED_ARCHITECTURE = "sm_90"


def test_ptxas_knows_the_newest_architecture(tmp_path):
    assert find_ptxas()
    assert usage(KERNELS[0], "sm_120").registers > 0


def test_table_lists_exactly_the_kernels_there_are():
    assert set(TABLE["kernels"]) == {str(case) for case in KERNELS}, f"run: {budget.UPDATE}"
    assert all(set(rows) == set(ARCHITECTURES) for rows in TABLE["kernels"].values())
    listed = {str(case): {"source", *traced.architectures(case)} for case in TRACED}
    assert {name: set(rows) for name, rows in TABLE["traced"].items()} == listed, f"run: {budget.UPDATE}"


def regressions(found: dict[str, int], allowed: dict[str, int], same_toolchain: bool, growth: float = 1.0) -> list[str]:
    """What of `found` exceeds `allowed`, in words; local memory may grow by the factor `growth`."""
    limit = {name: int(value * growth) for name, value in allowed.items()}
    limit["registers"] = -(-allowed["registers"] // 8) * 8
    for name in ("instructions", "machine_instructions"):
        limit[name] = int(allowed.get(name, 0) * INSTRUCTION_GROWTH)
    if not same_toolchain:
        limit["registers"] += OTHER_TOOLCHAIN_REGISTERS
    return [f"{name}: {value} > {limit[name]}" for name, value in found.items() if value > limit[name]]


@pytest.mark.parametrize("case", KERNELS, ids=str)
def test_kernel_stays_within_its_budget(case: Case):
    same = budget.same_toolchain(TABLE)
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
    assert usage(case, "sm_90").inexact == 0


@pytest.mark.parametrize("case", TRACED, ids=str)
def test_traced_kernel_stays_within_its_budget(case: Case):
    """Compiles what is not the very source of the table, for one architecture: the larger programs take long."""
    same, rows = budget.same_toolchain(TABLE), TABLE["traced"][str(case)]
    found = {arch: rows[arch] for arch in traced.architectures(case)}
    if not same or rows["source"] != traced.digest(case):
        found = {CHANGED_ARCHITECTURE: traced.usage(case, CHANGED_ARCHITECTURE).row()}
        worse = regressions(found[CHANGED_ARCHITECTURE], rows[CHANGED_ARCHITECTURE], same, LOCAL_MEMORY_GROWTH)
        assert not worse, f"{case}: {'; '.join(worse)}. If that is meant, run: {budget.UPDATE}"
    for row in found.values():
        assert row["inexact"] == 0
        assert case.real == "float64" or row["float64"] == 0


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("env_id", ["InvertedDoublePendulum-v5", "HalfCheetah-v5"])
def test_the_table_says_what_the_compilers_say(env_id: str, arch: str):
    case = Case(env_id, "float32", "same_step", "step_kernel")
    rows = TABLE["traced"][str(case)]
    found = traced.usage(case, arch).row()
    if budget.same_toolchain(TABLE) and rows["source"] == traced.digest(case):
        assert found == rows[arch]
    assert found["registers"] > 0


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
