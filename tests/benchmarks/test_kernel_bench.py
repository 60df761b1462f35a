import io
import json
import os
import subprocess
import sys
from typing import ClassVar

import pytest
from rich.console import Console

from benchmarks import kernel_bench
from benchmarks.cases import ENV_IDS
from gpuenvs.errors import DeviceError, UnknownEnvError
from tests.benchmarks.test_workers import WORKERS, _load

RATES = {"copy_bytes_per_second": 100e9, "fma_per_second": 50e9, "div_per_second": 10e9, "sgemm_flops_per_second": 1e12}
STEP = {
    "kernel": "step_kernel",
    "steps_per_second": 400e6,
    "bytes_per_step": 75,
    "copy_bytes_per_second": 75e9,
    "threads": 2,
}
ROLLOUT = {**STEP, "kernel": "rollout", "steps_per_second": 10e6, "policy_flops_per_step": 20_000}
OPERATIONS = {"add": 30, "multiply": 70, "divide": 2, "compare": 5}


def fake(monkeypatch, kernels, operations=None, rates=RATES):
    """`run` with every process replaced by an answer; `kernels` are those of each repeat."""
    requests, answers = [], list(kernels)

    def measure(contender, python, request):
        requests.append((contender.worker, request))
        if contender.worker != "gpurl_kernels":
            return operations or {"kernels": {"step_kernel": OPERATIONS}}
        found = answers.pop(0)
        return found if isinstance(found, dict) else {"kernels": found, "rates": rates}

    monkeypatch.setattr(kernel_bench, "measure", measure)
    return requests


def printed(rows):
    console = Console(width=220, file=io.StringIO(), record=True)
    for table in kernel_bench.tables(rows):
        console.print(table)
    return console.export_text()


def test_a_row_holds_what_was_reached_of_what_the_device_can_do(monkeypatch):
    requests = fake(monkeypatch, [[STEP, ROLLOUT]])
    head, step, rollout = kernel_bench.run(["CartPole-v1"], repeats=1)
    assert head["benchmark"] == "machine"
    assert [worker for worker, _ in requests] == ["gpurl_operations", "gpurl_kernels"]
    assert requests[1][1]["num_envs"] == 16_384 and requests[1][1]["action"] == {"n": 2}
    assert (step["env"], step["kernel"], step["device"]) == ("CartPole-v1", "step_kernel", "cpu")
    assert step["gigabytes_per_second"] == pytest.approx(30)
    assert step["copy_share"] == pytest.approx(0.4)
    # 1 ns to copy 75 bytes; 50 multiply-adds and 2 divisions are 1.2 ns.
    assert step["floor"]["bound"] == "arithmetic"
    assert step["fraction"] == pytest.approx(0.48)
    assert "sgemm_share" not in step and "card_copy_share" not in step
    assert rollout["operations_per_step"] == OPERATIONS
    assert rollout["sgemm_share"] == pytest.approx(0.2)
    assert rollout["fraction"] == pytest.approx(10e6 * (20e-9 + 1.2e-9))
    text = printed([head, step, rollout])
    assert "40%" in text and "20%" in text and "20100" in text
    assert "registers" not in text


def test_the_median_of_the_repeats_counts(monkeypatch):
    fake(monkeypatch, [[{**STEP, "steps_per_second": rate}] for rate in (100e6, 300e6, 200e6)])
    rows = kernel_bench.run(["CartPole-v1"], repeats=3)
    assert rows[1]["steps_per_second"] == 200e6


def test_cuda_rows_have_registers_occupancy_and_the_cards_copy(monkeypatch):
    monkeypatch.setattr("gpuenvs.runtime.options.resolve_device", lambda device: "cuda:0")
    usage = {
        "registers": 40,
        "local_bytes": 8,
        "shared_bytes": 0,
        "threads_per_block": 128,
        "occupancy": 0.75,
        "graph": True,
    }
    requests = fake(monkeypatch, [[{**STEP, **usage}, {"kernel": "rollout", "skipped": "not for this"}]])
    rows = kernel_bench.run(["CartPole-v1"], device="cuda", repeats=1)
    assert requests[1][1]["num_envs"] == 2**20 and requests[1][1]["device"] == "cuda:0"
    assert rows[1]["card_copy_share"] == pytest.approx(0.3)
    assert rows[1]["copy_share"] == pytest.approx(0.4)
    text = printed(rows)
    assert "skipped: not for this" in text
    for shown in ("registers", "occupancy", "30%", "75%"):
        assert shown in text


def test_many_steps_in_one_launch_are_held_to_the_cards_copy(monkeypatch):
    monkeypatch.setattr("gpuenvs.runtime.options.resolve_device", lambda device: "cuda:0")
    found = {"kernel": "32 steps, random actions", "steps_per_second": 1e9, "bytes_per_step": 2.5, "registers": 30}
    fake(monkeypatch, [[{**found, "local_bytes": 0, "occupancy": 1.0}]])
    row = kernel_bench.run(["CartPole-v1"], device="cuda", repeats=1)[1]
    assert row["copy_bytes_per_second"] == 100e9
    assert row["operations_per_step"] == OPERATIONS
    assert row["floor"]["bound"] == "arithmetic"


