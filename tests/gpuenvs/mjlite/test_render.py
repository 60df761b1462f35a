"""Pictures of states: what moves, where the camera is, and what is said on a machine without OpenGL."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuenvs
from gpuenvs.errors import ConfigError, RunError
from gpuenvs.mjlite import render
from gpuenvs.mjlite.render import Renderer
from gpuenvs.mjlite.task import task_of


def needs_opengl() -> Any:
    with contextlib.suppress(RunError), Renderer(gpuenvs.get("Reacher-v5"), 8, 8):
        return pytest.mark.skipif(False, reason="")
    return pytest.mark.skip(reason="neither EGL nor OSMesa")


opengl = needs_opengl()


def rest(env_id: str, **coordinates: float) -> Any:
    """The model's own start with some coordinates changed."""
    spec = gpuenvs.get(env_id)
    task = task_of(spec)
    assert task is not None
    values = [*task.model.qpos0, *[0.0] * (len(spec.state._fields) - task.model.nq)]  # type: ignore[attr-defined]
    return spec.state(*values)._replace(**coordinates)


@opengl
def test_the_picture_follows_the_state() -> None:
    """The pole leans to the side that the state says; the same state gives the same picture."""
    with Renderer(gpuenvs.get("InvertedPendulum-v5"), 120, 90) as renderer:
        pictures = [renderer.frame(rest("InvertedPendulum-v5", qpos_hinge=a)) for a in (0.0, 0.6, -0.6, 0.0)]
        assert renderer.frames_per_second == 25
    assert pictures[0].shape == (90, 120, 3) and pictures[0].dtype == np.uint8
    np.testing.assert_array_equal(pictures[0], pictures[3])
    # Above the cart only the pole is not black; count its pixels left and right of the middle.
    left, right = ([(p[:40, side].max(axis=2) > 40).sum() for p in pictures] for side in (slice(0, 55), slice(65, 120)))
    assert right[1] > 50 > left[1] + 40 and left[2] > 50 > right[2] + 40 and left[0] + right[0] < 20


@opengl
def test_the_camera_follows_what_runs_away() -> None:
    """The cheetah is in the middle of the picture 100 m down the track."""
    with Renderer(gpuenvs.get("HalfCheetah-v5"), 96, 96) as renderer:
        here, there = (renderer.frame(rest("HalfCheetah-v5", qpos_rootx=x)).astype(int) for x in (0.0, 100.0))
    reddish = [(p[..., 0] - p[..., 2] > 30)[32:64, 24:72].sum() for p in (here, there)]
    assert reddish[0] > 30 and abs(reddish[0] - reddish[1]) < 0.2 * reddish[0]


@opengl
def test_two_renderers_live_side_by_side_and_any_size_fits() -> None:
    with Renderer(gpuenvs.get("Reacher-v5"), 900, 30) as wide, Renderer(gpuenvs.get("Swimmer-v5"), 30, 30) as small:
        first = wide.frame(rest("Reacher-v5"))
        small.frame(rest("Swimmer-v5"))
        np.testing.assert_array_equal(first, wide.frame(rest("Reacher-v5")))
    assert first.shape == (30, 900, 3) and first.std() > 5


@opengl
def test_a_policy_is_recorded_without_gymnasiums_renderer(tmp_path: Path) -> None:
    """What `gpurl play` does, in float32, with an option that changes the observation; pygame is not needed."""
    pytest.importorskip("imageio_ffmpeg")
    import imageio.v2 as imageio
    import torch

    from learners.video import record

    class Push:
        device = "cpu"
        width = 0

        def act(self, obs: Any, deterministic: bool, generator: Any) -> Any:
            self.width = obs.shape[1]
            return torch.ones(len(obs), 2)

    policy, path = Push(), tmp_path / "swim.mp4"
    params = {"exclude_current_positions_from_observation": False, "ctrl_cost_weight": 0.0}
    recording = record(policy, "Swimmer-v5", path, max_steps=4, params=params)
    assert recording.frames == 5 and policy.width == 10
    frames = [np.asarray(frame) for frame in imageio.mimread(path)]
    assert len(frames) == 5 and frames[0].shape == (480, 480, 3)


def test_other_environments_and_unknown_camera_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="CartPole-v1 is no MuJoCo task"):
        Renderer(gpuenvs.get("CartPole-v1"))
    spec, _ = gpuenvs.get("Swimmer-v5").with_options({"default_camera_config": {"distnace": 3.0}})
    with pytest.raises(ConfigError, match="a camera has no setting 'distnace'"):
        Renderer(spec)


def test_without_opengl_there_is_one_line_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> Any:
        raise ImportError(f"no lib{name}")

    monkeypatch.setattr(render, "_platform", fail)
    monkeypatch.setattr(render, "_forget", lambda platform: None)
    monkeypatch.setattr(sys, "platform", "linux")
    for wanted, tried in (("", "egl: no libegl; osmesa: no libosmesa"), ("osmesa", r"none \(osmesa: no libosmesa\)")):
        monkeypatch.setenv("MUJOCO_GL", wanted)
        with pytest.raises(RunError, match=tried) as caught:
            Renderer(gpuenvs.get("Reacher-v5"))
        assert "install libegl1" in str(caught.value) and "\n" not in str(caught.value)


@opengl
def test_osmesa_is_tried_after_egl(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first platform that makes a context is taken."""
    tried, real = [], render._platform("egl")

    def platform(name: str) -> Any:
        tried.append(name)
        if name == "egl":
            raise RuntimeError("no device")
        return real

    monkeypatch.setattr(render, "_platform", platform)
    monkeypatch.setattr(render, "_forget", lambda platform: None)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    with Renderer(gpuenvs.get("Reacher-v5"), 16, 16) as renderer:
        assert renderer.frame(rest("Reacher-v5")).shape == (16, 16, 3)
    assert tried == ["egl", "osmesa"]
