"""The tables of `benchmarks.spreeze`."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks import machine
from benchmarks.report import markdown, quantity
from benchmarks.spreeze_cases import ABLATED, ABLATION, BATCH, GOALS, LIMIT_SECONDS, PEERS

NEVER = float("inf")


def tables(document: dict[str, Any]) -> str:
    """Everything as Markdown."""
    machines = document.get("machines", {})
    where = next(iter(machines.values()), machine.describe())
    loads = ", ".join(f"{part} {found['load']}" for part, found in machines.items())
    parts = [f"{where['cores']} cores of {where['cpu']}; load average at the end of each part: {loads}."]
    for part in (_speed, _free, _time, _ablation, _ratio):
        parts += part(document)
    return "\n\n".join(parts) + "\n"


def _middle(samples: list[dict[str, Any]], name: str) -> float | None:
    found = [sample[name] for sample in samples if name in sample]
    return statistics.median(found) if found else None


def _speed(document: dict[str, Any]) -> list[str]:
    rows, counts = [], []
    names = ["gpurl", *(peer.name for peer in PEERS)]
    for row in document.get("speed", []):
        shares = [a["operations"] / b for a, b in zip(row["gpurl"], row["sgemm"]) if "operations" in a]
        own = _middle(row["gpurl"], "update_frames_hz") or 0.0
        cells = [row["env"], *(quantity(_middle(row[name], "sampling_hz")) for name in names)]
        for name in names:
            frames = _middle(row[name], "update_frames_hz")
            times = "" if name == "gpurl" or not frames else f" ({own / frames:.1f}x)"
            cells.append(quantity(frames) + times if frames else _why_none(row[name]))
        share = f"{statistics.median(shares):.0%}" if shares else ""
        rows.append([*cells, quantity(_middle(row["split"], "update_frames_hz")), share])
        each = [a["operations"] / a["update_frames_hz"] for a in row["gpurl"] if "operations" in a]
        if each:
            counts.append(f"{quantity(each[0])} on {row['env']}")
    if not rows:
        return []
    header = ("environment", *(f"{name}, samples/s" for name in names), *(f"{name}, frames/s" for name in names),
              "gpurl, actor and critics apart, frames/s", "gpurl, of the matrix product")  # fmt: skip
    found = [f"The same network, batch of {BATCH} and ratio; in brackets how many times as fast gpurl is:\n\n"
             + markdown(header, rows)]  # fmt: skip
    return found + ([f"Operations of the matrix products, a frame: {', '.join(counts)}."] if counts else [])


def _free(document: dict[str, Any]) -> list[str]:
    if "free" not in document:
        return []
    found = document["free"]
    return [
        f"Pendulum-v1, 64-64 units, both free: {quantity(_middle(found, 'sampling_hz'))} samples/s while learning from "
        f"{quantity(_middle(found, 'update_frames_hz'))} frames/s."
    ]


def seconds_of(entries: dict[str, Any], name: str) -> tuple[float, int]:
    """(median of seconds, where one that was not reached is the longest; number of seeds) of a contender or variant."""
    found = [entry for key, entry in entries.items() if key.rpartition("/s")[0] == name and "seconds" in entry]
    values = [NEVER if entry["seconds"] is None else entry["seconds"] for entry in found]
    return (statistics.median(values) if values else NEVER), len(values)


def _why_none(samples: list[dict[str, Any]]) -> str:
    if any("missing" in sample for sample in samples):
        return "not installed"
    return "failed" if any("error" in sample for sample in samples) else "not measured"


def _cell(median: float, seeds: int) -> str:
    if not seeds:
        return "not measured"
    return f"not in {LIMIT_SECONDS:g}" if median == NEVER else f"{median:.1f}"


def _against(own: float, other: float) -> str:
    """How much less or more time gpurl takes. A peer that is not there within the limit takes longer than the limit."""
    if own == NEVER:
        return ""
    share = 1 - own / min(other, LIMIT_SECONDS)
    return f" ({'at least ' * (other == NEVER)}{abs(share):.0%} {'less' if share >= 0 else 'more'})"


def _time(document: dict[str, Any]) -> list[str]:
    rows = []
    for env_id, entries in document.get("time", {}).items():
        own, seeds = seconds_of(entries, "gpurl")
        cells = [env_id, f"{GOALS[env_id][0]:g}", _cell(own, seeds)]
        for peer in PEERS:
            other, count = seconds_of(entries, peer.name)
            of_peer = [entry for key, entry in entries.items() if key.rpartition("/s")[0] == peer.name]
            cells.append(_cell(other, count) + _against(own, other) if count else _why_none(of_peer))
        rows.append([*cells, "/".join(str(seconds_of(entries, who)[1]) for who in ("gpurl", *(p.name for p in PEERS)))])
    if not rows:
        return []
    header = ("environment", "return", "gpurl, s", *(f"{peer.name}, s" for peer in PEERS), "seeds")
    return [
        "Seconds of training to a mean return of evaluation episodes in Gymnasium's environment, medians over seeds; in "
        f"brackets how much less or more gpurl takes:\n\n{markdown(header, rows)}"
    ]


def _ablation(document: dict[str, Any]) -> list[str]:
    entries = document.get("ablation", {})
    rows = []
    for name in ABLATION:
        median, seeds = seconds_of(entries, name)
        if seeds:
            found = [entry for key, entry in entries.items() if key.rpartition("/s")[0] == name]
            rates = [quantity(_middle(found, rate)) for rate in ("sampling_hz", "update_frames_hz")]
            rows.append([name, _cell(median, seeds), *rates, str(seeds)])
    if not rows:
        return []
    text = f"{ABLATED}, seconds to {GOALS[ABLATED][0]:g}, one thing changed:\n\n" + markdown(
        ("what", "s", "samples/s", "frames/s", "seeds"), rows
    )
    tuning = entries.get("tuning")
    if tuning:
        changes = ", ".join(tuning["changes"]) or "nothing: the settings stay"
        text += f"\n\nThe tuning, {tuning['seconds']:.0f} s before, changed {changes}."
    return [text]


def _ratio(document: dict[str, Any]) -> list[str]:
    rows = [[row["env"], f"{row['first']:.2%}", f"{row['resumed']:.2%}"] for row in document.get("ratio", [])]
    if not rows:
        return []
    header = ("environment", "any 10 s", "any 10 s after a resume")
    return [f"Largest distance of the update-to-data ratio from its target:\n\n{markdown(header, rows)}"]
