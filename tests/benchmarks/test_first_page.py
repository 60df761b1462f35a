"""The timed path of the first page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import first_page
from gpuenvs.errors import ConfigError


def test_it_times_the_commands_of_the_first_page() -> None:
    page = (first_page.ROOT / "docs" / "index.md").read_text()
    for arguments in (first_page.CHECK, first_page.TRAIN):
        assert f"gpurl {' '.join(arguments)}\n" in page
    assert f'title="{first_page.EXAMPLE}"' in page


def test_a_command_is_timed_and_a_failure_is_told(tmp_path: Path) -> None:
    seconds = first_page.timed(("envs", "--json"), tmp_path, tmp_path / "cache")
    assert seconds["cpu"] > 0 and seconds["wall"] > 0
    with pytest.raises(ConfigError, match=r"gpurl check nothing\.py:SPEC: error: no file .*nothing\.py"):
        first_page.timed(("check", "nothing.py:SPEC"), tmp_path, tmp_path / "cache")


def test_the_committed_result_is_of_an_example_that_was_learned() -> None:
    document = json.loads(first_page.RESULTS.read_text())
    assert document["mean_return"] > 150 and document["episodes"] == 100
    assert document["compilation"]["cpu"] < document["train"]["cpu"]
