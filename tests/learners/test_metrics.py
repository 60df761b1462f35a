import math

import numpy as np
import pytest
import torch

from gpuenvs.errors import RunError
from learners.metrics import Interval, MetricsWriter, cut_rows, read_lags, read_rows, to_numpy


def row(step, **values):
    return {"step": step, "iteration": step // 10, "episode_return": float(step), **values}


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})  # 0: all of them
    accumulator.Reload()
    return accumulator


@pytest.fixture
def paths(tmp_path):
    return tmp_path / "metrics.csv", tmp_path / "tensorboard"


def write(paths, steps, resume_step=None, **values):
    writer = MetricsWriter(*paths, resume_step)
    for step in steps:
        writer.write(row(step, **values))
    writer.sync()
    writer.close()
    return writer


def test_interval_means_over_iterations_and_episodes():
    interval = Interval()
    interval.add({"loss": torch.tensor(1.0), "kl": 0.5}, np.array([10.0, 20.0]), np.array([1, 2]))
    interval.add({"loss": torch.tensor(4.0)}, torch.tensor([60.0]), torch.tensor([3]))
    interval.add({"loss": torch.tensor(1.0)}, np.zeros(0), np.zeros(0))
    assert interval.recent_return() == 30.0
    assert interval.flush() == {"episodes": 3, "episode_return": 30.0, "episode_length": 2.0, "loss": 2.0, "kl": 0.5}
    interval.add({}, np.zeros(0), np.zeros(0))
    assert interval.flush() == {"episodes": 3, "episode_return": None, "episode_length": None}


def test_interval_does_not_alias_the_learners_tensors():
    interval, value = Interval(), torch.tensor(1.0)
    interval.add({"loss": value}, [], [])
    value.fill_(100.0)
    interval.add({"loss": value}, [], [])
    assert interval.flush()["loss"] == 50.5


def test_recent_return_looks_back_a_fixed_number_of_episodes():
    interval = Interval(recent=2)
    assert interval.recent_return() is None
    interval.add({}, [1.0, 2.0, 3.0], [1, 1, 1])
    assert interval.recent_return() == 2.5
    interval.flush()
    interval.add({}, [5.0], [1])
    assert interval.recent_return() == 4.0


def test_interval_goes_on_exactly_from_its_state():
    rng = np.random.default_rng(0)
    batches = [({"x": torch.tensor(rng.random(), dtype=torch.float32)}, rng.random(3), rng.random(3)) for _ in range(7)]
    whole, first, second = Interval(), Interval(), Interval()
    for batch in batches:
        whole.add(*batch)
    for batch in batches[:3]:
        first.add(*batch)
    second.load_state_dict(first.state_dict())
    for batch in batches[3:]:
        second.add(*batch)
    assert second.flush() == whole.flush()
    assert second.recent_return() == whole.recent_return()


def test_to_numpy_takes_whatever_a_schedule_returns():
    class OnDevice:  # as cupy arrays are
        def get(self):
            return np.array([1, 2])

    for values in (np.array([1, 2]), torch.tensor([1, 2], requires_grad=False), [1, 2], OnDevice()):
        assert (to_numpy(values) == [1.0, 2.0]).all()
    assert to_numpy(torch.tensor(3.0)).shape == (1,)


def test_rows_and_events_hold_the_same(paths):
    write(paths, [10, 20], policy_loss=0.25)
    columns = read_rows(paths[0])
    assert columns["step"].tolist() == [10, 20] and columns["policy_loss"].tolist() == [0.25, 0.25]
    accumulator = events(paths[1])
    assert {"episode/return", "train/policy_loss", "time/iteration"} <= set(accumulator.Tags()["scalars"])
    assert [(e.step, e.value) for e in accumulator.Scalars("episode/return")] == [(10, 10.0), (20, 20.0)]


def test_floats_keep_all_their_bits(paths):
    write(paths, [1], x=0.1 + 0.2, y=math.nan)
    columns = read_rows(paths[0])
    assert columns["x"][0] == 0.1 + 0.2 and math.isnan(columns["y"][0])


