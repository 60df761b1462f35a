"""The viewer's page: what stands beside the environment. Served on this machine's loopback only."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

HOST = "127.0.0.1"
MOST_POINTS = 600  # of a curve; twice as many are thinned out to these
# Columns of the figures -> titles and units.
CURVES = {
    "return": ("return of the latest episodes", 1.0),
    "eval_return": ("return in evaluation", 1.0),
    "sampling_hz": ("thousand environment steps per second", 1e3),
    "update_frames_hz": ("thousand update frames per second", 1e3),
    "update_to_data": ("update-to-data ratio", 1.0),
    "lag": ("policy lag, updates", 1.0),
}
STEPS = 1e6  # the unit of steps


class Curve:
    """Values over environment steps, thinned out when there are many."""

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []

    def add(self, step: float, value: float) -> bool:
        """Whether there is something new to draw."""
        if not math.isfinite(value) or (self.points and self.points[-1][0] == step):
            return False
        self.points.append((step, value))
        if len(self.points) > 2 * MOST_POINTS:
            self.points = self.points[::2]  # the newest stays: their number is odd
        return True

    @property
    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Steps and values."""
        steps, values = np.array(self.points, np.float64).reshape(-1, 2).T
        return np.ascontiguousarray(steps), np.ascontiguousarray(values)


class Page:
    """A viser server with buttons and curves.

    Args:
        title: of the page.
        port: the first to try; the next free one is taken.
        notify: called by threads of the server's when somebody comes, goes or presses a button.

    Attributes:
        paused, seed: what the buttons have made of them.
    """

    def __init__(self, title: str, port: int, notify: Callable[[], None]) -> None:
        import viser

        self.paused, self.seed = False, 0
        self._notify = notify
        with contextlib.redirect_stdout(io.StringIO()):  # it announces itself
            self.server = viser.ViserServer(host=HOST, port=port, label=title, verbose=False)
        self.server.gui.configure_theme(control_layout="fixed", control_width="medium", show_share_button=False)
        gui = self.server.gui
        self._title = title
        self._status = gui.add_markdown(f"**{title}**\n\nwaiting for weights")
        self._pause, next_seed = gui.add_button("Pause"), gui.add_button("Next seed")
        self._curves = {name: Curve() for name in CURVES}
        self._plots: dict[str, Any] = {}
        self._pause.on_click(lambda _: self._pressed(paused=not self.paused))
        next_seed.on_click(lambda _: self._pressed(seed=self.seed + 1))
        self.server.on_client_connect(lambda _: notify())
        self.server.on_client_disconnect(lambda _: notify())

    def _pressed(self, paused: bool | None = None, seed: int | None = None) -> None:
        self.paused = self.paused if paused is None else paused
        self.seed = self.seed if seed is None else seed
        self._pause.label = "Go on" if self.paused else "Pause"
        self._notify()

    @property
    def port(self) -> int:
        """Where it is served."""
        return self.server.get_port()

    @property
    def url(self) -> str:
        """What a browser of this machine opens."""
        return f"http://{HOST}:{self.port}"

    @property
    def watched(self) -> bool:
        """Whether anybody has the page open."""
        return bool(self.server.get_clients())

    def show_status(self, step: int, version: int, returns: list[float]) -> None:
        """Which weights act, and the returns of the seed's episodes that have ended."""
        last = f"{returns[-1]:.1f}" if returns else "-"
        self._status.content = (
            f"**{self._title}**\n\nweights of step {step:,} (version {version:,})  \nseed {self.seed}, "
            f"episode {len(returns) + 1}, return of the last one {last}"
        )

    def draw(self, figures: Mapping[str, float]) -> None:
        """Add a point to each curve that the figures, a dict with `step`, have a value for."""
        for name, (title, unit) in CURVES.items():
            value = figures.get(name)
            step = figures.get("eval_step", figures["step"]) if name == "eval_return" else figures["step"]
            if value is None or not self._curves[name].add(step / STEPS, value / unit):
                continue
            data = self._curves[name].data
            if name in self._plots:
                self._plots[name].data = data
            elif len(data[0]) > 1:  # a line
                self._plots[name] = self._plot(title, data, 100 + list(CURVES).index(name))

    def _plot(self, title: str, data: tuple[np.ndarray, np.ndarray], order: int) -> Any:
        return self.server.gui.add_uplot(
            data,
            ({"label": "million steps"}, {"label": title, "stroke": "#3f51b5", "width": 2}),
            title=title,
            scales={"x": {"time": False}, "y": {}},
            axes=({"label": "million steps", "labelSize": 16, "labelFont": "11px sans-serif"}, {"size": 56}),
            legend={"show": False},
            aspect=2.2,
            order=order,
        )
