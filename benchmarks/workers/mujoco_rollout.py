"""The C engine at its best: `mujoco.rollout` on threads, from states that a random policy visits, no observation or reward.

The states come from Gymnasium's environment of the same id under random actions, resets included, so that contacts are as
frequent as they are for the other contenders. Each rollout goes on for a few control steps from one of them.
"""

import importlib
from itertools import cycle
from typing import Any

import numpy as np

STATES = 256
CONTROL_STEPS = 8


def _states(env, rng):
    """(STATES, n) full physics states of a random policy, three steps apart."""
    mujoco: Any = importlib.import_module("mujoco")

    base = env.unwrapped
    size = mujoco.mj_stateSize(base.model, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    found = np.zeros((STATES, size))
    env.reset(seed=0)
    for k in range(3 * STATES):
        _, _, terminated, truncated, _ = env.step(rng.uniform(env.action_space.low, env.action_space.high))
        if terminated or truncated:
            env.reset()
        mujoco.mj_getState(base.model, base.data, found[k // 3], mujoco.mjtState.mjSTATE_FULLPHYSICS)
    return found


def measure(request, clock):
    import gymnasium

    mujoco: Any = importlib.import_module("mujoco")
    rollout: Any = importlib.import_module("mujoco.rollout")

    rng = np.random.default_rng(0)
    env: Any = gymnasium.make(request["env_id"])
    model, frame_skip = env.unwrapped.model, env.unwrapped.frame_skip
    states = _states(env, rng)
    low, high = env.action_space.low, env.action_space.high
    shape = (STATES, CONTROL_STEPS, model.nu)
    controls = cycle([np.repeat(rng.uniform(low, high, shape), frame_skip, axis=1) for _ in range(4)])
    threads = request["threads"]
    data = [mujoco.MjData(model) for _ in range(threads)]

    with rollout.Rollout(nthread=0 if threads == 1 else threads) as pool:

        def call():
            pool.rollout(model, data, states, next(controls))

        rate = clock.rate(call, STATES * CONTROL_STEPS)
    config = {"threads": threads, "states": STATES, "control_steps": CONTROL_STEPS}
    return {"rate": rate, "config": config, "tried": []}
