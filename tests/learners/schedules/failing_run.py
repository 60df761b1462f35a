"""`gpurl train`, with an error planted in one part of the work. Run as a program by test_failures."""

import sys

from cli.main import main

PART, AT = sys.argv[1], 3


def after(function, count):
    """`function`, whose call number `count` raises."""
    calls = []

    def wrapped(*args, **kwargs):
        calls.append(1)
        if len(calls) == count:
            raise ZeroDivisionError(f"planted in the {PART}")
        return function(*args, **kwargs)

    return wrapped


if PART == "collector":
    from learners.collector import Collector

    Collector.collect = after(Collector.collect, AT)
elif PART == "learner":
    from learners.a2c import A2C

    A2C.update = after(A2C.update, AT)
elif PART == "actor":
    from learners.host.horizon import Horizon

    Horizon.store = after(Horizon.store, 40 * AT)
elif PART in ("sampler", "critic", "policy"):
    from learners.replay_collector import ReplayCollector
    from learners.sac import SAC

    cls, name = {
        "sampler": (ReplayCollector, "collect"),
        "critic": (SAC, "critic_update"),
        "policy": (SAC, "actor_update"),
    }[PART]
    setattr(cls, name, after(getattr(cls, name), 40 * AT))
sys.argv = ["gpurl", *sys.argv[2:]]
main()
