"""`python -m benchmarks.spreeze`: SAC under spreeze beside Stable-Baselines3's SAC, and what each of its parts is worth.

| part | what is measured |
|---|---|
| `speed` | sampling and update frames per second with the same network, batch and ratio; gpurl's share of a matrix product |
| `free` | sampling while training on Pendulum where both run free |
| `time` | wall-clock to a return with the same settings: training time only, evaluations do not count; medians of seeds |
| `ablation` | the same with one thing changed at a time |
| `ratio` | how far the update-to-data ratio is from its target over any ten seconds, also of a resumed run |

Writes `benchmarks/results/spreeze.json` and the tables beside it. Parts that are not measured again keep what they had.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import machine
from benchmarks.report import markdown, quantity
from learners.build import build, resolve

RESULTS = Path(__file__).resolve().parent / "results" / "spreeze.json"
# The same for all: network, batch, environments, steps between updates, frames per step.
COMMON = {
    "Pendulum-v1": {
        "hidden_sizes": (64, 64),
        "num_envs": 16,
        "num_steps": 4,
        "update_to_data": 32,
        "learning_rate": 1e-3,
    },
    "Hopper-v5": {
        "hidden_sizes": (256, 256),
        "num_envs": 16,
        "num_steps": 4,
        "update_to_data": 64,
        "learning_rate": 3e-4,
    },
    "HalfCheetah-v5": {
        "hidden_sizes": (256, 256),
        "num_envs": 16,
        "num_steps": 4,
        "update_to_data": 64,
        "learning_rate": 3e-4,
    },
}
BATCH, STARTS = 256, 1024
GOALS = {"Pendulum-v1": -180.0}
LIMIT_SECONDS, EVAL_SECONDS, EVAL_EPISODES = 300.0, 2.0, 20
THREADS = (1, 2)  # of PyTorch, that Stable-Baselines3 may choose from
FREE = (
    "num_envs=1024",
    "num_steps=16",
    "hidden_sizes=64,64",
    "update_to_data=0",
    "sampler_cores=1",
    "learning_rate=1e-3",
)
ABLATION = {
    "as it is": (),
    "sync: nothing at the same time": ("sync",),
    "deterministic rounds": ("deterministic=true",),
    "actor and critics apart": ("split=true",),
    "PyTorch's updates": ("engine=torch",),
    "step by step sampling": ("collector=eager",),
    **{f"batch {batch:,}": (f"batch_size={batch}",) for batch in (1024, 4096, 32768)},
}


def settings(env_id: str) -> list[str]:
    """`COMMON` as `--set` takes it."""
    found = {
        **COMMON[env_id],
        "batch_size": BATCH,
        "learning_starts": STARTS,
        "total_steps": 10**8,
        "buffer_size": 500_000,
    }
    text = {k: ",".join(map(str, v)) if isinstance(v, tuple) else v for k, v in found.items()}
    return [f"{name}={value}" for name, value in text.items()]


def ours(env_id: str, more: tuple[str, ...] = (), seed: int = 0) -> Any:
    """A schedule that is ready to run."""
    schedule = "sync" if "sync" in more else "spreeze"
    overrides = [*settings(env_id), *(item for item in more if item != "sync")]
    if schedule == "spreeze":
        overrides.insert(0, "slice_seconds=0.1")
    return build(resolve(env_id, algo="sac", schedule=schedule, overrides=overrides, seed=seed, device="cpu"))


def theirs(env_id: str, seed: int = 0) -> Any:
    """Stable-Baselines3's SAC with the same settings."""
    from stable_baselines3 import SAC
    from stable_baselines3.common.env_util import make_vec_env

    c = COMMON[env_id]
    rows = c["num_envs"] * c["num_steps"]
    return SAC(
        "MlpPolicy",
        make_vec_env(env_id, n_envs=c["num_envs"], seed=seed),
        learning_rate=c["learning_rate"],
        buffer_size=500_000,
        learning_starts=STARTS,
        batch_size=BATCH,
        train_freq=(c["num_steps"], "step"),
        gradient_steps=round(rows * c["update_to_data"] / BATCH),
        policy_kwargs={"net_arch": list(c["hidden_sizes"])},
        device="cpu",
        seed=seed,
    )


