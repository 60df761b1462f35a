"""Loading MJCF: constants, and refusals by name."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import mujoco
import pytest

from gpuenvs.errors import ModelError
from gpuenvs.mjlite import load
from gpuenvs.mjlite.model import from_mjmodel
from tests.gpuenvs.mjlite import harness


def xml(
    *,
    option: str = "",
    flag: str = "",
    joint: str = "",
    body: str = "",
    geom: str = "",
    world: str = "",
    rest: str = "",
) -> str:
    return f"""<mujoco><option {option}><flag {flag}/></option><worldbody>{world}
      <geom name="floor" type="plane" size="1 1 1"/>
      <body name="a" pos="0 0 1" {body}><joint name="j" {joint}/><geom name="g" size=".1 .2 .3" {geom}/>
        <site name="s"/><body name="b" pos="0 0 1"><joint name="k"/><geom name="h" size=".1"/><site name="t"/></body></body>
      <body name="c" pos="2 0 1"><joint name="l" type="ball"/><geom size=".1"/></body>
      </worldbody>{rest}</mujoco>"""


def actuator(text: str) -> dict[str, str]:
    return {"rest": f"<actuator>{text}</actuator>"}


def tendon(properties: str, more: str = "") -> dict[str, str]:
    return {
        "rest": f'<tendon><spatial name="rope" {properties}><site site="s"/><site site="t"/></spatial></tendon>{more}'
    }


REFUSED = {
    "equality constraint 'weld1'": {"rest": '<equality><weld name="weld1" body1="a" body2="c"/></equality>'},
    "integrator implicit ": {"option": 'integrator="implicit"'},
    "integrator implicitfast ": {"option": 'integrator="implicitfast"'},
    "elliptic friction cones": {"option": 'cone="elliptic"'},
    "impratio 10": {"option": 'impratio="10"'},
    "noslip": {"option": 'noslip_iterations="3"'},
    "flag override": {"flag": 'override="enable"'},
    "flag sleep": {"flag": 'sleep="enable"'},
    "gravcomp of body 'a'": {"body": 'gravcomp="1"'},
    "mocap body 'm'": {"world": '<body name="m" mocap="true"/>'},
    "ellipsoid fluid model of geom 'g'": {"option": 'density="1"', "geom": 'fluidshape="ellipsoid"'},
    "geoms 'floor' and 'g': condim 4": {"geom": 'condim="4"'},
    "geoms 'floor' and 'g': condim 6": {"geom": 'condim="6"'},
    "geoms 'floor' and 'g': plane with ellipsoid": {"geom": 'type="ellipsoid"'},
    "nonlinear stiffness of joint 'j'": {"joint": 'stiffness="1 2"'},
    "nonlinear damping of joint 'j'": {"joint": 'damping="1 2"'},
    "stiffness of tendon 'rope'": tendon('stiffness="1"'),
    "damping of tendon 'rope'": tendon('damping="1"'),
    "limited of tendon 'rope'": tendon('limited="true" range="0 1"'),
    "frictionloss of tendon 'rope'": tendon('frictionloss="1"'),
    "armature of tendon 'rope'": tendon('armature="1"'),
    "actuator 'x': transmission to a tendon": tendon("", '<actuator><motor name="x" tendon="rope"/></actuator>'),
    "actuator 'x': transmission to a site": actuator('<motor name="x" site="s"/>'),
    "actuator 'x': transmission to a body": actuator('<adhesion name="x" body="a" ctrlrange="0 1"/>'),
    "actuator 'x': transmission to a ball": actuator('<motor name="x" joint="l"/>'),
    "actuator 'x': activation dynamics (integrator)": actuator(
        '<intvelocity name="x" joint="j" kp="1" actrange="-1 1"/>'
    ),
    "actuator 'x': activation dynamics (filter": actuator('<position name="x" joint="j" timeconst="1"/>'),
    "actuator 'x': activation dynamics (muscle)": actuator('<muscle name="x" joint="j" lengthrange="0 1"/>'),
    "actuator 'x': armature": actuator('<motor name="x" joint="j" armature="1"/>'),
    "actuator 'x': damping": actuator('<motor name="x" joint="j" damping="1"/>'),
    "sensor 'y' (touch)": {"rest": '<sensor><touch name="y" site="s"/></sensor>'},
    "sensor 'y' (accelerometer)": {"rest": '<sensor><accelerometer name="y" site="s"/></sensor>'},
    "flex 'cloth'": {
        "world": '<body name="p"><flexcomp name="cloth" count="3 3 1" spacing=".1 .1 .1" radius=".01" dim="2"/></body>'
    },
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_by_name(what: str) -> None:
    with pytest.raises(ModelError, match=r"not supported|must be 0") as caught:
        load(xml(**REFUSED[what]))
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


ACCEPTED = {
    "an inert tendon": tendon(""),
    "position, velocity, damper, general": actuator(
        '<position joint="j" kp="2" kv="1" inheritrange="0"/><velocity joint="j" kv="1"/>'
        '<damper joint="k" kv="1" ctrlrange="0 1"/><general joint="k" gainprm="1" biastype="affine" biasprm="1 2 3"/>'
    ),
    "frame sensors": {
        "rest": '<sensor><framepos objtype="site" objname="s"/><jointpos joint="j"/><subtreecom body="a"/></sensor>'
    },
    "what cannot touch": {"geom": 'type="ellipsoid" contype="0" conaffinity="0" condim="4"'},
    "no contacts": {"flag": 'contact="disable"', "geom": 'type="ellipsoid"'},
    "energy": {"flag": 'energy="enable" sensor="disable" warmstart="disable"'},
    "keyframes, cameras, lights": {"world": "<light/><camera/>", "rest": '<keyframe><key name="home"/></keyframe>'},
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_accepted(what: str) -> None:
    load(xml(**ACCEPTED[what]))


@pytest.mark.parametrize("name", harness.MODELS)
def test_gymnasium_models_load(name: str) -> None:
    m = harness.model(name)
    assert (m.nq, m.nv, m.nu) == (m.mj.nq, m.mj.nv, m.mj.nu)


def test_constants_are_plain_numbers_without_residue() -> None:
    m = harness.model("HalfCheetah")
    for field in dataclasses.fields(m):
        if field.name != "mj":
            assert set(leaf_types(getattr(m, field.name))) <= {int, float, bool}, field.name
    small = [x for row in (*m.geom_quat, *m.body_iquat, *m.geom_pos) for x in row if 0 < abs(x) < 1e-12]
    assert small == []


def leaf_types(value: object) -> list[type]:
    return [t for x in value for t in leaf_types(x)] if isinstance(value, tuple) else [type(value)]


def test_disabled_flags_are_folded() -> None:
    joint = 'stiffness="3" damping="2" frictionloss="1" range="-1 1" limited="true"'
    motor = actuator('<motor joint="j" ctrlrange="-1 1"/>')
    m = load(xml(joint=joint, **motor))
    assert (m.jnt_stiffness[0], m.dof_damping[0], m.dof_frictionloss[0], m.jnt_limited[0]) == (3.0, 2.0, 1.0, 1)
    assert m.gravity == (0.0, 0.0, -9.81) and m.actuator_ctrllimited == (1,) and m.geom_contype[0] == 1
    names = (
        "spring",
        "damper",
        "frictionloss",
        "limit",
        "gravity",
        "clampctrl",
        "contact",
        "eulerdamp",
        "refsafe",
        "actuation",
    )
    m = load(xml(joint=joint, flag=" ".join(f'{name}="disable"' for name in names), **motor))
    assert (m.jnt_stiffness[0], m.dof_damping[0], m.dof_frictionloss[0], m.jnt_limited[0]) == (0.0, 0.0, 0.0, 0)
    assert m.gravity == (0.0, 0.0, 0.0) and m.actuator_ctrllimited == (0,) and set(m.geom_contype) == {0}
    assert (m.eulerdamp, m.refsafe, m.actuator_disabled) == (False, False, (1,))
    m = load(xml(joint=joint, flag='constraint="disable"'))
    assert set(m.jnt_limited) == {0} and set(m.geom_conaffinity) == {0} and set(m.dof_frictionloss) == {0.0}


def test_key_is_of_the_physics_alone() -> None:
    base = load(xml())
    assert base.key() == load(xml()).key()
    assert base.key() == load(xml().replace('"floor"', '"ground"')).key()
    changes = (
        {"option": 'timestep="0.003"'},
        {"joint": 'armature="0.1"'},
        {"geom": 'friction="0.9"'},
        {"flag": 'refsafe="disable"'},
    )
    assert len({base.key(), *(load(xml(**change)).key() for change in changes)}) == 5


def test_ids() -> None:
    m = load(xml())
    assert (m.id("body", "b"), m.id("joint", "k"), m.id("geom", "h"), m.id("site", "t")) == (2, 1, 2, 1)
    with pytest.raises(ModelError, match="no body 'zz'"):
        m.id("body", "zz")


def test_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "m.xml"
    path.write_text(xml())
    assert load(path).key() == load(str(path)).key() == load("\n " + xml()).key()
    assert from_mjmodel(mujoco.MjModel.from_xml_string(xml())).key() == load(path).key()
    with pytest.raises(ModelError, match=r"no MJCF file .*nowhere.xml"):
        load(tmp_path / "nowhere.xml")
    with pytest.raises(ModelError, match=r"cannot compile the model: .*no_such_attribute") as caught:
        load(xml(joint='no_such_attribute="1"'))
    assert "\n" not in str(caught.value)
    load(harness.ASSETS / "humanoid.xml")  # MuJoCo warns about it
    assert [p.name for p in tmp_path.iterdir()] == ["m.xml"]


def test_models_can_be_pickled() -> None:
    m = harness.model("Hopper")
    assert pickle.loads(pickle.dumps(m)).key() == m.key()