def test_resume_drops_later_rows_and_events(paths):
    write(paths, [10, 20, 30, 40])
    writer = write(paths, [30], resume_step=20)
    assert writer.rows == 3
    assert read_rows(paths[0])["step"].tolist() == [10, 20, 30]
    assert [event.step for event in events(paths[1]).Scalars("episode/return")] == [10, 20, 30]


def test_a_row_cut_by_a_kill_is_dropped(paths):
    write(paths, [10, 20])
    text = paths[0].read_text()
    for cut in range(1, len(text.splitlines()[-1]) + 1):
        paths[0].write_text(text[:-cut])
        assert cut_rows(paths[0], 99) == (["step", "iteration", "episode_return"], 1)
        assert paths[0].read_text() == "".join(f"{line}\n" for line in text.splitlines()[:2])


def test_a_header_cut_by_a_kill_starts_afresh(paths):
    paths[0].write_text("step,iter")
    write(paths, [10], resume_step=0)
    assert read_rows(paths[0])["step"].tolist() == [10]


def test_a_missing_csv_is_begun_anew(paths):
    write(paths, [10], resume_step=0)
    assert read_rows(paths[0])["step"].tolist() == [10]


def test_a_file_that_is_not_ours_is_refused(paths):
    paths[0].write_text("date,price\n1,2\n")
    with pytest.raises(RunError, match="first column is not 'step'"):
        MetricsWriter(*paths, 10)
    assert paths[0].read_text() == "date,price\n1,2\n"


def test_a_new_column_is_added_to_the_whole_file(paths):
    writer = MetricsWriter(*paths)
    writer.write(row(10))
    writer.write(row(20, late=1.5))
    writer.close()
    columns = read_rows(paths[0])
    assert math.isnan(columns["late"][0]) and columns["late"][1] == 1.5
    assert columns["episode_return"].tolist() == [10, 20]


def test_missing_values_are_empty_cells(paths):
    writer = MetricsWriter(*paths)
    writer.write({"step": 10, "episode_return": None})
    writer.close()
    assert paths[0].read_text().splitlines()[1] == "10,"
    assert math.isnan(read_rows(paths[0])["episode_return"][0])


def test_a_full_disk_is_one_line(paths, monkeypatch):
    writer = MetricsWriter(*paths)

    def full(text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer, "_file", type("Full", (), {"write": staticmethod(full), "close": lambda self: None})())
    monkeypatch.setattr(writer, "_columns", ["step"])
    with pytest.raises(RunError, match=r"cannot write .*metrics\.csv: No space left on device; free some space"):
        writer.write({"step": 1})


def test_damaged_csv_is_one_line(paths):
    paths[0].write_text("step,x\n1,two\n")
    with pytest.raises(RunError, match="damaged"):
        read_rows(paths[0])
    paths[0].write_text("")
    assert read_rows(paths[0]) == {}


def test_lags_are_counted_over_the_interval():
    interval = Interval()
    interval.add({"overlap": 0.5, "loss": 9.0}, [], [], {1: 100})
    interval.add({"overlap": 0.7}, [], [], {1: 100, 4: 50})
    shown = {"lag_mean": pytest.approx(1.6), "lag_max": 4, "overlap": pytest.approx(0.6)}
    assert interval.pipeline() == shown
    row = interval.flush()
    assert (row["lag_mean"], row["lag_max"], row["lags"]) == (pytest.approx(1.6), 4, {1: 200, 4: 50})
    assert interval.pipeline() == shown  # nothing of the next interval yet
    interval.add({"overlap": 0.1}, [], [], {0: 10})
    assert interval.pipeline() == {"lag_mean": 0, "lag_max": 0, "overlap": 0.1}
    assert interval.flush()["lags"] == {0: 10}


