"""gpurl PPO as `gpurl train` builds it: the sync schedule with the same settings as the other contenders."""

import os
import time

# Fields of PPOConfig that the presets may touch, at the values the other contenders have.
_PLAIN = {
    "lr_end": 1.0,
    "clip_end": 1.0,
    "ent_end": 1.0,
    "clip_value": 0.0,
    "target_kl": 0.0,
    "norm_adv": True,
    "norm_obs": False,
    "norm_reward": False,
    "hidden_sizes": "64,64",
    "activation": "tanh",
}
_RENAMED = {"update_epochs": "epochs", "num_minibatches": "minibatches"}
_SHARED = ("num_steps", "learning_rate", "gamma", "gae_lambda", "clip_coef", "ent_coef", "vf_coef", "max_grad_norm")


def measure(request, clock):
    if request.get("config") is None:
        os.environ["GPURL_CACHE"] = "0"  # the sweep reports how long a first compilation takes
    from learners.build import build, resolve

    settings = dict(_PLAIN)
    settings |= {name: request[name] for name in _SHARED}
    settings |= {ours: request[theirs] for theirs, ours in _RENAMED.items()}
    first_seconds = None

    def rate_of(config, seconds):
        nonlocal first_seconds
        run = resolve(
            request["env_id"],
            algo="ppo",
            overrides=[f"{name}={value}" for name, value in settings.items()],
            total_steps=10**9,
            num_envs=request["num_envs"],
            seed=request["seed"],
            device="cpu",
            torch_threads=config["threads"],
        )
        start = time.perf_counter()
        schedule = build(run)
        schedule.iterate()
        if first_seconds is None:
            first_seconds = time.perf_counter() - start
        rate = clock.rate(schedule.iterate, request["num_envs"] * request["num_steps"], seconds)
        schedule.env.close()
        return rate

    config, tried = request.get("config"), []
    if config is None:
        configs = [{"threads": threads} for threads in request["threads"]]
        tried = [{**config, "rate": rate_of(config, clock.seconds / 2)} for config in configs]
        config = {"threads": max(tried, key=lambda entry: entry["rate"])["threads"]}
    answer = {"rate": rate_of(config, clock.seconds), "config": config, "tried": tried}
    return {**answer, "compile_seconds": first_seconds}
