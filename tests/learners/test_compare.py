import json
import math

import numpy as np
import pytest

from gpuenvs.errors import RunError
from learners.compare import best, compare, estimate, iqm, overall, reached_at, returns_at
from learners.compare_plot import POINTS, draw_comparison, on_grid
from learners.curves import Curve, Pipeline


def curve(value, counts=10, name="ppo sync", env_id="E", speed=1.0, seed=0, lags=(), **settings):
    """One row per 100 steps, a second each at speed 1."""
    value = np.asarray(value, float)
    step = 100.0 * np.arange(1, len(value) + 1)
    seconds = step / 100 / speed
    counts = np.broadcast_to(np.asarray(counts, float), value.shape)
    end = {"step": step[-1], "seconds": seconds[-1]}
    pipeline = Pipeline(step, {"overlap": np.full(len(step), 0.5)} if lags else {}, dict(lags))
    return Curve(env_id, name, settings, step, seconds, value, counts, end, seed, 10, pipeline=pipeline)


def test_running_mean_is_of_the_last_episodes_only():
    run = curve([1, 2, 3, 10], counts=[4, 4, 2, 5])
    values = run.running(6)
    assert math.isnan(values[0])
    assert values[1:] == pytest.approx([(2 * 1 + 4 * 2) / 6, (4 * 2 + 2 * 3) / 6, (1 * 3 + 5 * 10) / 6])


def test_interquartile_mean():
    assert iqm(np.array([9.0, 1, 2, 3, 100])) == pytest.approx((2 + 3 + 9) / 3)
    assert iqm(np.array([5.0, 1, 3])) == 3.0  # a quarter of three is less than one
    assert iqm(np.array([[4.0, 1, 2, 3], [0, 0, 8, 2]])).tolist() == [2.5, 1.0]
    assert iqm(np.array([1.0, 2, 3, math.inf])) == 2.5
    assert iqm(np.array([1.0, 2, math.inf, math.inf])) == math.inf


def test_interquartile_mean_is_scipys():
    from scipy.stats import trim_mean

    rng = np.random.default_rng(0)
    for count in range(1, 14):
        values = rng.normal(size=count)
        assert iqm(values) == pytest.approx(trim_mean(values, 0.25))


def test_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    hits = 0
    for trial in range(200):
        found = estimate(rng.normal(3.0, 1.0, size=20), seed=trial)
        assert found.low <= found.iqm <= found.high
        hits += found.low <= 3.0 <= found.high
    assert 0.85 <= hits / 200 <= 1.0


def test_bootstrap_resamples_within_each_environment():
    """Two environments that hardly vary within, but are far apart: mixing them would make the interval wide."""
    rng = np.random.default_rng(2)
    near, far = rng.normal(0, 0.01, 10), rng.normal(100, 0.01, 10)
    apart, mixed = estimate(near, far), estimate(np.concatenate([near, far]))
    assert apart.high - apart.low < 0.1
    assert mixed.high - mixed.low > 10


def test_estimates_of_few_or_missing_runs():
    alone = estimate([3.0])
    assert alone.iqm == 3.0 and math.isnan(alone.low)
    none = estimate([math.nan])
    assert math.isnan(none.iqm)
    one_missing = estimate([1.0, math.nan, 3.0])
    assert one_missing.iqm == 2.0 and len(one_missing.values) == 3
    never = estimate([1.0, math.inf])
    assert never.iqm == math.inf and never.low == 1.0 and never.high == math.inf
    assert json.loads(json.dumps(never.to_dict(), allow_nan=False)) == {
        "iqm": None, "low": 1.0, "high": None, "values": [1.0, None],
    }  # fmt: skip
    assert estimate([1.0, 2.0, 5.0]) == estimate([1.0, 2.0, 5.0])


def test_return_at_a_moment():
    run = curve([1, 5, 9])
    moments = np.array([0.0, 1.0, 1.99, 2.0, 3.0, 3.01])
    values = returns_at(run, "seconds", moments, 10)
    assert values[:5].tolist() == [1, 1, 1, 5, 9] and math.isnan(values[5])
    assert returns_at(run, "step", np.array([250.0]), 10) == [5]
    # Ten episodes in each row: twenty are there after the second.
    assert returns_at(run, "seconds", np.array([0.5, 2.5, 3.0]), 20).tolist() == [3, 3, 7]
    assert np.isnan(returns_at(run, "seconds", moments, 31)).all()


