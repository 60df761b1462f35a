"""Pictures of MuJoCo tasks: states of any backend, drawn by MuJoCo's own renderer on a machine without a display.

    with Renderer(gpuenvs.get("Ant-v5")) as renderer:
        picture = renderer.frame(env.render_state(0))

A state holds all joint positions, so what ran on CUDA or in float32 is drawn like what ran here.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import os
import sys
from types import TracebackType
from typing import Any

import numpy as np

from gpuenvs.errors import ConfigError, RunError
from gpuenvs.mjlite.task import Task, task_of
from gpuenvs.spec import EnvSpec

HINT = "install libegl1 (or a graphics driver) or libosmesa6; MUJOCO_GL=egl or MUJOCO_GL=osmesa chooses one of them"


class Renderer:
    """Draws states of one MuJoCo task.

    Args:
        spec: an environment made by `gpuenvs.mjlite.task_spec`.
        width, height: of a picture, pixels.

    Raises:
        ConfigError: the environment is of another kind, or its camera has a setting that does not exist.
        RunError: neither EGL nor OSMesa works here; the line says what to install.
    """

    def __init__(self, spec: EnvSpec, width: int = 480, height: int = 480) -> None:
        mujoco: Any = importlib.import_module("mujoco")

        task = task_of(spec)
        if task is None:
            raise ConfigError(f"{spec.id} is no MuJoCo task, so MuJoCo cannot draw it")
        self._context: Any = None
        self._mj = copy.copy(task.model.mj)  # the framebuffer's size is part of the model
        offscreen = self._mj.vis.global_
        offscreen.offwidth, offscreen.offheight = max(width, offscreen.offwidth), max(height, offscreen.offheight)
        quality = self._mj.vis.quality  # many machines that draw have no GPU: less of what takes longest there
        quality.shadowsize, quality.offsamples = min(1024, quality.shadowsize), min(2, quality.offsamples)
        self._data = mujoco.MjData(self._mj)
        self._camera = _camera(task, self._mj)
        self.frames_per_second = max(1, round(1.0 / (task.model.timestep * task.frame_skip)))
        self._size = width, height
        self._context = _context(width, height)
        self._context.make_current()
        self._scene = mujoco.MjvScene(self._mj, maxgeom=2000)
        self._target = mujoco.MjrContext(self._mj, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._target)

    def frame(self, state: Any) -> np.ndarray:
        """The picture of a State of the task, (height, width, 3) uint8."""
        mujoco: Any = importlib.import_module("mujoco")

        mj, data, (width, height) = self._mj, self._data, self._size
        values = np.asarray(state, np.float64)
        data.qpos[:], data.qvel[:] = values[: mj.nq], values[mj.nq : mj.nq + mj.nv]
        mujoco.mj_forward(mj, data)
        self._context.make_current()
        options, nothing = mujoco.MjvOption(), mujoco.MjvPerturb()
        mujoco.mjv_updateScene(mj, data, options, nothing, self._camera, mujoco.mjtCatBit.mjCAT_ALL, self._scene)
        window = mujoco.MjrRect(0, 0, width, height)
        mujoco.mjr_render(window, self._scene, self._target)
        picture = np.empty((height, width, 3), np.uint8)
        mujoco.mjr_readPixels(picture, None, window, self._target)
        return picture[::-1]  # OpenGL counts rows from below

    def close(self) -> None:
        """Free what the graphics driver holds."""
        if self._context is not None:
            self._context.make_current()
            self._target.free()
            self._context.free()
            self._context = None

    def __enter__(self) -> Renderer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _camera(task: Task, mj: Any) -> Any:
    """MuJoCo's free camera with the task's settings; it follows the body `trackbodyid` if that is a moving one."""
    mujoco: Any = importlib.import_module("mujoco")

    camera = mujoco.MjvCamera()
    mujoco.mjv_defaultFreeCamera(mj, camera)
    for name, value in task.camera.items():
        if name not in ("trackbodyid", "distance", "lookat", "azimuth", "elevation"):
            raise ConfigError(
                f"{task.id}: a camera has no setting {name!r}; there are trackbodyid, distance, lookat, azimuth, elevation"
            )
        setattr(camera, name, value)
    if not 0 < camera.trackbodyid < mj.nbody and "trackbodyid" not in task.camera:
        camera.trackbodyid = _root_of_motion(mj)
    if 0 < camera.trackbodyid < mj.nbody:
        camera.type = mujoco.mjtCamera.mjCAMERA_TRACKING
    return camera


def _root_of_motion(mj: Any) -> int:
    """The first body that can leave the picture (its joint is free or slides without a limit), or -1."""
    mujoco: Any = importlib.import_module("mujoco")

    for k in range(mj.njnt):
        slides = mj.jnt_type[k] == mujoco.mjtJoint.mjJNT_SLIDE and not mj.jnt_limited[k]
        if slides or mj.jnt_type[k] == mujoco.mjtJoint.mjJNT_FREE:
            return int(mj.jnt_bodyid[k])
    return -1


# --- an OpenGL context without a display ------------------------------------------------------------------------------


def _context(width: int, height: int) -> Any:
    """EGL, else OSMesa, or what MUJOCO_GL names. Raises `RunError` if it does not work."""
    if sys.platform != "linux":
        from mujoco.gl_context import GLContext  # type: ignore[attr-defined]  # made for each platform

        return GLContext(width, height)
    wanted = os.environ.get("MUJOCO_GL", "").lower().strip()
    problems = []
    for name in (wanted,) if wanted in ("egl", "osmesa") else ("egl", "osmesa"):
        before = os.environ.get("PYOPENGL_PLATFORM")
        try:
            return _platform(name)(width, height)
        except (
            Exception
        ) as error:  # a missing library shows as an ImportError, AttributeError, OSError or an OpenGL error
            problems.append(f"{name}: {' '.join(str(error).split())[:120]}")
            _forget(before)
    raise RunError(f"pictures need EGL or OSMesa, and there is none ({'; '.join(problems)}); {HINT}")


def _platform(name: str) -> Any:
    if name == "egl":
        from mujoco.egl import GLContext
    else:
        from mujoco.osmesa import GLContext
    return GLContext


def _forget(platform: str | None) -> None:
    """PyOpenGL binds to one platform when it is imported: undo that, so that the next one can be tried."""
    for module in [
        m for m in sys.modules if m.split(".")[0] == "OpenGL" or m.startswith(("mujoco.egl", "mujoco.osmesa"))
    ]:
        with contextlib.suppress(KeyError):
            del sys.modules[module]
    os.environ.pop("PYOPENGL_PLATFORM", None)
    if platform is not None:
        os.environ["PYOPENGL_PLATFORM"] = platform
