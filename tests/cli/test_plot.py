import pytest


def test_a_picture_of_one_run(gpurl, trained, tmp_path):
    path = tmp_path / "sub" / "curves.png"
    result = gpurl("plot", trained, "-o", path)
    assert result.code == 0 and result.out == f"{path}: 1 run\n"
    from matplotlib import image

    pixels = image.imread(path)
    assert pixels.shape[0] > 300 and pixels.shape[1] > 1000
    blue = (pixels[..., 2] > 0.5) & (pixels[..., 0] < 0.3)
    assert blue.sum() > 500  # the curve


def test_svg_and_several_runs(gpurl, trained, tmp_path):
    result = gpurl("plot", trained, trained, "-o", tmp_path / "a.svg", "--smooth", "1", "--title", "Two of them")
    assert result.code == 0
    text = (tmp_path / "a.svg").read_text()
    assert "<svg" in text


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["-o", "a.bmp"], 2, ".png, .svg, .pdf"),
        (["nothing-here"], 1, "no run at"),
    ],
)
def test_bad_input(gpurl, trained, args, code, message):
    result = gpurl("plot", trained, *args)
    assert result.code == code and message in result.err and result.err.count("\n") == 1


def test_a_run_without_episodes(gpurl, tmp_path):
    from learners import runs

    with runs.new_run(tmp_path / "run") as run:
        run.write_config({"env_id": "CartPole-v1"})
        run.metrics_file.write_text("step,wall_s,episode_return\n10,1.0,\n")
    result = gpurl("plot", run.path, "-o", tmp_path / "a.png")
    assert result.code == 1 and "has no finished episode yet" in result.err
