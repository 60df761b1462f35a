"""`python -m learners.observers.viewer`: a page on which the current policy acts in its environment.

It plays while somebody looks, at the environment's own speed, and asks for new weights about once a second. While nobody does
it sleeps, as it does while it is paused.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from learners.observers.child import Training, run
from learners.observers.wire import FINISH, WEIGHTS

WEIGHTS_SECONDS = 1.0
MOST_FRAMES = 30.0  # a second
EPISODES = 1_000_000  # of one seed: until the next is asked for
LONGEST = 10_000  # steps of an episode that would not end
FIGURES = "figures"  # kind of the messages with points for the curves
PAGE = "page"  # kind of those that say that somebody came, went or pressed a button


class Player:
    """Plays episodes of a run's environment with a policy and has a stage show them.

    Attributes:
        returns: of this seed's episodes so far.
        frame_seconds: from one frame to the next, in the environment's time.
    """

    def __init__(self, server: Any, policy: Any, config: Any) -> None:
        from learners.envs import evaluation_env, spec_of

        self._server, self._policy, self._config = server, policy, config
        self._host = config.env_backend == "host"
        self._open = contextlib.ExitStack()
        self._stage: Any = None
        self.returns: list[float] = []
        self.frame_seconds = 1.0 / MOST_FRAMES
        self._steps = 1
        if self._host:
            self._spec, self._params = spec_of(config), {}
        else:
            spec, params = evaluation_env(config)
            self._spec, self._params = spec.with_options(params)

    def begin(self, seed: int) -> None:
        """From now on the episodes of this seed."""
        self._open.close()
        self.returns = []
        self._moments = self._play_host(seed) if self._host else self._play(seed)

    def frame(self) -> None:
        """Go on to the next moment that is shown."""
        for _ in range(self._steps - 1):
            next(self._moments)
        self._stage.show(next(self._moments))

    def _play(self, seed: int) -> Iterator[Any]:
        from learners.observers import stage
        from learners.video import drawing, states

        spec, policy = self._spec, self._policy
        if self._stage is None:
            if spec.traced:
                self._set(stage.Bodies(self._server, spec))
            elif spec.reference is None:
                self._set(stage.Numbers(self._server, MOST_FRAMES))
        found = states(
            policy, spec, EPISODES, LONGEST, seed, True, "cpu", self._config.dtype, self._params, self.returns
        )
        self._open.enter_context(contextlib.closing(found))
        if spec.traced or spec.reference is None:
            return found
        draw, rate = self._open.enter_context(drawing(spec))
        if self._stage is None:
            self._set(stage.Pictures(self._server, rate))
        return (draw(state) for state in found)

    def _play_host(self, seed: int) -> Iterator[Any]:
        from learners.host_episodes import film_host
        from learners.observers.stage import Pictures

        film = film_host(self._policy, self._spec, EPISODES, LONGEST, seed, True, self.returns)
        pictures, rate = self._open.enter_context(film)
        if self._stage is None:
            self._set(Pictures(self._server, rate))
        return pictures

    def _set(self, stage: Any) -> None:
        self._stage = stage
        self._steps = max(1, round(stage.frames_per_second / MOST_FRAMES))
        self.frame_seconds = self._steps / stage.frames_per_second

    def close(self) -> None:
        """End the episode and what draws it."""
        self._open.close()


def view(training: Training) -> None:
    """The viewer's job; the plan holds `run`, a run's folder, and `port`."""
    import torch
    from safetensors.torch import load

    from learners.build import RunConfig, policy_for
    from learners.envs import env_name
    from learners.observers.page import Page
    from learners.runs import RunDirectory

    torch.set_num_threads(1)
    config = RunConfig.from_dict(RunDirectory(Path(training.plan["run"])).read_config())
    policy = policy_for(config)
    page = Page(f"{env_name(config)} {config.algo}", training.plan["port"], lambda: training.post(PAGE))
    training.send({"page": page.url, "port": page.port})
    training.ask()
    seed, asked, due = page.seed, True, time.monotonic()
    weights: dict[str, Any] = {}
    with contextlib.closing(Player(page.server, policy, config)) as player:
        while True:
            playing = bool(weights) and page.watched and not page.paused
            order = training.next(max(0.0, due - time.monotonic()) if playing else None)
            kind = order[0]["kind"] if order else None
            if kind == FINISH:
                return
            if order and kind == FIGURES:
                page.draw(order[0])
            if order and kind == WEIGHTS:
                policy.load_state_dict(load(order[1]))
                if not weights:
                    player.begin(seed)
                weights, asked, ask_at = order[0], False, time.monotonic() + WEIGHTS_SECONDS
            pressed = bool(weights) and page.seed != seed
            if pressed:  # shown also while paused
                seed = page.seed
                player.begin(seed)
            if pressed or order is None:
                player.frame()
                page.show_status(weights["step"], weights["version"], player.returns)
                due = max(due + player.frame_seconds, time.monotonic())  # what is late is not caught up
            if playing and not asked and time.monotonic() >= ask_at:
                training.ask()
                asked = True


if __name__ == "__main__":
    run(view)
