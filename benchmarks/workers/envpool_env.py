"""EnvPool: sync stepping, and async stepping with fewer rows per batch than environments."""

from itertools import cycle

from actions import batches


def measure(request, clock):
    import envpool

    def rate_of(config, seconds):
        num_envs, batch_size = config["num_envs"], config["batch_size"]
        env = envpool.make(
            request["env_id"],
            env_type="gymnasium",
            num_envs=num_envs,
            batch_size=batch_size,
            num_threads=config["threads"],
        )
        dtype = "int32" if "n" in request["action"] else "float32"
        actions = cycle(batches(request["action"], batch_size, dtype))
        if batch_size == num_envs:
            env.reset()
            step = env.step

            def call():
                step(next(actions))
        else:
            env.async_reset()
            recv, send = env.recv, env.send

            def call():
                info = recv()[4]
                send(next(actions), info["env_id"])

        rate = clock.rate(call, batch_size, seconds)
        env.close()
        return rate

    config, tried = request.get("config"), []
    if config is None:
        sizes = request["batch_sizes"]
        configs = [
            {"num_envs": num_envs, "batch_size": num_envs // divide, "threads": threads}
            for num_envs in sizes
            for divide in (1, 2, 4)
            for threads in request["threads"]
            if num_envs >= divide
        ]
        config, tried = clock.best(configs, rate_of)
    return {"rate": rate_of(config, clock.seconds), "config": config, "tried": tried}
