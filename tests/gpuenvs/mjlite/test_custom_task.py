"""A user's own task: named quantities, what a step gives, and what each mistake is told."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import mujoco
import numpy as np
import pytest

import gpuenvs
from gpuenvs import mjlite
from gpuenvs import trace as T
from gpuenvs.errors import ModelError, SpecError

HOPPING_BALL = """
<mujoco model="hopping ball">
  <option timestep="0.005" integrator="Euler"/>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 0.1"/>
    <body name="base" pos="0 0 0.4">
      <joint name="rail" type="slide" axis="1 0 0" damping="0.1"/>
      <joint name="lift" type="slide" axis="0 0 1"/>
      <geom name="hull" type="sphere" size="0.1"/>
      <body name="arm" pos="0 0 0.1">
        <joint name="shoulder" type="hinge" axis="0 1 0" range="-90 90" limited="true"/>
        <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.03"/>
        <site name="hand" pos="0.3 0 0"/>
      </body>
    </body>
    <body name="stone" pos="1 0 0.2">
      <freejoint name="loose"/>
      <geom name="rock" type="sphere" size="0.1"/>
    </body>
  </worldbody>
  <actuator>
    <motor name="push" joint="rail" gear="5" ctrllimited="true" ctrlrange="-1 1"/>
    <motor name="swing" joint="shoulder" gear="2"/>
  </actuator>
