"""The thread that ends a process when another one has failed or fallen silent."""

import threading

import pytest

from gpuenvs.errors import ProcessError, RunError
from learners import watch
from learners.watch import Watch


class Store:
    """A launcher's key-value store within one process."""

    def __init__(self):
        self.values, self.gone = {}, False

    def set(self, key, value):
        self._alive()
        self.values[key] = value.encode()

    def get(self, key):
        self._alive()
        return self.values[key]

    def check(self, keys):
        self._alive()
        return all(key in self.values for key in keys)

    def multi_get(self, keys):
        return [self.get(key) for key in keys]

    def _alive(self):
        if self.gone:
            raise RuntimeError("connection reset")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(watch, "BEAT_SECONDS", 0.01)
    monkeypatch.setattr(watch, "SILENCE_SECONDS", 0.1)


def started(size=3):
    """A store and the watches of its processes, running."""
    store = Store()
    watches = [Watch(store, rank, size) for rank in range(size)]
    for one in watches:
        one.start()
    return store, watches


def end(watches):
    for one in watches:
        one.leave()
        one.join(10)
        assert not one.is_alive()


def test_nothing_is_found_while_all_live():
    store, watches = started()
    assert watches[0].wait_for_failure(0.5) is None and "failure" not in store.values
    end(watches)


def test_all_hear_of_a_failure_and_who_it_was():
    _, watches = started()
    watches[2].fail(ValueError("a wheel\ncame off"))
    heard = [one.wait_for_failure(10) for one in watches[:2]]
    assert heard == ["process 2 of 3 failed: ValueError: a wheel came off"] * 2
    end(watches)


@pytest.mark.parametrize(
    "error, line",
    [(RunError("disk full"), "process 0 of 2 failed: disk full"), (KeyError(), "process 0 of 2 failed: KeyError: ")],
)
def test_errors_are_told_as_their_line(error, line):
    store, watches = started(2)
    watches[0].fail(error)
    assert store.values["failure"].decode() == line
    end(watches)


def test_a_failure_that_came_from_elsewhere_is_not_told_again():
    store, watches = started(2)
    watches[1].fail(ProcessError("process 0 of 2 failed: x"))
    assert "failure" not in store.values
    end(watches)


def test_a_silent_process_is_taken_for_dead_by_all():
    _, watches = started()
    watches[1]._ended.set()  # as if it had been killed
    for one in (watches[0], watches[2]):
        assert "process 1 of 3 was not heard of" in str(one.wait_for_failure(10))
    end(watches)


def test_a_process_that_is_done_may_be_silent():
    _, watches = started()
    watches[1].leave()
    assert watches[0].wait_for_failure(0.5) is None
    end(watches)


def test_a_lost_store_is_a_lost_process():
    store, watches = started(2)
    store.gone = True
    assert watches[1].wait_for_failure(10) == "the connection to process 0 is lost"
    end(watches)


@pytest.mark.parametrize("rank, printed", [(0, True), (1, False)])
def test_a_main_thread_that_waits_for_good_is_ended(monkeypatch, rank, printed):
    codes, lines, done = [], [], threading.Event()
    monkeypatch.setattr(watch, "GRACE_SECONDS", 0.01)
    monkeypatch.setattr(watch.os, "_exit", lambda code: (codes.append(code), done.set()))
    monkeypatch.setattr(watch.os, "write", lambda file, text: lines.append((file, text)))
    store = Store()
    watches = [Watch(store, number, 2) for number in range(2)]
    watches[rank].start()
    store.set("failure", "process 7 failed: x")
    assert done.wait(10) and codes == [1]
    assert lines == ([(2, b"\nerror: process 7 failed: x\n")] if printed else [])
    end([watches[rank]])