def sgemm(threads: int) -> float:
    """Operations per second of this machine's float32 matrix product, the best of 512 and 1024."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    best = 0.0
    for n in (512, 1024):
        a, b, out = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
        for _ in range(20):
            began = time.perf_counter()
            torch.mm(a, b, out=out)
            best = max(best, 2 * n**3 / (time.perf_counter() - began))
    torch.set_num_threads(before)
    return best


def our_speed(env_id: str, seconds: float, more: tuple[str, ...] = ()) -> dict[str, float]:
    """Rates once everything is compiled."""
    loop = ours(env_id, more)
    try:
        while loop.algo.version < 20:
            loop.iterate()
        ratio, began = loop.loop.ratio, time.perf_counter()
        steps, frames = ratio.steps, ratio.frames
        while time.perf_counter() - began < seconds:
            loop.iterate()
        passed = time.perf_counter() - began
        found = {"sampling_hz": (ratio.steps - steps) / passed, "update_frames_hz": (ratio.frames - frames) / passed}
        native = loop.algo._native
        if native is not None:
            found["operations"] = sum(native.flops) / BATCH * found["update_frames_hz"]
            found["threads"] = native._teams["critic"].count
        return found
    finally:
        loop.close()


def their_speed(env_id: str, seconds: float) -> dict[str, float]:
    """The same of Stable-Baselines3, with the number of PyTorch's threads that suits it best."""
    found = [{**_their_speed(env_id, seconds, threads), "threads": threads} for threads in THREADS]
    return max(found, key=lambda sample: sample["update_frames_hz"])


def _their_speed(env_id: str, seconds: float, threads: int) -> dict[str, float]:
    torch.set_num_threads(threads)
    model = theirs(env_id)
    model.learn(STARTS + 256)
    steps, updates, began = model.num_timesteps, model._n_updates, time.perf_counter()
    callback = _Until(lambda: time.perf_counter() - began >= seconds)
    model.learn(10**8, callback=callback.sb3(), reset_num_timesteps=False)
    passed = time.perf_counter() - began
    return {
        "sampling_hz": (model.num_timesteps - steps) / passed,
        "update_frames_hz": (model._n_updates - updates) * BATCH / passed,
    }


class _Until:
    """Stops a training of Stable-Baselines3 when `done()` says so."""

    def __init__(self, done: Any) -> None:
        self._done = done

    def sb3(self) -> Any:
        from stable_baselines3.common.callbacks import BaseCallback

        done = self._done

        class Callback(BaseCallback):
            def _on_step(self) -> bool:
                return not done()

        return Callback()


def mean_return(env_id: str, act: Any, seed: int = 10_000) -> float:
    """Mean return of EVAL_EPISODES episodes in Gymnasium's own environment; `act` takes (N, d) observations."""
    import gymnasium

    envs = [gymnasium.make(env_id) for _ in range(EVAL_EPISODES)]
    obs = np.stack([env.reset(seed=seed + k)[0] for k, env in enumerate(envs)])
    total, live = np.zeros(EVAL_EPISODES), np.ones(EVAL_EPISODES, bool)
    while live.any():
        actions = act(obs.astype(np.float32))
        for k in np.flatnonzero(live):
            obs[k], reward, terminated, truncated, _ = envs[k].step(actions[k])
            total[k] += reward
            live[k] = not (terminated or truncated)
    return float(total.mean())


