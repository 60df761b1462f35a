"""Ladder step 4: the PTX of fused rollouts, of many steps in one launch and of noise does what the CPU does."""

from __future__ import annotations

import contextlib
import sys
from unittest import mock

import numpy as np
import pytest
import torch

import gpuenvs
from gpuenvs.rng import fill_gumbel, fill_normal, fill_plane, split_seed
from gpuenvs.runtime.cuda import THREADS_PER_BLOCK, CudaBackend
from gpuenvs.runtime.cuda_rollout import ACTIONS, StepsKernel, random_actions
from learners.collectors.check import TOLERANCE, replay
from learners.collectors.fused_cuda import FusedCudaRollout
from learners.collectors.loop import StepLoop
from learners.collectors.noise import ActionNoise
from learners.networks import Policy
from learners.rollout import Rollout
from tests.gpuenvs.classic import CLASSIC

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the CUDA compiler wheels are for Linux")
if sys.platform == "linux":
    from gpuenvs.runtime.traced_rollout import REALS, WORDS
    from gpuenvs.runtime.traced_rollout_cuda import TracedRolloutKernel
    from tests.ladder import fused
    from tests.ptx.backend import Allocations, array_arguments, interpreted, traced_ptx, without_contraction
    from tests.ptx.machine import Program

ROWS, STEPS, LIMIT = 300, 3, 2
SEED, OFFSET, STEP = 2**63 + 11, 1000, 2**32 - 2


