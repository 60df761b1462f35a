"""The CUDA backend of traced environments with a stand-in for cupy: what is allocated, compiled, loaded and launched.

What the kernels compute is compared with the CPU in tests/ladder and tests/ptx.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import gpuenvs
from gpuenvs import trace as T
from gpuenvs.errors import ActionError
from gpuenvs.runtime import cuda, options, traced_cuda
from gpuenvs.spec import EnvSpec
from gpuenvs.trace.graph import convert

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the CUDA compiler wheels are for Linux")


class State(NamedTuple):
    x: float
    n: int


class Params(NamedTuple):
    gain: float = 0.5
    bonus: int = 2


def reset(rng, params):
    return State(0.0, 0)


def observe(state, params):
    return (state.x,)


def step(state, action, params):
    x = state.x + params.gain * (convert(action, "real") - 1.0)
    return State(x, state.n + params.bonus), x, T.absolute(x) > 2.0


CHOICE = EnvSpec(
    "Choice-v0", State, Params(), reset, step, observe, Box(-9, 9, (1,), np.float32), Discrete(3), traced=True
)


class Array(np.ndarray):
    """A numpy array with what the backend uses of cupy's."""

    def set(self, values: np.ndarray) -> None:
        assert values.dtype == self.dtype
        self[...] = values

    def get(self) -> np.ndarray:
        return np.array(self)

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data if self.size else 0)


class Device:
    """Knows which device is current."""

    current: ClassVar[list[int]] = [0]
    compute_capability = "90"
    attributes: ClassVar[dict[str, int]] = {"MultiProcessorCount": 132}

    def __init__(self, index: int) -> None:
        self.index = index

    def __enter__(self) -> None:
        self.current.append(self.index)

    def __exit__(self, *_: object) -> None:
        self.current.pop()


class Fake:
    """A module in the place of cupy that notes loads and launches; nothing else of cupy exists, so nothing else is used."""

    def __init__(self) -> None:
        self.loaded: list[bytes] = []
        self.launches: list[tuple[Any, ...]] = []
        self.ndarray = Array
        self.cuda = SimpleNamespace(
            Device=Device,
            function=SimpleNamespace(Module=self._module),
            runtime=SimpleNamespace(driverGetVersion=lambda: 13000, getDeviceCount=lambda: 2),
        )

    @staticmethod
    def zeros(shape: Any, dtype: Any) -> Array:
        return np.zeros(shape, dtype).view(Array)

    @staticmethod
    def asarray(values: Any, dtype: Any = None) -> Array:
        return np.array(values, dtype).view(Array)

    ascontiguousarray = asarray

    def _module(self) -> Any:
        def launch(grid: Any, block: Any, arguments: Any) -> None:
            assert all(type(value) is np.int64 for value in arguments)
            self.launches.append((Device.current[-1], grid, block, arguments))

        def load(code: bytes) -> None:
            self.loaded.append(code)

        return SimpleNamespace(load=load, get_function=lambda name: launch if name == "kernel" else None)


@pytest.fixture
def fake(monkeypatch):
    module = Fake()
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(cuda, "cuda_problem", lambda index=0: None)
    monkeypatch.setattr(cuda, "_array_module", lambda: module)
    monkeypatch.setattr(options, "resolve_device", lambda name: name)
    monkeypatch.setattr(traced_cuda, "_cache", {})
    return module


def table_of(env: Any) -> dict[str, int]:
    names = [*(b.name for b in env._layout.buffers), *traced_cuda.TAIL]
    return dict(zip(names, env._backend._table.tolist(), strict=True))


