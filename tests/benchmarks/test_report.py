import json

import pytest

from benchmarks import report


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (453_211_000.0, "453 M"),
        (1_290_000_000.0, "1.29 G"),
        (35_871_290.0, "35.9 M"),
        (0.52, "0.52"),
        (9060, "9.06 k"),
    ],
)
def test_quantity(value, text):
    assert report.quantity(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (341.8, "342x"), (10.0, "10x"), (0.876, "0.88x")])
def test_ratio(value, text):
    assert report.ratio(value) == text


def test_json_lines_hold_one_object_a_line():
    lines = report.json_lines([{"a": 1}, {"b": [2.5, None]}]).splitlines()
    assert [json.loads(line) for line in lines] == [{"a": 1}, {"b": [2.5, None]}]


def test_markdown_aligns_the_columns_asked_for():
    text = report.markdown(("env", "rate"), [["CartPole-v1", "5"]], right=(1,))
    assert text == "| env | rate |\n| --- | ---: |\n| CartPole-v1 | 5 |\n"


def test_summary_is_the_median_and_keeps_the_samples():
    samples = [{"rate": rate, "config": {"num_envs": 4}} for rate in (10.0, 90.0, 20.0)]
    assert report.summarise(samples) == {"rate": 20.0, "samples": [10.0, 90.0, 20.0], "config": {"num_envs": 4}}


def test_one_failed_repeat_is_not_hidden_by_the_others():
    assert report.summarise([{"rate": 1.0, "config": {}}, {"error": "killed"}]) == {"error": "killed"}
