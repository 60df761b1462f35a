"""Tables and picture of `benchmarks.hts`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.hts_model import SCHEDULES as MODELLED
from benchmarks.hts_model import steps_per_second
from benchmarks.report import markdown, quantity, ratio

Row = dict[str, Any]
LEAST_OVER_SYNC, LEAST_OF_ASYNC = 2.0, 0.9
COLOURS = {"sync": "#009E73", "hts": "#D55E00", "hts barrier": "#E69F00", "async": "#0072B2"}


def find(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """The rows with these values."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def overhead(rows: Sequence[Row], schedule: str) -> float:
    """Seconds that each step takes beyond the environment's, from the case whose steps all take equally long; else 0."""
    for row in find(rows, series="variance", schedule=schedule, cv=0.0):
        return max(0.0, row["num_envs"] / row["steps_per_second"] - row["mean_ms"] / 1000)
    return 0.0


def predicted(rows: Sequence[Row], row: Row) -> float | None:
    """What the model says of a row's steps per second; None for a schedule it does not have."""
    if row["schedule"] not in MODELLED:
        return None
    law = row["mean_ms"] / 1000, row["distribution"], row["cv"]
    extra = overhead(rows, row["schedule"])
    return steps_per_second(row["schedule"], row["num_envs"], row["alpha"], *law, extra)


def over(rows: Sequence[Row], schedule: str, other: str, **case: Any) -> float | None:
    """How many times the steps per second of `other` those of `schedule` are, in one case."""
    above, below = find(rows, schedule=schedule, **case), find(rows, schedule=other, **case)
    return above[0]["steps_per_second"] / below[0]["steps_per_second"] if above and below else None


def missed(rows: Sequence[Row]) -> list[str]:
    """What was promised of hts and is not so, a line each."""
    lines = []
    for other, least in (("sync", LEAST_OVER_SYNC), ("async", LEAST_OF_ASYNC), ("async unbounded", LEAST_OF_ASYNC)):
        found = over(rows, "hts", other, series="heavy")
        if found is not None and found < least:
            lines.append(
                f"with a heavy tail hts has {found:.2f} times the steps per second of {other}; promised: {least}"
            )
    cvs = sorted({row["cv"] for row in find(rows, series="variance")})
    ratios = [over(rows, "hts", "sync", series="variance", cv=cv) or 0.0 for cv in cvs]
    if any(later <= earlier for earlier, later in pairwise(ratios)):
        lines.append(f"hts over sync does not grow with the variance: {', '.join(map(ratio, ratios))}")
    return lines


def document(speed: dict[str, Any] | None, learned: dict[str, Any] | None) -> str:
    """All tables, of the results that there are."""
    parts = []
    if speed:
        parts += [_made(speed), *_speed_tables(speed["rows"])]
    if learned:
        parts += [_made(learned), *(_learning_table(found) for found in learned["comparisons"])]
    return "\n".join(parts)


def _made(results: dict[str, Any]) -> str:
    """Where and how the results came about."""
    where, loads = results["machine"], list(results.get("loads", ()))
    loads += [sample["load"] for row in results.get("rows", ()) for sample in row["samples"]]
    busy = f", load average {min(loads):.1f} to {max(loads):.1f} (its own processes included)" if loads else ""
    return f"`{results['command']}`; {where['cores']} cores of {where['cpu']}{busy}.\n"


