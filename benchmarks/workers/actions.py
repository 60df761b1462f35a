"""Random actions, drawn before the clock starts, the same way for every contender."""

import numpy as np

ROUNDS = 16  # this many different batches of actions, used in turn


def batches(action: dict, num_envs: int, dtype: str, seed: int = 0) -> list[np.ndarray]:
    """`ROUNDS` arrays: (num_envs,) integers below `action["n"]`, or (num_envs, k) reals within `action["low"|"high"]`."""
    random = np.random.default_rng(seed)
    if "n" in action:
        return [random.integers(0, action["n"], num_envs).astype(dtype) for _ in range(ROUNDS)]
    shape = (num_envs, action["k"])
    return [random.uniform(action["low"], action["high"], shape).astype(dtype) for _ in range(ROUNDS)]