def test_a_launch_names_everything_by_its_address(fake):
    with gpuenvs.make("InvertedPendulum-v5", 1000, device="cuda:1", seed=5 << 32 | 6, env_offset=70) as env:
        env.reset()
        table = table_of(env)
        for name, array in env.arrays.items():
            assert table[name] == array.data.ptr
        assert {k: table[k] for k in ("num_envs", "seed_lo", "seed_hi", "env_offset", "limit")} == {
            "num_envs": 1000, "seed_lo": 6, "seed_hi": 5, "env_offset": 70, "limit": 1000,
        }  # fmt: skip
        assert table["param_real"] == env._backend._param_real.data.ptr
        ((device, grid, block, values),) = fake.launches
        assert (device, grid, block) == (1, (32,), (32,))
        totals = env._backend._totals.data.ptr
        assert values[0] == 1000
        assert values[2] == env._backend._table.data.ptr
        assert values[3] not in (0, totals)
        assert values[4] == totals
        action = fake.zeros((1000, 1), np.float32)
        env.step(action)
        env.step(action)
        first, second = fake.launches[1:]
        assert first[3] == (1000, action.data.ptr, env._backend._table.data.ptr, 0, totals)
        assert first[3] is second[3]  # loops pass the same buffer each time
        other = fake.zeros((1000, 1), np.float32)
        env.step(other)
        assert fake.launches[-1][3][1] == other.data.ptr
    assert Device.current == [0]


def test_kernels_are_loaded_once_and_kept_on_disk(fake, monkeypatch, tmp_path):
    monkeypatch.setenv("GPURL_CACHE_DIR", str(tmp_path))
    action = fake.zeros((3, 1), np.float32)

    def run() -> None:
        with gpuenvs.make("InvertedPendulum-v5", 3, device="cuda:0") as env:
            env.reset()
            env.step(action)

    run()
    run()
    assert len(fake.loaded) == 2
    assert all(b".target sm_90" in code or code.startswith(b"\x7fELF") for code in fake.loaded)
    entries = list(tmp_path.glob("traced-*"))
    if entries:  # none if a source was edited while the tests run
        monkeypatch.setattr(traced_cuda, "_cache", {})
        monkeypatch.setattr(traced_cuda, "compile_ptx", None)  # not called again
        run()
        assert fake.loaded[:2] == fake.loaded[2:]


def test_a_new_seed_is_seen_by_launches_that_were_recorded(fake):
    with gpuenvs.make("InvertedPendulum-v5", 2, device="cuda:0", reset_noise_scale=0.25) as env:
        env.reset(seed=1)
        before, where = table_of(env), env._backend._table.data.ptr
        env.reset(seed=2)
        after = table_of(env)
        assert env._backend._table.data.ptr == where
        assert [k for k in before if before[k] != after[k]] == ["seed_lo"]
        assert 0.25 in env._backend._param_real.tolist()


@pytest.mark.parametrize(
    ("count", "processors", "threads"),
    [(1, 132, 32), (4096, 132, 32), (33_792, 132, 64), (67_584, 132, 128), (10**6, 132, 128), (2**20, 8, 128)],
)
def test_small_batches_spread_over_the_device(count: int, processors: int, threads: int):
    assert traced_cuda.threads_per_block(count, processors) == threads


def test_discrete_actions_are_counted_when_out_of_range(monkeypatch):
    """On the host of the simulator, which runs the kernels' programs."""
    monkeypatch.setattr(cuda, "simulated", lambda: True)
    monkeypatch.setattr(traced_cuda, "simulated", lambda: True)
    with gpuenvs.make(CHOICE, 4, device="cuda:0") as env, gpuenvs.make(CHOICE, 4, device="cpu") as reference:
        env.reset(seed=1)
        reference.reset(seed=1)
        for action in ([0, 1, 2, 2], [2, 2, 0, 1]):
            env.step(np.array(action))
            reference.step(np.array(action))
            assert np.array_equal(env.obs, reference.obs)
            assert np.array_equal(env.reward, reference.reward)
        assert env.nonfinite_states == 0
        env.step(np.array([0, 3, -1, 1]))
        with pytest.raises(ActionError, match="2 actions"):
            _ = env.nonfinite_states
        with pytest.raises(ActionError, match=r"0\.\.2, got 3"):
            reference.step(np.array([0, 3, 1, 1]))
