"""One instruction of a kernel replaced by another: the comparison with the CPU, or a check of memory, must notice."""

from __future__ import annotations

import re
import sys
from unittest import mock

import pytest

import gpuenvs
from gpuenvs.runtime.buffers import SAME_STEP, make_layout
from tests.ladder import offline
from tests.ptx import backend
from tests.ptx.machine import Program
from tests.ptx.memory import Fault
from tests.ptx.parity import distances, exact_ones, furthest, play, scenario

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the CUDA compiler wheels are for Linux")

SWAPPED = {
    "add.f32": "sub.f32",
    "sub.f32": "add.f32",
    "mul.f32": "add.f32",
    "div.rn.f32": "mul.f32",
    "add.s64": "sub.s64",
    "add.s32": "sub.s32",
    "shl.b64": "shr.u64",
    "xor.b32": "or.b32",
    "and.pred": "or.pred",
    "or.pred": "and.pred",
    "not.pred": "mov.pred",
    "setp.lt.f32": "setp.ge.f32",
    "setp.gt.f32": "setp.le.f32",
    "setp.eq.f32": "setp.neu.f32",
    "setp.ge.s32": "setp.lt.s32",
    "setp.ge.s64": "setp.gt.s64",
    "cvt.rmi.f32.f32": "cvt.rpi.f32.f32",
    "mul.wide.u32": "mul.wide.s32",
    "st.global.f32": None,
    "st.global.u32": None,
    "st.global.u8": None,
    "fma.rn.f32": None,
}
EVERY = 6  # one of so many is tried


def mutants(text: str) -> list[tuple[str, str]]:
    """(what was done, text) for some of the instructions that can be swapped; those with None in the table are left out."""
    lines = text.splitlines()
    found = []
    for k, line in enumerate(lines):
        match = re.match(r"\s*([a-z][\w.]*)\s", line)
        if not match or match[1] not in SWAPPED:
            continue
        other = SWAPPED[match[1]]
        changed = line.replace(match[1], other, 1) if other else ""
        if match[1].startswith("fma"):  # its addend left out
            parts = line.replace("fma.rn", "mul").rstrip(";").split(",")
            changed = ",".join(parts[:3]) + ";"
        found.append((f"line {k + 1}: {line.strip()}", "\n".join([*lines[:k], changed, *lines[k + 1 :]])))
    return found[::EVERY]


def noticed(start, expected, mutant: str) -> bool:
    programs = dict(backend._programs)
    layout = make_layout(gpuenvs.get("CartPole-v1"), SAME_STEP)
    key = (id(layout.spec), SAME_STEP, (), "float32", "step_kernel", True)
    with mock.patch.object(backend, "_programs", {**programs, key: (Program(mutant), layout.spec)}):
        try:
            with backend.interpreted():
                found = play("cuda:0", "CartPole-v1", start, "float32", SAME_STEP)
        except Fault:
            return True
    return bool(exact_ones(found, expected)) or furthest(distances(found, expected)) > 1e-5


def test_wrong_instructions_are_noticed():
    case = offline.Case("CartPole-v1", "float32", SAME_STEP, "step_kernel")
    text = offline.ptx(case, backend.ARCHITECTURE)
    start = scenario("CartPole-v1", 300, "float32")
    expected = play("cpu", "CartPole-v1", start, "float32", SAME_STEP)
    assert not noticed(start, expected, text)
    tried = mutants(text)
    missed = [what for what, mutant in tried if not noticed(start, expected, mutant)]
    assert len(tried) > 40
    assert len(missed) <= len(tried) // 20, "\n".join(missed)
