"""gpuenvs through its public API, with the time from `make` to the end of the first step (compilation included)."""

import os
import time
from itertools import cycle

from actions import batches


def measure(request, clock):
    if request.get("config") is None:
        os.environ["GPURL_CACHE"] = "0"  # the sweep reports how long a first compilation takes
    import gpuenvs

    dtype = request.get("dtype", "float32")
    action_dtype = "int32" if "n" in request["action"] else dtype
    jit_seconds = None

    def make(config):
        nonlocal jit_seconds
        actions = batches(request["action"], config["num_envs"], action_dtype)
        begin = time.perf_counter()
        env = gpuenvs.make(
            request["env_id"], config["num_envs"], device="cpu", seed=0, dtype=dtype, threads=config["threads"]
        )
        env.reset(seed=0)
        env.step(actions[0])
        if jit_seconds is None:
            jit_seconds = time.perf_counter() - begin
        return env, cycle(actions)

    def rate_of(config, seconds):
        env, actions = make(config)
        step = env.step
        rate = clock.rate(lambda: step(next(actions)), config["num_envs"], seconds)
        env.close()
        return rate

    config, tried = request.get("config"), []
    if config is None:
        threads = [n for n in request["threads"] if n <= len(os.sched_getaffinity(0))]
        configs = [{"num_envs": size, "threads": n} for size in request["batch_sizes"] for n in threads]
        config, tried = clock.best(configs, rate_of)
    return {"rate": rate_of(config, clock.seconds), "config": config, "tried": tried, "jit_seconds": jit_seconds}
