"""`make gpu-check`: everything that needs a GPU, in one command of less than eight minutes that writes one JSON file.

Runs from the source tree; the interpreter needs torch, cupy, numba, numba-cuda, gymnasium and, for MuJoCo tasks, mujoco.
Each job is a process of its own with a time limit of its own (`benchmarks.checks`). The file is written anew after each, so
a crash, a hang or a kill leaves all that was found before.

`--dry-run` goes through the same sections on the CPU, in small: a rehearsal for machines without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cases import ENV_IDS, MUJOCO_IDS
from benchmarks.checks import findings, one_line

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
SECONDS = 465.0  # for everything, of the eight minutes
SKIPPED = 3  # exit code of a job that cannot run here
PACKAGES = ("torch", "cupy", "numba", "numba_cuda", "gymnasium", "numpy", "llvmlite")


@dataclass(frozen=True)
class Job:
    """One process: a section of `benchmarks.checks` and what it is told.

    Args:
        section: module of `benchmarks.checks`.
        name: as printed; one of a kind.
        seconds: time limit.
        request: beside `section`, `device` and `small`.
        together: may run beside others of its kind, since nothing in it is timed.
    """

    section: str
    name: str
    seconds: float
    request: dict[str, Any] = field(default_factory=dict)
    together: bool = False


# Settings for thousands of environments at once; each reaches its goal on a CPU (500, -145 and 8371).
TRAINING = {
    "CartPole-v1": (
        475.0,
        {"num_envs": 1024, "num_steps": 32, "total_steps": 2_000_000, "epochs": 8, "minibatches": 8},
    ),
    "Pendulum-v1": (-250.0, {"num_envs": 1024, "num_steps": 32, "total_steps": 4_000_000}),
    "HalfCheetah-v5": (3000.0, {"num_envs": 2048, "num_steps": 32, "total_steps": 10_000_000, "epochs": 4}),
}
FEW = ["CartPole-v1", "Pendulum-v1", "HalfCheetah-v5"]


def jobs() -> list[Job]:
    """Everything, in the order of its start: what is not timed first, the rest one after the other."""
    small = [Job("parity", f"parity {env_id}", 60, {"env_id": env_id}, together=True) for env_id in ENV_IDS]
    large = [Job("parity", f"parity {env_id}", 150, {"env_id": env_id}, together=True) for env_id in MUJOCO_IDS]
    timed = [
        Job("collectors", "collectors", 50, {"env_ids": FEW}),
        Job("determinism", "determinism", 40, {"env_ids": FEW}),
        Job("streams", "streams", 40, {"env_ids": ["CartPole-v1", "Pendulum-v1"]}),
        Job("two_devices", "two devices", 45, {"env_id": "CartPole-v1"}),
        Job("kernels", "kernels, classic control", 45, {"env_ids": list(ENV_IDS)}),
        Job("kernels", "kernels, MuJoCo", 60, {"env_ids": ["HalfCheetah-v5", "Ant-v5", "Humanoid-v5"]}),
        Job("throughput", "throughput CartPole-v1", 40, _sizes("CartPole-v1", 2**14, 2**17, 2**20)),
        Job("throughput", "throughput HalfCheetah-v5", 40, _sizes("HalfCheetah-v5", 2**12, 2**16)),
        *(
            Job("training", f"training {env_id}", 60, {"env_id": env_id, "goal": goal, "settings": settings})
            for env_id, (goal, settings) in TRAINING.items()
        ),
        Job("hardware", "tests/gpu", 90),
    ]
    # The largest programs take longest to compile: they start first.
    return [*reversed(large), *small, *timed]


def _sizes(env_id: str, *sizes: int) -> dict[str, Any]:
    return {"env_id": env_id, "sizes": list(sizes), "train_envs": sizes[1]}


# --- one job ---------------------------------------------------------------------------------------------------------


def run_job(job: Job, device: str, small: bool, seconds: float) -> dict[str, Any]:
    """Run a job in a process group of its own, for at most `seconds`.

    Returns:
        `section`, `name`, `status` ("passed", "failed", "crashed", "timeout" or "skipped"), `seconds`, `limit`, `findings`,
        and `why` where it did not pass.
    """
    request = {**job.request, "section": job.section, "device": device, "small": small}
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command(request),
            cwd=ROOT,
            env=surroundings(),
            stdout=output,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        code: int | None = None
        try:
            code = process.wait(max(0.1, seconds))
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end_group(process)
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read())
    found = findings(texts[0])
    result = {"section": job.section, "name": job.name, "seconds": round(time.monotonic() - began, 1), "limit": seconds}
    return {**result, **_verdict(code, found, texts[1], seconds), "findings": found}


def command(request: dict[str, Any]) -> list[str]:
    """What runs a section."""
    return [sys.executable, "-m", "benchmarks.checks", json.dumps(request)]


def surroundings() -> dict[str, str]:
    """The environment variables of jobs: the source tree is found, and compiled kernels have a place."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
    if importlib.util.find_spec("platformdirs") is None:
        environment.setdefault("GPURL_CACHE_DIR", str(Path(tempfile.gettempdir()) / "gpurl-kernels"))
    return environment


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Nothing of a job outlives it, whatever it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _verdict(code: int | None, found: list[dict[str, Any]], errors: str, seconds: float) -> dict[str, Any]:
    """`status` and `why` of a job that ended with `code`; None: it was stopped."""
    bad = [row["check"] for row in found if row.get("ok") is False]
    lines = [line for line in errors.strip().splitlines() if line.strip()]
    if code is None:
        last = f"; the last finding is {found[-1]['check']}" if found else ""
        return {"status": "timeout", "why": f"stopped after {seconds:.0f} s{last}"}
    if code == SKIPPED:
        return {"status": "skipped", "why": one_line(lines[-1] if lines else "no reason given")}
    if code != 0:
        why = one_line(lines[-1]) if lines else f"exit code {code}"
        return {"status": "crashed", "why": why, "exit_code": code, "traceback": lines[-15:]}
    if bad:
        return {"status": "failed", "why": f"not as it should be: {', '.join(bad[:10])}"}
    skipped = [row for row in found if "skipped" in row]
    if len(skipped) == len(found):
        return {"status": "skipped", "why": skipped[0]["skipped"] if skipped else "nothing was checked"}
    return {"status": "passed"}