def test_failures_are_rows(monkeypatch):
    fake(
        monkeypatch,
        [{"error": "no answer"}, [STEP, {"kernel": "rollout", "error": "bad"}]],
        operations={"error": "broken"},
    )
    rows = kernel_bench.run(["CartPole-v1", "Pendulum-v1"], repeats=1)
    assert [row.get("error") for row in rows[1:]] == ["no answer", None, "bad"]
    assert rows[2]["operations_error"] == "broken" and rows[2]["operations_per_step"] is None
    assert rows[2]["floor"]["bound"] == "memory"
    assert "no answer" in printed(rows) and "?" in printed(rows)


def test_traced_environments_have_a_counter_and_a_size_of_their_own(monkeypatch):
    requests = fake(monkeypatch, [[STEP]])
    kernel_bench.run(["HalfCheetah-v5"], repeats=1)
    assert [worker for worker, _ in requests] == ["gpurl_traced_operations", "gpurl_kernels"]
    assert requests[1][1]["num_envs"] == 4096


def test_defaults(monkeypatch):
    requests = fake(monkeypatch, [[STEP]] * 3 * len(ENV_IDS))
    rows = kernel_bench.run()
    assert [row["env"] for row in rows[1:]] == list(ENV_IDS)
    assert sum(worker == "gpurl_kernels" for worker, _ in requests) == 3 * len(ENV_IDS)


def test_what_cannot_be_is_refused_before_anything_runs(monkeypatch):
    requests = fake(monkeypatch, [])
    with pytest.raises(UnknownEnvError, match="CartPole-v1"):
        kernel_bench.run(["CartPole-v0"])
    with pytest.raises(DeviceError, match="cuda:97"):
        kernel_bench.run(["CartPole-v1"], device="cuda:97")
    assert requests == []


# --- the workers -----------------------------------------------------------------------------------------------------


def test_the_worker_measures_each_kernel_on_the_cpu():
    rows = kernel_bench.run(["CartPole-v1"], num_envs=256, seconds=0.02, repeats=1)
    assert [row["kernel"] for row in rows[1:]] == ["step_kernel", "begin_kernel", "observe_kernel", "rollout"]
    for row in rows[1:]:
        assert row["steps_per_second"] > 0 and row["copy_bytes_per_second"] > 0, row
        assert row["operations_per_step"] is not None
    assert rows[1]["operations_per_step"]["divide"] == 1
    assert rows[4]["policy_flops_per_step"] == 2 * (2 * (4 * 64 + 64 * 64) + 64 * 3)


def test_operations_of_a_traced_environment():
    """Counted by regions; the pole's mass matrix alone is dozens, and another run counts the same."""
    from benchmarks.process import measure

    request = {"env_id": "InvertedPendulum-v5", "seconds": 0.1}
    found = measure(kernel_bench._TRACED, "", request)["kernels"]
    assert measure(kernel_bench._TRACED, "", request)["kernels"] == found
    assert 100 < found["step_kernel"]["multiply"] < 5000
    assert found["step_kernel"]["divide"] >= 2
    assert found["begin_kernel"]["add"] >= 4  # four uniform numbers in a range
    assert found["observe_kernel"] == {}


def test_visits_count(monkeypatch):
    """A loop of ten turns over one multiplication and a branch never taken."""
    from gpuenvs.trace.control import loop
    from gpuenvs.trace.graph import apply, as_value, record, record_if, statement
    from gpuenvs.trace.python import PythonPrinter, load

    worker = _load(monkeypatch, "gpurl_traced_operations")
    with record() as program:
        start = statement("get", "real", (), (0, 0, "float32"))
        (value,) = loop(10, lambda k, x: [x * start], [start])
        never = record_if(apply("any", value < -1e30), lambda: [value / start], [value])
        statement("put", "none", (never[0] + start, as_value(True, "bool")), (0, 1, "float32"))
    printed = PythonPrinter(program, "kernel", {0: "x"}, visits=True)
    text = printed.text()
    visits = [0] * len(printed.regions)
    import numpy as np

    run = load(text, "kernel", "float32", visits=visits)
    for i in range(worker.ROWS):
        run(i, {"x": np.full((2, worker.ROWS), 1.01, np.float32)}, {}, [])
    assert worker.total(printed, visits) == {"multiply": 10.0, "divide": 0.0, "add": 1.0}


SIMULATED = """
import numpy as np
import cuda_floor

x = np.array([1.7, 0.4], np.float32)
for kernel, turn in zip(cuda_floor.kernels(), (lambda c: c * a + b, None)):
    out, a, b = x.copy(), np.float32(0.7), np.float32(0.3)
    kernel[2, 2](out, a, b, 3)
    chains = [x, x + a, x + b, x - b]
    chains += [chains[1] + a, chains[2] + b, chains[3] + a, x * b]
    for _ in range(3):
        chains = [turn(c) if turn else (b if k % 2 else a) / c for k, c in enumerate(chains)]
    expected = chains[0]
    for c in chains[1:]:
        expected = expected + c
    assert np.allclose(out, expected, rtol=1e-5), (out, expected)
"""


