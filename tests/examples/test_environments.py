"""The example environments: the commands in their docstrings train them (here with fewer steps); they are what they say."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import gpuenvs
from cli.app import run
from gpuenvs.adapters.single import SingleEnv

ROOT = Path(__file__).resolve().parents[2]
# File -> steps of the smoke version and the return it must reach.
SMOKE = {
    "swing_up.py": (200_000, 120.0),
    "quadrotor.py": (150_000, 180.0),
    "robot/crawler.py": (100_000, 60.0),
    "ring_road.py": (200_000, 400.0),
}
every_environment = pytest.mark.parametrize("file", SMOKE)


def spec_of(file: str) -> gpuenvs.EnvSpec:
    return gpuenvs.get(f"{ROOT / 'examples' / file}:SPEC")


def commands(file: str) -> list[list[str]]:
    """The command lines of a file's docstring, words of each."""
    text = re.sub(r"\\\n\s*", " ", spec_of(file).doc or (ROOT / "examples" / file).read_text().split('"""')[1])
    return [shlex.split(line) for line in text.splitlines() if line.startswith("    gpurl ")]


# The swing-up is checked and trained on the documentation's first page (tests/test_docs.py).
@pytest.mark.parametrize("file", [file for file in SMOKE if file != "swing_up.py"])
def test_it_learns(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The documented command with a smaller --total-steps and nothing else changed."""
    monkeypatch.chdir(ROOT)
    train = next(words for words in commands(file) if words[1] == "train")
    steps, least = SMOKE[file]
    train[train.index("--total-steps") + 1] = str(steps)
    assert run([*train[1:], "--device", "cpu", "--run-dir", str(tmp_path / "run"), "--eval-episodes", "100", "-q"]) == 0
    (found,) = (tmp_path / "run" / "evaluations").glob("*.json")
    assert json.loads(found.read_text())["mean"] > least


@every_environment
def test_a_random_policy_is_far_from_that(file: str) -> None:
    spec = spec_of(file)
    rng, low, high = np.random.default_rng(0), spec.action_space.low, spec.action_space.high
    with gpuenvs.make(spec, 256, device="cpu", seed=0) as env:
        env.reset()
        returns: list[float] = []
        for _ in range(spec.max_episode_steps or 0):
            env.step(rng.uniform(low, high, (256, len(low))).astype(np.float32))
            ended = env.terminated | env.truncated
            returns += env.info["episode_return"][ended].tolist()
    assert len(returns) >= 256
    assert np.mean(returns) < 0.5 * SMOKE[file][1]


@every_environment
def test_documented_checks_name_this_file(file: str) -> None:
    assert ["gpurl", "check", f"examples/{file}:SPEC"] in commands(file)


@every_environment
@pytest.mark.filterwarnings("ignore::UserWarning")  # advice about wide spaces
def test_gymnasiums_checker_passes(file: str) -> None:
    check_env(SingleEnv(spec_of(file)))


def test_the_swing_up_has_twenty_lines() -> None:
    """Imports, docstring, comments and blank lines not counted."""
    code = (ROOT / "examples" / "swing_up.py").read_text().split('"""')[2]
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith(("import ", "from ", "#"))]
    assert len(lines) == 20


def test_every_example_is_listed_and_tested() -> None:
    files = {str(path.relative_to(ROOT / "examples")) for path in (ROOT / "examples").rglob("*.py")}
    listed = set(re.findall(r"^\| \[(\S+)\]\((\S+)\)", (ROOT / "examples" / "README.md").read_text(), re.MULTILINE))
    assert {name for name, _ in listed} == {target for _, target in listed} == files
    tested = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert not [name for name in files if name not in tested]


# --- what the docstrings claim ---------------------------------------------------------------------------------------


def test_quadrotors_differ_and_hide_it() -> None:
    """Mass and wind are drawn in each episode, the policy does not see them, and evaluation has the defaults."""
    spec = spec_of("quadrotor.py")
    assert (spec.params.mass, spec.params.wind) == (0.5, 0.0)
    with gpuenvs.make(spec, 500, device="cpu", seed=1) as env:
        obs, _ = env.reset()
        drawn = env.arrays["param_real_env"].copy()
        assert obs.shape == (500, 7)
        for values, (low, high) in zip(drawn, ((0.4, 0.6), (-1.0, 1.0))):
            assert low <= values.min() < low + 0.1 * (high - low)
            assert high - 0.1 * (high - low) < values.max() <= high
        env.reset()
        assert (env.arrays["param_real_env"] != drawn).all(axis=1).all()
    heavy, light = (_falls(spec, mass) for mass in (0.6, 0.4))
    assert heavy < light


def _falls(spec: gpuenvs.EnvSpec, mass: float) -> float:
    """Vertical speed after a step at half thrust."""
    with gpuenvs.make(spec, 1, device="cpu", mass=mass, wind=0.0) as env:
        env.reset(seed=0)
        env.set_state([0.0] * 6)
        env.step(np.zeros((1, 2), np.float32))
        assert env.info["distance"][0] < 0.01
        assert env.info["near"][0] == 1.0
        return float(env.get_state().vz[0])


def test_drivers_alone_make_a_jam() -> None:
    """Car 0 driven like the others: a wave of cars that stand still, and about the return that the docstring tells."""
    spec = spec_of("ring_road.py")
    driver, p = spec.step.__globals__["driver"], spec.params
    with gpuenvs.make(spec, 128, device="cpu", dtype="float64", seed=0) as env:
        env.reset()
        for step in range(spec.max_episode_steps or 0):
            state = env.get_state()
            np.testing.assert_allclose(sum(state[:22]), p.ring - 22 * p.car, rtol=1e-9)
            action = driver(state.gap_0, state.speed_0, state.speed_1, p) / p.reach
            env.step(np.asarray(action)[:, None])
            assert env.truncated.any() == (step == 599)
            assert not env.terminated.any()
        assert env.info["slowest"].mean() < 0.1
        assert env.info["episode_return"].mean() == pytest.approx(430, abs=10)


def test_the_crawler_moves_as_mujoco_says() -> None:
    """Ten steps of a model of one's own beside the C engine."""
    mujoco = pytest.importorskip("mujoco")
    spec = spec_of("robot/crawler.py")
    model: Any = mujoco.MjModel.from_xml_path(str(ROOT / "examples" / "robot" / "crawler.xml"))
    model.opt.iterations, model.opt.tolerance = 100, 0.0
    data: Any = mujoco.MjData(model)
    rng = np.random.default_rng(0)
    with gpuenvs.make(spec, 1, device="cpu", dtype="float64", seed=5) as env:
        env.reset()
        start = env.get_state()
        data.qpos[:], data.qvel[:] = (np.array(part)[:, 0] for part in (start[:5], start[5:10]))
        forward = 0.0
        for _ in range(10):
            x, action = data.qpos[0], rng.uniform(-1.5, 1.5, 2)
            data.ctrl[:] = action
            mujoco.mj_step(model, data, 4)
            env.step(action[None])
            state = np.array(env.get_state())[:, 0]
            np.testing.assert_allclose(state[:5], data.qpos, atol=1e-7)
            np.testing.assert_allclose(state[5:10], data.qvel, atol=1e-5)
            assert env.info["forward"][0] == pytest.approx((data.qpos[0] - x) / 0.02, abs=1e-5)
            forward += abs(env.info["forward"][0])
        assert data.ncon > 0
        assert forward > 0.01
