"""DLPack and `__cuda_array_interface__` of CUDA arrays: lifetime, stream, dtype, device, strides, and who reads them."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import gpuenvs
from gpuenvs.runtime.cuda import cuda_problem, simulated

PROBLEM = "the simulator is no device" if simulated() else cuda_problem(0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(PROBLEM is not None, reason=str(PROBLEM))]

IDS = ("CartPole-v1", "Pendulum-v1", "HalfCheetah-v5")
CUDA = (2, 0)  # DLPack's device type and number
every_env = pytest.mark.parametrize("env_id", IDS)


def handed_out(env):
    arrays = {
        "obs": env.obs,
        "reward": env.reward,
        "terminated": env.terminated,
        "truncated": env.truncated,
        **env.info,
    }
    return arrays | {f"buffer {name}": array for name, array in env.arrays.items() if array.size}


def ones(env):
    import cupy

    if env.spec.discrete:
        return cupy.ones(env.num_envs, cupy.int32)
    return cupy.ones((env.num_envs, env.spec.action_dim), cupy.float32)


def torch_cuda():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    return torch


@every_env
def test_the_interface_says_what_the_array_is(env_id):
    with gpuenvs.make(env_id, 37, device="cuda:0") as env:
        env.reset(seed=0)
        for name, array in handed_out(env).items():
            interface = array.__cuda_array_interface__
            assert interface["data"] == (array.data.ptr, False), name
            assert interface["shape"] == array.shape, name
            assert np.dtype(interface["typestr"]) == array.dtype, name
            strides = interface["strides"]
            assert array.strides == strides or (strides is None and array.flags.c_contiguous), name
            assert array.__dlpack_device__() == CUDA, name


@every_env
def test_torch_reads_every_array_in_place(env_id):
    torch = torch_cuda()
    names = {"float32": torch.float32, "int32": torch.int32, "bool": torch.bool}
    with gpuenvs.make(env_id, 37, device="cuda:0") as env:
        env.reset(seed=0)
        for name, array in handed_out(env).items():
            if array.dtype.name not in names:
                continue
            for tensor in (torch.from_dlpack(array), torch.as_tensor(array, device="cuda:0")):
                assert tensor.dtype == names[array.dtype.name], name
                assert tensor.data_ptr() == array.data.ptr, name
                assert tensor.device == torch.device("cuda", 0), name
                assert tuple(s * array.itemsize for s in tensor.stride()) == array.strides, name


@every_env
def test_arrays_outlive_the_batch(env_id):
    torch = torch_cuda()
    env = gpuenvs.make(env_id, 4096, device="cuda:0", seed=4)
    env.reset()
    for _ in range(3):
        env.step(ones(env))
    copies = {name: array.get() for name, array in handed_out(env).items()}
    views = {name: torch.from_dlpack(a) for name, a in handed_out(env).items() if a.dtype.name != "uint32"}
    env.close()
    del env
    gc.collect()
    noise = [torch.full((n,), 77, dtype=torch.uint8, device="cuda:0") for n in (4096, 65_536, 2**20) for _ in range(50)]
    torch.cuda.synchronize()
    for name, view in views.items():
        np.testing.assert_array_equal(view.cpu().numpy(), copies[name], err_msg=name)
    assert noise


def test_a_consumer_on_another_stream_waits_for_the_producer():
    """DLPack's exchange orders the consumer's stream after the producer's, without a wait of the host."""
    torch = torch_cuda()
    import cupy

    producer = cupy.cuda.Stream(non_blocking=True)
    with producer, gpuenvs.make("Pendulum-v1", 2**20, device="cuda:0", seed=1) as env:
        env.reset()
        action = ones(env)
        for _ in range(50):
            env.step(action)
        consumer = torch.cuda.Stream()
        with torch.cuda.stream(consumer):
            seen = torch.from_dlpack(env.obs).clone()
        consumer.synchronize()
        producer.synchronize()
        assert np.array_equal(seen.cpu().numpy(), env.obs.get())


def test_a_views_writes_are_the_batchs_state():
    torch = torch_cuda()
    with gpuenvs.make("CartPole-v1", 8, device="cuda:0") as env:
        env.reset(seed=0)
        torch.from_dlpack(env.arrays["elapsed"])[0, 3] = 7
        torch.cuda.synchronize()
        env.step(ones(env))
        assert env.arrays["elapsed"].get()[0, 3] == 8


def test_actions_in_the_buffers_own_order_are_not_copied():
    torch = torch_cuda()
    with gpuenvs.make("Pendulum-v1", 64, device="cuda:0") as env:
        env.reset(seed=0)
        action = torch.zeros(1, 64, device="cuda:0").T
        assert env._action.rows(action).data.ptr == action.data_ptr()
        whole = torch.ones(64, dtype=torch.int64, device="cuda:0")
    with gpuenvs.make("CartPole-v1", 64, device="cuda:0") as env:
        env.reset(seed=0)
        assert env._action.rows(whole).data.ptr == whole.data_ptr()


def test_jax_reads_the_arrays_and_its_actions_are_taken():
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this jax has no CUDA")
    with gpuenvs.make("CartPole-v1", 64, device="cuda:0") as env:
        env.reset(seed=0)
        for name, array in handed_out(env).items():
            seen = jax.dlpack.from_dlpack(array)
            assert seen.dtype == array.dtype, name
            np.testing.assert_array_equal(np.asarray(seen), array.get(), err_msg=name)
        obs, *_ = env.step(jax.numpy.ones(64, jax.numpy.int32))
        assert np.isfinite(obs.get()).all()
