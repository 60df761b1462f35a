"""The CUDA backend as far as it can be seen without a device: messages, generated source, and the simulator.

What the kernels compute is compared with the CPU in tests/ladder.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpuenvs
from gpuenvs.errors import DeviceError
from gpuenvs.runtime import cuda
from gpuenvs.runtime.buffers import AUTORESET_MODES, SAME_STEP, make_layout
from gpuenvs.runtime.cuda_source import GROUPS, KERNELS, group_rows, python_kernel
from tests.gpuenvs.classic import CLASSIC

ROOT = Path(__file__).parents[2]


def hide(monkeypatch, *names):
    """Make modules look as if they were not installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in names else find(name, *rest))


@pytest.mark.parametrize("missing", ["numba_cuda", "cupy"])
def test_a_missing_package_is_named_with_what_to_install(monkeypatch, missing):
    present = {"numba_cuda", "cupy"} - {missing}
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == missing else (object() if name in present else find(name, *rest)),
    )
    problem = cuda.cuda_problem(0)
    assert problem is not None
    assert missing.replace("_", "-") in problem
    assert "gpurl[cuda12]" in problem
    assert "\n" not in problem


def test_cuda_without_cuda_is_one_clear_error(monkeypatch):
    hide(monkeypatch, "cupy")
    for device in ("cuda", "cuda:0", "cuda:3"):
        with pytest.raises(DeviceError, match="cannot be used: cupy is not installed") as caught:
            gpuenvs.make("CartPole-v1", 2, device=device)
        assert "\n" not in str(caught.value)


def test_backend_refuses_by_itself(monkeypatch):
    hide(monkeypatch, "numba_cuda")
    layout = make_layout(gpuenvs.get("CartPole-v1"), SAME_STEP)
    with pytest.raises(DeviceError, match="numba-cuda is not installed"):
        cuda.CudaBackend(layout, np.dtype(np.float32), 2, 0)


def test_auto_takes_the_cpu_when_there_is_no_device(monkeypatch):
    hide(monkeypatch, "cupy")
    with gpuenvs.make("CartPole-v1", 2, device="auto") as env:
        assert env.device == "cpu"


@pytest.mark.parametrize("real", ["float32", "float64"])
@pytest.mark.parametrize("autoreset", AUTORESET_MODES)
@pytest.mark.parametrize("env_id", CLASSIC)
def test_every_buffer_has_rows_of_its_own(env_id, autoreset, real):
    spec = gpuenvs.get(env_id)
    layout = make_layout(spec, autoreset, (type(spec.params)._fields[0],))
    places = group_rows(layout, np.dtype(real))
    assert set(places) == {b.name for b in layout.buffers} - {"action"}
    taken = [
        (places[b.name][0], places[b.name][1] + row)
        for b in layout.buffers
        if b.name != "action"
        for row in range(b.rows)
    ]
    assert len(set(taken)) == len(taken)
    for group in GROUPS:
        rows = sorted(row for g, row in taken if g == group)
        assert rows == list(range(len(rows)))


@pytest.mark.parametrize("env_id", CLASSIC)
def test_kernels_read_each_element_once(env_id):
    """Before the first write, so that the reads overlap; the number of the episode is read when a row ends."""
    layout = make_layout(gpuenvs.get(env_id), SAME_STEP)
    for name in KERNELS:
        kernel = python_kernel(layout, np.dtype(np.float32), name, None)
        lines = [line.strip() for line in inspect.getsource(kernel).splitlines()]
        reads = [line.split(" = ")[1] for line in lines if line.endswith(", i]") and line.count("=") == 1]
        assert len(set(reads)) == len(reads)
        assert all(line.startswith("_") for line in lines if ", i] = " in line), "a write must keep its value"


SIMULATED = """
import numpy as np
import gpuenvs
from gpuenvs.errors import ActionError, DeviceError

def refuses(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("no error")

assert "there is no cuda:1" in refuses(DeviceError, lambda: gpuenvs.make("CartPole-v1", 2, device="cuda:1"))

# A wrong action is found when the host looks, and is not held against later steps.
env = gpuenvs.make("CartPole-v1", 3, device="cuda")
env.reset(seed=0)
env.step(np.array([0, 7, -1]))
message = refuses(ActionError, lambda: env.nonfinite_states)
assert "2 actions" in message and "0..1" in message, message
env.step(np.array([0, 1, 1]))
assert env.nonfinite_states == 0 and env.snapshot()["elapsed"].tolist() == [[2, 2, 2]]

# Arrays never move, whatever happens.
where = {name: array.ctypes.data for name, array in env._arrays.items()}
env.reset(seed=5)
env.step(np.array([0, 1, 1], np.int32))
env.reset(rows=[1])
env.restore(env.snapshot())
assert where == {name: array.ctypes.data for name, array in env._arrays.items()}
assert env.obs.strides == (4, 12) and env.obs.shape == (3, 4)

# Row i does not depend on how many rows there are or on where the batch begins.
def rows(n, offset):
    with gpuenvs.make("Pendulum-v1", n, device="cuda", seed=4, env_offset=offset, max_episode_steps=2) as batch:
        batch.reset()
        for t in range(4):
            obs, *_ = batch.step(np.linspace(-1, 1, 300, dtype=np.float32)[offset:offset + n, None])
        return np.array(obs)

whole = rows(261, 0)
for n, offset in ((1, 0), (1, 260), (128, 0), (129, 100)):
    assert np.array_equal(rows(n, offset), whole[offset:offset + n])
"""


def test_simulated_batches():
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SIMULATED], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
