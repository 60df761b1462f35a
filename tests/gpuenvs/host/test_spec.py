"""What a spec says of an environment, and what its environments give and take."""

import subprocess
import sys
import textwrap
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from gpuenvs.errors import ConfigError, HostError, LoadError, SpecError, UnknownEnvError
from gpuenvs.host import host_spec
from gpuenvs.host.wrappers import float_box
from tests.gpuenvs.host.envs import ME, Spaces

SPACES = f"{ME}Spaces"


def test_a_gymnasium_id():
    spec = host_spec("CartPole-v1")
    assert (spec.max_episode_steps, spec.reward_threshold, spec.image, spec.clip_reward) == (500, 475.0, False, False)
    assert spec.action_space == spaces.Discrete(2)
    assert spec.observation_space == gymnasium.make("CartPole-v1").observation_space
    assert spec.make("rgb_array").render_mode == "rgb_array"


def test_float64_observations_become_float32():
    spec = host_spec(SPACES, {"obs": "float64"})
    env = spec.make()
    obs, _ = env.reset(seed=0)
    assert obs.dtype == np.float32
    assert env.observation_space == spec.observation_space
    assert float_box(spaces.Box(-1.0, 1e300, (2,), np.float64)) == spaces.Box(-1, np.inf, (2,), np.float32)


@pytest.mark.parametrize(
    "name, shape",
    [
        ("integers", (3,)),
        ("matrix", (6,)),
        ("scalar", (1,)),
        ("choice", (4,)),
        ("choices", (5,)),
        ("bits", (5,)),
        ("dict", (4,)),
        ("tuple", (4,)),
        ("grey", (2000,)),
    ],
)
def test_other_observations_are_flattened(name, shape):
    spec = host_spec(SPACES, {"obs": name})
    env = spec.make()
    obs, _ = env.reset(seed=3)
    raw = env.unwrapped.last
    assert spec.observation_space.shape == obs.shape == shape
    assert spec.observation_space.dtype == obs.dtype == np.float32
    assert obs.tolist() == np.asarray(spaces.flatten(Spaces.OBSERVATIONS[name], raw), np.float32).tolist()
    assert spec.observation_space.contains(env.step(0)[0])


@pytest.mark.parametrize("name, shape", [("first", (2, 40, 50)), ("last", (3, 40, 50))])
def test_images_have_their_channels_first(name, shape):
    spec = host_spec(SPACES, {"obs": name})
    env = spec.make()
    obs, _ = env.reset(seed=3)
    assert spec.image and spec.observation_space.shape == obs.shape == shape and obs.dtype == np.uint8
    raw = env.unwrapped.last
    assert (obs == (raw.transpose(2, 0, 1) if name == "last" else raw)).all()


def test_discrete_actions_count_from_zero():
    spec = host_spec(SPACES, {"act": "shifted"})
    assert spec.action_space == spaces.Discrete(3)
    env = spec.make()
    env.reset()
    for action in range(3):
        env.step(np.int64(action))
    assert env.unwrapped.actions == [-1, 0, 1]


@pytest.mark.parametrize(
    "name, wanted",
    [("line", [0.5, -2.0]), ("matrix", [[0.5, -0.5], [0.5, 0.25]])],
)
def test_continuous_actions_are_flat_and_clipped(name, wanted):
    spec = host_spec(SPACES, {"act": name})
    box = Spaces.ACTIONS[name]
    assert spec.action_space == spaces.Box(box.low.ravel().astype("f"), box.high.ravel().astype("f"))
    env = spec.make()
    env.reset()
    action = np.array([0.5, -7, 100, 0.25][: spec.action_space.shape[0]], np.float32)
    env.step(action)
    taken = env.unwrapped.actions[0]
    assert taken.tolist() == wanted and taken.dtype == box.dtype
    action[:] = 9  # shared memory changes under an environment's feet
    assert taken.tolist() == wanted


def test_keywords_and_the_two_of_our_own():
    spec = host_spec(SPACES, {"scale": 5.0, "max_episode_steps": 2, "clip_reward": True})
    assert spec.keywords == {"scale": 5.0} and spec.max_episode_steps == 2 and spec.clip_reward
    env = spec.make()
    env.reset()
    assert [env.step(0)[1:4] for _ in range(2)] == [(5.0, False, False), (5.0, False, True)]  # made envs do not clip
    assert host_spec("CartPole-v1", {"max_episode_steps": 7}).make().spec.max_episode_steps == 7
    assert host_spec("CartPole-v1", {"clip_reward": True}, clip_reward=False).clip_reward is False


def test_functions_and_modules():
    spec = host_spec("tests.gpuenvs.host.envs:make_walk", {"limit": 3})
    assert spec.max_episode_steps == 3
    assert spec.make().reset(seed=1)[0].shape == (3,)


