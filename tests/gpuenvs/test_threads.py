"""Row threads: every row once, errors come out, no thread is left behind."""

import gc
import itertools
import subprocess
import sys
import threading

import pytest

from gpuenvs.runtime.threads import ROW_MULTIPLE, RowThreads, Team, _cgroup_quota, allowed_cores


def split(threads):
    """RowThreads that has decided to split."""
    threads.count = threads.limit
    return threads


@pytest.mark.parametrize(("limit", "rows"), [(2, 128), (2, 129), (3, 1000), (4, 64), (8, 65), (2, 1)])
def test_ranges_cover_all_rows_once(limit, rows):
    threads = split(RowThreads(limit, rows))
    parts = threads.run(lambda thread, start, stop: (thread, start, stop))
    threads.close()
    assert parts[0][1] == 0
    assert parts[-1][2] == rows
    assert all(a[2] == b[1] for a, b in itertools.pairwise(parts))
    assert all(start % ROW_MULTIPLE == 0 or start == rows for _, start, _ in parts)
    assert [part[0] for part in parts] == list(range(len(parts)))
    assert len(parts) == threads.limit


def test_ranges_run_on_different_threads_at_the_same_time():
    threads = split(RowThreads(2, 1000))
    meet = threading.Barrier(2, timeout=20)
    threads.run(lambda *_: meet.wait())  # would break the barrier if the ranges ran one after the other
    threads.close()


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_in_any_range_comes_out_and_the_threads_go_on(failing):
    threads = split(RowThreads(2, 1000))

    def work(thread, start, stop):
        if thread == failing:
            raise ValueError("planted")
        return thread

    with pytest.raises(ValueError, match="planted"):
        threads.run(work)
    assert threads.run(lambda thread, start, stop: thread) == [0, 1]
    threads.close()


def test_close_ends_the_threads():
    before = set(threading.enumerate())
    threads = split(RowThreads(2, 1000))
    threads.run(lambda *_: None)
    (worker,) = set(threading.enumerate()) - before
    threads.close()
    worker.join(timeout=20)
    assert not worker.is_alive()


def test_a_team_that_is_dropped_ends_its_threads():
    before = set(threading.enumerate())
    team = Team(3)
    assert team.run(lambda thread: thread) == [0, 1, 2]
    workers = set(threading.enumerate()) - before
    assert len(workers) == 2
    del team
    gc.collect()
    for worker in workers:
        worker.join(timeout=20)
        assert not worker.is_alive()


def test_short_work_stays_on_the_callers_thread():
    threads = RowThreads(2, 1000)
    for _ in range(10):
        assert threads.run(lambda thread, start, stop: (thread, start, stop)) == [(0, 0, 1000)]
    assert threads.count == 1


def test_allowed_cores_is_at_least_one():
    assert allowed_cores() >= 1


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu.max": "nonsense"}, None),
        ({}, None),
    ],
)
def test_a_control_groups_quota_counts(tmp_path, files, expected):
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n")
    assert _cgroup_quota(tmp_path) == expected


def test_a_process_with_waiting_threads_ends_cleanly():
    """Threads are joined before the interpreter goes down: a killed one would abort the process."""
    code = "from gpuenvs.runtime.threads import Team; team = Team(4); print(sum(team.run(lambda thread: thread)))"
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "6\n", "")
