"""Tables and consoles. Output that is piped somewhere is plain: no colours, no cut cells."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def console(stderr: bool = False) -> Console:
    """A rich console on stdout or stderr, wide enough for whole rows when it is no terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 160
    return Console(file=stream, width=width, highlight=False, soft_wrap=False)


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> None:
    """A table on stdout; the columns numbered in `right` are aligned to the right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table)
