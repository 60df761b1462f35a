"""torch.compile for the losses of off-policy learners, checked once against PyTorch's own operations."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

COMPILE = ("off", "on", "graphs")
MODES = {"on": "default", "graphs": "reduce-overhead"}
TOLERANCE = 1e-3  # of a gradient's norm: sums in another order differ by a hundredth of that
_ONE_AT_A_TIME = threading.Lock()  # two halves of an update may meet their first batch at the same moment


def module_gradient(loss: Tensor, module: nn.Module) -> Tensor:
    """d loss / d all parameters of `module`, in the order of its flat buffer."""
    return torch.cat([grad.reshape(-1) for grad in torch.autograd.grad(loss, list(module.parameters()))])


class Loss:
    """`function(*args) -> (loss, figures)` of `module`'s parameters, and the loss's gradient, compiled if wanted.

    The first batch goes through both the compiled function and the plain one. Where compiling fails, or loss or gradient
    differ, there is one warning and the plain function stays.

    Args:
        function: returns a 0-d loss and a tensor that is detached from it or is no longer needed for its gradient.
        module: whose parameters the gradient is for.
        compile: `off`, `on`, or `graphs`: recorded as CUDA graphs, where the device is one.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, Tensor]], module: nn.Module, compile: str = "off") -> None:
        self.function, self.module = function, module
        self.graphs = compile == "graphs"
        self.compiled: Any = None if compile == "off" else torch.compile(function, mode=MODES[compile], dynamic=False)
        self._checked = False

    def __call__(self, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
        """(loss, figures, gradient), none of which a later call overwrites."""
        if self.compiled is None:
            return self._run(self.function, args)
        if not self._checked:
            with _ONE_AT_A_TIME:
                return self._first(args)
        return self._run(self.compiled, args)

    def _first(self, args: tuple[Any, ...]) -> tuple[Tensor, Tensor, Tensor]:
        self._checked = True
        expected = self._run(self.function, args)
        problem = None
        try:
            found = self._run(self.compiled, args)
            for name, mine, other in (("loss", found[0], expected[0]), ("gradient", found[2], expected[2])):
                # Not a number is a difference as well.
                if not bool(torch.dist(mine, other) <= TOLERANCE * torch.linalg.vector_norm(other) + 1e-7):
                    problem = f"its {name} is another one"
        except Exception as error:  # a compiler of the machine can fail in any way
            problem = (str(error).strip() or type(error).__name__).splitlines()[0]
        if problem is not None:
            self.compiled = None
            warnings.warn(f"torch.compile is left out: {problem}", RuntimeWarning, stacklevel=4)
        return expected

    def _run(self, function: Any, args: tuple[Any, ...]) -> tuple[Tensor, Tensor, Tensor]:
        if self.graphs and function is not self.function:
            torch.compiler.cudagraph_mark_step_begin()
        loss, figures = function(*args)
        gradient = module_gradient(loss, self.module)
        # A graph's outputs are memory that its next run writes to.
        return loss.detach().clone(), figures.detach().clone(), gradient
