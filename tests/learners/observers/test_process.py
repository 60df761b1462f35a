import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from learners.observers import process
from learners.observers.process import Observer, ObserverError

ROOT = Path(__file__).resolve().parents[3]
JOBS = "tests.learners.observers.jobs"


@contextlib.contextmanager
def observer(job, **options):
    lines = []
    made = Observer("watcher", JOBS, {"job": job}, lines.append, **options)
    made.lines = lines
    try:
        yield made
    finally:
        made.close()


def until(condition, seconds=180):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.005)
    return found


def alive(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_weights_arrive_whole_and_are_copied_at_once():
    weights = {"b": torch.ones(3), "a": torch.arange(4.0), "n": torch.tensor(2.0, dtype=torch.float64)}
    with observer("versions") as watcher:
        until(lambda: watcher.wants)
        watcher.offer(weights, version=7, step=100)
        for tensor in weights.values():
            tensor.zero_()
        assert not watcher.wants
        assert until(watcher.results) == [{"kind": "weights", "version": 7, "sum": 11.0}]


def test_the_newest_wins_and_nothing_waits():
    big = {"w": torch.ones(2_000_000)}  # far more than a pipe holds
    with observer("versions") as watcher:
        until(lambda: watcher.wants)
        os.kill(watcher.pid, signal.SIGSTOP)
        for version in range(6):
            watcher.offer(big, version=version, step=0)
            time.sleep(0.02)
        os.kill(watcher.pid, signal.SIGCONT)
        seen = [result["version"] for result in until(watcher.results)]
        while seen[-1] != 5:
            seen += [result["version"] for result in until(watcher.results)]
        assert len(seen) <= 2  # what was under way, perhaps, and the last one


def test_kinds_have_slots_of_their_own():
    with observer("versions") as watcher:
        until(lambda: watcher.wants)
        watcher.offer({"w": torch.ones(1)}, version=1, step=0)
        watcher.tell("figures", {"version": 2})
        found = until(watcher.results)
        while len(found) < 2:
            found += until(watcher.results)
        assert {(result["kind"], result["version"]) for result in found} == {("weights", 1), ("figures", 2)}


def test_an_error_comes_with_its_traceback():
    seen = []
    with observer("failing", on_failure=seen.append) as watcher:
        until(lambda: watcher.wants)
        watcher.offer({"w": torch.ones(1)}, version=1, step=0)
        with pytest.raises(ObserverError, match=r"the watcher failed: ValueError: planted fault$") as caught:
            until(watcher.results)
        assert 'raise ValueError("planted' in caught.value.traceback
        assert seen == [caught.value] and not watcher.lines
        assert watcher.results() == [] and not watcher.wants and watcher.pid is None


@pytest.mark.parametrize(("job", "code"), [("leaving", 0), ("exiting", "SystemExit: 3")])
def test_one_that_ends_by_itself_is_an_error(job, code):
    with observer(job) as watcher, pytest.raises(ObserverError, match=f"{code}"):
        until(watcher.results)


def test_killed_it_is_started_again_some_times(monkeypatch):
    monkeypatch.setattr(process, "RESTARTS", 1)
    with observer("versions") as watcher:
        until(lambda: watcher.wants)
        first = watcher.pid
        os.kill(first, signal.SIGKILL)
        until(lambda: watcher.results() or watcher.pid != first)
        assert watcher.lines == [
            "warning: the watcher was killed by SIGKILL; training goes on, and it is started again (1 of 1 times)"
        ]
        until(lambda: watcher.wants)
        watcher.offer({"w": torch.ones(1)}, version=3, step=0)
        assert until(watcher.results)[0]["version"] == 3
        os.kill(watcher.pid, signal.SIGKILL)
        until(lambda: watcher.results() or watcher.pid is None)
        assert "training goes on without it" in watcher.lines[1]
        watcher.offer({"w": torch.ones(1)}, version=4, step=0)
        watcher.tell("figures", {})
        assert watcher.results() == [] and watcher.finish(1) == []


def test_finish_lets_it_complete_what_it_does():
    with observer("busy") as watcher:
        until(lambda: watcher.wants)
        watcher.offer({"w": torch.ones(1)}, version=1, step=0)
        assert watcher.finish(60) == [{"done": True}]
        assert watcher.pid is None


def test_finish_ends_it_when_the_time_is_up():
    with observer("versions") as watcher:
        until(lambda: watcher.wants)
        pid = watcher.pid
        os.kill(pid, signal.SIGSTOP)
        assert watcher.finish(0.05) == []
        assert not alive(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_waiting_one_uses_no_processor_time():
    def ticks():
        fields = Path(f"/proc/{watcher.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    with observer("versions") as watcher:
        until(lambda: watcher.wants)
        time.sleep(0.1)
        own, before = time.process_time(), ticks()
        time.sleep(0.5)
        assert ticks() - before <= 1 and time.process_time() - own < 0.1


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("where", ["main", "thread"])
def test_it_dies_with_its_parent(where):
    """Started by the main thread the system kills it; by another one, the closed pipe does."""
    command = [sys.executable, "-m", "tests.learners.observers.orphans", where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
        parent.wait()
        until(lambda: not alive(pid))
