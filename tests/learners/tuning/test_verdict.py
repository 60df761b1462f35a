"""Which candidate is kept, on hand-made trainings."""

import json
import math

import pytest

from learners.tuning.model import DEFAULT
from learners.tuning.verdict import Point, Trial, decide, goal_of


def trial(name, returns, seed=1, every=1.0, stderr=1.0):
    """One evaluation every `every` seconds, the first before the training."""
    points = tuple(Point(k * every, k * 100, float(value), stderr) for k, value in enumerate(returns))
    return Trial(name, seed, (len(returns) - 1) * every, points)


SLOW = [0, 10, 20, 40, 60]
FAST = [0, 50, 95, 100, 100]


def test_time_to_a_return():
    assert trial("a", SLOW).time_to(30.0) == 2.5
    assert trial("a", SLOW).time_to(0.0) == 0.0
    assert math.isinf(trial("a", SLOW).time_to(61.0))
    assert trial("a", [0, 100, 0, 100]).time_to(50.0) == 0.5


def test_the_goal_is_most_of_what_the_best_one_gained():
    assert goal_of([trial(DEFAULT, SLOW), trial("b", FAST)]) == 90.0
    lucky = [0, 0, 0, 0, 100]  # one evaluation alone may be luck
    assert goal_of([trial(DEFAULT, SLOW), trial("b", lucky)]) == 45.0
    # The second seed's trainings do not move it.
    assert goal_of([trial(DEFAULT, SLOW), trial("b", FAST), trial("b", [0, 1000, 1000], seed=2)]) == 90.0


def test_sooner_with_both_seeds_is_taken():
    first = [trial(DEFAULT, SLOW), trial("b", FAST)]
    found = decide(first)
    assert (found.chosen, found.confirm) == ("b", True)
    found = decide([*first, trial("b", FAST, 2), trial(DEFAULT, SLOW, 2)])
    assert (found.chosen, found.confirm) == ("b", False)
    assert "1.89 s and 1.89 s against over 4.0 s and over 4.0 s" in found.why


def test_luck_with_one_seed_is_not():
    first = [trial(DEFAULT, SLOW), trial("b", FAST)]
    for second in ([trial("b", SLOW, 2), trial(DEFAULT, FAST, 2)], [trial("b", [0, 0, 0], 2), trial(DEFAULT, FAST, 2)]):
        found = decide([*first, *second])
        assert found.chosen == DEFAULT and "not surely sooner" in found.why


def test_a_short_training_that_never_came_there_is_not_a_fast_one():
    """It ended after 1 s of 4: that counts as 4."""
    trials = [trial(DEFAULT, [0, 30, 60, 90, 100]), trial("b", [0, 85, 100, 100, 100])]
    trials += [trial("b", [0, 10], 2), trial(DEFAULT, [0, 10, 20, 30, 40], 2)]
    assert decide(trials).chosen == "b"  # ahead once, as good as the default in the other
    trials[2:] = [trial("b", [0, 10], 2), trial(DEFAULT, [0, 10, 20, 30, 99], 2)]
    assert decide(trials).chosen == DEFAULT


def test_speed_without_learning_is_worth_nothing():
    """More steps, more updates, no return: the default stays."""
    fast = Trial("b", 1, 4.0, tuple(Point(float(k), 10**9 * k, 0.0, 1.0) for k in range(5)))
    assert decide([trial(DEFAULT, SLOW), fast]).chosen == DEFAULT


def test_as_good_as_the_default_is_the_default():
    assert decide([trial(DEFAULT, FAST), trial("b", FAST)]).chosen == DEFAULT
    # Of two that are as good as each other, the one that the model prefers.
    assert decide([trial(DEFAULT, SLOW), trial("b", FAST), trial("c", [0, 51, 95, 100, 100])]).chosen == "b"


@pytest.mark.parametrize("returns", [[0, 0, 0], [0, 2, 3], [0, -50, -60], [0]])
def test_where_nothing_was_learned_the_default_stays(returns):
    found = decide([trial(DEFAULT, returns), trial("b", returns)])
    assert (found.chosen, found.goal) == (DEFAULT, None)
    assert "no training learned anything" in found.why
    assert decide([]).chosen == DEFAULT


def test_trials_are_read_back_as_they_were():
    made = trial("b", FAST)
    assert Trial.from_dict(json.loads(json.dumps(made.to_dict()))) == made