def our_time(env_id: str, seed: int, more: tuple[str, ...] = ()) -> float | None:
    """Seconds of training until an evaluation reaches the goal; None within the limit. Kernels are compiled before."""
    warm = ours(env_id, more, seed)
    try:
        while not warm.algo.version:
            warm.iterate()
    finally:
        warm.close()
    loop = ours(env_id, more, seed)
    try:
        spent, evaluated = 0.0, 0.0
        while spent < LIMIT_SECONDS:
            began = time.perf_counter()
            loop.iterate()
            spent += time.perf_counter() - began
            if spent - evaluated >= EVAL_SECONDS:
                evaluated = spent
                with loop.paused() if hasattr(loop, "paused") else contextlib.nullcontext():
                    loop.algo.push_actor()
                    found = mean_return(env_id, _acting(loop.algo.policy))
                if found >= GOALS[env_id]:
                    return spent
        return None
    finally:
        loop.close()


def _acting(policy: Any) -> Callable[[np.ndarray], np.ndarray]:
    return lambda obs: policy.act(torch.from_numpy(obs), deterministic=True).numpy()


def their_time(env_id: str, seed: int, threads: int) -> float | None:
    """The same of Stable-Baselines3."""
    torch.set_num_threads(threads)
    model = theirs(env_id, seed)
    state = {"spent": 0.0, "evaluated": 0.0, "since": time.perf_counter(), "reached": None}

    def done() -> bool:
        now = time.perf_counter()
        state["spent"] += now - state["since"]
        if state["spent"] - state["evaluated"] >= EVAL_SECONDS and model.num_timesteps > STARTS:
            state["evaluated"] = state["spent"]
            if mean_return(env_id, lambda obs: model.predict(obs, deterministic=True)[0]) >= GOALS[env_id]:
                state["reached"] = state["spent"]
        state["since"] = time.perf_counter()
        return state["reached"] is not None or state["spent"] >= LIMIT_SECONDS

    model.learn(10**8, callback=_Until(done).sb3())
    return state["reached"]


def measure_speed(seconds: float, turns: int) -> list[dict[str, Any]]:
    """One row an environment."""
    rows = []
    for env_id in COMMON:
        samples: dict[str, list[Any]] = {"gpurl": [], "sb3": [], "sgemm": []}
        for _ in range(turns):
            found = our_speed(env_id, seconds)
            samples["gpurl"].append(found)
            samples["sgemm"].append(sgemm(int(found.get("threads", 1))))
            samples["sb3"].append(their_speed(env_id, seconds))
        rows.append({"env": env_id, **samples})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def measure_ratio(env_id: str, seconds: float) -> dict[str, Any]:
    """Largest distance from the target over all windows of ten seconds: of a run, and of the one that resumes it."""
    found: dict[str, Any] = {"env": env_id}
    state = None
    for name in ("first", "resumed"):
        loop = ours(env_id)
        try:
            if state is not None:
                loop.load_state_dict(state)
            ratio, log = loop.loop.ratio, []
            while not ratio.frames:
                loop.iterate()
            began = time.perf_counter()
            while time.perf_counter() - began < seconds:
                loop.iterate()
                log.append((time.perf_counter(), ratio.steps, ratio.frames))
            found[name] = worst_window(log, 10.0, ratio.target)
            state = loop.state_dict()
        finally:
            loop.close()
    return found


def worst_window(log: list[tuple[float, int, int]], seconds: float, target: float) -> float:
    """The largest |frames / steps / target - 1| over all windows of at least so many seconds in (time, steps, frames)."""
    worst, first = 0.0, 0
    for now, steps, frames in log:
        while first + 1 < len(log) and log[first + 1][0] <= now - seconds:
            first += 1
        then, old_steps, old_frames = log[first]
        if now - then >= seconds:
            worst = max(worst, abs((frames - old_frames) / (steps - old_steps) / target - 1))
    return worst


