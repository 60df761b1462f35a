"""Which values and statements of a recorded program are needed: what a `put` (a store to an env's arrays) depends on."""

from __future__ import annotations

from gpuenvs.trace.graph import Branch, Loop, Program, Region, Value

_EFFECTS = ("put", "count")


def statements(region: Region) -> list[Value]:
    """Every item of a region and of the bodies inside it."""
    found = []
    for item in region.items:
        found.append(item)
        if item.op in ("loop", "do_while", "if"):
            found += statements(item.attr.region)
    return found


class Liveness:
    """The ids of needed values; `loop_slots` and `branch_slots` hold the needed carried values of each statement.

    Args:
        program: a finished recording.
    """

    def __init__(self, program: Program) -> None:
        self.ids: set[int] = set()
        self.slots: dict[int, set[int]] = {}  # statement id -> numbers of its needed values
        self._stores: dict[int, list[Value]] = {}
        self._work: list[Value] = []
        for item in statements(program.root):
            if item.op == "store":
                self._stores.setdefault(item.attr, []).append(item)
            if item.op in _EFFECTS:
                self._need(item)
        while self._work:
            self._follow(self._work.pop())

    def __contains__(self, value: Value) -> bool:
        return value.id in self.ids

    def _need(self, value: Value) -> None:
        if value.id not in self.ids:
            self.ids.add(value.id)
            self._work.append(value)

    def _need_slot(self, owner: Value, k: int) -> None:
        slots = self.slots.setdefault(owner.id, set())
        if k in slots:
            return
        slots.add(k)
        body = owner.attr
        pairs = (body.yes, body.no) if isinstance(body, Branch) else (body.initial, body.next)
        for values in pairs:
            self._need(values[k])

    def _follow(self, value: Value) -> None:
        for argument in value.args:
            self._need(argument)
        region: Region | None = value.region
        if region is not None and region.owner is not None:
            self._need(region.owner)
        if value.op == "result":
            self._need_slot(value.args[0], value.attr)
        elif value.op == "carried":
            body, k = value.attr
            self._need_slot(body.region.owner, k)
        elif value.op == "load":
            for store in self._stores.get(value.attr, ()):
                self._need(store)
        elif value.op == "do_while":
            body = value.attr
            assert isinstance(body, Loop) and body.again is not None
            self._need(body.again)
