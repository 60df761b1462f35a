"""Stable-Baselines3 PPO on the CPU over its DummyVecEnv, without Monitor or the environment checker (its fastest way)."""

import time


def measure(request, clock):
    import gymnasium
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    def rate_of(config, seconds):
        torch.set_num_threads(config["threads"])
        make = lambda: gymnasium.make(request["env_id"], disable_env_checker=True)  # noqa: E731
        rows = request["num_envs"] * request["num_steps"]
        model = PPO(
            "MlpPolicy",
            DummyVecEnv([make] * request["num_envs"]),
            n_steps=request["num_steps"],
            batch_size=rows // request["num_minibatches"],
            n_epochs=request["update_epochs"],
            learning_rate=request["learning_rate"],
            gamma=request["gamma"],
            gae_lambda=request["gae_lambda"],
            clip_range=request["clip_coef"],
            ent_coef=request["ent_coef"],
            vf_coef=request["vf_coef"],
            max_grad_norm=request["max_grad_norm"],
            policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}},
            device="cpu",
            seed=request["seed"],
            verbose=0,
        )
        model.learn(rows)
        start = time.perf_counter()
        model.learn(rows, reset_num_timesteps=False)
        iterations = max(1, round(seconds / (time.perf_counter() - start)))
        start = time.perf_counter()
        model.learn(iterations * rows, reset_num_timesteps=False)
        return iterations * rows / (time.perf_counter() - start)

    config, tried = request.get("config"), []
    if config is None:
        tried = [{"threads": n, "rate": rate_of({"threads": n}, clock.seconds / 2)} for n in request["threads"]]
        config = {"threads": max(tried, key=lambda entry: entry["rate"])["threads"]}
    return {"rate": rate_of(config, clock.seconds), "config": config, "tried": tried}
