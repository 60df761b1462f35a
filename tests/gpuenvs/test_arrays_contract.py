"""What other libraries may rely on about a batch's arrays: DLPack and strides, on the CPU.

tests/gpu/test_arrays_contract.py asks the same of CUDA arrays.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpuenvs
from gpuenvs.errors import ActionError

ROOT = Path(__file__).resolve().parents[2]
IDS = ("CartPole-v1", "Pendulum-v1", "Swimmer-v5")
CPU = (1, 0)  # DLPack's device type and number
every_env = pytest.mark.parametrize("env_id", IDS)


def handed_out(env: gpuenvs.BatchEnv) -> dict[str, Any]:
    """Every array that a caller gets."""
    arrays = {
        "obs": env.obs,
        "reward": env.reward,
        "terminated": env.terminated,
        "truncated": env.truncated,
        **env.info,
    }
    return arrays | {f"buffer {name}": array for name, array in env.arrays.items() if array.size}


def action(env: gpuenvs.BatchEnv, value: float = 1.0) -> np.ndarray:
    """One constant action for all rows."""
    if env.spec.discrete:
        return np.full(env.num_envs, int(value), np.int32)
    return np.full((env.num_envs, env.spec.action_dim), value, np.float32)


def step_often(env: gpuenvs.BatchEnv, steps: int = 3) -> None:
    for _ in range(steps):
        env.step(action(env))


@every_env
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_array_goes_to_torch_and_numpy_as_it_is(env_id: str, dtype: str) -> None:
    """Same address, shape, strides, dtype and device; bool stays bool; writable on either side."""
    names = {"float32": torch.float32, "float64": torch.float64, "int32": torch.int32, "bool": torch.bool}
    with gpuenvs.make(env_id, 37, device="cpu", dtype=dtype) as env:
        env.reset(seed=0)
        for name, array in handed_out(env).items():
            assert array.__dlpack_device__() == CPU, name
            again = np.from_dlpack(array)
            assert (again.ctypes.data, again.dtype) == (array.ctypes.data, array.dtype), name
            assert (again.shape, again.strides) == (array.shape, array.strides), name
            assert array.flags.writeable, name
            if array.dtype == np.uint32:  # torch has no arithmetic for it, but carries it
                continue
            tensor = torch.from_dlpack(array)
            assert tensor.dtype == names[array.dtype.name], name
            assert tensor.data_ptr() == array.ctypes.data, name
            assert tuple(tensor.shape) == array.shape, name
            if array.size > 1:
                assert tuple(s * array.itemsize for s in tensor.stride()) == array.strides, name
            assert tensor.device.type == "cpu"


@every_env
def test_views_follow_the_batch_and_the_batch_follows_views(env_id: str) -> None:
    """Nothing is copied: a step shows in a view, and what is written through one is the batch's state."""
    with gpuenvs.make(env_id, 16, device="cpu") as env:
        env.reset(seed=0)
        views = {name: torch.from_dlpack(array) for name, array in handed_out(env).items() if array.dtype != np.uint32}
        before = views["obs"].clone()
        step_often(env)
        assert not torch.equal(views["obs"], before)
        for name, array in handed_out(env).items():
            if name in views:
                np.testing.assert_array_equal(views[name].numpy(), array, err_msg=name)
        views["buffer elapsed"][0, 3] = 7
        step_often(env, 1)
        assert env.arrays["elapsed"][0, 3] == 8


@every_env
def test_arrays_outlive_the_batch(env_id: str) -> None:
    """Views keep the memory: closing and dropping the batch, and allocating much anew, changes nothing in them."""
    env = gpuenvs.make(env_id, 1000, device="cpu", seed=4)
    env.reset()
    step_often(env)
    copies = {name: np.array(array) for name, array in handed_out(env).items()}
    numpy_views = {name: np.from_dlpack(array) for name, array in handed_out(env).items()}
    torch_views = {name: torch.from_dlpack(a) for name, a in handed_out(env).items() if a.dtype != np.uint32}
    env.close()
    del env
    gc.collect()
    noise = [np.full(n, 77, np.uint8) for n in (1000, 4000, 16_000, 64_000) for _ in range(50)]
    for name, value in copies.items():
        np.testing.assert_array_equal(numpy_views[name], value, err_msg=name)
        if name in torch_views:
            np.testing.assert_array_equal(torch_views[name].numpy(), value, err_msg=name)
    assert noise