def test_the_kernels_that_measure_a_card_do_what_is_counted():
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(WORKERS)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SIMULATED], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]


class FakeCuda:
    """As much of cupy as the stopwatch asks for, with a clock that work moves."""

    def __init__(self, records=True):
        self.now, self.records, self.recording = 0.0, records, None
        self.cuda = self
        outer = self

        class Event:
            def record(self, stream):
                self.at = outer.now

            def synchronize(self):
                pass

        self.Event = Event

    def Stream(self, non_blocking):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def synchronize(self):
        pass

    def begin_capture(self):
        self.recording = []

    def end_capture(self):
        recorded, self.recording = self.recording, None
        if not self.records:
            raise RuntimeError("not permitted")

        class Graph:
            def launch(graph, stream):
                for work in recorded:
                    work()

        return Graph()

    def get_elapsed_time(self, begin, end):
        return 1e3 * (end.at - begin.at)


@pytest.mark.parametrize("records", [True, False])
def test_the_stopwatch(monkeypatch, records):
    """A launch of 2 ms, recorded in a graph or not."""
    worker, cuda = _load(monkeypatch, "gpurl_kernels"), FakeCuda(records)
    monkeypatch.setitem(sys.modules, "cupy", cuda)

    def launch():
        if cuda.recording is not None:
            cuda.recording.append(launch)
        else:
            cuda.now += 2e-3

    seconds, graph = worker.Stopwatch(0.5).seconds_per_call(launch)
    assert seconds == pytest.approx(2e-3)
    assert graph is records


def test_usage_of_a_kernel(monkeypatch):
    worker, floor = _load(monkeypatch, "gpurl_kernels"), _load(monkeypatch, "cuda_floor")
    limits = {"registers": 65_536, "threads": 2048, "blocks": 32, "shared_bytes": 233_472, "processors": 132}
    monkeypatch.setattr(floor, "limits", lambda index: limits)

    class Compiled:
        regs_per_thread, local_mem_per_thread, shared_mem_per_block = 64, 16, 0

    class Dispatcher:
        overloads: ClassVar = {"signature": Compiled}

    found = worker.usage(Dispatcher, 0, 10**6)
    assert found == {"registers": 64, "local_bytes": 16, "shared_bytes": 0, "threads_per_block": 128, "occupancy": 0.5}


ON_CUDA = """
import contextlib, json, sys, types
import numpy as np

cupy = types.ModuleType("cupy")
vars(cupy).update({name: getattr(np, name) for name in ("asarray", "arange", "zeros", "full", "uint8", "float32")})
now = [0.0]

class Event:
    def record(self, stream):
        now[0] += 1.0
        self.at = now[0]
    def synchronize(self):
        pass

class Block(contextlib.AbstractContextManager):
    ptr = 0
    def __init__(self, *arguments, **more):
        pass
    def __exit__(self, *error):
        pass
    def synchronize(self):
        pass
    def begin_capture(self):
        raise RuntimeError("no graphs here")

cupy.cuda = types.SimpleNamespace(
    Event=Event, Stream=Block, Device=Block, get_elapsed_time=lambda a, b: 1e3 * (b.at - a.at)
)
sys.modules["cupy"] = cupy

import cuda_floor
import gpurl_kernels
from timing import Clock

cuda_floor.rates = lambda watch, device: {}
cuda_floor.copy_rate = lambda watch, size: float(size)
gpurl_kernels.usage = lambda kernel, index, rows: {"rows": rows, "has_kernel": kernel is not None}
request = {"env_id": sys.argv[1], "device": "cuda:0", "num_envs": 4, "threads": 1, "action": json.loads(sys.argv[2])}
print(json.dumps(gpurl_kernels.on_cuda(request, Clock(0.1))))
"""


@pytest.mark.parametrize(
    ("env_id", "action"),
    [("CartPole-v1", {"n": 2}), ("Pendulum-v1", {"k": 1, "low": -2, "high": 2})],
)
def test_the_worker_launches_each_kernel_on_cuda(env_id, action):
    """In the simulator, with a stand-in for cupy whose events are a second apart."""
    path = os.pathsep.join([str(WORKERS), str(WORKERS.parent.parent)])
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": path}
    command = [sys.executable, "-W", "ignore", "-c", ON_CUDA, env_id, json.dumps(action)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    found = {row["kernel"]: row for row in json.loads(done.stdout.splitlines()[-1])["kernels"]}
    for name in ("step_kernel", "begin_kernel", "observe_kernel"):
        assert found[name]["steps_per_second"] == pytest.approx(4), found[name]
        assert found[name]["graph"] is False and found[name]["has_kernel"]
        assert found[name]["copy_bytes_per_second"] == 4 * found[name]["bytes_per_step"]
    assert found["32 steps, random actions"]["steps_per_second"] == pytest.approx(4 * 32)
    assert "error" in found["rollout"] or "skipped" in found["rollout"]  # torch has no simulator