def test_a_lucky_first_episode_reaches_nothing():
    run = curve([500, 20, 20, 480], counts=[1, 9, 10, 10])
    assert reached_at(run, "seconds", 475, 10) == 4.0
    assert reached_at(run, "step", 475, 10) == 400.0
    assert reached_at(run, "step", 481, 10) == math.inf
    assert best(run, 10) == 480 and best(run, 31) == -math.inf


def test_compare_by_seed_and_setting():
    runs = [curve([0, 50, 100, 100], seed=seed, speed=speed) for seed, speed in enumerate((1.0, 2.0, 4.0, 5.0))]
    runs += [curve([0, 0, 50, 75], name="ppo hts", seed=seed, speed=10, lags={1: 400}) for seed in range(4)]
    (found,) = compare(runs, to=75)
    assert found.env_id == "E" and found.window == 10 and found.goal == 75
    assert found.at == {"seconds": 0.4, "step": 400}
    sync, hts = found.rows
    assert (sync.label, len(sync.curves)) == ("ppo sync", 4)
    assert sync.to["step"].values == (300, 300, 300, 300)
    assert sync.to["seconds"].values == (3.0, 1.5, 0.75, 0.6)
    assert sync.to["seconds"].iqm == pytest.approx((1.5 + 0.75) / 2)
    assert sync.at["step"].iqm == 100
    assert hts.to["seconds"].iqm == pytest.approx(0.4)
    assert hts.at["seconds"].iqm == 75
    assert sync.pipeline == {} and hts.pipeline == {"lag_mean": 1.0, "lag_max": 1, "overlap": 0.5}
    assert hts.sps == pytest.approx(1000)
    json.dumps(found.to_dict(), allow_nan=False)
    row = found.to_dict()["rows"][1]
    assert row["lags"] == {"1": 1600} and [run["seed"] for run in row["runs"]] == [0, 1, 2, 3]


def test_defaults_of_the_goal():
    (cartpole,) = compare([curve([0, 480], env_id="CartPole-v1")])
    assert cartpole.goal == 475
    (other,) = compare([curve([0, top]) for top in (10, 20, 30, 40)] + [curve([0, 90], name="a2c sync")])
    assert other.goal == 20  # three of four have been there
    assert all(math.isfinite(row.to["step"].iqm) for row in other.rows)


def test_runs_without_enough_episodes_are_one_line():
    with pytest.raises(RunError, match="no run of E has finished 100 episodes; take the mean of fewer"):
        compare([curve([1, 2])], window=100)


def test_a_run_that_ended_early_is_not_counted_but_named():
    (found,) = compare([curve([1, 2, 3]), curve([1, 2])], at_seconds=3)
    value = found.rows[0].at["seconds"]
    assert value.iqm == 3 and math.isnan(value.values[1])


def test_overall_is_scaled_by_environment():
    runs = [curve([0, 50, 50], seed=seed) for seed in range(2)]
    runs += [curve([-1000, -250, -250], env_id="F", seed=seed) for seed in range(2)]
    runs += [curve([-1000, 0, 0], env_id="F", name="a2c sync")]
    assert overall(compare(runs[:2], to=100)) == {}
    both = [compare(runs[:2], to=100)[0], compare(runs[2:], to=0)[0]]
    found = overall(both)
    assert list(found) == ["ppo sync"]  # the other setting is not in both
    assert found["ppo sync"].values == pytest.approx((0.5, 0.5, 0.75, 0.75))


def test_grid_of_a_band():
    (found,) = compare([curve([0, 10, 20]), curve([0, 10, 20], speed=2.0)])
    x, table = on_grid(found.rows[0], "seconds", 10)
    assert x[0] == 0.5 and x[-1] == 1.5 and table.shape == (POINTS, 2)
    assert table[-1].tolist() == [0, 20]


def test_picture(tmp_path):
    runs = [curve([0, 50, 100], seed=seed, speed=1 + seed / 10) for seed in range(3)]
    runs += [curve([0, 20, 30], name="a2c sync"), curve([1, 2, 3], env_id="F")]
    draw_comparison(compare(runs, to=60), tmp_path / "c.png", "Title")
    from matplotlib import image

    pixels = image.imread(tmp_path / "c.png")
    assert pixels.shape[0] > 600 and pixels.shape[1] > 2000
    blue = (pixels[..., 2] > 0.5) & (pixels[..., 0] < 0.3)
    assert blue.sum() > 500
