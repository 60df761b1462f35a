"""`python -m benchmarks.first_page`: the path of a fresh user, timed, with no compiled kernel anywhere on disk.

The commands are those of the documentation's first page: copy the shortest example, check it, train it. Compilation is what
the first iteration of a training takes longer than with the kernels on disk, in wall-clock and in CPU time.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import machine
from gpuenvs.errors import ConfigError

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results" / "first_page.json"
EXAMPLE = "swing_up.py"
CHECK = ("check", f"{EXAMPLE}:SPEC")
TRAIN = (
    "train", f"{EXAMPLE}:SPEC", "--total-steps", "400000",
    "--set", "gamma=0.97", "--set", "epochs=8", "--set", "minibatches=8",
)  # fmt: skip
ONE_ITERATION = (*TRAIN, "--total-steps", "1", "--eval-episodes", "0", "--quiet")


def timed(arguments: tuple[str, ...], folder: Path, cache: Path) -> dict[str, float]:
    """Seconds of wall-clock and of CPU that a `gpurl` command takes.

    Raises:
        ConfigError: it fails; the message has its last line.
    """
    paths = [str(ROOT), os.environ.get("PYTHONPATH")]
    environment = {**os.environ, "GPURL_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise ConfigError(f"gpurl {' '.join(arguments)}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": round(wall, 2), "cpu": round(cpu, 2)}


def measure() -> dict[str, Any]:
    """All of it, each command from an empty cache but the one that is to find its kernels there."""
    with tempfile.TemporaryDirectory(prefix="gpurl-first-") as name:
        folder = Path(name)
        shutil.copy(ROOT / "examples" / EXAMPLE, folder)
        cold = timed(ONE_ITERATION, folder, folder / "one")
        warm = timed(ONE_ITERATION, folder, folder / "one")
        document = {
            "machine": machine.describe(),
            "check": timed(CHECK, folder, folder / "user"),
            "train": timed(TRAIN, folder, folder / "user"),
            "compilation": {key: round(cold[key] - warm[key], 2) for key in cold},
        }
        (result,) = [json.loads(file.read_text()) for file in (folder / "runs").rglob("evaluations/*.json")]
    return {**document, "mean_return": result["mean"], "episodes": result["episodes"]}


def main() -> None:
    """Measure, write and print."""
    document = measure()
    text = json.dumps(document, indent=2) + "\n"
    RESULTS.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
