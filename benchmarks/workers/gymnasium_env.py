"""Gymnasium's own vector environments: its numpy implementation where there is one, else its SyncVectorEnv."""

from itertools import cycle

from actions import batches


def measure(request, clock):
    import gymnasium

    def rate_of(config, seconds):
        env = gymnasium.make_vec(
            request["env_id"],
            num_envs=config["num_envs"],
            vectorization_mode=request["mode"],
            **({"wrappers": None} if request["mode"] == "sync" else {}),
        )
        dtype = "int64" if "n" in request["action"] else "float32"
        actions = cycle(batches(request["action"], config["num_envs"], dtype))
        env.reset(seed=0)
        step = env.step
        rate = clock.rate(lambda: step(next(actions)), config["num_envs"], seconds)
        env.close()
        return rate

    config, tried = request.get("config"), []
    if config is None:
        config, tried = clock.best([{"num_envs": size} for size in request["batch_sizes"]], rate_of)
    return {"rate": rate_of(config, clock.seconds), "config": config, "tried": tried}
