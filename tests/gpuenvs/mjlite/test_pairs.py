"""Which geoms are tested for contact, with what parameters, and what is refused."""

from __future__ import annotations

from collections import Counter

import mujoco
import pytest

from gpuenvs.errors import ModelError
from gpuenvs.mjlite.model import load
from gpuenvs.mjlite.pairs import Pair, candidate_pairs, chain, path
from tests.gpuenvs.mjlite import harness

PAIRS = {
    "InvertedPendulum": {},
    "InvertedDoublePendulum": {},
    "Reacher": {},
    "Swimmer": {},
    "Hopper": {("plane", "capsule"): 4, ("capsule", "capsule"): 3},
    "HalfCheetah": {("plane", "capsule"): 8},
    "Walker2d": {("plane", "capsule"): 7},
    "Ant": {("plane", "sphere"): 1, ("plane", "capsule"): 12},
    "Humanoid": {
        ("plane", "capsule"): 12, ("plane", "sphere"): 5, ("capsule", "capsule"): 52, ("sphere", "capsule"): 47,
        ("sphere", "sphere"): 10,
    },
    "Pusher": {("plane", "capsule"): 3, ("plane", "cylinder"): 1, ("capsule", "cylinder"): 3},
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_the_tasks(name: str) -> None:
    assert Counter(pair.shapes for pair in candidate_pairs(harness.model(name))) == PAIRS[name]


BODIES = """<mujoco><option {option}/><worldbody>
  <geom name="floor" type="plane" size="1 1 1" {floor}/>
  <body name="a"><joint type="slide" axis="0 0 1"/><geom name="a" size="1 1 1" {a}/>
    <body name="b"><joint axis="0 1 0"/><geom name="b" size="1 1 1" {b}/>
      <body name="c"><geom name="c" size="1 1 1"/>
        <body name="d"><joint axis="0 1 0"/><geom name="d" size="1 1 1"/></body></body></body></body>
</worldbody><contact>{contact}</contact></mujoco>"""


def build(option: str = "", floor: str = "", a: str = "", b: str = "", contact: str = "") -> list[Pair]:
    return candidate_pairs(load(BODIES.format(option=option, floor=floor, a=a, b=b, contact=contact)))


def names(pairs: list[Pair]) -> set[str]:
    return {"fabcd"[pair.geom1] + "fabcd"[pair.geom2] for pair in pairs}


def test_parents_and_welded_bodies_do_not_collide() -> None:
    # b and c are welded to each other; the parent of d is then b
    assert names(build()) == {"fa", "fb", "fc", "fd", "ad"}


def with_flag(flag: str, contact: str = "") -> list[Pair]:
    text = BODIES.format(option="", floor="", a="", b="", contact=contact)
    return candidate_pairs(load(text.replace("<option />", f"<option><flag {flag}/></option>")))


def test_the_world_is_no_parent_and_the_parent_filter_can_be_off() -> None:
    found = with_flag('filterparent="disable"')
    assert names(found) == {"fa", "fb", "fc", "fd", "ab", "ac", "ad", "bd", "cd"}


def test_masks_and_excluded_bodies() -> None:
    assert names(build(a='contype="0" conaffinity="0"')) == {"fb", "fc", "fd"}
    assert names(build(b='contype="2" conaffinity="2"')) == {"fa", "fc", "fd", "ad"}
    assert names(build(contact='<exclude body1="a" body2="d"/>')) == {"fa", "fb", "fc", "fd"}


def test_no_contacts_at_all() -> None:
    assert with_flag('contact="disable"', contact='<pair geom1="floor" geom2="a"/>') == []


def test_explicit_pairs_ignore_filters_and_bring_their_parameters() -> None:
    found = build(
        a='contype="0" conaffinity="0"',
        contact='<pair geom1="a" geom2="floor" condim="1" margin=".1" gap=".05" solref=".3 .4" solimp=".1 .2 .3 .4 1"/>',
    )
    pair = next(pair for pair in found if pair.shapes == ("plane", "sphere") and pair.geom2 == 1)
    assert (pair.geom1, pair.dim, pair.margin, pair.gap) == (0, 1, 0.1, 0.05)
    assert pair.solref == (0.3, 0.4)
    assert pair.solimp == (0.1, 0.2, 0.3, 0.4, 1.0)


@pytest.mark.parametrize(
    ("floor", "a"),
    [
        ('condim="1" friction="0.3" margin="0.01" gap="0.002"', 'condim="3" friction="0.7" margin="0.02" gap="0.001"'),
        ('solmix="3" solref=".1 1" solimp=".5 .6 .01 .4 3"', 'solref=".3 .8" solimp=".7 .9 .05 .5 2"'),
        ('solmix="0" solref=".1 1"', 'solmix="0" solref=".3 1"'),
        ('solmix="0" solref=".1 1"', 'solref=".3 1"'),
        ('solref="-100 -5"', 'solref=".3 1"'),
        ('priority="1" condim="1" friction="0.1" solref=".2 1"', 'condim="3" friction="2"'),
        ('condim="3" friction="2"', 'priority="2" condim="1" friction="0.1"'),
    ],
)
def test_mixing_as_the_engine_mixes(floor: str, a: str) -> None:
    m = load(BODIES.format(option="", floor=floor, a=a, b="", contact=""))
    pair = next(p for p in candidate_pairs(m) if (p.geom1, p.geom2) == (0, 1))
    data = mujoco.MjData(m.mj)
    mujoco.mj_forward(m.mj, data)
    contact = next(c for c in data.contact if tuple(c.geom) == (0, 1))
    assert pair.dim == contact.dim
    assert pair.friction == contact.friction[0]
    assert pair.margin == contact.includemargin
    assert pair.solref == pytest.approx(tuple(contact.solref), rel=1e-15)
    assert pair.solimp == pytest.approx(tuple(contact.solimp), rel=1e-15)


@pytest.mark.parametrize(
    ("floor", "a", "message"),
    [
        (
            'contype="0" conaffinity="0"',
            'type="ellipsoid"',
            "contact of geoms 'd' and 'a': sphere with ellipsoid is not supported",
        ),
        ("", 'type="ellipsoid"', "contact of geoms 'floor' and 'a': plane with ellipsoid is not supported"),
        ("", 'condim="4"', "contact of geoms 'floor' and 'a': condim 4 is not supported"),
    ],
)
def test_refusals_name_the_geoms(floor: str, a: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build(floor=floor, a=a)


def test_different_sliding_frictions_are_refused() -> None:
    with pytest.raises(ModelError, match="contact pair 'slippery': two different sliding friction"):
        build(contact='<pair name="slippery" geom1="a" geom2="floor" friction="1 2"/>')


def test_path_leaves_out_what_moves_both() -> None:
    m = harness.model("Humanoid")
    left, right = m.id("body", "left_foot"), m.id("body", "right_foot")
    assert chain(m, right) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert path(m, 0, right) == [(dof, 1) for dof in chain(m, right)]
    assert path(m, left, right) == [(9, 1), (10, 1), (11, 1), (12, 1), (13, -1), (14, -1), (15, -1), (16, -1)]
