"""Work on streams of the caller's: delays, another producer, another consumer and two threads change no bit.

On a CPU the same code runs without streams.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

import gpuenvs
from benchmarks.checks import Report
from benchmarks.checks.common import actions, snapshot_differences
from learners.collectors.streams import as_array, as_tensor, on_torch_stream

DELAY_CYCLES = 200_000  # about 0.1 ms: longer than a step, so that work which does not wait comes too early


class Lanes:
    """The streams of one rollout: where actions are made, where environments step, where observations are read."""

    def __init__(self, device: str, jammed: bool) -> None:
        self.device, self.jammed = torch.device(device), jammed
        self.cuda = self.device.type == "cuda"
        self.streams: list[Any] = [torch.cuda.Stream(self.device) for _ in range(3)] if self.cuda else [None] * 3

    def use(self, number: int, delay: int = 0) -> Any:
        """A block whose work goes to stream `number`, behind a delay."""
        if not self.cuda:
            return contextlib.nullcontext()
        stack = contextlib.ExitStack()
        stack.enter_context(torch.cuda.stream(self.streams[number]))
        stack.enter_context(on_torch_stream(self.device))
        if self.jammed and delay:
            torch.cuda._sleep(delay * DELAY_CYCLES)
        return stack

    def follow(self, number: int, other: int) -> None:
        """What comes next on stream `number` runs after what was given to `other`."""
        if self.cuda:
            self.streams[number].wait_stream(self.streams[other])


def run(request: dict[str, Any], report: Report) -> None:
    """Each of `env_ids`: alone on one stream, then jammed, then two jammed threads at a time."""
    device = request["device"]
    num_envs, steps, rounds = (67, 12, 1) if request["small"] else (5000, 60, 3)
    for env_id in request["env_ids"]:
        seen, last = rollout(env_id, Lanes(device, False), num_envs, steps)
        wrong: list[str] = []
        for _ in range(rounds):
            with ThreadPoolExecutor(2) as pool:
                jobs = [pool.submit(rollout, env_id, Lanes(device, True), num_envs, steps) for _ in range(2)]
                results = [rollout(env_id, Lanes(device, True), num_envs, steps), *(job.result() for job in jobs)]
            for other, state in results:
                wrong += snapshot_differences(last, state)
                wrong += [] if torch.equal(seen, other) else ["observations read on another stream"]
        report.row(env_id, not wrong, rollouts=3 * rounds, steps=steps, rows=num_envs, differ=sorted(set(wrong)))


def rollout(env_id: str, lanes: Lanes, num_envs: int, steps: int) -> tuple[torch.Tensor, dict[str, np.ndarray]]:
    """(every observation (steps, n, d) on the host, everything the batch holds at the end)."""
    spec = gpuenvs.get(env_id)
    table = torch.from_numpy(np.stack([actions(spec, np.arange(num_envs), t) for t in range(steps)])).to(lanes.device)
    if lanes.cuda:
        torch.cuda.synchronize(lanes.device)
    action = torch.empty_like(table[0])
    with lanes.use(1):
        env = gpuenvs.make(spec, num_envs, device=str(lanes.device), seed=8, max_episode_steps=10)
        env.reset()
        obs = as_tensor(env.obs)
    kept = torch.zeros((steps, *obs.shape), dtype=obs.dtype, device=lanes.device)
    if lanes.cuda:
        torch.cuda.synchronize(lanes.device)
    for t in range(steps):
        with lanes.use(0, delay=t % 3):
            action.copy_(table[t])
        lanes.follow(1, 0)
        lanes.follow(1, 2)  # the reader has what it wanted of the last observation
        with lanes.use(1, delay=(t + 1) % 3):
            env.step(as_array(action))
        lanes.follow(0, 1)  # the action may be overwritten
        lanes.follow(2, 1)
        with lanes.use(2, delay=(t + 2) % 3):
            kept[t].copy_(obs)
    lanes.follow(1, 2)
    with lanes.use(1):
        state, seen = env.snapshot(), kept.cpu()
    env.close()
    return seen, state
