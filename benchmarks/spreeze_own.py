"""gpurl's side of `benchmarks.spreeze`: speeds, seconds to a return, and the ratio over time."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.spreeze_cases import BATCH, GOALS, LIMIT_SECONDS, settings
from benchmarks.workers.sac_peer import mean_return
from learners.build import RunConfig, build, resolve
from learners.train import Progress

TUNING_SECONDS = 45.0


def config(env_id: str, more: tuple[str, ...] = (), seed: int = 0) -> RunConfig:
    """The run with `more` changed: `NAME=VALUE` as for `--set`, which come last, or the word `sync`."""
    schedule = "sync" if "sync" in more else "spreeze"
    changed = [item for item in more if "=" in item]
    names = {item.partition("=")[0] for item in changed}
    same = [item for item in settings(env_id) if item.partition("=")[0] not in names]
    if schedule == "spreeze":
        same.append("slice_seconds=0.1")
    return resolve(env_id, algo="sac", schedule=schedule, overrides=[*same, *changed], seed=seed, device="cpu")


def tuned(env_id: str) -> tuple[tuple[str, ...], float]:
    """(what a tuning of the run changes, as in `config`; seconds that it took)."""
    from learners.tuning.tune import tune

    began = time.perf_counter()
    decision = tune(config(env_id), TUNING_SECONDS)["decision"]
    decided = {**decision["settings"], **decision["schedule_settings"]}
    decided.pop("total_steps", None)
    text = {k: ",".join(map(str, v)) if isinstance(v, (tuple, list)) else v for k, v in decided.items()}
    return tuple(f"{name}={value}" for name, value in text.items()), time.perf_counter() - began


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


def speed(env_id: str, seconds: float, more: tuple[str, ...] = ()) -> dict[str, float]:
    """Rates once everything is compiled."""
    loop = build(config(env_id, more))
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
            found["threads"] = native.threads
        return found
    finally:
        loop.close()


def seconds_to_return(env_id: str, seed: int, more: tuple[str, ...] = ()) -> dict[str, Any]:
    """Seconds of training until an evaluation reaches the goal (None: not within the limit), the best return until then, and
    rates over the whole of it. Kernels are compiled before."""
    warm = build(config(env_id, more, seed))
    try:
        while not warm.algo.version:
            warm.iterate()
    finally:
        warm.close()
    goal, every, episodes = GOALS[env_id]
    request = {"env_id": env_id, "eval_episodes": episodes}
    run = config(env_id, more, seed)
    loop = build(run)
    try:
        spent = evaluated = 0.0
        best: float | None = None
        reached: float | None = None
        with _observed(loop, run, more) as observe:
            while reached is None and spent < LIMIT_SECONDS:
                began = time.perf_counter()
                loop.iterate()
                observe()
                spent += time.perf_counter() - began
                if spent - evaluated >= every:
                    evaluated = spent
                    with loop.paused() if hasattr(loop, "paused") else contextlib.nullcontext():
                        loop.algo.push_actor()
                        found = mean_return(request, _acting(loop.algo.policy))
                    best = found if best is None else max(best, found)
                    if found >= goal:
                        reached = spent
        ratio = loop.loop.ratio
        rates = {"sampling_hz": ratio.steps / spent, "update_frames_hz": ratio.frames / spent}
        return {"seconds": reached, "best": best, "steps": loop.env_steps, **rates}
    finally:
        loop.close()


@contextlib.contextmanager
def _observed(loop: Any, run: RunConfig, more: tuple[str, ...]) -> Iterator[Any]:
    """A function to call between iterations, which lets the evaluator or the viewer that `more` names look at the training.
    Nobody reads the viewer's page."""
    if not {"evaluator", "viewer"} & set(more):
        yield lambda: None
        return
    from learners.observers.attached import ObserverOptions, Observers
    from learners.runs import RunDirectory, make_folder

    options = ObserverOptions(eval_every=1.0 if "evaluator" in more else None, watch="viewer" in more)
    with tempfile.TemporaryDirectory(prefix="gpurl-spreeze-") as folder:
        directory = RunDirectory(Path(folder) / "run")
        make_folder(directory.path)
        directory.write_config(run.to_dict())
        trainer: Any = SimpleNamespace(schedule=loop)
        with Observers(trainer, directory, options, lambda line: None, lambda line: None) as observers:
            began = time.perf_counter()

            def look() -> None:
                passed = max(time.perf_counter() - began, 1e-9)
                steps = loop.env_steps
                observers(Progress(steps, 10**8, 0, steps / passed, 0.0, lambda: None))

            yield look


def _acting(policy: Any) -> Any:
    return lambda obs: policy.act(torch.from_numpy(obs), deterministic=True).numpy()


def ratio_over_time(env_id: str, seconds: float) -> dict[str, Any]:
    """Largest distance from the target over all windows of ten seconds: of a run, and of the one that resumes it."""
    found: dict[str, Any] = {"env": env_id}
    state = None
    for name in ("first", "resumed"):
        loop = build(config(env_id))
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
