"""`python -m learners.observers.evaluator`: evaluates the weights that it is handed, one after the other.

Each evaluation plays the same episodes, in Gymnasium's own environment where that is the same one (`evaluate_run`); where it
is told to, it films an episode afterwards.
"""

from __future__ import annotations

import time
from pathlib import Path

from learners.observers.child import Training, run
from learners.observers.wire import FINISH


def evaluations(training: Training) -> None:
    """The evaluator's job; the plan holds `run`, a run's folder, and `episodes`."""
    import torch
    from safetensors.torch import load

    from learners.build import RunConfig, policy_for
    from learners.envs import evaluation_env
    from learners.runs import RunDirectory
    from learners.session import evaluate_run
    from learners.video import record

    torch.set_num_threads(1)
    directory = RunDirectory(Path(training.plan["run"]))
    config = RunConfig.from_dict(directory.read_config())
    policy = policy_for(config)
    training.ask()
    while (order := training.next()) is not None and order[0]["kind"] != FINISH:
        message, state = order
        policy.load_state_dict(load(state))
        began = time.perf_counter()
        result = evaluate_run(config, policy, training.plan["episodes"])
        seconds = time.perf_counter() - began
        of = {"step": message["step"], "version": message["version"]}
        training.send({"evaluation": {**of, "seconds": round(seconds, 3), **result.to_dict()}})
        if message["film"]:
            spec, params = evaluation_env(config)
            path = directory.videos / f"step-{message['step']:012d}.mp4"
            record(policy, spec, path, params=params, dtype=config.dtype)
            training.send({"video": str(path), **of})
        training.ask()


if __name__ == "__main__":
    run(evaluations)