def _speed_tables(rows: Sequence[Row]) -> list[str]:
    parts = []
    if heavy := find(rows, series="heavy"):
        first = heavy[0]
        text = f"Steps of {first['mean_ms']:g} ms on average, {first['distribution']}, cv {first['cv']:g}; "
        text += f"{first['num_envs']} environments, alpha {first['alpha']}:\n\n"
        header = ("schedule", "steps/s", "predicted", "x sync", "x async", "policy lag", "overlap", "learner idle")
        lines = [
            [
                row["schedule"], quantity(row["steps_per_second"]), quantity(predicted(rows, row)),
                ratio(over(heavy, row["schedule"], "sync")), ratio(over(heavy, row["schedule"], "async")),
                *_pipeline(row["samples"]),
            ]
            for row in heavy
        ]  # fmt: skip
        parts.append(text + markdown(header, lines, right=range(1, len(header))))
    if variance := find(rows, series="variance"):
        names = ("sync", "hts barrier", "hts", "async")
        header = ("step time", *(f"{name} steps/s" for name in names), "hts over sync", "hts over async")
        lines = [
            [
                _law(cv), *(_rate(variance, schedule=name, cv=cv) for name in names),
                ratio(over(variance, "hts", "sync", cv=cv)), ratio(over(variance, "hts", "async", cv=cv)),
            ]
            for cv in sorted({row["cv"] for row in variance})
        ]  # fmt: skip
        parts.append(
            "Against the variance of a step's time:\n\n" + markdown(header, lines, right=range(1, len(header)))
        )
    if envs := find(rows, series="envs"):
        names = ("sync", "hts", "async")
        header = ("environments", *(f"{name} steps/s" for name in names), "hts over sync", "hts over async")
        lines = [
            [
                str(n), *(_rate(envs, schedule=name, num_envs=n) for name in names),
                ratio(over(envs, "hts", "sync", num_envs=n)), ratio(over(envs, "hts", "async", num_envs=n)),
            ]
            for n in sorted({row["num_envs"] for row in envs})
        ]  # fmt: skip
        text = "Against the number of environments, exponential step times:\n\n"
        parts.append(text + markdown(header, lines, right=range(len(header))))
    if alphas := find(rows, series="alpha"):
        header = ("alpha", "hts barrier, ms a step", "predicted", "hts, ms a step", "predicted")
        lines = []
        for alpha in sorted({row["alpha"] for row in alphas}):
            cells = [str(alpha)]
            for name in ("hts barrier", "hts"):
                for row in find(alphas, schedule=name, alpha=alpha):
                    cells += [_milliseconds(row, row["steps_per_second"]), _milliseconds(row, predicted(rows, row))]
            lines.append(cells)
        text = "Time of a step of all environments against alpha, exponential step times:\n\n"
        parts.append(text + markdown(header, lines, right=range(len(header))))
    return parts


def _pipeline(samples: Sequence[Row]) -> list[str]:
    """Policy lag, overlap and the learner's idle time, means over the samples."""
    cells = [f"{statistics.mean(s['lag_mean'] for s in samples):.2f}" if "lag_mean" in samples[0] else "-"]
    for name in ("overlap", "learner_idle"):
        cells.append(f"{statistics.mean(s[name] for s in samples):.0%}" if name in samples[0] else "-")
    return cells


def _law(cv: float) -> str:
    return "constant" if cv == 0 else "exponential" if cv == 1 else f"gamma, cv {cv:g}"


def _rate(rows: Sequence[Row], **wanted: Any) -> str:
    found = find(rows, **wanted)
    return quantity(found[0]["steps_per_second"]) if found else "-"


def _milliseconds(row: Row, rate: float | None) -> str:
    return f"{1000 * row['num_envs'] / rate:.2f}" if rate else "-"


def _learning_table(found: dict[str, Any]) -> str:
    """Required time and final time of one environment's runs; for corrections on the axis of steps."""
    slow = ", steps of 1 ms on average in host processes" if found["host"] else ""
    at = f"return at {found['at_seconds']:.3g} s"
    header = ["setting", "seeds", f"seconds to {found['to_return']:g}", f"steps to {found['to_return']:g}"]
    header += [at, f"return at {quantity(found['at_steps'])} steps"]
    names = ("seconds_to_return", "steps_to_return", "return_at_seconds", "return_at_steps")
    if found["series"] == "corrections":
        keep = (0, 1, 3, 5)
        header, names = [header[k] for k in keep], (names[1], names[3])
    lines = [
        [row["setting"], str(len(row["runs"])), *(_estimate(row[name], name) for name in names)]
        for row in found["rows"]
    ]
    text = f"{found['env']}, {found['algo'].upper()}{slow}: interquartile mean over seeds [95% interval]\n\n"
    return text + markdown(header, lines, right=range(1, len(header)))


def _estimate(value: dict[str, Any], name: str) -> str:
    """Interquartile mean and interval of the measure `name`; how many runs are in it when some are not."""

    def number(x: float | None) -> str:
        if x is None:
            return "-" if name.startswith("return") else "never"
        return quantity(x) if name.startswith("steps") else f"{x:.1f}"

    came = sum(v is not None for v in value["values"])
    text = number(value["iqm"])
    if value["iqm"] is not None and value["low"] is not None:
        text += f" [{number(value['low'])}, {number(value['high'])}]"
    return text if came == len(value["values"]) else f"{text}, {came} of {len(value['values'])}"


