"""What the report of CUDA kernels counts and reads."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import cuda_kernels
from gpuenvs import trace as T
from gpuenvs.checks.ptxas import Usage, opcodes
from gpuenvs.trace.python import PythonPrinter
from tests.gpuenvs.trace.running import recorded


def counted(function: Any) -> Counter[str]:
    """Operations of a function of two reals, inputs and outputs aside."""
    printer = PythonPrinter(recorded(function, "rr", "float64"), "f", {k: f"b{k}" for k in range(9)})
    printer.text()
    counts = cuda_kernels.region_counts(printer.program.root, printer)
    del counts["memory"]
    return +counts


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, y: [x * y + x], {"fused": 1}),
        (lambda x, y: [x * y + x, x * y], {"mul": 1, "add": 1}),
        (lambda x, y: [x * x + y * y], {"mul": 1, "fused": 1}),
        (lambda x, y: [x / y - T.sqrt(x)], {"div": 1, "sqrt": 1, "add": 1}),
        (lambda x, y: [T.where(x < y, x, -y)], {"choose": 2}),
    ],
)
def test_operations_by_kind(function: Any, expected: dict[str, int]):
    assert counted(function) == expected


def test_a_step_is_counted_by_what_runs():
    work = cuda_kernels.count_work("InvertedPendulum-v5", "float32")
    assert work.counts["fused"] > 100
    assert work.slots > sum(work.counts.values())
    usage = Usage(100, 0, 0, 0, instructions=800, machine_instructions=900, float64=0, inexact=0)
    ceilings = work.ceilings(usage, 4)
    assert ceilings["compute"] == pytest.approx(132 * 1.98e9 * 128 / work.slots)
    assert ceilings["memory"] == pytest.approx(4.8e12 / work.bytes)
    assert ceilings["local"] == np.inf
    spilled = work.ceilings(replace(usage, registers=255, stack=4000, spill_stores=2000, spill_loads=2000), 4)
    assert spilled["local"] == pytest.approx(4.8e12 / (4000 * sum(work.counts.values()) / 800))
    twice = cuda_kernels.count_work("InvertedPendulum-v5", "float64")
    assert twice.bytes > 1.5 * work.bytes
    assert 1.5 * work.slots < twice.slots < 4 * work.slots


def test_opcodes_are_those_of_the_body():
    body = [".reg .f32 %f<3>;", "", "$L__BB0_1:", "@%p1 bra $L__BB0_1;", "add.f32 %f1, %f2, %f2;", "ret;", "}"]
    text = "\n".join([".visible .entry kernel(", ".param .u64 p0)", "{", *body])
    assert opcodes(text) == ["bra", "add.f32", "ret"]


@pytest.mark.skipif(sys.platform != "linux", reason="the CUDA compiler wheels are for Linux")
def test_the_report_names_what_it_predicts():
    done = CliRunner().invoke(cuda_kernels.main, ["InvertedPendulum-v5"])
    assert done.exit_code == 0, done.output
    assert "predicted, not measured" in done.output
    (line,) = [line for line in done.output.splitlines() if line.startswith("| InvertedPendulum-v5")]
    assert "steps/s" in line
