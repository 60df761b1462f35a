import sys

import numpy as np
import pytest

from learners.runs import RunDirectory

imageio = pytest.importorskip("imageio.v2")
pytest.importorskip("pygame")


@pytest.mark.parametrize("name", ["pole.gif", "pole.mp4"])
def test_a_video_shows_the_pole_move(gpurl, trained, tmp_path, name):
    if name.endswith("mp4"):
        pytest.importorskip("imageio_ffmpeg")
    path = tmp_path / "videos" / name
    result = gpurl("play", trained, "--out", path)
    assert result.code == 0 and result.out.startswith(f"{path}: ")
    frames = [np.asarray(frame)[..., :3] for frame in imageio.mimread(path)]
    shown = int(result.out.split(": ")[1].split(" ")[0])
    assert 5 < len(frames) <= shown and (len(frames) == shown or name.endswith(".gif"))  # GIFs merge equal frames
    assert frames[0].shape == (400, 600, 3)
    first, last = frames[0].astype(int), frames[-1].astype(int)
    assert (first < 60).any() and (first > 240).mean() > 0.5  # a dark cart on a white ground
    assert np.abs(last - first).max() > 100
    assert list(path.parent.iterdir()) == [path]


def test_the_default_place_is_in_the_run(gpurl, trained):
    pytest.importorskip("imageio_ffmpeg")
    result = gpurl("play", trained, "--max-steps", "3")
    assert result.code == 0
    assert (RunDirectory(trained).videos / "step-000000000768-s0.mp4").is_file()


def test_the_pictures_are_those_of_the_states(gpurl):
    """A state injected by the spec's reference draws what Gymnasium draws for it."""
    import gymnasium

    import gpuenvs
    from learners.video import _renderer

    spec = gpuenvs.get("CartPole-v1")
    state = spec.state(1.0, 0.0, 0.1, 0.0)
    with _renderer("CartPole-v1") as ours:
        spec.reference.to_reference(ours.unwrapped, state)
        picture = ours.unwrapped.render()
    own = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    own.reset(seed=0)
    own.unwrapped.state = np.array(state)
    assert (own.render() == picture).all()
    own.close()


@pytest.mark.parametrize(("name", "message"), [("a.avi", ".mp4 or .gif"), ("a", ".mp4 or .gif")])
def test_unknown_endings(gpurl, trained, tmp_path, name, message):
    result = gpurl("play", trained, "-o", tmp_path / name)
    assert result.code == 2 and message in result.err


@pytest.mark.parametrize("module", ["pygame", "imageio"])
def test_a_missing_render_extra_is_a_hint(gpurl, trained, tmp_path, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    result = gpurl("play", trained, "-o", tmp_path / "a.gif")
    assert result.code == 1 and "pip install 'gpurl[render]'" in result.err and result.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written(gpurl, trained, tmp_path):
    (tmp_path / "file").write_text("")
    result = gpurl("play", trained, "-o", tmp_path / "file" / "a.gif")
    assert result.code == 1 and "cannot write" in result.err and result.err.count("\n") == 1