def draw(rows: Sequence[Row], path: Path) -> None:
    """Four panels: steps per second against environments and variance, the ratios, the time of a step against alpha."""
    from learners.plot import figure

    with figure(path, 2, (5.5, 5.5)) as ((envs, variance), (ratios, alphas)):
        for name, colour in COLOURS.items():
            _line(envs, find(rows, series="envs", schedule=name), "num_envs", colour, name)
            _line(variance, find(rows, series="variance", schedule=name), "cv", colour, name, rows)
            if "hts" in name:
                _line(alphas, find(rows, series="alpha", schedule=name), "alpha", colour, name, rows)
        for panel in (variance, alphas):
            panel.plot([], [], "--", color="0.4", linewidth=1, label="predicted")
        for other, marker in (("sync", "o"), ("async", "s")):
            _ratio_line(ratios, rows, other, marker)
        envs.set(xlabel="environments", ylabel="environment steps/s", title="exponential step times")
        variance.set(xlabel="variance of a step's time / mean²", ylabel="environment steps/s", title="16 environments")
        ratios.set(xlabel="variance of a step's time / mean²", ylabel="times the steps/s of the other", yscale="log")
        ratios.set_yticks([0.5, 1, 2, 4, 8], ["0.5x", "1x", "2x", "4x", "8x"], minor=False)
        ratios.minorticks_off()
        alphas.set(
            xlabel="alpha (steps per horizon)", ylabel="ms per step of all environments", title="what a barrier costs"
        )
        for panel, name in ((envs, "num_envs"), (alphas, "alpha")):
            values = sorted({row[name] for row in find(rows, series="envs" if panel is envs else "alpha")})
            panel.set_xscale("log", base=2)
            panel.set_xticks(values, [str(value) for value in values])
        for panel in (envs, variance, ratios, alphas):
            panel.set_ylim(bottom=None if panel is ratios else 0)
            if panel.get_legend_handles_labels()[1]:
                panel.legend(loc="best", frameon=True, framealpha=0.8, edgecolor="none")


def _x(row: Row, name: str) -> float:
    return row["cv"] ** 2 if name == "cv" else row[name]


def _line(panel: Any, rows: Sequence[Row], name: str, colour: str, label: str, model: Sequence[Row] = ()) -> None:
    """Medians with every sample behind them; what the model says, dashed."""
    if not rows:
        return

    def height(row: Row, rate: float) -> float:
        return 1000 * row["num_envs"] / rate if name == "alpha" else rate

    x = [_x(row, name) for row in rows]
    panel.plot(x, [height(row, row["steps_per_second"]) for row in rows], "o-", color=colour, label=label)
    for row in rows:
        panel.plot([_x(row, name)] * len(row["samples"]), [height(row, s["rate"]) for s in row["samples"]], ".",
                   color=colour, alpha=0.4)  # fmt: skip
    if model:
        panel.plot(x, [height(row, predicted(model, row) or 0.0) for row in rows], "--", color=colour, linewidth=1)


def _ratio_line(panel: Any, rows: Sequence[Row], other: str, marker: str) -> None:
    variance = find(rows, series="variance")
    found = []
    for cv in sorted({row["cv"] for row in variance}):
        pair = [find(variance, schedule=name, cv=cv) for name in ("hts", other)]
        if all(pair):
            above, below = pair[0][0], pair[1][0]
            modelled = (predicted(rows, above) or 0.0) / (predicted(rows, below) or 1.0)
            found.append((cv**2, above["steps_per_second"] / below["steps_per_second"], modelled))
    if found:
        x, measured, modelled = zip(*found)
        panel.plot(x, measured, f"{marker}-", color=COLOURS[other], label=f"hts over {other}")
        panel.plot(x, modelled, "--", color=COLOURS[other], linewidth=1)
    heavy = over(rows, "hts", other, series="heavy")
    if heavy is not None:
        cv = find(rows, series="heavy")[0]["cv"]
        panel.plot([cv**2], [heavy], "*", color=COLOURS[other], markersize=11, label=f"hts over {other}, heavy tail")
