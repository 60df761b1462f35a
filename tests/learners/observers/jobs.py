"""Observers' jobs for tests: `python -m tests.learners.observers.jobs ORDERS RESULTS`; the plan's `job` names one."""

import sys
import time

from safetensors.numpy import load

from learners.observers.child import run
from learners.observers.wire import FINISH


def versions(training):
    """Asks once, then reports the version, the sum of the weights and the kind of all that comes."""
    training.ask()
    while True:
        message, blob = training.next()
        if message["kind"] == FINISH:
            return
        total = float(sum(array.sum() for array in load(blob).values())) if blob else 0.0
        training.send({"kind": message["kind"], "version": message.get("version"), "sum": total})


def failing(training):
    """Raises when it gets weights."""
    training.ask()
    training.next()
    raise ValueError("planted\nfault")


def leaving(training):
    """Ends by itself."""


def exiting(training):
    sys.stderr.write("planted exit\n")
    raise SystemExit(3)


def busy(training):
    """Still at work when it is told to end; what it then says counts."""
    training.ask()
    training.next()
    time.sleep(0.3)
    training.send({"done": True})
    training.next()


if __name__ == "__main__":
    run(lambda training: globals()[training.plan["job"]](training))