def tables(document: dict[str, Any]) -> str:
    """Everything as Markdown."""

    def middle(samples: list[dict[str, float]], name: str) -> float:
        return statistics.median(sample[name] for sample in samples)

    def seconds(found: list[float | None]) -> float:
        return statistics.median(float("inf") if value is None else value for value in found)

    machines = document.get("machines", {})
    where = next(iter(machines.values()), machine.describe())
    loads = ", ".join(f"{part} {found['load']}" for part, found in machines.items())
    parts = [f"{where['cores']} cores of {where['cpu']}; load average at the end of each part: {loads}."]
    rows = []
    for row in document.get("speed", []):
        shares = [a["operations"] / b for a, b in zip(row["gpurl"], row["sgemm"]) if "operations" in a]
        times = middle(row["gpurl"], "update_frames_hz") / middle(row["sb3"], "update_frames_hz")
        cells = [
            quantity(middle(row[who], name)) for name in ("sampling_hz", "update_frames_hz") for who in ("gpurl", "sb3")
        ]
        rows.append([row["env"], *cells, f"{times:.1f}x", f"{statistics.median(shares):.0%}" if shares else ""])
    if rows:
        header = ("environment", "samples/s", "SB3", "frames/s", "SB3", "gpurl is", "of the matrix product")
        parts.append(f"The same network, batch of {BATCH} and ratio:\n\n{markdown(header, rows)}")
    if "free" in document:
        found = document["free"]
        parts.append(
            f"Pendulum-v1, 64-64 units, both free: {quantity(middle(found, 'sampling_hz'))} samples/s while learning from "
            f"{quantity(middle(found, 'update_frames_hz'))} frames/s."
        )
    rows = []
    for row in document.get("time", []):
        mine, other = seconds(row["gpurl"]), seconds(row["sb3"])
        rows.append([row["env"], f"{GOALS[row['env']]:g}", f"{mine:.1f}", f"{other:.1f}", f"{1 - mine / other:.0%}",
                     str(len(row["gpurl"]))])  # fmt: skip
    if rows:
        header = ("environment", "return", "gpurl, s", "SB3, s", "less", "seeds")
        parts.append(
            f"Training time to a mean return of {EVAL_EPISODES} evaluation episodes, medians:\n\n{markdown(header, rows)}"
        )
    rows = [
        [name, "not reached" if seconds(found) == float("inf") else f"{seconds(found):.1f}", str(len(found))]
        for name, found in document.get("ablation", {}).items()
    ]
    if rows:
        parts.append(f"Pendulum-v1, seconds to {GOALS['Pendulum-v1']:g}, one thing changed:\n\n"
                     + markdown(("what", "s", "seeds"), rows))  # fmt: skip
    rows = [[row["env"], f"{row['first']:.2%}", f"{row['resumed']:.2%}"] for row in document.get("ratio", [])]
    if rows:
        header = ("environment", "any 10 s", "any 10 s after a resume")
        parts.append(f"Largest distance of the update-to-data ratio from its target:\n\n{markdown(header, rows)}")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["speed", "free", "ratio", "time", "ablation"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one sample of a speed")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    document = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    seeds = range(options.seeds)

    def keep(part: str) -> None:
        document.setdefault("machines", {})[part] = machine.describe()
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(tables(document))

    if "speed" in options.what:
        document["speed"] = measure_speed(options.seconds, options.turns)
        keep("speed")
    if "free" in options.what:
        document["free"] = [our_speed("Pendulum-v1", options.seconds, FREE) for _ in range(options.turns)]
        print(document["free"], flush=True)
        keep("free")
    if "time" in options.what:
        document["time"] = []
        for env_id in GOALS:
            threads = int(their_speed(env_id, 2.0)["threads"])
            row: dict[str, Any] = {"env": env_id, "gpurl": [], "sb3": [], "sb3_threads": threads}
            document["time"].append(row)
            for seed in seeds:
                row["gpurl"].append(our_time(env_id, seed))
                row["sb3"].append(their_time(env_id, seed, threads))
                print(json.dumps(row), flush=True)
                keep("time")
    if "ratio" in options.what:
        document["ratio"] = [measure_ratio(env_id, 30.0) for env_id in ("Pendulum-v1", "HalfCheetah-v5")]
        keep("ratio")
    if "ablation" in options.what:
        document["ablation"] = {}
        for name, more in ABLATION.items():
            found = document["ablation"][name] = []
            for seed in seeds:
                found.append(our_time("Pendulum-v1", seed, more))
                keep("ablation")
            print(name, found, flush=True)
    print(tables(document))


if __name__ == "__main__":
    main()
