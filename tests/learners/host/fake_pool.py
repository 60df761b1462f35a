"""A pool of tagged environments that threads of this process step: `gpuenvs.host.pool.HostPool`, without processes.

The double is fast to start, sleeps as told, and fails as told.
"""

import contextlib
import queue
import random
import threading
import time

import numpy as np
from gymnasium import spaces


class FakePool:
    """obs = (env, step in the whole run, step in the episode, all actions so far); reward = 1000 env + step + action / 10.

    Env i terminates every 3 + i % 5 steps of an episode, or is truncated there when i is odd. final_obs is marked by adding
    0.5 to the env number. Everything an env reports is NaN or -1 until it is written, and wherever no episode ended.
    With `image`, an observation is (1, 36, 36) uint8 made of these numbers.

    Args:
        delay: seconds that each step sleeps at most, at random, never the same twice; 0 does not sleep.
        slow: seconds of each step of these envs (a dict), instead.
        gate: (env, event): this env does nothing before the event.
        fault: (env, step): the pool fails there.
    """

    autoreset = "same_step"
    device = "cpu"
    env_offset = 0
    seed = 0

    def __init__(
        self, num_envs, executors=2, *, action_space=None, delay=0.0, slow=None, gate=None, fault=None, image=False
    ):
        self.num_envs, self.executors = num_envs, executors
        self.delay, self.slow, self.gate, self.fault, self.image = delay, slow or {}, gate, fault, image
        shape = (1, 36, 36) if image else (4,)
        dtype = np.uint8 if image else np.float32
        low, high = (0, 255) if image else (-np.inf, np.inf)
        self.single_observation_space = spaces.Box(low, high, shape, dtype)
        self.single_action_space = action_space or spaces.Discrete(3)
        n = num_envs
        self.obs = np.zeros((n, *shape), dtype)
        self.final_obs = np.zeros_like(self.obs)
        self.reward = np.full(n, np.nan, np.float32)
        self.terminated, self.truncated = np.zeros(n, bool), np.zeros(n, bool)
        self.episode_return, self.episode_length = np.full(n, np.nan, np.float32), np.full(n, -1, np.int32)
        discrete = isinstance(self.single_action_space, spaces.Discrete)
        self.action = np.zeros(n, np.int64) if discrete else np.zeros((n, *self.single_action_space.shape), np.float32)
        self.time, self.age = np.zeros(n, int), np.zeros(n, int)
        self.total, self.past = np.zeros(n, np.float32), np.zeros(n, np.float32)
        self.busy = np.zeros(n, bool)
        self.waiting = 0
        self._finished = queue.SimpleQueue()
        self._asked = [queue.SimpleQueue() for _ in range(executors)]
        self._error = None
        self._threads = []

    def start(self):
        for row in range(self.num_envs):
            self.obs[row] = self._observe(row)
        self._begin()

    def _begin(self):
        self._threads = [threading.Thread(target=self._execute, args=(asked,), daemon=True) for asked in self._asked]
        for thread in self._threads:
            thread.start()

    def step(self, rows):
        assert not self.busy[rows].any(), "a step of these rows is under way"
        self.busy[rows] = True
        for row in rows:
            self._asked[row % self.executors].put(int(row))

    def ready(self):
        self.waiting += 1
        rows, row = [], self._finished.get()
        self.waiting -= 1
        with contextlib.suppress(queue.Empty):
            while row is not None:  # a wake is for one call alone
                rows.append(row)
                row = self._finished.get_nowait()
        if self._error is not None:
            raise self._error
        rows = np.array(rows, dtype=np.int64)
        self.busy[rows] = False
        return rows

    def wake(self, n):
        for _ in range(n):
            self._finished.put(None)

    def state_dict(self):
        assert not self.busy.any() and not self.waiting, "somebody would take what the pool waits for"
        return {name: getattr(self, name).copy() for name in ("obs", "time", "age", "total", "past")}

    def load_state_dict(self, state):
        assert not self.busy.any() and not self.waiting, "somebody would take what the pool waits for"
        for name, value in state.items():
            getattr(self, name)[:] = value
        if not self._threads:
            self._begin()

    def close(self):
        for asked in self._asked:
            asked.put(None)
        for thread in self._threads:
            thread.join()

    def _observe(self, row, mark=0.0):
        numbers = (row + mark, self.time[row], self.age[row], self.past[row])
        if not self.image:
            return numbers
        return np.resize(np.array([int(64 * x) % 256 for x in numbers], np.uint8), self.obs.shape[1:])

    def _execute(self, asked):
        while (row := asked.get()) is not None:
            seconds = self.slow.get(row, self.delay * random.random())
            if seconds:
                time.sleep(seconds)
            if self.gate and self.gate[0] == row:
                self.gate[1].wait()
            if (row, self.time[row]) == self.fault:
                self._error = RuntimeError(f"env {row} failed")
            else:
                self._step(row)
            self._finished.put(row)

    def _step(self, row):
        action = float(np.sum(self.action[row]))
        self.reward[row] = 1000 * row + self.time[row] + action / 10
        self.total[row] += self.reward[row]
        self.past[row] = np.float32(0.9) * self.past[row] + np.float32(action)
        self.time[row] += 1
        self.age[row] += 1
        done = self.age[row] == 3 + row % 5
        self.terminated[row], self.truncated[row] = done and row % 2 == 0, done and row % 2 == 1
        self.episode_return[row], self.episode_length[row] = np.nan, -1
        self.final_obs[row] = 0 if self.image else np.nan
        if done:
            self.final_obs[row] = self._observe(row, 0.5)
            self.episode_return[row], self.episode_length[row] = self.total[row], self.age[row]
            self.age[row], self.total[row], self.past[row] = 0, 0, 0
        self.obs[row] = self._observe(row)