def test_a_read_only_view_stays_read_only() -> None:
    """A caller may freeze its own view; the batch goes on writing, and DLPack does not open the view again."""
    with gpuenvs.make("CartPole-v1", 8, device="cpu") as env:
        env.reset(seed=0)
        frozen = env.obs[:]
        frozen.flags.writeable = False
        before = frozen.copy()
        try:
            seen = np.from_dlpack(frozen)
        except BufferError:  # what exchanges without that flag must do
            seen = None
        assert seen is None or not seen.flags.writeable
        step_often(env)
        assert (frozen != before).any()
        assert env.obs.flags.writeable


@every_env
def test_actions_may_be_read_only_and_are_not_written(env_id: str) -> None:
    with gpuenvs.make(env_id, 8, device="cpu") as env, gpuenvs.make(env_id, 8, device="cpu") as other:
        env.reset(seed=0)
        other.reset(seed=0)
        given = action(env)
        given.flags.writeable = False
        for _ in range(5):
            env.step(given)
            other.step(action(other))
        np.testing.assert_array_equal(env.obs, other.obs)
        np.testing.assert_array_equal(given, action(env))


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_actions_in_the_buffers_own_order_are_not_copied(env_id: str) -> None:
    """(n,) integers, or (n, k) of which one action of all rows lies together, as a feature-major tensor does."""
    with gpuenvs.make(env_id, 8, device="cpu") as env:
        env.reset(seed=0)
        if env.spec.discrete:
            tensor = torch.ones(8, dtype=torch.int64)
        else:
            tensor = torch.zeros(env.spec.action_dim, 8).T
        rows = env._action.rows(tensor)
        assert rows.ctypes.data == tensor.data_ptr()
        assert rows.shape == (env.spec.action_dim, 8)


def test_actions_that_cannot_be_taken_are_one_clear_line() -> None:
    with gpuenvs.make("Pendulum-v1", 4, device="cpu") as env:
        env.reset(seed=0)
        before = env.obs.copy()
        for wrong in (torch.zeros(4, 1, requires_grad=True), torch.zeros(4, 1, dtype=torch.bfloat16), object()):
            with pytest.raises(ActionError, match="Pendulum-v1") as caught:
                env.step(wrong)
            assert "\n" not in str(caught.value)
        np.testing.assert_array_equal(env.obs, before)


def test_a_gemm_takes_observations_as_they_lie() -> None:
    """Feature-major is the transpose of what a matrix product reads: no copy is made of it."""
    with gpuenvs.make("CartPole-v1", 64, device="cpu") as env:
        env.reset(seed=0)
        obs = torch.from_dlpack(env.obs)
        assert obs.T.is_contiguous()
        weight = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(obs @ weight, obs.contiguous() @ weight)


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_jax_reads_the_arrays_and_its_actions_are_taken() -> None:
    import jax

    with gpuenvs.make("CartPole-v1", 64, device="cpu") as env:
        env.reset(seed=0)
        for name, array in handed_out(env).items():
            seen = jax.dlpack.from_dlpack(array)
            assert seen.dtype == array.dtype, name
            np.testing.assert_array_equal(np.asarray(seen), array, err_msg=name)
        reward = jax.dlpack.from_dlpack(env.reward)
        assert reward.unsafe_buffer_pointer() == env.reward.ctypes.data
        obs, *_ = env.step(jax.numpy.ones(64, jax.numpy.int32))  # jax's arrays are read-only
        assert np.isfinite(obs).all()


SIMULATED = """
import numpy as np
import gpuenvs

with gpuenvs.make("{env_id}", 37, device="cuda") as env:
    env.reset(seed=0)
    arrays = {{"obs": env.obs, "reward": env.reward, "terminated": env.terminated, **env.info}}
    for name, a in arrays.items():
        print(name, a.dtype, a.shape, a.strides, a.flags.writeable)
"""


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Swimmer-v5"])
def test_cuda_arrays_have_the_same_dtypes_and_strides(env_id: str) -> None:
    """`__cuda_array_interface__` is made of these; the simulator's arrays are laid out by the CUDA backend."""
    with gpuenvs.make(env_id, 37, device="cpu") as env:
        env.reset(seed=0)
        arrays = {"obs": env.obs, "reward": env.reward, "terminated": env.terminated, **env.info}
        expected = [f"{name} {a.dtype} {a.shape} {a.strides} {a.flags.writeable}" for name, a in arrays.items()]
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-W", "ignore", "-c", SIMULATED.format(env_id=env_id)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == expected
