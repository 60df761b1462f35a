"""How every contender is timed: the same warm-up, the same window, the same clock."""

import time
from collections.abc import Callable


class Clock:
    """Times a repeated call for about `seconds` after a warm-up of a fifth of that."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    def rate(self, call: Callable[[], object], units: float, seconds: float | None = None) -> float:
        """Units per second of `call`, which does `units` units of work each time it is called."""
        window = self.seconds if seconds is None else seconds
        per_call = self._loop(call, 1, window / 5)
        # Look at the clock every few milliseconds, so that reading it costs nothing measurable.
        chunk = max(1, int(0.005 / max(per_call, 1e-9)))
        return units / self._loop(call, chunk, window)

    @staticmethod
    def _loop(call: Callable[[], object], chunk: int, seconds: float) -> float:
        """Seconds per call."""
        calls = 0
        start = time.perf_counter()
        while True:
            for _ in range(chunk):
                call()
            calls += chunk
            elapsed = time.perf_counter() - start
            if elapsed >= seconds:
                return elapsed / calls

    def best(self, configs: list[dict], rate_of: Callable[[dict, float], float]) -> tuple[dict, list[dict]]:
        """Measure each configuration briefly; return the fastest and every measurement."""
        tried = [{**config, "rate": rate_of(config, min(self.seconds, 0.3))} for config in configs]
        top = max(tried, key=lambda entry: entry["rate"])
        return {key: value for key, value in top.items() if key != "rate"}, tried