def test_rates_and_busy_shares_are_means_of_the_interval():
    interval = Interval()
    interval.add({"sampling_hz": 10.0, "critic_busy": 0.5, "policy_loss": 1.0}, [], [])
    interval.add({"sampling_hz": 30.0, "update_to_data": 4.0, "critic_busy": 1.0}, [], [])
    assert interval.pipeline() == {"sampling_hz": 20.0, "update_to_data": 4.0, "critic_busy": 0.75}


def test_a_schedule_without_lags_gets_no_columns_for_them():
    interval = Interval()
    interval.add({"loss": 1.0}, [], [])
    assert interval.pipeline() == {}
    assert not [key for key in interval.flush() if key.startswith("lag")]


def test_lags_go_on_exactly_from_a_state():
    first, second = Interval(), Interval()
    first.add({}, [], [], {1: 10, 2: 3})
    second.load_state_dict(first.state_dict())
    second.add({}, [], [], {2: 4})
    assert second.flush()["lags"] == {1: 10, 2: 7}
    assert first.flush()["lags"] == {1: 10, 2: 3}  # the state was a copy


def test_lags_survive_a_checkpoint_file(tmp_path):
    from learners import checkpoint

    interval = Interval()
    interval.add({}, [], [], {1: 10})
    checkpoint.save(tmp_path / "step-000000000001.safetensors", {"interval": interval.state_dict()}, step=1)
    resumed = Interval()
    resumed.load_state_dict(checkpoint.load(tmp_path / "step-000000000001.safetensors")["interval"])
    assert resumed.flush()["lags"] == {1: 10}


def test_a_state_from_before_lags_were_kept():
    interval = Interval()
    interval.add({}, [1.0], [1])
    state = interval.state_dict()
    del state["lags"]
    resumed = Interval()
    resumed.load_state_dict(state)
    assert resumed.flush() == interval.flush()


def test_lag_histogram_in_file_and_events(paths):
    writer = MetricsWriter(*paths)
    writer.write(row(10, lag_mean=1.0, lag_max=1, overlap=0.5, lags={1: 64}))
    writer.write(row(20, lag_mean=2.0, lag_max=3, overlap=0.5, lags={3: 32, 1: 32}))
    writer.write(row(30))
    writer.close()
    lags = paths[0].with_name("lags.csv")
    assert lags.read_text() == "step,lag,rows\n10,1,64\n20,1,32\n20,3,32\n"
    assert read_lags(lags) == {1: 96, 3: 32}
    assert "lags" not in read_rows(paths[0])
    accumulator = events(paths[1])
    assert {"schedule/lag_mean", "schedule/lag_max", "schedule/overlap"} <= set(accumulator.Tags()["scalars"])
    first, second = (event.histogram_value for event in accumulator.Histograms("schedule/lag_histogram"))
    assert (first.bucket_limit, first.bucket) == ([1.5], [64.0])
    assert (second.min, second.max, second.num, second.sum, second.sum_squares) == (1, 3, 64, 128, 320)
    assert (second.bucket_limit, second.bucket) == ([1.5, 2.5, 3.5], [32.0, 0.0, 32.0])


def test_resume_cuts_the_lags_too(paths):
    lags = paths[0].with_name("lags.csv")
    writer = MetricsWriter(*paths)
    for step in (10, 20, 30):
        writer.write(row(step, lags={1: step, 2: 1}))
    writer.close()
    lags.write_text(lags.read_text() + "40,1")  # cut by a kill
    writer = MetricsWriter(*paths, 20)
    writer.write(row(30, lags={5: 7}))
    writer.sync()
    writer.close()
    assert lags.read_text() == "step,lag,rows\n10,1,10\n10,2,1\n20,1,20\n20,2,1\n30,5,7\n"
    MetricsWriter(*paths).close()
    assert read_lags(lags) == {}


def test_a_run_from_before_lags_were_kept_is_resumed(paths):
    write(paths, [10, 20])
    lags = paths[0].with_name("lags.csv")
    lags.unlink()
    assert read_lags(lags) == {}
    writer = MetricsWriter(*paths, 20)
    writer.write(row(30, lags={1: 5}))
    writer.close()
    assert read_lags(lags) == {1: 5}