# --- all of them -----------------------------------------------------------------------------------------------------


def run_all(
    chosen: Sequence[Job],
    device: str,
    small: bool,
    save: Callable[[list[dict[str, Any]]], None],
    say: Callable[[str], None],
    seconds: float = SECONDS,
    workers: int | None = None,
    execute: Callable[[Job, str, bool, float], dict[str, Any]] = run_job,
) -> list[dict[str, Any]]:
    """Run the jobs within `seconds`; those for which no time is left say so. `save` gets all results after each."""
    from benchmarks.machine import allowed_cores

    began, results = time.monotonic(), list[dict[str, Any]]()

    def one(job: Job) -> dict[str, Any]:
        left = seconds - (time.monotonic() - began)
        if left < 3:
            why = "no time was left"
            return {"section": job.section, "name": job.name, "status": "skipped", "why": why, "findings": []}
        limit = left if small else min(job.seconds, left)  # a rehearsal may meet a slow or busy machine
        return execute(job, device, small, round(limit, 1))

    def note(result: dict[str, Any]) -> None:
        results.append(result)
        save(results)
        why = f": {result['why']}" if "why" in result else ""
        say(f"{result['status']:<8} {result['name']} ({result.get('seconds', 0)} s){why}")

    together = [job for job in chosen if job.together]
    count = workers or max(1, min(8, allowed_cores() // 2))
    with ThreadPoolExecutor(count) as pool:
        pending = [pool.submit(one, job) for job in together]
        for future in pending:
            note(future.result())
    for job in chosen:
        if not job.together:
            note(one(job))
    return results


def describe(device: str, small: bool) -> dict[str, Any]:
    """Card, driver, versions, commit and date."""
    from benchmarks import machine
    from learners import nvidia

    driver = nvidia.probe()
    index = int(device.partition(":")[2] or 0) if device != "cpu" else -1
    card = next((gpu for gpu in driver.gpus if gpu.index == index), None)
    return {
        "card": card.name if card else "none (rehearsal on the CPU)",
        "memory_bytes": card.memory_bytes if card else None,
        "compute_capability": list(card.compute_capability) if card else None,
        "driver": _driver_version(),
        "driver_cuda": driver.version,
        "cards": [gpu.name for gpu in driver.gpus],
        "device": device,
        "small": small,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **_commit(),
        "machine": machine.describe(),
        "versions": {name: _package_version(name) for name in PACKAGES},
    }


def _package_version(name: str) -> str | None:
    try:
        module = __import__(name)
    except Exception as error:  # a broken installation is a finding, not an end
        return f"does not load: {one_line(error)}"
    return getattr(module, "__version__", "unknown")


def _driver_version() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    found = re.search(r"(\d+\.\d+(?:\.\d+)?)", text)
    return found.group(1) if found else None


def _commit() -> dict[str, Any]:
    def git(*arguments: str) -> str | None:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    try:
        commit, changed = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=no")
    except OSError:
        commit = changed = None
    return {
        "commit": commit or os.environ.get("GPURL_COMMIT"),
        "changed_files": None if changed is None else bool(changed),
    }


def file_name(document: dict[str, Any]) -> str:
    """`nvidia-h200-2026-11-30.json`."""
    card = "dry-run" if document["small"] else re.sub(r"[^a-z0-9]+", "-", document["card"].lower()).strip("-")
    return f"{card}-{document['date'][:10]}.json"


def write(path: Path, document: dict[str, Any]) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(document, indent=1) + "\n")
    unfinished.replace(path)


def problem(device: str) -> str | None:
    """Why the checks cannot run on `device`, in one line; None if they can."""
    if sys.version_info < (3, 11):  # noqa: UP036  nothing was installed that would have refused
        return (
            f"gpurl needs Python 3.11 or newer, {sys.executable} is {sys.version.split()[0]}; PYTHON=... make gpu-check"
        )
    for name in ("torch", "numba", "gymnasium"):
        try:
            __import__(name)
        except ImportError as error:
            way = "make install, or name another interpreter: PYTHON=... make gpu-check"
            return f"{sys.executable} has no {name} ({one_line(error)}); {way}"
    from gpuenvs.runtime.cuda import cuda_problem, simulated

    if simulated():
        return "NUMBA_ENABLE_CUDASIM is set: the simulator is no device"
    found = cuda_problem(int(device.partition(":")[2] or 0))
    if found is None:
        import torch

        if not torch.cuda.is_available():
            found = f"torch {torch.__version__} sees no CUDA device"
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """0: nothing failed; 1: something did, or there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda:0", help="cuda:N")
    parser.add_argument("--dry-run", action="store_true", help="the same sections in small on the CPU")
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="only jobs whose name contains it; may be repeated"
    )
    parser.add_argument("--out", type=Path, help="the JSON file  [default: benchmarks/results/CARD-DATE.json]")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time for everything  [default: %(default)s]")
    given = parser.parse_args(arguments)
    device = "cpu" if given.dry_run else given.device
    found = None if given.dry_run else problem(device)
    if found is not None:
        print(f"gpu-check: no GPU to check: {found}", file=sys.stderr)
        return 1
    chosen = [job for job in jobs() if not given.only or any(text in job.name for text in given.only)]
    if not chosen:
        print(
            f"gpu-check: no job is named like {', '.join(given.only)}; there are: {', '.join(j.name for j in jobs())}"
        )
        return 1
    document = describe(device, given.dry_run)
    folder = Path(tempfile.gettempdir()) if given.dry_run else RESULTS
    path = given.out or folder / file_name(document)
    began = time.monotonic()

    def save(results: list[dict[str, Any]]) -> None:
        counts = {
            status: sum(r["status"] == status for r in results) for status in sorted({r["status"] for r in results})
        }
        finished = len(results) == len(chosen)
        summary = {"finished": finished, "seconds": round(time.monotonic() - began, 1), "counts": counts}
        write(path, {**document, **summary, "jobs": results})

    def say(line: str) -> None:
        print(line, flush=True)

    say(f"gpu-check on {document['card']}: {len(chosen)} jobs, at most {given.seconds:.0f} s, into {path}")
    save([])
    results = run_all(chosen, device, given.dry_run, save, say, given.seconds)
    bad = [result["name"] for result in results if result["status"] not in ("passed", "skipped")]
    say(f"{path}: {'all well' if not bad else 'not well: ' + ', '.join(bad)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
