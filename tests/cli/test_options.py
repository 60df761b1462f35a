import click
import pytest

from cli.options import Count


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5), ("1e6", 1_000_000), ("1_000", 1000), ("2.5e3", 2500), ("500k", 500_000), ("1.5M", 1_500_000),
     ("12345678901234567891", 12345678901234567891), (7, 7)],
)  # fmt: skip
def test_counts(text, value):
    assert Count().convert(text, None, None) == value


@pytest.mark.parametrize("text", ["", "x", "1.5", "nan", "inf", "1e999", "k", "1 2", "0", "-1", "0x10"])
def test_what_is_no_count(text):
    with pytest.raises(click.BadParameter):
        Count().convert(text, None, None)


def test_low():
    assert Count(0).convert("0", None, None) == 0
