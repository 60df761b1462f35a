import numpy as np
import pytest

import gpuenvs
from benchmarks.kernel_costs import floor, kernel_bytes, occupancy, policy_flops, rollout_bytes, steps_bytes
from gpuenvs.runtime.buffers import SAME_STEP, bytes_per_step, make_layout
from learners.rollout import Rollout

LAYOUT = make_layout(gpuenvs.get("CartPole-v1"), SAME_STEP)
F32, F64 = np.dtype(np.float32), np.dtype(np.float64)


def test_bytes_of_cartpole():
    """Four state fields, four observations, counters of 4 bytes each; begin and observe also read a row number of 8."""
    assert kernel_bytes(LAYOUT, F32, "step_kernel") == bytes_per_step(LAYOUT, F32) == 75
    assert kernel_bytes(LAYOUT, F32, "observe_kernel") == 8 + 16 + 16
    assert kernel_bytes(LAYOUT, F32, "begin_kernel") == 8 + 16 + 16 + 2 * 4 + 4 + 4
    assert kernel_bytes(LAYOUT, F64, "observe_kernel") == 8 + 32 + 32
    # State, elapsed and return in and out; obs, reward and three flags out.
    assert steps_bytes(LAYOUT, F32, 1) == 2 * (16 + 4 + 4) + 16 + 4 + 3
    assert steps_bytes(LAYOUT, F32, 71) == pytest.approx(1.0)


@pytest.mark.parametrize("kernel", ["begin_kernel", "observe_kernel"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1"])
def test_bytes_are_those_of_the_kernels_source(env_id, kernel):
    """Counted once more in the text of the CUDA kernel."""
    from gpuenvs.runtime.cuda_source import _SOURCES

    layout = make_layout(gpuenvs.get(env_id), SAME_STEP)
    text = _SOURCES[kernel](layout, F32)
    touched = [part for line in text.splitlines() if ", i]" in line for part in line.split(" = ") if ", i]" in part]
    assert kernel_bytes(layout, F32, kernel) == 8 + 4 * len(touched)


def test_bytes_of_a_rollout():
    env = gpuenvs.get("CartPole-v1")
    rollout = Rollout(16, 8, env.observation_space, env.action_space)
    # obs 16 (and 16 more after the last of 16 steps), action 8, log_prob, reward, two flags.
    assert rollout_bytes(rollout.fields, 16, 8) == 16 + 1 + 8 + 4 + 4 + 2
    assert rollout_bytes(rollout.fields, 16, 8, more=("value",)) == 35 + 4 + 0.25


def test_flops_of_a_policy():
    assert policy_flops((4, 64, 64, 2)) == 2 * (4 * 64 + 64 * 64 + 64 * 2)
    assert policy_flops((3, 5), (2, 2)) == 30 + 8


RATES = {"copy_bytes_per_second": 100e9, "fma_per_second": 50e9, "div_per_second": 10e9, "sgemm_flops_per_second": 1e12}


def test_the_floor_is_the_larger_of_two_times():
    found = floor(100, {"add": 30, "multiply": 70, "divide": 2, "compare": 9}, 0, RATES)
    assert found["memory_steps_per_second"] == pytest.approx(1e9)
    assert found["arithmetic_steps_per_second"] == pytest.approx(1 / 1.2e-9)
    assert (found["bound"], found["seconds"]) == ("arithmetic", pytest.approx(1.2e-9))
    found = floor(1000, None, 0, RATES)
    assert found["arithmetic_steps_per_second"] is None
    assert (found["bound"], found["seconds"]) == ("memory", pytest.approx(1e-8))
    assert floor(100, {"add": 100}, 2000, RATES)["seconds"] == pytest.approx(3e-9)


HOPPER = {"registers": 65_536, "threads": 2048, "blocks": 32, "shared_bytes": 233_472}


@pytest.mark.parametrize(
    ("registers", "threads", "shared", "expected"),
    [
        (32, 128, 0, 1.0),  # 16 blocks of 4 warps
        (33, 128, 0, 0.75),  # 40 registers a thread are given out: 12 warps of each of 4 groups
        (64, 256, 0, 0.5),
        (255, 128, 0, 0.125),
        (32, 32, 0, 0.5),  # no more than 32 blocks
        (32, 128, 100_000, 0.125),  # two blocks
    ],
)
def test_occupancy(registers, threads, shared, expected):
    """Values of NVIDIA's occupancy calculator for compute capability 9.0."""
    assert occupancy(registers, threads, shared, HOPPER) == expected
