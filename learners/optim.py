"""Adam on one flat parameter vector, with gradient clipping and a mask that can turn a step off on the device."""

from __future__ import annotations

import torch
from torch import Tensor

BETA1, BETA2 = 0.9, 0.999


class FlatAdam:
    """Adam (Kingma and Ba 2015, arXiv 1412.6980, algorithm 1) on the vector `param`, updated in place.

    The whole step stays on the device: whether it happens at all is a tensor, so a KL stop needs no host sync, and a
    gradient that is not finite leaves weights and moments as they were and is counted in `skipped`.
    """

    def __init__(self, param: Tensor, eps: float = 1e-5) -> None:
        self.param = param
        self.eps = eps
        self.m = torch.zeros_like(param)
        self.v = torch.zeros_like(param)
        self.steps = torch.zeros((), dtype=torch.float64, device=param.device)
        self.skipped = torch.zeros((), dtype=torch.float64, device=param.device)

    @torch.no_grad()
    def step(
        self, grad: Tensor, learning_rate: float, max_grad_norm: float = 0.0, active: Tensor | None = None
    ) -> Tensor:
        """One step along `grad`, scaled to at most `max_grad_norm` (0: unlimited) if `active` (0-d bool).

        Returns the norm of the gradient before clipping, (0-d).
        """
        norm = torch.linalg.vector_norm(grad)
        finite = torch.isfinite(norm)
        take = finite if active is None else finite & active
        if max_grad_norm > 0:
            grad = grad * (max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        grad = torch.where(take, grad, 0.0)
        weight = take.to(grad.dtype)
        self.skipped += ~finite if active is None else ~finite & active
        self.steps += take
        self.m.lerp_(grad, (1 - BETA1) * weight)
        self.v.lerp_(grad.square(), (1 - BETA2) * weight)
        steps = self.steps.clamp(min=1)
        step_size = (learning_rate / (1 - BETA1**steps)).to(grad.dtype) * weight
        denominator = (self.v / (1 - BETA2**steps).to(grad.dtype)).sqrt_().add_(self.eps)
        self.param.sub_(step_size * self.m / denominator)
        return norm

    def state_dict(self) -> dict[str, Tensor]:
        """Moments and counters; tensors only."""
        return {name: getattr(self, name).clone() for name in ("m", "v", "steps", "skipped")}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Copy a `state_dict` in. Sizes must agree."""
        for name in ("m", "v", "steps", "skipped"):
            getattr(self, name).copy_(state[name])
