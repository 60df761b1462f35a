"""Who worked when, as an SVG picture: a row per environment and one for the learner, a colour per horizon."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

COLOURS = ("#4477aa", "#ee8866", "#44aa77", "#aa6699", "#bb8822", "#555577")  # of a horizon's number modulo 6
LEFT, WIDTH, ROW, GAP, TOP, BOTTOM = 120, 840, 26, 6, 12, 34
FONT = 'font-family="sans-serif" font-size="12"'


def svg(steps: Sequence[Sequence[Any]], updates: Sequence[Sequence[Any]], num_envs: int, until: float) -> str:
    """The picture from 0 to `until` ms; `steps` and `updates` as `benchmarks.timelines.record` returns them."""
    scale = WIDTH / until
    height = TOP + (num_envs + 1) * (ROW + GAP) + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 16} {height}" {FONT}>',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    names = [*(f"environment {row}" for row in range(num_envs)), "learner"]
    for row, name in enumerate(names):
        y = TOP + row * (ROW + GAP)
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH}" height="{ROW}" fill="#f0f0f0"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 17}" text-anchor="end" fill="#222222">{name}</text>')
    labelled = set()
    for row, horizon, _, begin, end in steps:
        label = "" if (row, horizon) in labelled else str(horizon)
        labelled.add((row, horizon))
        parts += _box(row, horizon, begin, end, until, scale, label)
    for horizon, _, begin, end in updates:
        parts += _box(num_envs, horizon, begin, end, until, scale, str(horizon))
    parts += _axis(height, until, scale)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _box(row: int, horizon: int, begin: float, end: float, until: float, scale: float, label: str) -> list[str]:
    """One stretch of work of one row; the label stands in it where there is room."""
    left, right = LEFT + scale * max(begin, 0.0), LEFT + scale * min(end, until)
    if right <= left:
        return []
    y = TOP + row * (ROW + GAP)
    colour = COLOURS[horizon % len(COLOURS)]
    box = f'<rect x="{left:.1f}" y="{y}" width="{right - left:.1f}" height="{ROW}" fill="{colour}" stroke="#ffffff"/>'
    if not label or right - left < 7 * len(label) + 4:
        return [box]
    return [box, f'<text x="{left + 4:.1f}" y="{y + 17}" fill="#ffffff">{label}</text>']


def _axis(height: int, until: float, scale: float) -> list[str]:
    """Marks every 50 ms, or every 100, 250, ... where that would be more than twelve."""
    every = next(step for step in (10, 25, 50, 100, 250, 500, 1000, 2500, 10**9) if until / step <= 12)
    marks = []
    for moment in range(0, int(until) + 1, every):
        x = LEFT + scale * moment
        marks.append(
            f'<line x1="{x:.1f}" y1="{height - BOTTOM}" x2="{x:.1f}" y2="{height - BOTTOM + 5}" stroke="#222222"/>'
        )
        marks.append(f'<text x="{x:.1f}" y="{height - 14}" text-anchor="middle" fill="#222222">{moment}</text>')
    marks.append(f'<text x="{LEFT - 8}" y="{height - 14}" text-anchor="end" fill="#222222">ms</text>')
    return marks


def compact(document: dict[str, Any], indent: int = 2, sort_keys: bool = False) -> str:
    """JSON with a line per number of the document, but one for each list in a list."""
    lists: list[str] = []

    def mark(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: mark(item) for key, item in value.items()}
        if isinstance(value, list | tuple) and value and isinstance(value[0], list):
            lists.append("[\n" + ",\n".join(json.dumps(item) for item in value) + "]")
            return f"@{len(lists) - 1}@"
        return value

    text = json.dumps(mark(document), indent=indent, sort_keys=sort_keys)
    for number, item in enumerate(lists):
        text = text.replace(f'"@{number}@"', item)
    return text + "\n"
