"""`python -m benchmarks.data_parallel`: one training by several processes, against the same by one.

Each run is what a user would type (`torchrun --nproc-per-node 2 -m cli.main train CartPole-v1`), evaluated over 100
episodes in Gymnasium's own environment, with all processes on this machine. With `--verify` they compare a hash of
weights and optimiser state after every gradient step, and a run whose processes ever differ fails; its times are then
not worth comparing.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import machine
from gpuenvs.errors import GpurlError, ProcessError
from learners.distributed import VERIFY

_ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results" / "data_parallel.json"


def train(env_id: str, processes: int, seed: int, device: str, verify: bool, more: list[str]) -> dict[str, Any]:
    """One whole training; its evaluation and how long it took.

    Raises:
        ProcessError: it failed; the message is its own.
    """
    with tempfile.TemporaryDirectory(prefix="gpurl-parallel-") as folder:
        run = Path(folder) / "run"
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] * (processes > 1)
        command = [
            sys.executable,
            *launcher,
            "-m",
            "cli.main",
            "train",
            env_id,
            "--seed",
            str(seed),
            "--device",
            device,
        ]
        environment = {"OMP_NUM_THREADS": "1", **os.environ, VERIFY: "1" if verify else "0"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        start = time.perf_counter()
        done = subprocess.run([*command, "-o", str(run), *more], capture_output=True, text=True, env=environment)
        seconds = time.perf_counter() - start
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if "error: " in line] or done.stderr.splitlines()[-1:]
            raise ProcessError(f"{env_id} with {processes} processes: {said[0] if said else 'no output'}")
        result = json.loads(next((run / "evaluations").glob("*.json")).read_text())
        with open(run / "metrics.csv", newline="") as file:
            *_, last = csv.DictReader(file)
    equal = [line for line in done.stdout.splitlines() if line.startswith("weights: ")]
    return {
        "env": env_id,
        "device": device,
        "processes": processes,
        "seed": seed,
        "mean": result["mean"],
        "std": result["std"],
        "episodes": result["episodes"],
        "on": result["on"],
        "env_steps": result["step"],
        "seconds": round(seconds, 2),
        "training_seconds": round(float(last["wall_s"]), 2),
        "weights": equal[0].removeprefix("weights: ") if equal else None,
    }


def main(arguments: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.data_parallel", description=(__doc__ or "").split("\n")[0]
    )
    options.add_argument("env", nargs="?", default="CartPole-v1")
    options.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--device", default="cpu")
    options.add_argument("--verify", action="store_true", help="compare the weights after every gradient step")
    options.add_argument("--train", default="", help="more options of `gpurl train`, in one string")
    options.add_argument("--save", action="store_true", help=f"write {RESULTS.relative_to(_ROOT)}")
    given = options.parse_args(arguments)
    rows = []
    for processes in given.processes:
        for seed in given.seeds:
            try:
                row = train(given.env, processes, seed, given.device, given.verify, given.train.split())
            except GpurlError as error:
                print(f"error: {error}", file=sys.stderr)
                return 1
            rows.append(row)
            print(json.dumps(row), flush=True)
    if given.save:
        RESULTS.write_text(
            json.dumps({"machine": machine.describe(), "verify": given.verify, "runs": rows}, indent=1) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
