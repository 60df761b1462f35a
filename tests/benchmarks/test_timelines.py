"""Recorded timelines: what is written down is what happened, and the pictures in docs/ are of the committed recording."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

from benchmarks import timeline_picture, timelines


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short horizons, few of them."""
    for name, value in {"MEAN_STEP": 0.002, "WARM_UP": 2, "MEASURED": 4, "SHOWN": 4}.items():
        monkeypatch.setattr(timelines, name, value)
    monkeypatch.setattr(timelines, "SETTINGS", {**timelines.SETTINGS, "epochs": 1, "hidden_sizes": (8,)})


def _recorded(schedule: str) -> dict[str, Any]:
    recorded = timelines.record(schedule)
    assert 0 < recorded["environments_busy"] <= 1 and 0 < recorded["learner_busy"] <= 1
    assert [update[0] for update in recorded["updates"]][-4:] == [2, 3, 4, 5]
    for row in range(timelines.NUM_ENVS):
        own = [step for step in recorded["steps"] if step[0] == row]
        assert all(before[4] <= after[3] for before, after in itertools.pairwise(own)), "one step at a time"
        assert [step[1] for step in own] == sorted(step[1] for step in own)
    return recorded


def _require_whole_horizons(recorded: dict[str, Any]) -> None:
    for number in (3, 4):
        assert sum(step[1] == number for step in recorded["steps"]) == timelines.NUM_ENVS * timelines.NUM_STEPS


def test_sync_never_steps_while_it_learns() -> None:
    recorded = _recorded("sync")
    _require_whole_horizons(recorded)
    assert recorded["lag"] == 0
    for horizon, weights, begin, end in recorded["updates"]:
        assert all(step[4] <= begin or step[3] >= end for step in recorded["steps"])
        assert {step[2] for step in recorded["steps"] if step[1] == horizon} <= {weights}


def test_hts_rows_are_one_update_old() -> None:
    recorded = _recorded("hts")
    _require_whole_horizons(recorded)
    assert recorded["lag"] == 1
    for horizon, weights, *_ in recorded["updates"]:
        assert {step[2] for step in recorded["steps"] if step[1] == horizon} <= {weights - 1}


def test_async_rows_carry_the_weights_that_acted() -> None:
    recorded = _recorded("async")
    assert recorded["lag"] >= 0
    for horizon, weights, *_ in recorded["updates"]:
        assert all(step[2] <= weights for step in recorded["steps"] if step[1] == horizon)


def test_the_pictures_are_of_the_committed_recording() -> None:
    document = json.loads(timelines.RESULTS.read_text())
    assert set(document["schedules"]) == set(timelines.SCHEDULES)
    for file, text in timelines.draw(document).items():
        assert file.read_text() == text, f"{file.name}: run python -m benchmarks.timelines --draw"


def test_a_picture_has_its_boxes_where_the_work_was() -> None:
    steps = [[0, 2, 2, 10.0, 30.0], [0, 2, 2, 40.0, 400.0], [1, 2, 2, -5.0, 5.0]]
    updates = [[1, 2, 60.0, 80.0]]
    text = timeline_picture.svg(steps, updates, 2, 100.0)
    boxes = [
        (float(x), float(y), float(width), colour)
        for x, y, width, colour in re.findall(
            r'<rect x="([\d.]+)" y="(\d+)" width="([\d.]+)" .*? fill="(#\w+)" stroke', text
        )
    ]
    left, unit = timeline_picture.LEFT, timeline_picture.WIDTH / 100
    blue, orange = timeline_picture.COLOURS[2], timeline_picture.COLOURS[1]
    assert [box[0] for box in boxes] == pytest.approx(
        [left + 10 * unit, left + 40 * unit, left, left + 60 * unit], abs=0.1
    )
    assert [box[2] for box in boxes] == pytest.approx([20 * unit, 60 * unit, 5 * unit, 20 * unit], abs=0.1)
    assert [box[3] for box in boxes] == [blue, blue, blue, orange]
    assert boxes[0][1] == boxes[1][1] < boxes[2][1] < boxes[3][1]
    assert re.findall(r">(\d+)</text>", text)[:3] == ["2", "2", "1"]  # a horizon's number once per row


def test_a_recording_survives_being_written() -> None:
    document = {"a": {"b": [[1, 2.5], [3, 4]]}, "c": [1, 2], "d": []}
    assert json.loads(timeline_picture.compact(document)) == document
