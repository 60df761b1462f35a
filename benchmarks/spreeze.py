"""`python -m benchmarks.spreeze`: SAC under spreeze beside Stable-Baselines3's and sbx's (JAX), and what each part is worth.

| part | what is measured |
|---|---|
| `speed` | sampling and update frames per second with the same network, batch and ratio; gpurl's share of a matrix product |
| `free` | sampling while training on Pendulum where both run free |
| `time` | wall-clock to a return with the same settings: training time only, evaluations do not count; medians of seeds |
| `ablation` | the same with one thing changed at a time |
| `ratio` | how far the update-to-data ratio is from its target over any ten seconds, also of a resumed run |

Writes `benchmarks/results/spreeze.json` and the tables beside it after every measurement. `time` and `ablation` measure what
is missing under today's settings, so an interrupted one goes on; the other parts are measured anew. Peers run under
--peers-python (or GPURL_PEERS_PYTHON).
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import machine, spreeze_own
from benchmarks.cases import Contender
from benchmarks.process import measure, peers_python
from benchmarks.spreeze_cases import ABLATED, ABLATION, COMMON, FREE, GOALS, LIMIT_SECONDS, PEERS, request
from benchmarks.spreeze_report import tables

RESULTS = Path(__file__).resolve().parent / "results" / "spreeze.json"
PARTS = ("speed", "free", "time", "ratio", "ablation")
THREADS = (1, 2)  # of PyTorch, of which a peer has what suits it best
OWN = "gpurl"
Entry = dict[str, Any]


def digest(*what: Any) -> str:
    """Of everything that decides a measurement but the code."""
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]


def peer_speed(peer: Contender, python: str, env_id: str, seconds: float) -> Entry:
    """A peer's rates with the number of PyTorch's threads that suits it best, or why there are none."""
    counts = THREADS if peer.package == "stable_baselines3" else THREADS[:1]
    found = [
        {**measure(peer, python, {**request(env_id), "what": "speed", "seconds": seconds, "threads": n}), "threads": n}
        for n in counts
    ]
    return max(found, key=lambda sample: sample.get("update_frames_hz", 0.0))


def measure_speed(seconds: float, turns: int, python: str, envs: list[str]) -> list[Entry]:
    """One row an environment: samples of all contenders and of the matrix product, in turns."""
    rows = []
    for env_id in envs:
        samples: dict[str, list[Any]] = {OWN: [], "split": [], "sgemm": [], **{peer.name: [] for peer in PEERS}}
        for _ in range(turns):
            found = spreeze_own.speed(env_id, seconds)
            samples[OWN].append(found)
            samples["sgemm"].append(spreeze_own.sgemm(int(found.get("threads", 1))))
            samples["split"].append(spreeze_own.speed(env_id, seconds, ("split=true",)))
            for peer in PEERS:
                samples[peer.name].append(peer_speed(peer, python, env_id, seconds))
        rows.append({"env": env_id, **samples})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def missing(entries: dict[str, Entry], name: str, seeds: range, wanted: str) -> list[int]:
    """Seeds of a contender or variant that are not there under the settings with this digest, or that failed."""
    found = {seed: entries.get(f"{name}/s{seed}", {}) for seed in seeds}
    return [seed for seed, entry in found.items() if entry.get("settings") != wanted or "seconds" not in entry]


def current(document: Entry) -> Entry:
    """The document without rows that this program's tables cannot show, which older versions of it wrote."""
    names = {OWN, "split", "sgemm", *(peer.name for peer in PEERS)}
    found = dict(document)
    found["speed"] = [row for row in document.get("speed", []) if names <= row.keys()]
    for part in ("time", "ablation"):
        entries = document.get(part, {})
        found[part] = {k: v for k, v in entries.items() if isinstance(v, dict)} if isinstance(entries, dict) else {}
    return found


def seeds_of(text: str) -> range:
    """`5`: the first five seeds; `2-4`: these three."""
    first, dash, last = text.partition("-")
    return range(int(first), int(last) + 1) if dash else range(int(first))


