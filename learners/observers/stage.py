"""What the viewer's page shows of an environment: a MuJoCo task's bodies, pictures, or a state's numbers.

A stage is shown what a player yields, on the thread that plays.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpuenvs.mjlite import render
from gpuenvs.mjlite.task import task_of
from gpuenvs.spec import EnvSpec

_FLOOR = {"plane_color": (222, 226, 232), "plane_opacity": 1.0, "cell_color": (170, 178, 190), "cell_size": 0.5}
_SHOWN_GROUPS = 3  # MuJoCo's renderer leaves the other groups of geoms out as well
_NO_COLOR = np.array([0.5, 0.5, 0.5, 1.0], np.float32)  # of a geom that leaves it to its material
_FACE_ON = (math.sqrt(0.5), -math.sqrt(0.5), 0.0, 0.0)  # a picture that stands upright and faces -y


class Bodies:
    """The geoms of a MuJoCo task, as solids that the browser draws. Shows States.

    The world is moved instead of the camera, so that whoever turns the camera is not disturbed.
    """

    def __init__(self, server: Any, spec: EnvSpec) -> None:
        import mujoco

        self._mujoco: Any = mujoco
        task = task_of(spec)
        assert task is not None
        self._mj: Any = task.model.mj
        self._data: Any = self._mujoco.MjData(self._mj)
        self.frames_per_second = 1.0 / (task.model.timestep * task.frame_skip)
        camera = render._camera(task, self._mj)  # the one that videos are made with
        self._followed = camera.trackbodyid if 0 < camera.trackbodyid < self._mj.nbody else None
        self._scene = server.scene
        self._world = server.scene.add_frame("/world", show_axes=False)
        self._moving: list[tuple[int, Any]] = []
        self._mujoco.mj_forward(self._mj, self._data)
        for geom in range(self._mj.ngeom):
            self._add(geom)
        self._aim(server, camera)

    def _aim(self, server: Any, camera: Any) -> None:
        aim = np.array(camera.lookat)
        if self._followed is not None:
            aim = np.array([0.0, 0.0, self._data.subtree_com[self._followed][2]])
        azimuth, elevation = math.radians(camera.azimuth), math.radians(camera.elevation)
        flat = math.cos(elevation)
        forward = np.array([flat * math.cos(azimuth), flat * math.sin(azimuth), math.sin(elevation)])
        server.initial_camera.look_at = tuple(aim)
        server.initial_camera.position = tuple(aim - camera.distance * forward)

    def _add(self, geom: int) -> None:
        mj, data = self._mj, self._data
        material, rgba = mj.geom_matid[geom], mj.geom_rgba[geom]
        if material >= 0 and np.array_equal(rgba, _NO_COLOR):
            rgba = mj.mat_rgba[material]
        if rgba[3] == 0 or mj.geom_group[geom] >= _SHOWN_GROUPS:
            return
        place = {"position": data.geom_xpos[geom], "wxyz": self._turn(geom)}
        name = f"/world/geom-{geom}"
        if mj.geom_type[geom] == self._mujoco.mjtGeom.mjGEOM_PLANE:
            self._scene.add_grid(name, infinite_grid=True, fade_distance=60.0, **_FLOOR, **place)
            return
        vertices, faces = self._solid(geom)
        color = tuple(round(255 * float(part)) for part in rgba[:3])
        made = self._scene.add_mesh_simple(name, vertices, faces, color=color, opacity=float(rgba[3]), **place)
        if mj.body_weldid[mj.geom_bodyid[geom]]:  # not fixed to the world
            self._moving.append((geom, made))

    def _solid(self, geom: int) -> tuple[np.ndarray, np.ndarray]:
        """Vertices (n, 3) and faces (m, 3) in the geom's own frame."""
        from trimesh import creation

        mj, kinds = self._mj, self._mujoco.mjtGeom
        kind, size = mj.geom_type[geom], mj.geom_size[geom]
        if kind == kinds.mjGEOM_MESH:
            mesh = mj.geom_dataid[geom]
            vertex, face = mj.mesh_vertadr[mesh], mj.mesh_faceadr[mesh]
            vertices = mj.mesh_vert[vertex : vertex + mj.mesh_vertnum[mesh]]
            return np.array(vertices), np.array(mj.mesh_face[face : face + mj.mesh_facenum[mesh]])
        if kind == kinds.mjGEOM_CAPSULE:
            solid = creation.capsule(height=2 * size[1], radius=size[0])
            solid.apply_translation(-solid.bounds.mean(0))
        elif kind == kinds.mjGEOM_CYLINDER:
            solid = creation.cylinder(radius=size[0], height=2 * size[1])
        elif kind == kinds.mjGEOM_BOX:
            solid = creation.box(extents=2 * size)
        else:  # spheres and ellipsoids
            solid = creation.icosphere(subdivisions=3)
            solid.apply_scale(size if kind == kinds.mjGEOM_ELLIPSOID else size[0])
        return np.array(solid.vertices), np.array(solid.faces)

    def _turn(self, geom: int) -> np.ndarray:
        quaternion = np.empty(4)
        self._mujoco.mju_mat2Quat(quaternion, self._data.geom_xmat[geom])
        return quaternion

    def show(self, state: Any) -> None:
        """Move everything to where it is in a State of the task."""
        values = np.asarray(state, np.float64)
        self._data.qpos[:] = values[: self._mj.nq]
        self._mujoco.mj_kinematics(self._mj, self._data)
        self._mujoco.mj_comPos(self._mj, self._data)
        for geom, made in self._moving:
            made.position, made.wxyz = self._data.geom_xpos[geom], self._turn(geom)
        if self._followed is not None:
            com = self._data.subtree_com[self._followed]
            self._world.position = (-com[0], -com[1], 0.0)


class Pictures:
    """Pictures (height, width, 3) uint8, upright in front of the camera."""

    def __init__(self, server: Any, frames_per_second: float) -> None:
        self.frames_per_second = frames_per_second
        self._scene, self._picture = server.scene, None
        server.initial_camera.look_at = (0.0, 0.0, 0.0)
        server.initial_camera.position = (0.0, -1.6, 0.0)

    def show(self, picture: np.ndarray) -> None:
        """Replace the picture."""
        if self._picture is None:
            height, width = picture.shape[:2]
            size = {
                "render_width": 2.0 * width / max(width, height),
                "render_height": 2.0 * height / max(width, height),
            }
            self._picture = self._scene.add_image("/picture", picture, **size, format="jpeg", wxyz=_FACE_ON)
        else:
            self._picture.image = picture


class Numbers:
    """The fields of a State as a table, for an environment that nobody can draw."""

    def __init__(self, server: Any, frames_per_second: float) -> None:
        self.frames_per_second = frames_per_second
        self._table = server.gui.add_markdown("")

    def show(self, state: Any) -> None:
        """Fill in a State's numbers."""
        rows = "".join(f"| {name} | {float(value):.4g} |\n" for name, value in state._asdict().items())
        self._table.content = f"| state | |\n|---|---|\n{rows}"
