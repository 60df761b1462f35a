"""The loop of a horizon recorded once and launched as one: policy, sampling, env steps and storage in a CUDA graph.

What changes between horizons lies in memory that the graph reads anew: weights, statistics, noise, states, the seed and
time limit of the environment.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from learners.collectors.loop import StepLoop
from learners.collectors.streams import on_torch_stream
from learners.networks import Policy
from learners.rollout import Rollout

# Records what a function launches, without running it, and returns what runs it.
Capture = Callable[[Callable[[], None]], Callable[[], None]]


class GraphRollout:
    """Fills rollouts by `loop`, recorded for each rollout when it is first seen.

    Args:
        env: the loop's environment; recording is preceded by one horizon to warm up, which is undone.
        loop: what to record.
        capture: how; without it nothing is recorded and the loop runs as it is.
    """

    def __init__(self, env: Any, loop: StepLoop, capture: Capture | None) -> None:
        self._env, self._loop, self._capture = env, loop, capture
        self._recorded: weakref.WeakKeyDictionary[Rollout, tuple[Any, Callable[[], None]]] = weakref.WeakKeyDictionary()

    def run(self, policy: Policy, rollout: Rollout, noise: Tensor) -> None:
        """One horizon; see `StepLoop.run`."""
        parts = (policy.flat.data_ptr(), noise.data_ptr(), noise.shape)
        known = self._recorded.get(rollout)
        if known is None or known[0] != parts:
            known = self._recorded[rollout] = (parts, self._record(policy, rollout, noise))
        known[1]()

    def _record(self, policy: Policy, rollout: Rollout, noise: Tensor) -> Callable[[], None]:
        # A rollout must not be kept alive by what its own entry in a weak dictionary holds.
        weak = weakref.ref(rollout)

        def body() -> None:
            kept = weak()
            assert kept is not None
            self._loop.run(policy, kept, noise)

        if self._capture is None:
            return body
        start = self._env.snapshot()
        body()  # libraries load their kernels and take their workspaces now, which they must not while recording
        self._env.restore(start)
        return self._capture(body)


def cuda_capture(device: torch.device) -> Capture:
    """Recording into CUDA graphs of `device`.

    Their intermediate results lie in one pool: the graphs run one after the other, and what they leave is in the rollouts.
    """
    pool: Any = None

    def capture(body: Callable[[], None]) -> Callable[[], None]:
        nonlocal pool
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
        pool = pool or torch.cuda.graph_pool_handle()
        stream.wait_stream(torch.cuda.current_stream(device))
        # Other threads may load data meanwhile: only this one must not do what a graph cannot hold.
        recording = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
        with torch.cuda.device(device), recording, on_torch_stream(device):
            body()
        return graph.replay

    return capture