</mujoco>
"""


class Params(NamedTuple):
    speed_weight: float = 1.0
    noise: float = 0.1


def observation(now, params):
    return [
        now.qpos["rail"],
        now.qpos["shoulder"],
        *now.qvel,
        now.xpos["arm"],
        now.xmat["arm"][8],
        now.site_xpos["hand"][2],
    ]


def reward(before, action, after, params):
    speed = (after.site_xpos["hand"][0] - before.site_xpos["hand"][0]) / after.dt
    return {
        "reward_speed": params.speed_weight * speed,
        "reward_ctrl": -0.1 * sum(u * u for u in action),
        "reward_near": T.where(T.absolute(after.qpos["rail"]) < 0.05, 1.0, 0.0),
    }


def terminated(after, params):
    return (after.geom_xpos["hull"][2] < 0.12) | (after.qpos["loose"][2] < 0.11)


def info(before, action, after, params):
    return {"force": after.qfrc_actuator["shoulder"], "lift_speed": after.qvel["lift"]}


def reset(start, params):
    start.qpos["lift"] = start.uniform(0.0, 0.3)
    start.qvel[:] = [start.normal(0.0, params.noise) for _ in start.qvel]
    start.qvel["loose"] = [0.5, 0.0, 0.0, 0.0, 0.0, 0.0]


def make_spec(model: Any = HOPPING_BALL, **changes: Any) -> gpuenvs.EnvSpec:
    functions = {"observation": observation, "reward": reward, "terminated": terminated, "info": info, "reset": reset}
    arguments = {"frame_skip": 4, "params": Params(), "max_episode_steps": 50, **functions, **changes}
    return mjlite.task_spec("Ball-v0", model, **arguments)


def engine_row(state: Any, action: np.ndarray) -> tuple[list[float], float, bool, dict[str, float]]:
    """The same task written with mjData: observation, reward, terminated, metrics."""
    model = mujoco.MjModel.from_xml_string(HOPPING_BALL)
    model.opt.tolerance = 0
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = state[: model.nq], state[model.nq : model.nq + model.nv]
    mujoco.mj_forward(model, data)
    before = data.site("hand").xpos[0]
    data.ctrl[:] = action
    mujoco.mj_step(model, data, nstep=4)
    speed = (data.site("hand").xpos[0] - before) / 0.02
    near = float(abs(data.qpos[0]) < 0.05)
    ended = bool(data.geom("hull").xpos[2] < 0.12 or data.qpos[5] < 0.11)
    obs = [
        data.qpos[0],
        data.qpos[2],
        *data.qvel,
        *data.body("arm").xpos,
        data.body("arm").xmat[8],
        data.site("hand").xpos[2],
    ]
    metrics = {
        "reward_speed": 3.0 * speed,
        "reward_ctrl": -0.1 * float(action @ action),
        "reward_near": near,
        "force": data.qfrc_actuator[2],
        "lift_speed": data.qvel[1],
    }
    return obs, sum(list(metrics.values())[:3]), ended, metrics


def test_a_custom_task_steps_as_mujoco_does() -> None:
    """From fresh states, whose hand position is the one that mj_forward gives, over a flight and a landing."""
    spec, rng, n = make_spec(), np.random.default_rng(0), 16
    assert spec.metrics == ("reward_speed", "reward_ctrl", "reward_near", "force", "lift_speed")
    ends = []
    with gpuenvs.make(spec, n, device="cpu", dtype="float64", autoreset="disabled", speed_weight=3.0) as env:
        for turn in range(5):
            env.reset(seed=turn)
            state = np.array(env.get_state()).T
            moved = rng.uniform(-0.37, 0.1, n)
            state[:, 1] += moved  # onto and into the floor, too
            state[:, spec.state._fields.index("site_xpos_hand_0")] = state[:, 0] + 0.3 * np.cos(state[:, 2])  # type: ignore[attr-defined]
            env.set_state(state.T)
            action = rng.uniform(-1.5, 1.5, (n, 2))
            obs, reward_, terminated_, _, metrics = env.step(action)
            for k in range(n):
                expected = engine_row(state[k], action[k])
                np.testing.assert_allclose(obs[k], expected[0], rtol=1e-9, atol=1e-9)
                assert reward_[k] == pytest.approx(expected[1], abs=1e-9)
                assert terminated_[k] == expected[2]
                for name, value in expected[3].items():
                    assert metrics[name][k] == pytest.approx(value, abs=1e-9), name
            ends += terminated_.tolist()
    assert 0 < np.mean(ends) < 1


def test_starts_are_what_the_task_says() -> None:
    with gpuenvs.make(make_spec(), 2000, device="cpu", dtype="float64", noise=np.linspace(0.0, 1.0, 2000)) as env:
        env.reset(seed=1)
        state = env.get_state()
    assert 0.0 <= state.qpos_lift.min() < 0.01 and 0.29 < state.qpos_lift.max() <= 0.3
    assert np.all(state.qvel_rail[:1] == 0.0) and 0.5 < state.qvel_rail[-500:].std() < 1.2
    np.testing.assert_array_equal(state.qvel_loose_0, 0.5)
    np.testing.assert_array_equal(state.qpos_loose_0, 1.0)
    np.testing.assert_allclose(state.site_xpos_hand_0, 0.3, atol=1e-12)


def test_only_what_is_read_is_kept() -> None:
    """A State holds positions, velocities and what `now` and `before` read of the last forward pass, no more."""
    names = make_spec().state._fields[19:]  # type: ignore[attr-defined]
    assert names == (
        "xpos_arm_0",
        "xpos_arm_1",
        "xpos_arm_2",
        "xmat_arm_8",
        "site_xpos_hand_0",
        "site_xpos_hand_2",
    )


def test_a_model_can_be_text_a_path_or_loaded(tmp_path: Any) -> None:
    path = tmp_path / "ball.xml"
    path.write_text(HOPPING_BALL)
    specs = [make_spec(model) for model in (HOPPING_BALL, path, str(path), mjlite.load(HOPPING_BALL))]
    assert len({spec.key for spec in specs}) == 1 and specs[0].key
    assert specs[0].action_space.high.tolist() == [1.0, math.inf]  # type: ignore[union-attr]


def test_the_cache_key_follows_the_functions_and_the_model() -> None:
    def other_reward(before, action, after, params):
        return {"reward": after.qpos["rail"]}

    def scaled(factor: float) -> gpuenvs.EnvSpec:
        return make_spec(
            reward=lambda before, action, after, params: {"reward": factor * after.qpos["rail"]}, info=None
        )

    heavier = HOPPING_BALL.replace('size="0.1"', 'size="0.11"', 1)
    specs = [
        make_spec(),
        make_spec(heavier),
        make_spec(frame_skip=5),
        make_spec(reward=other_reward),
        scaled(1.0),
        scaled(2.0),
    ]
    assert len({spec.key for spec in specs}) == len(specs)


def _decides(now, params):
    return [now.qpos["rail"] if now.qpos["rail"] > 0 else 0.0]


def _plain_math(now, params):
    return [math.sin(now.qpos["shoulder"])]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"observation": lambda now, params: [now.qpos["shoulders"]]}, "no joint of this name .did you mean shoulder"),
        ({"observation": lambda now, params: [now.xpos["arn"][0]]}, "no body of this name .did you mean arm"),
        ({"observation": lambda now, params: [now.site_xpos["tip"][0]]}, "no site of this name; it has: hand"),
        ({"observation": lambda now, params: [now.geom_xpos["hul"][0]]}, "did you mean hull"),
        ({"observation": lambda now, params: [now.qpso["rail"]]}, "no quantity is called 'qpso' .did you mean qpos"),
        ({"observation": lambda now, params: [now.qpos[10]]}, r"qpos\[10\]: the model has 10 of them"),
        ({"observation": lambda now, params: []}, "observation returns nothing"),
        ({"observation": _decides}, "observation decides with `if`"),
        ({"observation": _plain_math}, "observation gives a value of the simulation to a function of plain numbers"),
        ({"observation": lambda now: [1.0]}, r"observation must be a function of \(now, params\)"),
        ({"reward": lambda before, action, after, params: after.qpos[0]}, "reward must return a dict of terms"),
        ({"reward": lambda b, a, after, p: {"x": max(after.qpos[0], 0.0)}}, "reward decides with `if`"),
        ({"info": lambda before, action, after, params: {"reward_ctrl": 0.0}}, "share a name: reward_ctrl"),
        ({"terminated": lambda after, params: after.qpos[0] > 0 or after.qpos[1] > 0}, "terminated decides with `if`"),
        ({"frame_skip": 2.5}, "frame_skip must be a whole number"),
    ],
)
def test_a_mistake_is_told_when_the_spec_is_made(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        make_spec(**changes)
    assert str(caught.value).startswith("Ball-v0: ") and "\n" not in str(caught.value)


def test_a_wrong_name_in_reset_and_a_numpy_function_are_told_when_the_kernels_are_made() -> None:
    def lost(start, params):
        start.qpos["lifft"] = 1.0

    def numpy_sine(now, params):
        return [np.sin(now.qpos["shoulder"])]

    for changes, words in (({"reset": lost}, "did you mean lift"), ({"observation": numpy_sine}, "plain numbers")):
        with pytest.raises(SpecError, match=words), gpuenvs.make(make_spec(**changes), 2, device="cpu") as env:
            env.reset(seed=0)


def test_models_that_are_not_there_or_not_supported_are_named() -> None:
    with pytest.raises(ModelError, match=r"there is no MJCF file nowhere\.xml"):
        make_spec("nowhere.xml")
    with pytest.raises(ModelError, match="equality constraint 'weld1' is not supported"):
        make_spec(
            HOPPING_BALL.replace("<actuator>", "<equality><weld name='weld1' body1='stone'/></equality><actuator>")
        )


def test_a_registered_custom_task_is_an_environment_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    import gymnasium

    from gpuenvs import registry

    monkeypatch.setattr(registry, "_specs", dict(registry._specs))
    monkeypatch.setattr(gymnasium, "registry", gymnasium.registry)
    gpuenvs.register(make_spec())
    try:
        env = gymnasium.make_vec("gpuenvs/Ball-v0", num_envs=3)
        obs, _ = env.reset(seed=0)
        assert obs.shape == (3, 16)
        *_, out = env.step(env.action_space.sample() * 0)
        assert out["reward_ctrl"].shape == (3,)
        env.close()
    finally:
        del gymnasium.registry["gpuenvs/Ball-v0"]


def test_a_pair_of_shapes_without_a_collider_is_named_when_the_spec_is_made() -> None:
    boxes = HOPPING_BALL.replace(
        'name="rock" type="sphere" size="0.1"', 'name="rock" type="ellipsoid" size="0.1 0.2 0.1"'
    )
    with pytest.raises(ModelError, match=r"ellipsoid.* not supported"):
        make_spec(boxes)
