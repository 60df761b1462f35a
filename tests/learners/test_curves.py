import numpy as np
import pytest

from learners.curves import Curve, band, group, smooth


def curve(step, value, env_id="E", name="ppo sync", speed=1.0, **settings):
    step = np.asarray(step, float)
    end = {"step": step[-1], "seconds": step[-1] / speed}
    return Curve(env_id, name, settings, step, step / speed, np.asarray(value, float), np.ones(len(step)), end)


def test_smooth_is_a_moving_mean_that_shrinks_at_the_ends():
    assert smooth(np.array([0.0, 3.0, 6.0, 3.0, 0.0]), 3).tolist() == [1.5, 3.0, 4.0, 3.0, 1.5]
    values = np.array([1.0, 5.0, 2.0])
    assert smooth(values, 1) is values


def test_band_of_two_seeds():
    area = band([curve([0, 10], [0, 10]), curve([0, 10], [2, 12])], "step", 1)
    assert area.count == 2 and area.x[0] == 0 and area.x[-1] == 10
    assert area.mean[0] == pytest.approx(1) and area.mean[-1] == pytest.approx(11)
    assert area.low[0] == pytest.approx(0) and area.high[0] == pytest.approx(2)


def test_band_ends_with_the_shortest_run():
    area = band([curve([5, 10], [0, 0]), curve([0, 8], [0, 0])], "step", 1)
    assert area.x[0] == 5 and area.x[-1] == 8


def test_seconds_are_the_mean_time_of_a_step():
    area = band([curve([0, 10], [0, 1], speed=1.0), curve([0, 10], [0, 1], speed=2.0)], "seconds", 1)
    assert area.x[-1] == pytest.approx(7.5) and area.mean[-1] == pytest.approx(1)


def test_a_single_point():
    area = band([curve([5], [3])], "step", 9)
    assert (area.mean == 3).all() and (area.x == 5).all()


def test_groups_are_labelled_by_what_differs():
    curves = [
        curve([0], [0], lr=1, hidden=[64, 64]),
        curve([0], [0], lr=1, hidden=[64, 64]),
        curve([0], [0], lr=2, hidden=[64, 64]),
        curve([0], [0], name="a2c sync", other=1),
        curve([0], [0], env_id="F"),
    ]
    grouped = group(curves)
    assert {env: {label: len(c) for label, c in labels.items()} for env, labels in grouped.items()} == {
        "E": {"ppo sync lr=1": 2, "ppo sync lr=2": 1, "a2c sync": 1},
        "F": {"ppo sync": 1},
    }