@contextlib.contextmanager
def device(case, launches):
    """Within it `cuda:0` is the interpreter, and what is launched beside single steps is `case`."""
    # Physics agrees to 1e-5 where no compiler fuses multiplications and additions; see `tests.ptx.backend.traced_ptx`.
    traced = isinstance(case, fused.TracedRollout)
    program = Program(traced_ptx(case.text(), contract=False) if traced else fused.ptx(case, "sm_90"))

    def run(arguments, memory, rows):
        launches.append(program.launch(memory, -(-rows // THREADS_PER_BLOCK), THREADS_PER_BLOCK, arguments))

    def launch(backend, kernel, arrays, scalars):
        memory = Allocations()
        given, fixed = (
            [v for a in part for v in array_arguments(int(memory.address(a)), a)] for part in (arrays, backend._fixed)
        )
        run([*given, *scalars, *fixed], memory, backend.num_envs)

    def launch_traced(self, policy, outputs, numbers):
        memory, backend = Allocations(), self._backend
        with mock.patch("gpuenvs.runtime.traced_cuda._address", memory.address):
            backend._table[:] = backend._host_table()
        arrays = dict(zip(("weights", "shift", "scale", "memory"), policy, strict=True)) | {
            "order": self._order,
            **outputs,
        }
        numbers = {**numbers, "steps": outputs["reward"].shape[0]}
        words = [int(memory.address(arrays[w])) if w in arrays else numbers[w] for w in WORDS]
        head = [backend.num_envs, int(memory.address(backend._table)), int(memory.address(backend._totals))]
        run([*head, *words, *(numbers[r] for r in REALS)], memory, backend.num_envs)

    with (
        interpreted(contract=not traced),
        mock.patch("gpuenvs.runtime.traced_rollout_cuda.simulated", lambda: True),
        mock.patch.object(CudaBackend, "launch", launch),
        mock.patch.object(TracedRolloutKernel, "launch", launch_traced),
    ):
        yield


def make(env_id, where):
    return gpuenvs.make(env_id, ROWS, device=where, env_offset=OFFSET, max_episode_steps=LIMIT, dtype="float32")


ROLLOUTS = [case for case in fused.cases() if isinstance(case, fused.Rollout)] if sys.platform == "linux" else []


@pytest.mark.parametrize("case", ROLLOUTS, ids=str)
def test_fused_rollouts_agree_with_the_eager_loop_on_the_cpu(case):
    with without_contraction() if isinstance(case, fused.TracedRollout) else contextlib.nullcontext():
        compare(case)


def compare(case):
    env = make(case.env_id, "cpu")
    spaces = (env.single_observation_space, env.single_action_space)
    policy = Policy(*spaces, hidden_sizes=case.hidden, activation=case.activation, seed=2)
    generator = torch.Generator().manual_seed(3)
    policy.flat.add_(torch.randn(policy.flat.shape, generator=generator), alpha=0.1)
    policy.obs_norm.update(torch.randn((50, policy.obs_dim), generator=generator) * 0.5 + 0.1)
    rollout, correlation, launches = Rollout(STEPS, ROWS, *spaces), 0.6 * case.correlated, []
    noises = [ActionNoise(7, OFFSET, correlation, torch.device("cpu")) for _ in range(2)]
    starts = []
    with device(case, launches), make(case.env_id, "cuda:0") as there:
        there.reset(seed=SEED)
        kernel = FusedCudaRollout(there, policy, noises[0])
        for horizon in range(2):
            starts.append(there.snapshot())
            kernel.run(policy, rollout, STEP + horizon * STEPS)
            if horizon == 0:
                first = {name: getattr(rollout, name).clone() for name in rollout.fields}
        after = there.snapshot()
    assert len(launches) == 2 and not any(statistics.inexact for statistics in launches)
    env.reset(seed=SEED)
    for horizon in range(2):
        env.restore(starts[horizon])
        noise = noises[1].draw(STEPS, ROWS, policy, STEP + horizon * STEPS)
        found = Rollout(STEPS, ROWS, *spaces)
        for name in found.fields:
            getattr(found, name).copy_(first[name] if horizon == 0 else getattr(rollout, name))
        agreement = replay(StepLoop(env, torch.device("cpu")), policy, found, noise)
        assert agreement.env <= TOLERANCE and agreement.policy <= TOLERANCE
        assert found.truncated.any() and not found.truncated.all()
    now = env.snapshot()
    for name in ("elapsed", "episode", "ended", "terminated", "truncated", "episode_length"):
        assert np.array_equal(after[name], now[name]), name


@pytest.mark.parametrize("env_id", CLASSIC)
@pytest.mark.parametrize("actions", ACTIONS)
def test_many_steps_in_one_launch_are_those_of_many_steps(env_id, actions):
    spec, launches = gpuenvs.get(env_id), []
    drawn = random_actions(spec, ROWS, STEPS, SEED, OFFSET, STEP)
    drawn = np.ones_like(drawn) if actions == "constant" else drawn
    with device(fused.Steps(env_id, actions), launches), make(env_id, "cuda:0") as env:
        env.reset(seed=SEED)
        start = env.snapshot()
        StepsKernel(env.backend, actions).launch(STEPS, np.ones_like(env.arrays["action"]), seed=SEED, step=STEP)
        found = env.snapshot()
    with make(env_id, "cpu") as env:
        env.reset(seed=SEED)
        env.restore(start)
        for step in drawn:
            env.step(step)
        for name, value in env.snapshot().items():
            if value.dtype.kind == "f":
                np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5)
            else:
                assert np.array_equal(found[name], value), name
    assert len(launches) == 1 and not launches[0].inexact


@pytest.mark.parametrize("kind", ["normal", "gumbel"])
def test_noise_on_the_device_is_that_of_the_host(kind):
    program, memory = Program(fused.ptx(fused.Noise(kind), "sm_90")), Allocations()
    found, expected = np.zeros((3, 301, 6), np.float32), np.zeros((3, 301, 6), np.float32)
    words = (*split_seed(SEED), fill_plane(4), STEP & 0xFFFFFFFF, STEP >> 32, OFFSET)
    program.launch(memory, 8, THREADS_PER_BLOCK, [*array_arguments(int(memory.address(found)), found), *words])
    (fill_normal if kind == "normal" else fill_gumbel)(expected, SEED, OFFSET, STEP, 4)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)
