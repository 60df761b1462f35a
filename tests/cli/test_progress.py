import pytest

from cli.progress import TrainingLine, duration, lag_and_overlap, rate, update_rate
from learners.train import Progress


def moment(step, recent=12.34, **pipeline):
    return Progress(step, 1000, step // 10, 156_000.0, 65.0, lambda: recent, lambda: pipeline)


@pytest.mark.parametrize(
    ("sps", "text"),
    [(12, "12 steps/s"), (156_234, "156k steps/s"), (2.5e6, "2.5M steps/s"), (3e9, "3G steps/s")],
)
def test_rate(sps, text):
    assert rate(sps) == text


@pytest.mark.parametrize(("seconds", "text"), [(7.4, "0:07"), (750, "12:30"), (11100, "3:05:00"), (59.6, "1:00")])
def test_duration(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("pipeline", "text"),
    [
        ({}, ""),
        ({"lag_mean": 0.0, "lag_max": 0}, ""),
        ({"lag_mean": 1.0, "lag_max": 1, "overlap": 0.834, "learner_idle": 0.2}, "lag 1  overlap 83%"),
        ({"lag_mean": 2.31, "lag_max": 5}, "lag 2.3 (max 5)"),
    ],
)
def test_lag_and_overlap(pipeline, text):
    assert lag_and_overlap(pipeline) == text


REPLAY = {
    "sampling_hz": 1440.0,
    "update_frames_hz": 370e3,
    "update_to_data": 255.81,
    "update_to_data_target": 256.0,
    "lag_mean": 2.31,
    "lag_max": 5,
    "sampler_busy": 0.408,
    "learner_busy": 0.98,
}


def test_a_schedule_with_a_replay_shows_both_rates_their_ratio_lag_and_busy_shares(capsys):
    with TrainingLine("Pendulum-v1 sac") as line:
        line(moment(1000, **REPLAY))
    assert capsys.readouterr().err == (
        "Pendulum-v1 sac 100%  1,000 steps  1.44k steps/s  return 12.3  updates 370k frames/s  ratio 255.8 of 256  "
        "lag 2.3 (max 5)  busy sampler 41% learner 98%  ETA 1:05\n"
    )


def test_no_target_for_a_ratio_that_is_free():
    assert update_rate({"update_to_data": 3.14159, "update_to_data_target": 0.0}) == "ratio 3.142"


def test_what_is_said_between_the_lines(capsys):
    with TrainingLine("x") as line:
        line.say("evaluated")
    with TrainingLine("x", quiet=True) as line:
        line.say("evaluated")
        line.warn("warning: [killed]")
    assert capsys.readouterr().err == "evaluated\nwarning: [killed]\n"


def test_plain_lines_now_and_then(capsys, monkeypatch):
    import cli.progress as module

    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    with TrainingLine("CartPole-v1 ppo") as line:
        for step in (100, 200, 300):
            line(moment(step))
        clock[0] = module.PLAIN_SECONDS + 1
        line(moment(400, None))
        line(moment(1000, lag_mean=1.0, lag_max=1, overlap=0.5))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "CartPole-v1 ppo  10%  100 steps  156k steps/s  return 12.3  ETA 1:05",
        "CartPole-v1 ppo  40%  400 steps  156k steps/s  return -  ETA 1:05",
        "CartPole-v1 ppo 100%  1,000 steps  156k steps/s  return 12.3  lag 1  overlap 50%  ETA 1:05",
    ]


def test_quiet(capsys):
    with TrainingLine("x", quiet=True) as line:
        line(moment(1000))
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_one_live_line(monkeypatch):
    import io
    import sys

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    with TrainingLine("CartPole-v1 ppo") as line:
        line(moment(500))
        line(moment(1000, lag_mean=1.0, lag_max=1))
    shown = screen.getvalue()
    assert "CartPole-v1 ppo" in shown and "156k steps/s" in shown and "return 12.3" in shown and "100%" in shown
    assert "lag 1" in shown
