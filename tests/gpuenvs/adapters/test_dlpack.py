"""TensorEnv, and what DLPack promises of a batch's arrays: memory that neither leaks nor goes away, clear refusals.

Addresses, strides and dtypes of every array are in tests/gpuenvs/test_arrays_contract.py.
"""

from __future__ import annotations

import gc
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpuenvs
from gpuenvs.adapters.dlpack import TensorEnv
from gpuenvs.errors import ActionError

ROOT = Path(__file__).resolve().parents[3]
needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")


def make(env_id: str, rows: int = 8, **options: Any) -> TensorEnv:
    return TensorEnv(gpuenvs.make(env_id, rows, device="cpu", **options), torch.from_dlpack)


def test_tensors_are_the_batchs_memory() -> None:
    env = make("CartPole-v1", max_episode_steps=3)
    obs = env.reset(seed=0)
    assert obs.data_ptr() == env.batch.obs.ctypes.data
    assert (obs.dtype, tuple(obs.shape), obs.stride()) == (torch.float32, (8, 4), (1, 8))
    assert env.terminated.dtype == env.truncated.dtype == torch.bool
    assert env.info["episode_length"].dtype == torch.int32
    before = obs.clone()
    for _ in range(3):
        got = env.step(torch.ones(8, dtype=torch.int64))
    assert got[0] is obs
    assert not torch.equal(obs, before)
    assert env.truncated.all()
    assert env.info["episode_length"].tolist() == [3] * 8
    np.testing.assert_array_equal(env.info["final_obs"].numpy(), env.batch.info["final_obs"])
    env.reset(rows=[1])
    assert env.truncated.tolist() == [True, False] + [True] * 6


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_same_steps_as_the_batch(dtype: str) -> None:
    env = make("Pendulum-v1", dtype=dtype)
    with gpuenvs.make("Pendulum-v1", 8, device="cpu", dtype=dtype) as batch:
        env.reset(seed=1)
        batch.reset(seed=1)
        for k in range(5):
            action = torch.linspace(-2, 2, 8, dtype=getattr(torch, dtype))[:, None] * (k - 2)
            _, reward, *_ = env.step(action)
            batch.step(action.numpy())
            np.testing.assert_array_equal(reward.numpy(), batch.reward)
            np.testing.assert_array_equal(env.obs.numpy(), batch.obs)


WRONG = {
    "CartPole-v1": (
        (torch.zeros(8), "int32 or int64, got float32"),
        (torch.zeros(8, dtype=torch.int16), "int32 or int64, got int16"),
        (torch.zeros(8, dtype=torch.bool), "int32 or int64, got bool"),
        (torch.zeros(8, 1, dtype=torch.int64), r"shape \(8,\)"),
        (torch.full((8,), 2), r"0\.\.1, got 2"),
        (torch.zeros(8, dtype=torch.int64, device="meta"), "DLPack"),
        ([0] * 8, "DLPack, got list"),
    ),
    "Pendulum-v1": (
        (torch.zeros(8, 1, dtype=torch.float64), "float32, got float64"),
        (torch.zeros(8, 1, dtype=torch.float16), "float32, got float16"),
        (torch.zeros(8), r"shape \(8, 1\)"),
        (torch.zeros(8, 1, requires_grad=True), "detach"),
    ),
}


@pytest.mark.parametrize("env_id", WRONG)
def test_wrong_actions_are_one_clear_line_and_step_nothing(env_id: str) -> None:
    env = make(env_id)
    before = env.reset(seed=0).clone()
    for action, words in WRONG[env_id]:
        with pytest.raises(ActionError, match=words) as caught:
            env.step(action)
        assert "\n" not in str(caught.value)
        assert env_id in str(caught.value)
    assert torch.equal(env.obs, before)


def test_a_tensor_of_another_device_is_refused_by_its_name() -> None:
    class OnCuda:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 1

    env = make("CartPole-v1")
    env.reset(seed=0)
    with pytest.raises(ActionError, match=r"action is on CUDA \(device 1\), the environments are on cpu"):
        env.step(OnCuda())


def test_a_capsule_is_consumed_once() -> None:
    env = make("CartPole-v1")
    env.reset(seed=0)
    for name in ("obs", "reward", "terminated"):
        capsule = getattr(env.batch, name).__dlpack__()
        torch.utils.dlpack.from_dlpack(capsule)
        with pytest.raises((RuntimeError, ValueError), match="once"):
            torch.utils.dlpack.from_dlpack(capsule)


def test_tensors_outlive_the_batch() -> None:
    env = make("CartPole-v1", 1000)
    obs = env.reset(seed=0)
    value, info = obs.clone(), env.info["final_obs"]
    env.close()
    del env
    gc.collect()
    noise = [np.full(n, 77, np.uint8) for n in (4000, 16_000, 64_000) for _ in range(50)]
    assert torch.equal(obs, value)
    assert not info.any()
    assert noise


LEAKS = """
import gc, sys
import numpy as np
import torch
import gpuenvs

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def exports(count):
    for _ in range(count):
        kept.append(torch.from_dlpack(env.obs))
        np.from_dlpack(env.reward), torch.from_dlpack(env.terminated), env.obs.__dlpack__()
        del kept[:]

def batches(count):
    for k in range(count):
        batch = gpuenvs.make("CartPole-v1", 256, device="cpu", seed=k, threads=2)
        batch.reset()
        for _ in range(3):
            batch.step(actions)
        torch.from_dlpack(batch.obs)
        if k % 2:
            batch.close()

kept, actions = [], np.zeros(256, np.int32)
env = gpuenvs.make("CartPole-v1", 1024, device="cpu", seed=0)
env.reset()
for work, warm, count in ((exports, 1000, 10_000), (batches, 200, 1000)):
    work(warm)
    before = resident()
    work(count)
    print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_ten_thousand_exports_and_a_thousand_batches_take_no_memory() -> None:
    """In a process of its own; a batch that stayed would be 25 kB, an export that stayed its batch's."""
    done = subprocess.run([sys.executable, "-c", LEAKS], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    grown = [int(line) for line in done.stdout.split()]
    assert len(grown) == 2
    assert max(grown) < 1_000_000


@needs_jax
def test_jax_gets_arrays_that_do_not_change() -> None:
    """Every array handed out keeps its values however often the batch steps, and is copied once, not twice."""
    import jax

    aliased = []

    def take(array: Any) -> Any:
        out = jax.dlpack.from_dlpack(array)
        aliased.append(out.unsafe_buffer_pointer() == array.ctypes.data)
        return out

    env = TensorEnv(gpuenvs.make("CartPole-v1", 64, device="cpu", max_episode_steps=4), take, copy=True)
    kept, copies = [env.reset(seed=0)], [np.array(env.batch.obs)]
    for _ in range(6):
        kept += [*env.step(jax.numpy.ones(64, jax.numpy.int32)), env.info["final_obs"]]
        copies += [np.array(a) for a in (env.batch.obs, env.batch.reward, env.batch.terminated, env.batch.truncated)]
        copies.append(np.array(env.batch.info["final_obs"]))
    assert all(aliased)
    for array, copy in zip(kept, copies, strict=True):
        assert array.dtype == copy.dtype
        np.testing.assert_array_equal(np.asarray(array), copy)
    with pytest.raises(ActionError, match="got float32"):
        env.step(jax.numpy.ones(64))
