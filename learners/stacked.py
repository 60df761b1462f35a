"""Several MLPs of the same shape as one: their weights lie together, and a batch goes through all of them in one product."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch
from torch import Tensor, nn

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}


class StackedMLP(nn.Module):
    """`count` MLPs: features (B, d), or (count, B, d) for each its own, -> (count, B, outputs).

    Weights (count, out, in) and biases (count, out) of a layer begin uniform in +-1/sqrt(in), PyTorch's own rule for linear
    layers. With `layer_norm` each hidden layer is normalised over its units before the activation (Ba et al. 2016), as in
    BRO, CrossQ's successors and FastTD3 (arXiv 2505.22642).
    """

    def __init__(
        self, count: int, sizes: Iterable[int], activation: str, layer_norm: bool, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.count, self.sizes, self.activation, self.layer_norm = count, tuple(sizes), activation, layer_norm
        self._activate = ACTIVATIONS[activation]
        self.layers = nn.ParameterList()
        last = len(self.sizes) - 2
        for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(self.sizes)):
            bound = fan_in**-0.5
            for shape in ((count, fan_out, fan_in), (count, fan_out)):
                self.layers.append(nn.Parameter((2 * torch.rand(shape, generator=generator) - 1) * bound))
            if layer_norm and layer < last:
                self.layers.append(nn.Parameter(torch.ones(count, fan_out)))
                self.layers.append(nn.Parameter(torch.zeros(count, fan_out)))

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 2:
            x = x.expand(self.count, *x.shape)
        parameters = iter(self.layers)
        last = len(self.sizes) - 2
        for layer in range(last + 1):
            weight, bias = next(parameters), next(parameters)
            x = torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
            if layer == last:
                return x
            if self.layer_norm:
                gain, shift = next(parameters), next(parameters)
                x = torch.nn.functional.layer_norm(x, x.shape[-1:]) * gain.unsqueeze(1) + shift.unsqueeze(1)
            x = self._activate(x)
        raise AssertionError("an MLP has at least one layer")
