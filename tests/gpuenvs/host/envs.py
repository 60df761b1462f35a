"""Environments that the tests step in executors."""

import copy
import os
import random
import signal
import subprocess
import time
from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

ME = f"{__file__}:"


class Walk(gymnasium.Env):
    """obs = (position, steps so far, first random number of the episode); the position moves by action - 1 + noise.

    Args:
        sleep: longest sleep of a step in seconds; its length is not from the env's own generator.
        limit: steps after which it terminates; 0: a number between 3 and 12 that is drawn at reset.
        truncate: truncate instead.
        careless: draw from a generator that `reset(seed=...)` does not seed.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, sleep=0.0, limit=0, truncate=False, careless=False):
        self._sleep, self._limit, self._truncate, self._careless = sleep, limit, truncate, careless
        self._own = random.Random(os.urandom(8))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.place = 0, 0.0
        self.ends = self._limit or int(self.np_random.integers(3, 13))
        self.tag = self.np_random.random()
        return self._observe(), {}

    def _observe(self):
        return np.array([self.place, self.steps, self.tag], np.float32)

    def step(self, action):
        if self._sleep:
            time.sleep(self._own.random() * self._sleep)
        self.steps += 1
        noise = self._own.random() if self._careless else self.np_random.random()
        self.place += self.move(action) + noise
        ended = self.steps >= self.ends
        return self._observe(), self.place / 10, ended and not self._truncate, ended and self._truncate, {}

    def move(self, action):
        assert self.action_space.contains(action), action
        return float(action) - 1


class Push(Walk):
    """`Walk` with two continuous actions, which have to be within bounds."""

    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def move(self, action):
        assert self.action_space.contains(action), action
        return float(action[0] - 2 * action[1])


class Scripted(gymnasium.Env):
    """obs = (steps, action); what each step gives is in `script`, one letter a step, then from the start.

    `-` goes on, `t` terminates, `l` reaches a time limit, `b` does both; `n` is a NaN observation, `i` an infinite one, `r` a
    NaN reward.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(10)

    def __init__(self, script="-"):
        self._script, self._total = script, 0

    def reset(self, *, seed=None, options=None):
        self._steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        what = self._script[self._total % len(self._script)]
        self._total += 1
        self._steps += 1
        first = {"n": np.nan, "i": np.inf}.get(what, self._steps)
        reward = np.nan if what == "r" else self._steps
        return np.array([first, action], np.float32), reward, what in "tb", what in "lb", {}


class Faulty(Walk):
    """`Walk` that goes wrong in `where` (`init`, `reset`, `second reset` or `step`, there on action 2) in the way `how`."""

    def __init__(self, where="", how="raise"):
        super().__init__(limit=5)
        self._where, self._how, self._resets = where, how, 0
        self._fail("init")

    def _fail(self, where):
        if self._where != where:
            return
        if self._how == "raise":
            raise RuntimeError(f"planted\nin {where}")
        if self._how == "exit":
            os._exit(7)
        if self._how == "exit 0":
            os._exit(0)
        if self._how == "sys.exit":
            raise SystemExit("planted")
        if self._how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._how == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self._how == "hang":
            time.sleep(1000)

    def reset(self, *, seed=None, options=None):
        self._resets += 1
        self._fail("reset")
        if self._resets > 1:
            self._fail("second reset")
        return super().reset(seed=seed)

    def step(self, action):
        if action == 2:
            self._fail("step")
            if self._how == "shape":
                return np.zeros(4, np.float32), 0.0, False, False, {}
        return super().step(action)


class Spaces(gymnasium.Env):
    """Random observations of the space `OBSERVATIONS[obs]`; remembers the actions, of the space `ACTIONS[act]`, it got."""

    OBSERVATIONS: ClassVar = {
        "float64": spaces.Box(-1, 1, (3,), np.float64),
        "integers": spaces.Box(-5, 5, (3,), np.int32),
        "matrix": spaces.Box(-1, 1, (2, 3), np.float32),
        "scalar": spaces.Box(-1, 1, (), np.float32),
        "choice": spaces.Discrete(4, start=2),
        "choices": spaces.MultiDiscrete([2, 3]),
        "bits": spaces.MultiBinary(5),
        "dict": spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(0, 1, (2,), np.float32)}),
        "tuple": spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (2,), np.float64))),
        "last": spaces.Box(0, 255, (40, 50, 3), np.uint8),
        "first": spaces.Box(0, 255, (2, 40, 50), np.uint8),
        "grey": spaces.Box(0, 255, (40, 50), np.uint8),
        "sequence": spaces.Sequence(spaces.Discrete(2)),
    }
    ACTIONS: ClassVar = {
        "plain": spaces.Discrete(3),
        "shifted": spaces.Discrete(3, start=-1),
        "line": spaces.Box(np.array([-1, -2], np.float32), np.array([1, 2], np.float32)),
        "matrix": spaces.Box(-0.5, 0.5, (2, 2), np.float64),
        "choices": spaces.MultiDiscrete([2, 3]),
        "integers": spaces.Box(-1, 1, (2,), np.int32),
    }

    def __init__(self, obs="matrix", act="plain", scale=1.0, render_mode=None):
        # Spaces draw from generators of their own: one for all environments would make them depend on each other.
        self.observation_space, self.action_space = copy.deepcopy(self.OBSERVATIONS[obs]), self.ACTIONS[act]
        self.render_mode, self.scale, self.actions = render_mode, scale, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.last = self.observation_space.sample()
        return self.last, {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.actions.append(action)
        self.last = self.observation_space.sample()
        return self.last, self.scale, False, False, {}


def make_walk(limit=4):
    """A function that returns an environment."""
    return gymnasium.wrappers.TimeLimit(Walk(limit=100), limit)


def not_an_env():
    return object()


class Late(Walk):
    """`Walk` with 10 actions that raises in each step, `action / 10` seconds late."""

    action_space = spaces.Discrete(10)

    def step(self, action):
        time.sleep(action / 10)
        raise RuntimeError(f"after {action}")


class Parent(Walk):
    """`Walk` that starts a process that sleeps for ever at each reset, and never ends it."""

    def reset(self, *, seed=None, options=None):
        self.child = subprocess.Popen(["sleep", "1000"])
        return super().reset(seed=seed)


class Printing(Walk):
    """`Walk` that prints at each reset."""

    def reset(self, *, seed=None, options=None):
        print(f"printed with OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS')}", flush=True)
        return super().reset(seed=seed)
