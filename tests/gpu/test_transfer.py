"""Placement and transfer on real devices: every way to move a horizon gives the weights of one device, bit for bit.

With one GPU both roles are on it, each on a stream of its own; with two GPUs the same runs across them. The order that the
happens-before checker proves is put under stress here by streams that are held up at random.
"""

from __future__ import annotations

import random

import pytest
import torch

import gpuenvs
from gpuenvs.runtime.cuda import cuda_problem, simulated
from learners.compat import algorithm
from learners.devices import HOST, CudaRuntime, cuda
from learners.placement import this_machine
from learners.schedules.sync import SyncSchedule
from learners.transfer import make_transfer

PROBLEM = "the simulator is no device" if simulated() else cuda_problem(0)
if PROBLEM is None and not torch.cuda.is_available():
    PROBLEM = "this torch has no CUDA"
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(PROBLEM is not None, reason=str(PROBLEM))]

ITERATIONS = 6


class HeldUp(CudaRuntime):
    """Each stream that is given a copy, or told to wait, first idles for up to about a millisecond."""

    def __init__(self) -> None:
        self._random = random.Random(0)

    def _idle(self, stream):
        with self.use(stream):
            torch.cuda._sleep(self._random.randrange(2_000_000))

    def wait(self, stream, event):
        self._idle(stream)
        super().wait(stream, event)

    def copy(self, destination, source, streams):
        for stream in streams:
            self._idle(stream)
        super().copy(destination, source, streams)


def weights(kind, env_device, learner_device, env_id="CartPole-v1", runtime=None, collector="eager"):
    cls = algorithm("ppo")
    config = cls.config_class(
        num_envs=512, num_steps=16, total_steps=10**6, epochs=2, minibatches=2, collector=collector
    )
    with gpuenvs.make(env_id, 512, device=env_device, seed=3) as env:
        algo = cls(config, env.single_observation_space, env.single_action_space, learner_device, 1)
        transfer = make_transfer(kind, runtime or CudaRuntime(), env, algo, config)
        schedule = SyncSchedule(env, algo, config, transfer)
        results = [schedule.iterate() for _ in range(ITERATIONS)]
        schedule.close()
    assert sum(len(result.episode_returns) for result in results) > 0
    return algo.policy.flat.cpu()


def second():
    machine = this_machine()
    if machine.gpus < 2:
        pytest.skip("needs two GPUs")
    return machine


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("held_up", [False, True], ids=["", "held up"])
@pytest.mark.parametrize("kind", ["peer", "staged", "remote"])
def test_two_streams_of_one_gpu_learn_what_one_does(kind, held_up, env_id):
    found = weights(kind, "cuda:0", "cuda:0", env_id, HeldUp() if held_up else None)
    assert torch.equal(found, weights("alias", "cuda:0", "cuda:0", env_id))


@pytest.mark.parametrize("kind", ["peer", "staged", "remote"])
@pytest.mark.parametrize("held_up", [False, True], ids=["", "held up"])
def test_two_gpus_learn_what_one_does(kind, held_up):
    if kind != "staged" and not second().link("cuda:0", "cuda:1"):
        pytest.skip("no direct link between cuda:0 and cuda:1")
    second()
    if torch.cuda.get_device_name(0) != torch.cuda.get_device_name(1):
        pytest.skip("two different GPUs may round differently")
    found = weights(kind, "cuda:0", "cuda:1", runtime=HeldUp() if held_up else None)
    assert torch.equal(found, weights("alias", "cuda:0", "cuda:0"))


@pytest.mark.parametrize("collector", ["auto", "eager"])
def test_environments_on_the_cpu_and_the_learner_on_a_gpu(collector):
    found = weights("pinned", "cpu", "cuda:0", collector=collector)
    assert torch.equal(found, weights("pinned", "cpu", "cuda:0", runtime=HeldUp(), collector=collector))
    assert torch.isfinite(found).all()


def test_the_collector_that_auto_takes_gives_the_same_split_as_on_one_device():
    found = weights("peer", "cuda:0", "cuda:0", collector="auto")
    assert torch.equal(found, weights("alias", "cuda:0", "cuda:0", collector="auto"))


def test_memory_over_a_link_is_the_same_memory():
    if not second().link("cuda:0", "cuda:1"):
        pytest.skip("no direct link between cuda:0 and cuda:1")
    runtime = CudaRuntime()
    runtime.open_link(cuda(0), cuda(1))
    buffer = runtime.buffer(1 << 20, cuda(1))
    view = runtime.view_from(cuda(0), buffer)
    assert view.device == cuda(0) and view.data_ptr() == buffer.data_ptr()
    view.fill_(7)
    torch.cuda.synchronize(0)
    assert (buffer == 7).all()


def test_pinned_memory_and_timed_copies():
    runtime = CudaRuntime()
    source, target = runtime.buffer(1 << 24, HOST), runtime.buffer(1 << 24, cuda(0))
    assert source.is_pinned()
    source.fill_(5)
    stream = runtime.stream(cuda(0))
    begin, end = (runtime.event(cuda(0), timed=True) for _ in range(2))
    runtime.record(begin, stream)
    runtime.copy(target, source, [stream])
    runtime.record(end, stream)
    runtime.finish(end)
    assert runtime.done(end) and 0 < runtime.seconds(begin, end) < 10
    runtime.wait(runtime.current_stream(cuda(0)), end)
    assert (target == 5).all()
