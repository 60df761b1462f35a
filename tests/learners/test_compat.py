"""What fits together, and the reason when it does not."""

import pytest
from gymnasium import spaces

from gpuenvs.errors import ConfigError
from learners import compat
from learners.compat import AlgoInfo, ScheduleInfo

DISCRETE, BOX = spaces.Discrete(2), spaces.Box(-1, 1, (1,))


@pytest.mark.parametrize("algo", compat.ALGORITHMS)
@pytest.mark.parametrize("space", [DISCRETE, BOX])
def test_every_algorithm_here_fits_sync(algo, space):
    if compat.action_kind(space) in compat.ALGORITHMS[algo].actions:
        compat.check(algo, "sync", space)
    else:
        with pytest.raises(ConfigError, match=f"{algo} cannot act in"):
            compat.check(algo, "sync", space)
    assert compat.algorithm(algo).config_class


@pytest.mark.parametrize("algo", compat.ALGORITHMS)
def test_sync_is_another_schedule_where_there_is_a_replay(algo):
    expected = "ReplaySyncSchedule" if algo in ("sac", "td3", "dqn") else "SyncSchedule"
    assert compat.schedule("sync", algo).__name__ == expected


@pytest.mark.parametrize(
    "algo, schedule, space, words",
    [
        ("pppo", "sync", DISCRETE, ["unknown algorithm 'pppo'", "ppo"]),
        ("zzzz", "sync", DISCRETE, ["unknown algorithm", "ppo, a2c"]),
        ("ppo", "sink", DISCRETE, ["unknown schedule 'sink'", "sync"]),
        ("ppo", "sync", spaces.MultiDiscrete([2, 2]), ["not supported", "Discrete or Box"]),
        ("ppo", "replaying", DISCRETE, ["newest data", "use one of sync"]),
        ("offline", "fresh", BOX, ["keeps no replay", "replaying"]),
        ("offline", "sync", DISCRETE, ["continuous actions", "use ppo, a2c"]),
    ],
)
def test_a_no_has_one_line_with_a_reason(algo, schedule, space, words, monkeypatch):
    off_policy = AlgoInfo("m", "C", on_policy=False, actions=("continuous",))
    monkeypatch.setitem(compat.ALGORITHMS, "offline", off_policy)
    replaying = ScheduleInfo("m", "C", on_policy=False, off_policy=True)
    monkeypatch.setitem(compat.SCHEDULES, "replaying", replaying)
    monkeypatch.setitem(compat.SCHEDULES, "fresh", ScheduleInfo("m", "C", on_policy=True, off_policy=False))
    with pytest.raises(ConfigError) as caught:
        compat.check(algo, schedule, space)
    message = str(caught.value)
    assert "\n" not in message and all(word in message for word in words), message
