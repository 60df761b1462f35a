"""What the viewer plays, without a browser: the page's server is a double that remembers what it was given."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

import gpuenvs
from gpuenvs.mjlite.task import task_of
from learners.build import policy_for
from learners.observers.stage import Bodies
from learners.observers.viewer import MOST_FRAMES, Player
from tests.learners.tiny import tiny_config


class Scene:
    """Makes handles by name, of whatever kind."""

    def __init__(self):
        self.made = {}

    def __getattr__(self, method):
        def make(name="", *positional, **values):
            self.made[name] = SimpleNamespace(method=method, positional=positional, content="", **values)
            return self.made[name]

        return make


@pytest.fixture
def server():
    return SimpleNamespace(scene=Scene(), gui=Scene(), initial_camera=SimpleNamespace())


def undrawable():
    if "Undrawable-v0" not in gpuenvs.ids():
        gpuenvs.register(dataclasses.replace(gpuenvs.get("CartPole-v1"), id="Undrawable-v0", reference=None))
    return "Undrawable-v0"


def test_an_environment_that_nobody_can_draw_shows_its_numbers(server):
    config = tiny_config(undrawable())
    player = Player(server, policy_for(config), config)
    player.begin(3)
    texts = []
    for _ in range(30):
        player.frame()
        texts.append(server.gui.made[""].content)
    assert len(set(texts)) == 30 and "| theta | " in texts[0]
    assert player.frame_seconds == pytest.approx(1 / MOST_FRAMES)
    assert player.returns and all(value >= 8 for value in player.returns)  # untrained, it falls soon
    player.begin(3)
    assert player.returns == []
    player.frame()
    assert server.gui.made[""].content == texts[0]  # a seed is a start
    player.begin(4)
    player.frame()
    assert server.gui.made[""].content != texts[0]
    player.close()


def test_bodies_are_where_mujoco_has_them(server):
    pytest.importorskip("trimesh")
    mujoco = pytest.importorskip("mujoco")
    spec = gpuenvs.get("Hopper-v5")
    stage, task = Bodies(server, spec), task_of(spec)
    mj, data = task.model.mj, mujoco.MjData(task.model.mj)
    made = server.scene.made
    data.qpos[:] = [3.0, 1.2, 0.1, -0.2, -0.3, 0.4]
    stage.show([*data.qpos, *[0.0] * 100])
    mujoco.mj_forward(mj, data)
    moving = [geom for geom in range(mj.ngeom) if mj.geom_bodyid[geom]]
    assert len(moving) == 4 and made["/world/geom-0"].method == "add_grid"
    for geom in moving:
        node = made[f"/world/geom-{geom}"]
        assert np.allclose(node.position, data.geom_xpos[geom])
        turned = np.empty(9)
        mujoco.mju_quat2Mat(turned, node.wxyz)
        assert np.allclose(turned, data.geom_xmat[geom], atol=1e-6)
        vertices, _ = node.positional
        radius, half = mj.geom_size[geom][:2]
        assert np.allclose(vertices.max(0) - vertices.min(0), [2 * radius, 2 * radius, 2 * (half + radius)], rtol=0.02)
        assert np.allclose(vertices.max(0) + vertices.min(0), 0, atol=1e-6)
        assert node.color == (204, 153, 102)  # (0.8, 0.6, 0.4) in the file
    # The hopper stays in front of the camera, its floor goes by.
    assert made["/world"].position[0] == pytest.approx(-data.subtree_com[task.camera["trackbodyid"]][0])
    assert made["/world"].position[2] == 0
    assert 30 < stage.frames_per_second < 200
