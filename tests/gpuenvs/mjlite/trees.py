"""Random small MJCF trees."""

from __future__ import annotations

import numpy as np


def random_tree(
    rng: np.random.Generator, *, integrator: str = "RK4", contacts: bool = False, fluid: bool = False
) -> str:
    """MJCF of 1 to 6 bodies with hinge, slide, ball and free joints, several on a body, springs, dampers and motors.

    With `contacts` there is a floor and joints have limits; without, neither acts. Any two calls with equal `rng` agree.
    """
    bodies = int(rng.integers(1, 7))
    parents = [int(rng.integers(-1, k)) for k in range(bodies)]
    joints: list[str] = []
    children: dict[int, list[int]] = {}
    for k, parent in enumerate(parents):
        children.setdefault(parent, []).append(k)

    def body(k: int) -> str:
        inner = "".join(body(child) for child in children.get(k, []))
        at = rng.normal(size=3) * 0.3 + (np.array([0, 0, 1.0]) if parents[k] < 0 else 0.0)
        turn = "" if rng.random() < 0.4 else f'euler="{_numbers(rng.uniform(-90, 90, size=3))}"'
        own = _joints(rng, k, parents[k] < 0, contacts, joints)
        return f'<body pos="{_numbers(at)}" {turn}>{own}{_geoms(rng)}{inner}</body>'

    world = "".join(body(k) for k in children[-1])
    height = rng.uniform(0, 1)
    floor = f'<geom type="plane" size="5 5 1" contype="1" pos="0 0 {height:.2f}"/>' if contacts else ""
    flags = "" if contacts else '<flag contact="disable" limit="disable"/>'
    medium = 'density="30" viscosity="0.4" wind="0.3 -0.2 0.1"' if fluid else ""
    motors = "".join(_actuator(rng, name) for name in joints)
    return (
        f'<mujoco><option integrator="{integrator}" timestep="0.005" {medium}>{flags}</option>'
        f'<default><geom {_surface(rng)} density="{rng.uniform(200, 2000):.0f}"/></default>'
        f"<worldbody>{floor}{world}</worldbody><actuator>{motors}</actuator></mujoco>"
    )


def _numbers(values: np.ndarray) -> str:
    return " ".join(f"{x:.3f}" for x in values)


def _surface(rng: np.random.Generator) -> str:
    """Contact parameters; in a third of the models bodies touch each other too."""
    touches = int(rng.random() < 0.33)
    reference = str(rng.choice(["0.02 1", "0.005 0.8", "-2000 -50"]))
    return (
        f'contype="{touches}" conaffinity="1" condim="{rng.choice([1, 3])}" friction="{rng.uniform(0.2, 1.5):.2f}" '
        f'margin="{rng.choice([0.0, 0.01])}" solref="{reference}" solimp="{rng.uniform(0, 0.9):.2f} 0.95 0.01 0.5 2"'
    )


def _geoms(rng: np.random.Generator) -> str:
    kinds = {
        "sphere": lambda: f'size="{rng.uniform(0.05, 0.15):.3f}"',
        "capsule": lambda: f'size="{_numbers(rng.uniform(0.04, 0.2, size=2))}"',
        "box": lambda: f'size="{_numbers(rng.uniform(0.05, 0.2, size=3))}"',
    }
    out = ""
    for _ in range(int(rng.integers(1, 3))):
        kind = str(rng.choice(list(kinds)))
        frame = f'pos="{_numbers(rng.normal(size=3) * 0.1)}" euler="{_numbers(rng.uniform(-90, 90, size=3))}"'
        out += f'<geom type="{kind}" {kinds[kind]()} {frame}/>'
    return out


def _joints(rng: np.random.Generator, k: int, top: bool, limits: bool, names: list[str]) -> str:
    if top and rng.random() < 0.4:
        return '<joint type="free" damping="0.1"/>' if rng.random() < 0.5 else "<freejoint/>"
    count = int(rng.choice([0, 1, 2, 3], p=[0.1, 0.6, 0.2, 0.1])) if not top else int(rng.integers(1, 3))
    out = ""
    for i in range(count):
        kind = str(rng.choice(["hinge", "slide", "ball"], p=[0.6, 0.2, 0.2])) if i == 0 else "hinge"
        if i == 1 and 'type="slide"' in out and rng.random() < 0.5:
            kind = "ball"
        properties = f'damping="{rng.uniform(0, 1):.3f}" armature="{rng.uniform(0.001, 0.1):.3f}"'
        if rng.random() < 0.5:
            properties += f' stiffness="{rng.uniform(1, 20):.3f}"'
        if kind != "ball":
            axis = np.eye(3)[rng.integers(3)] if rng.random() < 0.5 else rng.normal(size=3)
            properties += f' axis="{_numbers(axis)}" springref="{rng.uniform(-0.1, 0.1):.3f}"'
            names.append(f"j{k}_{i}")
        if limits and rng.random() < 0.3:
            properties += f' frictionloss="{rng.uniform(0.01, 2):.3f}"'
        if limits and rng.random() < 0.6:
            extent = {"hinge": "-40 50", "slide": "-0.2 0.3", "ball": "0 60"}[kind]
            properties += f' limited="true" range="{extent}"'
        offset = f'pos="{_numbers(rng.normal(size=3) * 0.1)}"' if rng.random() < 0.5 else ""
        out += f'<joint name="j{k}_{i}" type="{kind}" {properties} {offset}/>'
        if kind == "ball":  # MuJoCo wants it to be a body's last joint
            break
    return out


def _actuator(rng: np.random.Generator, joint: str) -> str:
    gear = rng.uniform(0.5, 3)
    kinds = [
        f'<motor joint="{joint}" gear="{gear:.2f}" ctrllimited="true" ctrlrange="-1 1"/>',
        f'<position joint="{joint}" kp="{rng.uniform(1, 30):.2f}" kv="0.5" gear="{gear:.2f}" forcerange="-9 9"/>',
        f'<velocity joint="{joint}" kv="{rng.uniform(0.1, 2):.2f}"/>',
        "",
    ]
    return str(rng.choice(kinds))
