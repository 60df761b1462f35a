"""The update-to-data ratio: two accounts, and whoever is ahead waits.

"Frames" are the rows that critic updates learned from, batch size times updates; the ratio is frames per environment step
(256 for one update of 256 rows per step). The learner never learns more than the data there is allows, the sampler never
leaves it more to do than one horizon is worth. What is owed is kept, not time: after a pause or a resume both go on where
they were, and nothing is caught up in a burst.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

WINDOW_SECONDS = 10.0


class Ratio:
    """Frames per environment step, held at `target`. Not thread-safe: the schedule holds a lock.

    Args:
        target: frames per step; 0 lets both run free.
        rows: environment steps of a horizon.
        batch: frames of an update.
        clock: seconds.

    Attributes:
        steps, frames: what was collected and learned since learning began.
    """

    def __init__(self, target: float, rows: int, batch: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.target, self.rows, self.batch = float(target), rows, batch
        self.steps = self.frames = 0
        self._clock = clock
        self._seen: deque[tuple[float, int, int]] = deque()

    @property
    def owed(self) -> float:
        """Frames that the data there is calls for and that were not learned yet."""
        return self.target * self.steps - self.frames

    @property
    def updates_owed(self) -> int:
        """Whole updates in `owed`."""
        return max(0, int(self.owed // self.batch))

    def may_learn(self) -> bool:
        """Whether the next update keeps within the data there is."""
        return self.steps > 0 and (not self.target or self.owed >= self.batch)

    def may_collect(self) -> bool:
        """Whether the learner is near enough behind for another horizon."""
        return not self.target or self.owed <= max(self.target * self.rows, self.batch)

    def collected(self, steps: int) -> None:
        """So many environment steps may be learned from now."""
        self.steps += steps

    def learned(self, updates: int = 1) -> None:
        """So many updates were made."""
        self.frames += updates * self.batch

    def measured(self) -> dict[str, float]:
        """Rates since an earlier call, some `WINDOW_SECONDS` ago (or as long as there is): `sampling_hz`, `update_frames_hz`
        and their quotient `update_to_data`. Empty at the first call."""
        now = self._clock()
        self._seen.append((now, self.steps, self.frames))
        while len(self._seen) > 2 and self._seen[1][0] <= now - WINDOW_SECONDS:
            self._seen.popleft()
        then, steps, frames = self._seen[0]
        if now <= then:
            return {}
        steps, frames = self.steps - steps, self.frames - frames
        found = {"sampling_hz": steps / (now - then), "update_frames_hz": frames / (now - then)}
        return found | ({"update_to_data": frames / steps} if steps else {})

    def state_dict(self) -> dict[str, Any]:
        """Both accounts."""
        return {"steps": self.steps, "frames": self.frames}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the accounts of a `state_dict`; rates are measured anew."""
        self.steps, self.frames = int(state["steps"]), int(state["frames"])
        self._seen.clear()
