"""The adapters over a batch on CUDA: in the simulator, and on a device where there is one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpuenvs
from gpuenvs.adapters.dlpack import TensorEnv
from gpuenvs.adapters.single import SingleEnv
from gpuenvs.errors import ActionError
from gpuenvs.runtime.cuda import cuda_problem, simulated

ROOT = Path(__file__).resolve().parents[3]
PROBLEM = "the simulator is no device" if simulated() else cuda_problem(0)

SIMULATED = """
import numpy as np
from gpuenvs.adapters.sb3 import SB3VecEnv
from gpuenvs.adapters.single import SingleEnv

one, several = SingleEnv("CartPole-v1", device="cuda", max_episode_steps=5), SB3VecEnv("CartPole-v1", 3, device="cuda")
found = [*one.reset(seed=3)[0]]
several.seed(3)
found += [*several.reset().ravel()]
for k in range(5):
    obs, reward, terminated, truncated, _ = one.step(k % 2)
    found += [*obs, reward, terminated, truncated]
    obs, reward, done, infos = several.step(np.full(3, k % 2))
    found += [*obs.ravel(), *reward, *done]
print(*map(float, found))
"""


def test_same_as_on_the_cpu_in_the_simulator() -> None:
    pytest.importorskip("numba_cuda")
    pytest.importorskip("stable_baselines3")
    simulator = {"NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1"}
    results = []
    for code, more in ((SIMULATED, simulator), (SIMULATED.replace('"cuda"', '"cpu"'), {})):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            cwd=ROOT, env={**os.environ, **more}, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        results.append(np.array(done.stdout.split(), float))
    assert len(results[0]) > 100
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(PROBLEM is not None, reason=str(PROBLEM))
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_one_environment_and_sb3_on_a_device(env_id: str) -> None:
    pytest.importorskip("stable_baselines3")
    from gpuenvs.adapters.sb3 import SB3VecEnv

    pairs = [[make(device) for device in ("cpu", "cuda:0")] for make in (
        lambda device: SingleEnv(env_id, device=device, seed=1),
        lambda device: SB3VecEnv(env_id, 16, device=device, seed=1, max_episode_steps=6),
    )]  # fmt: skip
    for mine, theirs in pairs:
        mine.reset()
        theirs.reset()
        for _ in range(8):
            single = isinstance(mine, SingleEnv)
            action = mine.action_space.sample() if single else np.array([mine.action_space.sample() for _ in range(16)])
            for got, want in zip(theirs.step(action)[:3], mine.step(action)[:3]):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(PROBLEM is not None, reason=str(PROBLEM))
def test_tensors_on_a_device() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    env = TensorEnv(gpuenvs.make("CartPole-v1", 64, device="cuda:0", seed=0), torch.from_dlpack)
    obs = env.reset()
    assert obs.device == torch.device("cuda:0")
    assert obs.data_ptr() == env.batch.obs.data.ptr
    before = obs.clone()
    env.step(torch.ones(64, dtype=torch.int64, device="cuda:0"))
    torch.cuda.synchronize()
    assert not torch.equal(obs, before)
    with pytest.raises(ActionError, match="action is on the CPU, the environments are on cuda:0"):
        env.step(torch.ones(64, dtype=torch.int64))
    env.close()