def measure_time(
    found: Entry, env_id: str, who: list[str], seeds: range, python: str, keep: Callable[[], None]
) -> None:
    """Fill `found` with what is missing of one environment's `time`."""
    goal, every, episodes = GOALS[env_id]
    wanted = digest(request(env_id), GOALS[env_id], LIMIT_SECONDS)
    for seed in seeds:
        for name in who:
            if not missing(found, name, range(seed, seed + 1), wanted):
                continue
            if name == OWN:
                entry = spreeze_own.seconds_to_return(env_id, seed)
            else:
                peer = next(peer for peer in PEERS if peer.name == name)
                threads = _threads_of(found, peer, env_id, python)
                entry = measure(peer, python, {
                    **request(env_id), "what": "time", "seconds": 0.0, "threads": threads, "seed": seed, "goal": goal,
                    "eval_seconds": every, "eval_episodes": episodes, "limit_seconds": LIMIT_SECONDS,
                })  # fmt: skip
                entry["threads"] = threads
            found[f"{name}/s{seed}"] = {**entry, "settings": wanted}
            print(env_id, name, seed, json.dumps(entry), flush=True)
            keep()


def _threads_of(found: dict[str, Entry], peer: Contender, env_id: str, python: str) -> int:
    """The number of threads that suits a peer, as measured before or now."""
    known = [entry["threads"] for name, entry in found.items() if name.startswith(peer.name) and "threads" in entry]
    return known[0] if known else int(peer_speed(peer, python, env_id, 3.0)["threads"])


def measure_ablation(found: Entry, seeds: range, only: str, keep: Callable[[], None]) -> None:
    """Fill `found` with what is missing of the ablation."""
    for name, changed in ABLATION.items():
        if only not in name:
            continue
        more, wanted = changed, digest(request(ABLATED), GOALS[ABLATED], LIMIT_SECONDS, changed)
        for seed in missing(found, name, seeds, wanted):
            if "tuned" in changed and more == changed:
                more, seconds = spreeze_own.tuned(ABLATED)
                found["tuning"] = {"changes": list(more), "seconds": seconds}
            entry = spreeze_own.seconds_to_return(ABLATED, seed, more)
            found[f"{name}/s{seed}"] = {**entry, "settings": wanted}
            print(name, seed, json.dumps(entry), flush=True)
            keep()


def main(arguments: list[str] | None = None) -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spreeze", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--env", choices=list(COMMON), action="append", help="only this one; of speed and time")
    parser.add_argument(
        "--who", choices=[OWN, *(p.name for p in PEERS)], action="append", help="only this one; of time"
    )
    parser.add_argument("--only", default="", help="part of the names of ablations")
    parser.add_argument("--seeds", type=seeds_of, default=range(5), help="how many, or from which to which: 2-4")
    parser.add_argument("--seconds", type=float, default=4.0, help="of one sample of a speed")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--peers-python", help="interpreter that has the peers")
    options = parser.parse_args(arguments)
    if set(options.what) - set(PARTS):
        parser.error(f"there are {', '.join(PARTS)}")
    document = current(json.loads(RESULTS.read_text()) if RESULTS.exists() else {})
    python, seeds, envs = peers_python(options.peers_python), options.seeds, options.env or list(COMMON)

    def keep(part: str) -> None:
        document.setdefault("machines", {})[part] = machine.describe()
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(tables(document))

    if "speed" in options.what:
        rows = {row["env"]: row for row in document.get("speed", [])}
        rows |= {row["env"]: row for row in measure_speed(options.seconds, options.turns, python, envs)}
        document["speed"] = [rows[env_id] for env_id in COMMON if env_id in rows]
        keep("speed")
    if "free" in options.what:
        document["free"] = [spreeze_own.speed("Pendulum-v1", options.seconds, FREE) for _ in range(options.turns)]
        keep("free")
    if "time" in options.what:
        for env_id in envs:
            found = document.setdefault("time", {}).setdefault(env_id, {})
            who = options.who or [OWN, *(peer.name for peer in PEERS)]
            measure_time(found, env_id, who, seeds, python, lambda: keep("time"))
    if "ratio" in options.what:
        document["ratio"] = [spreeze_own.ratio_over_time(env_id, 30.0) for env_id in ("Pendulum-v1", "HalfCheetah-v5")]
        keep("ratio")
    if "ablation" in options.what:
        measure_ablation(document.setdefault("ablation", {}), seeds, options.only, lambda: keep("ablation"))
    print(tables(document))


if __name__ == "__main__":
    main()
