"""The happens-before checker: vector clocks over the host and all streams, and every access to every buffer.

Work of one actor (the host, or a stream) is in order. Giving work to a stream orders it after what the host did before;
waiting for an event orders a stream after everything the event stood for. Nothing else orders anything: two accesses of one
byte, one of them a write, that no chain of these connects are a race, however the recording run happened to interleave them.

The clock of an actor says, for each actor, how much of its work is known to be over. (Lamport 1978; Mattern 1989.)
"""

from __future__ import annotations

from dataclasses import dataclass, field

Actor = str
HOST: Actor = "host"


@dataclass(frozen=True)
class Access:
    """One actor touched bytes lo..hi of a buffer; `tick` counts its work."""

    actor: Actor
    tick: int
    lo: int
    hi: int
    write: bool
    what: str

    def __str__(self) -> str:
        return f"{self.what} on {self.actor} {'writes' if self.write else 'reads'} {self.lo}..{self.hi}"


@dataclass
class Buffer:
    """Memory of one device (`None`: of the host), given out to `owner`'s allocations."""

    name: str
    device: int | None
    pinned: bool = False
    owner: Actor = HOST
    accesses: list[Access] = field(default_factory=list)


@dataclass
class Moment:
    """What an event stands for: the clock of a stream when it was recorded."""

    clock: dict[Actor, int] = field(default_factory=dict)


class Checker:
    """Attributes: `violations`, one line for each access that nothing orders or that the device cannot make."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self._clocks: dict[Actor, dict[Actor, int]] = {HOST: {HOST: 0}}

    def clock(self, actor: Actor) -> dict[Actor, int]:
        return self._clocks.setdefault(actor, {actor: 0})

    def begin(self, actor: Actor) -> None:
        """The host gives the next piece of work to `actor`, or does it itself."""
        clock = self.clock(actor)
        if actor != HOST:
            _join(clock, self._clocks[HOST])
        clock[actor] += 1

    def access(self, actor: Actor, buffer: Buffer, lo: int, hi: int, write: bool, what: str) -> None:
        """The piece of work that `actor` began last touches bytes lo..hi."""
        clock = self.clock(actor)
        new = Access(actor, clock[actor], lo, hi, write, what)
        kept = []
        for old in buffer.accesses:
            ordered = clock.get(old.actor, 0) >= old.tick
            apart = old.hi <= lo or hi <= old.lo
            if not (ordered or apart) and (write or old.write):
                self.violations.append(f"race in {buffer.name}: {new}; {old}; nothing orders the two")
            covered = lo <= old.lo and old.hi <= hi
            # Whoever is ordered after the new access is ordered after what it covers and follows.
            if not (ordered and covered and (write or (old.actor == actor and not old.write))):
                kept.append(old)
        buffer.accesses = [*kept, new]

    def free(self, buffer: Buffer) -> None:
        """The memory goes back to its owner's pool, which may hand it to the owner's next piece of work."""
        known = dict(self.clock(buffer.owner))
        if buffer.owner != HOST:
            _join(known, self._clocks[HOST])
        for old in buffer.accesses:
            if known.get(old.actor, 0) < old.tick:
                self.violations.append(f"{buffer.name} is freed for {buffer.owner} while {old} may be under way")
        buffer.accesses = []

    def record(self, moment: Moment, stream: Actor) -> None:
        moment.clock = dict(self.clock(stream))

    def wait(self, stream: Actor, moment: Moment) -> None:
        """Later work of the stream, or of the host, comes after the moment."""
        _join(self.clock(stream), moment.clock)

    def refuse(self, problem: str) -> None:
        self.violations.append(problem)


def _join(clock: dict[Actor, int], other: dict[Actor, int]) -> None:
    for actor, tick in other.items():
        if tick > clock.get(actor, 0):
            clock[actor] = tick
