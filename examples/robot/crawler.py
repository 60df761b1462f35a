"""Crawler-v0: a robot of one's own, from an MJCF file: a trunk that drags itself forward with one arm of two joints.

    gpurl check examples/robot/crawler.py:SPEC
    gpurl train examples/robot/crawler.py:SPEC --total-steps 1e6

The model is `crawler.xml` beside this file; MuJoCo reads it, and its dynamics are compiled for this model. Task functions
see one robot, are traced once and name quantities as the model does; `gpuenvs.mjlite` says what there is.

Observation (10): height, pitch, joint angles, all velocities, and the hand's height.
Action (2): torque of shoulder and elbow, from -1 to 1.
Reward: `forward` (speed of the trunk in m/s) less `control`, both in info. 250 steps of 0.02 s, then truncated.
Reaches a return of more than 170 (0.7 m/s).
"""

from pathlib import Path
from typing import NamedTuple

from gpuenvs import mjlite


class Params(NamedTuple):
    control_cost: float = 0.05
    noise: float = 0.05  # rad and m/s, of the start


def reset(start, params):
    for joint in ("shoulder", "elbow"):
        start.qpos[joint] = start.uniform(-params.noise, params.noise)
    start.qvel[:] = [start.normal(0.0, params.noise) for _ in start.qvel]


def observation(now, params):
    return [*now.qpos[1:], *now.qvel, now.xpos["fore"][2]]


def reward(before, action, after, params):
    speed = (after.qpos["x"] - before.qpos["x"]) / after.dt
    return {"forward": speed, "control": -params.control_cost * sum(u * u for u in action)}


SPEC = mjlite.task_spec(
    "Crawler-v0",
    Path(__file__).with_name("crawler.xml"),
    frame_skip=4,
    reset=reset,
    observation=observation,
    reward=reward,
    params=Params(),
    max_episode_steps=250,
    camera={"trackbodyid": 1, "distance": 2.5},
    doc=__doc__,
)
