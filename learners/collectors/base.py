"""What every collector that steps a batch environment itself has: the environment, its noise, and where both are."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpuenvs.errors import ConfigError
from learners.collectors import Choice
from learners.collectors.check import Agreement
from learners.collectors.noise import ActionNoise
from learners.collectors.streams import on_torch_stream


class SteppingCollector:
    """An environment that starts at its own seed when the first horizon is collected.

    Apart from the environment, the only state is the global step number and, with correlated noise, the last noise of each
    environment.

    Args:
        env: a `gpuenvs` batch env with same-step autoreset.
        device: where policies act.
        seed, noise_correlation: of the action noise.
        collector: the way to collect that was asked for.
        check: compare the first horizon of whatever is not the eager loop with it; None: on GPUs.

    Raises ConfigError for another autoreset mode.

    Attributes:
        choice: how horizons are collected, and why; None before the first.
        agreement: what the comparison found; None if there was none.
        before: called with the number of a horizon's first step before the horizon begins, if somebody sets it.
    """

    def __init__(
        self,
        env: Any,
        device: str | torch.device,
        seed: int,
        noise_correlation: float,
        collector: str,
        check: bool | None,
    ) -> None:
        if getattr(env, "autoreset", "same_step") != "same_step":
            raise ConfigError(f"learning needs autoreset='same_step'; this env has {env.autoreset!r}")
        self.env = env
        self.device = torch.device(device)
        self.step = 0
        self.choice: Choice | None = None
        self.agreement: Agreement | None = None
        self.before: Callable[[int], None] | None = None
        self._wanted = collector
        self._check = self.device.type == "cuda" if check is None else check
        self._noise = ActionNoise(seed, env.env_offset, noise_correlation, self.device)
        self._started = False

    def start(self) -> None:
        """Reset the env to its seed. `collect` does it when nobody has."""
        with on_torch_stream(self._env_device()):
            self.env.reset(seed=self.env.seed)
        self._started = True

    def _env_device(self) -> torch.device:
        return torch.device(getattr(self.env, "device", "cpu"))

    def _agrees(self, run: Callable[[], None], again: Callable[[], Agreement], tolerance: float) -> bool:
        """Whether the first horizon, made by `run`, is what the eager loop makes of it; `again` compares.

        If not, there is a warning, `choice` becomes eager and the environment is where it was before.
        """
        assert self.choice is not None
        name = self.choice.name
        start = self.env.snapshot(), self._noise.last
        try:
            run()
            after = self.env.snapshot(), self._noise.last
            self._go_to(*start)
            self.agreement = again()
            problem = self.agreement.problem(tolerance)
        except (RuntimeError, ValueError) as error:  # whatever recording, compiling or launching may raise
            problem = " ".join(str(error).split())[:300] or type(error).__name__
        else:
            if problem is None:
                self._go_to(*after)
                return True
        warnings.warn(f"collector {name} is replaced by eager: {problem}", RuntimeWarning, stacklevel=4)
        self.choice = Choice("eager", f"{name} failed: {problem}")
        self._go_to(*start)
        return False

    def _go_to(self, snapshot: dict[str, Any], last_noise: Tensor | None) -> None:
        self.env.restore(snapshot)
        self._noise.last = last_noise

    def state_dict(self) -> dict[str, Any]:
        """Everything the next horizon depends on besides the policy."""
        return {
            "env": self.env.snapshot() if self._started else {},
            "step": self.step,
            "last_noise": self._noise.last,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken, bit for bit."""
        if state["env"]:
            self.env.restore(state["env"])
            self._started = True
        self.step = int(state["step"])
        last: Tensor | None = state["last_noise"]
        self._noise.last = None if last is None else last.to(self.device)

    def close(self) -> None:
        """Nothing runs on by itself."""