def test_a_module_that_registers_an_id(tmp_path, monkeypatch):
    (tmp_path / "registering_envs.py").write_text(
        textwrap.dedent(
            """
            import gymnasium
            gymnasium.register("Walking-v0", entry_point="tests.gpuenvs.host.envs:Walk", max_episode_steps=9)
            """
        )
    )
    monkeypatch.chdir(tmp_path)
    assert host_spec("registering_envs:Walking-v0").max_episode_steps == 9


def test_a_file_that_registers_an_id_of_its_own_class(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(sys.path))
    text = "import gymnasium\nfrom tests.gpuenvs.host.envs import Walk\n\n\nclass Own(Walk):\n    pass\n\n\n"
    text += "if 'Strolling-v0' not in gymnasium.registry:\n"
    text += "    gymnasium.register('Strolling-v0', entry_point='strolling_env:Own', max_episode_steps=8)\n"
    (tmp_path / "strolling_env.py").write_text(text)
    spec = host_spec(f"{tmp_path}/strolling_env.py:Strolling-v0")
    assert spec.max_episode_steps == 8
    assert type(spec.make().unwrapped).__name__ == "Own"


def test_a_file_finds_its_neighbours(tmp_path):
    (tmp_path / "neighbour_of_env.py").write_text("LIMIT = 4\n")
    (tmp_path / "random.py").write_text(  # the name of a module that is there already
        "from neighbour_of_env import LIMIT\nfrom tests.gpuenvs.host.envs import make_walk\n"
        "def make():\n    return make_walk(LIMIT)\n"
    )
    assert host_spec(f"{tmp_path}/random.py:make").max_episode_steps == 4
    import random

    assert hasattr(random, "Random")


@pytest.mark.parametrize(
    "env_id, kind, words",
    [
        ("CartPol-v1", UnknownEnvError, "did you mean CartPole-v1"),
        ("CartPole-v17", UnknownEnvError, "CartPole-v1"),
        ("nowhere.py:Env", UnknownEnvError, "/nowhere.py"),
        ("no.such.module:Env", UnknownEnvError, "no module 'no.such.module'"),
        (f"{ME}Walkk", UnknownEnvError, "did you mean Walk"),
        (f"{ME}not_an_env", SpecError, "not a gymnasium.Env"),
        (f"{ME}wait_gone", UnknownEnvError, "no class or function 'wait_gone'"),
    ],
)
def test_what_is_not_there(env_id, kind, words):
    with pytest.raises(kind) as caught:
        host_spec(env_id)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_an_id_without_single_environments(monkeypatch):
    entry = gymnasium.envs.registration.EnvSpec("OnlyMany-v0", vector_entry_point="nowhere:make")
    monkeypatch.setitem(gymnasium.registry, "OnlyMany-v0", entry)
    with pytest.raises(ConfigError, match="only a vectorised one"):
        host_spec("OnlyMany-v0")


@pytest.mark.parametrize(
    "keywords, words",
    [
        ({"obs": "sequence"}, "no fixed size"),
        ({"act": "choices"}, "not supported"),
        ({"act": "integers"}, "not supported"),
    ],
)
def test_spaces_that_do_not_fit(keywords, words):
    with pytest.raises(SpecError, match=words):
        host_spec(SPACES, keywords)


def test_what_raises_is_told_with_its_traceback(tmp_path):
    for env_id, keywords in ((f"{ME}Faulty", {"where": "init"}), (SPACES, {"no_such_keyword": 1})):
        with pytest.raises(HostError, match="making it raised") as caught:
            host_spec(env_id, keywords)
        assert "\n" not in str(caught.value) and "Traceback" in caught.value.traceback
    broken = tmp_path / "broken_env.py"
    broken.write_text("import gymnasium\n1 / 0\n")
    with pytest.raises(LoadError, match=r"broken_env\.py, line 2: ZeroDivisionError"):
        host_spec(f"{broken}:Env")
    broken.write_text("import no_such_package\n")
    with pytest.raises(LoadError, match="No module named 'no_such_package'"):
        host_spec(f"{broken}:Env")


@pytest.mark.parametrize(
    "keywords, words", [({"max_episode_steps": 0}, "max_episode_steps"), ({"clip_reward": 3}, "clip_reward must be")]
)
def test_impossible_values(keywords, words):
    with pytest.raises(ConfigError, match=words):
        host_spec("CartPole-v1", keywords)


@pytest.mark.parametrize("absent", ["ale_py", "cv2"])
def test_atari_that_is_not_installed(absent):
    if absent == "cv2":
        pytest.importorskip("ale_py")
    code = f"""
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] == {absent!r} else super().find_spec(name, path, target)
sys.meta_path[:] = [BuiltinImporter, FrozenImporter, Finder]
from gpuenvs.errors import ConfigError
from gpuenvs.host import host_spec
try:
    host_spec("ALE/Pong-v5")
except ConfigError as error:
    print(error)
"""
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60)
    assert 'pip install "gpurl[atari]"' in done.stdout, done.stderr
