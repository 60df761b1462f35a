import pytest

from cli.compare import show
from learners import runs
from learners.compare import Estimate

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def make_run(tmp_path):
    def make(name, returns, schedule="sync", seed=0, speed=1.0, lag=0, **more):
        with runs.new_run(tmp_path / "all" / name) as run:
            run.write_config({"env_id": "CartPole-v1", "algo": "ppo", "schedule": schedule, "seed": seed,
                              "settings": {"num_envs": 8, "total_steps": 10 * seed}, **more})  # fmt: skip
            header = "step,wall_s,episodes,episode_return" + ",overlap,sampler_idle" * (lag > 0)
            lines = [
                f"{1000 * k},{k / speed},{100 * k},{value}" + ",0.8,0.1" * (lag > 0)
                for k, value in enumerate(returns, start=1)
            ]
            run.metrics_file.write_text("\n".join([header, *lines]) + "\n")
            rows = [f"{1000 * k},{lag},1000" for k in range(1, len(returns) + 1)]
            (run.path / "lags.csv").write_text("\n".join(["step,lag,rows", *rows]) + "\n")
        return run.path

    return make


@pytest.fixture
def folder(make_run):
    for seed in range(3):
        make_run(f"s{seed}", [20, 100, 480, 500], seed=seed)
        make_run(f"h{seed}", [20, 90, 470, 490], "hts", seed, 3.0, 1, schedule_settings={"correction": "delayed"})
        path = make_run(f"n{seed}", [20, 30, 40, 50], "hts", seed, 3.0, 1, schedule_settings={"correction": "none"})
    return path.parent


def test_table(gpurl, folder):
    result = gpurl("compare", folder, "--at", "2s")
    assert result.code == 0
    lines = [line.split() for line in result.out.splitlines()]
    assert result.out.startswith("CartPole-v1: mean return of 100 episodes\n")
    assert any(line[:2] == ["ppo", "sync"] and "100.0" in line and "[100.0," in line for line in lines)
    hts, pipeline = (" ".join(line) for line in lines if "correction=delayed" in line)
    # Label, runs, return at 2 s (ended before), seconds to 475, return at 4000 steps, steps to 475, steps/s.
    assert hts == "ppo hts correction=delayed 3 - 1.33 [1.33, 1.33] 490.0 [490.0, 490.0] 4k [4k, 4k] 3k"
    assert pipeline == "ppo hts correction=delayed 1 80% 10% -"
    never = next(line for line in lines if "correction=none" in line)
    assert "never" in never and "0" in never


def test_json_and_picture(gpurl, folder, tmp_path):
    picture = tmp_path / "deep" / "c.png"
    result = gpurl("compare", folder, "--json", "-o", picture, "--to", "450", "--at-steps", "3k")
    assert result.code == 0 and picture.stat().st_size > 10_000
    (env,) = result.json["environments"]
    assert (env["to_return"], env["at_steps"], env["at_seconds"]) == (450, 3000, pytest.approx(4 / 3))
    rows = {row["setting"]: row for row in env["rows"]}
    assert rows["ppo sync"]["seconds_to_return"]["iqm"] == 3.0
    assert rows["ppo sync"]["return_at_steps"]["iqm"] == 480
    assert rows["ppo sync"]["return_at_seconds"]["iqm"] == 20
    assert rows["ppo hts correction=none"]["seconds_to_return"] == {
        "iqm": None, "low": None, "high": None, "values": [None] * 3,
    }  # fmt: skip
    assert rows["ppo hts correction=delayed"]["lags"] == {"1": 12000}
    assert result.json["overall"] == {}


def test_a_run_given_twice_counts_once(gpurl, folder):
    result = gpurl("compare", folder, folder / "s0", "--json")
    assert [len(row["runs"]) for row in result.json["environments"][0]["rows"]] == [3, 3, 3]


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--at", "soon"], 2, "write 30s, 5m or 2h"),
        (["--at", "0"], 2, "is not a time"),
        (["-o", "a.bmp"], 2, ".png, .svg, .pdf"),
        (["--episodes", "1000"], 1, "take the mean of fewer with --episodes"),
        (["nothing-here"], 1, "no run at"),
    ],
)
def test_bad_input(gpurl, folder, args, code, message):
    result = gpurl("compare", folder, *args)
    assert result.code == code and message in result.err and result.err.count("\n") == 1


def test_times(gpurl, folder):
    for text, seconds in (("1", 1.0), ("0.5s", 0.5), ("0.01m", 0.6), ("0.0001h", 0.36)):
        assert gpurl("compare", folder, "--json", "--at", text).json["environments"][0]["at_seconds"] == pytest.approx(
            seconds
        )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Estimate(1.0, 0.5, 2.0, (0.5, 2.0)), "1.0 [0.5, 2.0]"),
        (Estimate(1.0, NAN, NAN, (1.0,)), "1.0"),
        (Estimate(NAN, NAN, NAN, (NAN,)), "-"),
        (Estimate(INF, 1.0, INF, (1.0, INF)), "never 1 of 2"),
        (Estimate(1.0, 0.5, INF, (1.0, 1.0, 0.5, INF)), "1.0 [0.5, never] 3 of 4"),
        (Estimate(1.0, 0.5, 2.0, (1.0, NAN, 1.0)), "1.0 [0.5, 2.0] 2 of 3"),
    ],
)
def test_show(value, text):
    assert show(value, "{:.1f}".format) == text


def test_plot_shows_lag_and_overlap(gpurl, folder, tmp_path):
    """A second row of panels, where a schedule has something to show there."""
    from matplotlib import image

    assert gpurl("plot", folder, "-o", tmp_path / "a.png").code == 0
    assert gpurl("plot", folder / "s0", "-o", tmp_path / "b.png").code == 0
    heights = [image.imread(tmp_path / name).shape[0] for name in ("a.png", "b.png")]
    assert heights[0] == 2 * heights[1]
    assert gpurl("plot", folder, "-o", tmp_path / "a.svg").code == 0
    text = (tmp_path / "a.svg").read_text()
    for name in ("policy lag (updates)", "sampler idle", "ppo hts correction=delayed"):
        assert f"<!-- {name} -->" in text or f"<!-- {name} (3 runs) -->" in text
