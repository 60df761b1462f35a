"""`make gpu-check` on a machine without a GPU: what it says there, how it runs jobs, every section in small on the CPU."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import gpu_check
from benchmarks.checks import Report, Skip, findings
from benchmarks.gpu_check import Job, run_all, run_job

ROOT = Path(__file__).resolve().parents[2]
ABSENT = (
    "click", "rich", "platformdirs", "safetensors", "tensorboard", "matplotlib", "imageio", "pygame", "pytest", "scipy",
    "hypothesis",
)  # fmt: skip


@pytest.fixture
def script(monkeypatch):
    """Lets jobs run a text of Python instead of a section."""

    def use(text):
        monkeypatch.setattr(
            gpu_check, "command", lambda request: [sys.executable, "-S", "-c", text, json.dumps(request)]
        )

    return use


# --- without a GPU ---------------------------------------------------------------------------------------------------


def without_gpu(arguments, **more):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **more}
    return subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)


# What `make test` leaves in the environment: a make started by a test would take itself for a part of it.
MAKE_SETS = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")


def test_without_a_gpu_it_ends_at_once_with_one_line():
    began = time.monotonic()
    done = without_gpu([sys.executable, "-m", "benchmarks.gpu_check"])
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("gpu-check: no GPU to check: ")
    assert done.stderr.count("\n") == 1
    assert time.monotonic() - began < 60


def test_an_interpreter_without_the_packages_is_told_so():
    done = without_gpu([sys.executable, "-S", "-m", "benchmarks.gpu_check"], PYTHONPATH=str(ROOT))
    assert done.returncode == 1
    assert "has no torch" in done.stderr and "PYTHON=... make gpu-check" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "environment", "chosen"),
    [
        (["VENV=nowhere"], {}, "python3"),
        (["VENV=nowhere", "PYTHON=python3.12"], {}, "python3.12"),
        (["VENV=nowhere"], {"PYTHON": "python3.13"}, "python3.13"),
        (["VENV={venv}"], {}, "{venv}/bin/python"),
        (["VENV={venv}"], {"PYTHON": "python3.12"}, "python3.12"),
    ],
)
def test_which_interpreter_make_takes(tmp_path, arguments, environment, chosen):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    words = [word.format(venv=tmp_path) for word in arguments]
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "VENV", *MAKE_SETS)}
    done = subprocess.run(
        ["make", "-n", "gpu-check", *words], cwd=ROOT, env={**clean, **environment}, capture_output=True, text=True
    )
    assert done.stdout.strip() == f"{chosen.format(venv=tmp_path)} -m benchmarks.gpu_check"


# --- one job ---------------------------------------------------------------------------------------------------------

SAYS = """
import json, sys
from benchmarks.checks import Report
request = json.loads(sys.argv[1])
Report().row("first", True, device=request["device"])
"""


def test_a_job_is_told_what_to_do_and_its_findings_come_back(script):
    script(SAYS)
    result = run_job(Job("parity", "a name", 30, {"env_id": "x"}), "cuda:1", False, 30.0)
    assert result["status"] == "passed"
    assert result["findings"] == [{"check": "first", "ok": True, "device": "cuda:1"}]
    assert (result["section"], result["name"], result["limit"]) == ("parity", "a name", 30.0)


@pytest.mark.parametrize(
    ("more", "status", "why"),
    [
        ("Report().row('second', False)", "failed", "not as it should be: second"),
        ("raise MemoryError('all gone')", "crashed", "MemoryError: all gone"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crashed", "exit code -11"),
        ("print('no cards here', file=sys.stderr); sys.exit(3)", "skipped", "no cards here"),
        ('sys.stdout.write(\'@check {"check": "cut sho\'); sys.stdout.flush(); sys.exit(1)', "crashed", "exit code 1"),
    ],
)
def test_how_a_job_can_end(script, more, status, why):
    script(SAYS + more)
    result = run_job(Job("parity", "x", 30), "cpu", True, 30.0)
    assert (result["status"], result["why"]) == (status, why)
    assert result["findings"][0]["check"] == "first"  # what was found before stays


def test_a_job_that_hangs_is_ended_with_all_its_processes(script, tmp_path):
    child = f"import time, pathlib; time.sleep(4); pathlib.Path({str(tmp_path / 'late')!r}).touch()"
    script(SAYS + f"import subprocess, time\nsubprocess.Popen([sys.executable, '-c', {child!r}])\ntime.sleep(100)")
    result = run_job(Job("parity", "x", 2), "cpu", True, 2.0)
    assert result["status"] == "timeout"
    assert result["why"] == "stopped after 2 s; the last finding is first"
    assert len(result["findings"]) == 1
    time.sleep(3)
    assert not (tmp_path / "late").exists()


def test_a_job_all_of_which_is_skipped_says_why(script):
    script("from benchmarks.checks import Report\nReport().skip('part', 'not here')")
    assert run_job(Job("parity", "x", 30), "cpu", True, 30.0)["status"] == "skipped"


# --- all of them -----------------------------------------------------------------------------------------------------


def test_results_are_saved_after_each_job_and_time_is_shared_out():
    limits, saved, lines = {}, [], []

    def execute(job, device, small, seconds):
        limits[job.name] = seconds
        return {"section": job.section, "name": job.name, "status": "passed", "seconds": 0, "findings": []}

    chosen = [Job("a", "timed", 50.0), Job("b", "side by side", 5.0, together=True), Job("c", "long", 5000.0)]
    results = run_all(chosen, "cuda:0", False, lambda r: saved.append(len(r)), lines.append, 100.0, 2, execute)
    assert [result["name"] for result in results] == ["side by side", "timed", "long"]
    assert saved == [1, 2, 3]
    assert limits["timed"] == 50.0 and limits["side by side"] == 5.0
    assert 90 < limits["long"] <= 100
    assert all(line.startswith("passed") for line in lines)


def test_jobs_for_which_no_time_is_left_say_so():
    def execute(job, device, small, seconds):
        raise AssertionError("nothing should run")

    results = run_all([Job("a", "x", 50.0)], "cuda:0", False, lambda r: None, lambda line: None, 1.0, 1, execute)
    assert results == [{"section": "a", "name": "x", "status": "skipped", "why": "no time was left", "findings": []}]


def test_the_job_list():
    chosen = gpu_check.jobs()
    names = [job.name for job in chosen]
    assert len(set(names)) == len(names)
    from gpuenvs.registry import BUILTIN

    assert {f"parity {env_id}" for env_id in BUILTIN} <= set(names)
    for job in chosen:
        assert (ROOT / "benchmarks" / "checks" / f"{job.section}.py").exists(), job
        json.dumps(job.request)
    sections = {path.stem for path in (ROOT / "benchmarks" / "checks").glob("*.py")}
    assert {job.section for job in chosen} == sections - {"__init__", "__main__", "common"}
    assert gpu_check.SECONDS < 480


def test_the_file_is_named_by_card_and_date():
    document = {"small": False, "card": "NVIDIA H200 (SXM)", "date": "2026-11-30T12:00:00+00:00"}
    assert gpu_check.file_name(document) == "nvidia-h200-sxm-2026-11-30.json"


# --- the sections, on the CPU and in small ---------------------------------------------------------------------------


class Collected(Report):
    """Keeps findings instead of printing them."""

    def __init__(self):
        self.rows = []

    def _write(self, row):
        json.dumps(row)
        self.rows.append(row)


def rehearse(section, **request):
    import importlib

    report = Collected()
    module = importlib.import_module(f"benchmarks.checks.{section}")
    module.run({"section": section, "device": "cpu", "small": True, **request}, report)
    assert report.rows
    for row in report.rows:
        assert row.get("ok", True) is True, row
    return {row["check"]: row for row in report.rows}


@pytest.mark.parametrize("env_id", ["CartPole-v1", "InvertedDoublePendulum-v5"])
def test_parity(env_id):
    rows = rehearse("parity", env_id=env_id)
    assert set(rows) == {f"{env_id} float32", f"{env_id} float64"}
    assert all(row["largest_difference"] == 0 and row["episodes_ended"] > 0 for row in rows.values())


def test_parity_finds_a_difference(monkeypatch):
    """One row whose reward is off, and a flag that is, in one step."""
    from benchmarks.checks import parity

    record = parity._record
    calls = []

    def wrong(env):
        found = record(env)
        calls.append(env)
        if len(calls) == 3:  # the device's record of the first step
            found["reward"][0, 5] += 0.5
            found["terminated"][0, 7] ^= True
        return found

    monkeypatch.setattr(parity, "_record", wrong)
    report = Collected()
    parity.run({"env_id": "CartPole-v1", "device": "cpu", "small": True, "dtypes": ["float32"]}, report)
    (row,) = report.rows
    assert not row["ok"]
    assert row["unequal_values"] == 1
    assert row["largest_difference"] == pytest.approx(0.5)
    assert row["share_beyond"] == pytest.approx(1 / (row["rows"] * row["steps"]))


def test_collectors():
    rows = rehearse("collectors", env_ids=["CartPole-v1", "Pendulum-v1"])
    assert len(rows) == 6
    assert {row["collector"] for row in rows.values()} == {"eager", "graph", "fused"}
    assert all(row["rows_as_eager"] == 1.0 for row in rows.values())
    assert rows["CartPole-v1 fused"]["env_difference"] == 0.0


def test_a_collector_that_is_not_possible_skips_itself_alone(monkeypatch):
    from benchmarks.checks import collectors
    from gpuenvs.errors import ConfigError

    real = collectors.collect

    def collect(env_id, device, name, num_envs, num_steps):
        if name == "fused":
            raise ConfigError("no kernel for this")
        if name == "graph":
            raise RuntimeError("capture failed")
        return real(env_id, device, name, num_envs, num_steps)

    monkeypatch.setattr(collectors, "collect", collect)
    report = Collected()
    collectors.run({"env_ids": ["CartPole-v1"], "device": "cpu", "small": True}, report)
    eager, graph, fused = report.rows
    assert eager["ok"]
    assert graph == {"check": "CartPole-v1 graph", "ok": False, "error": "RuntimeError: capture failed"}
    assert fused == {"check": "CartPole-v1 fused", "skipped": "no kernel for this"}


def test_determinism():
    rows = rehearse("determinism", env_ids=["Pendulum-v1"])
    assert rows["Pendulum-v1 PPO twice"]["largest_difference"] == 0.0


def test_streams():
    assert rehearse("streams", env_ids=["CartPole-v1"])["CartPole-v1"]["rollouts"] == 3


def test_two_devices():
    rows = rehearse("two_devices", env_id="CartPole-v1")
    assert rows["split"]["skipped"] == "transfers need a CUDA device"
    assert rows["cpu"]["steps_per_second"] > 0


def test_training():
    goal, settings = gpu_check.TRAINING["Pendulum-v1"]
    rows = rehearse("training", env_id="Pendulum-v1", goal=goal, settings=settings)
    assert rows["Pendulum-v1 PPO"]["env_steps"] == 3 * 64 * 16


def test_training_short_of_its_goal_is_a_failure(monkeypatch):
    from benchmarks.checks import training

    settings = {"num_envs": 64, "num_steps": 8, "total_steps": 1024, "epochs": 1, "minibatches": 1}
    report = Collected()
    request = {
        "env_id": "CartPole-v1",
        "device": "cpu",
        "small": False,
        "goal": 475.0,
        "settings": settings,
        "episodes": 2,
    }
    training.run(request, report)
    assert report.rows[0]["ok"] is False


def test_throughput():
    rows = rehearse("throughput", env_id="CartPole-v1", sizes=[1024], train_envs=1024)
    assert [check.removeprefix("CartPole-v1 ") for check in rows] == [
        "step",
        "step + inference, eager",
        "step + inference, graph",
        "step + inference, fused",
        "step + inference + train",
    ]
    assert all(row["steps_per_second"] > 0 for row in rows.values())


def test_kernels(monkeypatch):
    from benchmarks import kernel_bench

    asked = {}

    def run(env_ids, **options):
        asked.update(options)
        measured = {"kernel": "step_kernel", "steps_per_second": 1.0}
        return [
            {"benchmark": "machine"},
            measured,
            {"kernel": "rollout", "skipped": "no"},
            {"kernel": "x", "error": "bad"},
        ]

    monkeypatch.setattr(kernel_bench, "run", run)
    report = Collected()
    from benchmarks.checks import kernels

    kernels.run({"env_ids": ["CartPole-v1"], "device": "cpu", "small": True}, report)
    assert asked == {"device": "cpu", "seconds": 0.02, "repeats": 1, "num_envs": 128}
    assert [row.get("ok") for row in report.rows] == [True, None, False]


def test_hardware_tests_are_collected(monkeypatch):
    rows = rehearse("hardware")
    assert "tests" in rows["tests/gpu"]["last_line"]


def test_hardware_tests_need_pytest(monkeypatch):
    from benchmarks.checks import hardware

    monkeypatch.setattr(hardware.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Skip, match="pytest is not installed"):
        hardware.run({"small": True}, Collected())


BLOCKER = f"""
import sys
from importlib.machinery import PathFinder
class Absent(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in {ABSENT!r} else super().find_spec(name, path, target)
sys.meta_path[:] = [Absent if finder is PathFinder else finder for finder in sys.meta_path]
"""


def test_a_rehearsal_from_the_source_tree_with_few_packages(tmp_path):
    """What `pip install` would have brought beside torch, numba and gymnasium is not needed."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    out = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--dry-run", "--out", str(out)]
    command += ["--only", "parity CartPole", "--only", "training Pendulum", "--only", "tests/gpu"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    document = json.loads(out.read_text())
    assert done.returncode == 0, done.stdout + done.stderr
    assert document["finished"] is True
    assert document["counts"] == {"passed": 2, "skipped": 1}
    skipped = document["jobs"][-1]
    assert (skipped["name"], skipped["why"]) == ("tests/gpu", "pytest is not installed")
    assert document["card"].startswith("none")
    assert document["versions"]["torch"]
    assert {"commit", "driver", "date", "machine", "seconds"} <= set(document)
    assert not list(tmp_path.glob("*.tmp"))


def test_lines_that_are_no_findings_are_left_out():
    assert findings('hello\n@check {"check": "a", "ok": true}\n@check {"che') == [{"check": "a", "ok": True}]


SIMULATED = """
import json
from benchmarks.checks import determinism, throughput
from benchmarks.checks.common import snapshot_differences

for env_id in ("CartPole-v1", "InvertedPendulum-v5"):
    whole = determinism.play(env_id, "cuda:0", 5, 0, 3)
    assert not snapshot_differences(determinism.play(env_id, "cuda:0", 2, 1, 3), whole, slice(1, 3))
    other = determinism.play(env_id, "cuda:0", 2, 0, 3)
    assert "state_real" in snapshot_differences(other, whole, slice(1, 3))
    assert throughput.stepping(env_id, "cuda:0", 2, 0.01) > 0
"""


def test_sections_run_on_the_cuda_backend_in_the_simulator():
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", SIMULATED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
