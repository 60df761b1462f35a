"""SAC of Stable-Baselines3 or of sbx (the same interface in JAX) over its vector environment: speed, and time to a return.

`speed` counts once everything is compiled; `time` is that of training alone, without the evaluations, after a training of
another model has compiled what a process compiles.
"""

import time


def measure(request, clock):
    import torch

    torch.set_num_threads(request["threads"])
    return {"speed": _speed, "time": _time}[request["what"]](request)


def _model(request, seed):
    from stable_baselines3.common.env_util import make_vec_env

    module = __import__(request["package"])
    rows = request["num_envs"] * request["num_steps"]
    return module.SAC(
        "MlpPolicy",
        make_vec_env(request["env_id"], n_envs=request["num_envs"], seed=seed),
        learning_rate=request["learning_rate"],
        buffer_size=request["buffer_size"],
        learning_starts=request["learning_starts"],
        batch_size=request["batch_size"],
        train_freq=(request["num_steps"], "step"),
        gradient_steps=round(rows * request["update_to_data"] / request["batch_size"]),
        n_steps=request["n_step"],
        policy_kwargs={"net_arch": list(request["hidden_sizes"])},
        device="cpu",
        seed=seed,
        verbose=0,
    )


def _until(done):
    from stable_baselines3.common.callbacks import BaseCallback

    class Callback(BaseCallback):
        def _on_step(self):
            return not done()

    return Callback()


def _updates(model, request, steps):
    """Updates made for so many steps after learning began."""
    rows = request["num_envs"] * request["num_steps"]
    return steps / rows * model.gradient_steps


def _speed(request):
    model = _model(request, 0)
    model.learn(request["learning_starts"] + 256)
    steps, began = model.num_timesteps, time.perf_counter()
    model.learn(
        10**8, callback=_until(lambda: time.perf_counter() - began >= request["seconds"]), reset_num_timesteps=False
    )
    passed = time.perf_counter() - began
    steps = model.num_timesteps - steps
    frames = _updates(model, request, steps) * request["batch_size"]
    return {"sampling_hz": steps / passed, "update_frames_hz": frames / passed}


def _time(request):
    _model(request, 0).learn(request["learning_starts"] + 256)
    model = _model(request, request["seed"])
    if request["package"] == "sbx":
        _compile(model, request)
    state = {"spent": 0.0, "evaluated": 0.0, "reached": None, "best": None}
    state["since"] = time.perf_counter()

    def done():
        now = time.perf_counter()
        state["spent"] += now - state["since"]
        if state["spent"] - state["evaluated"] >= request["eval_seconds"]:
            state["evaluated"] = state["spent"]
            if model.num_timesteps > request["learning_starts"]:
                found = mean_return(request, lambda obs: model.predict(obs, deterministic=True)[0])
                state["best"] = found if state["best"] is None else max(found, state["best"])
                if found >= request["goal"]:
                    state["reached"] = state["spent"]
        state["since"] = time.perf_counter()
        return state["reached"] is not None or state["spent"] >= request["limit_seconds"]

    model.learn(10**8, callback=_until(done))
    return {"seconds": state["reached"], "best": state["best"], "steps": model.num_timesteps}


def _compile(model, request):
    """Train for a moment and put everything back: JAX compiles sbx's updates anew for every model."""
    policy = model.policy
    kept = policy.qf_state, policy.actor_state, model.ent_coef_state, model.key
    model.learn(request["learning_starts"] + 256)
    policy.qf_state, policy.actor_state, model.ent_coef_state, model.key = kept
    model.replay_buffer.reset()
    model._n_updates = 0


def mean_return(request, act, seed=10_000):
    """Mean return of `eval_episodes` episodes in Gymnasium's own environment; `act` takes (N, d) observations."""
    import gymnasium
    import numpy as np

    count = request["eval_episodes"]
    envs = [gymnasium.make(request["env_id"], disable_env_checker=True) for _ in range(count)]
    obs = np.stack([env.reset(seed=seed + k)[0] for k, env in enumerate(envs)])
    total, live = np.zeros(count), np.ones(count, bool)
    while live.any():
        actions = act(obs.astype(np.float32))
        for k in np.flatnonzero(live):
            obs[k], reward, terminated, truncated, _ = envs[k].step(actions[k])
            total[k] += reward
            live[k] = not (terminated or truncated)
    return float(total.mean())
