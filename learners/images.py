"""Images as observations: which spaces are images, and the convolutional encoders that read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gpuenvs.errors import ConfigError

# (channels, kernel, stride) of each convolution. Mnih et al. 2015 ("Human-level control through deep reinforcement
# learning", Nature 518, methods), made for 84 x 84 pixels, and the one of Young and Tian 2019 ("MinAtar", arXiv
# 1903.03176) for pictures too small for it.
Layers = tuple[tuple[int, int, int], ...]
NATURE: Layers = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
SMALL: Layers = ((16, 3, 1),)
ENCODERS = (NATURE, SMALL)


def is_image(observation_space: Any) -> bool:
    """Whether observations are images: three-dimensional uint8 arrays, channels first."""
    kind, shape = type(observation_space).__name__, getattr(observation_space, "shape", None) or ()
    return kind == "Box" and len(shape) == 3 and observation_space.dtype == np.uint8


def layers_for(shape: tuple[int, ...]) -> Layers:
    """The first encoder whose every convolution has a pixel left to put out for images (C, H, W).

    Raises:
        ConfigError: the image is too small for any.
    """
    for layers in ENCODERS:
        if min(sides(shape, layers)[-1]) >= 1:
            return layers
    raise ConfigError(
        f"images of shape {shape} are too small: they must be (channels, height, width), at least 3 x 3 pixels"
    )


def sides(shape: tuple[int, ...], layers: Layers) -> list[tuple[int, int]]:
    """Height and width after each convolution of an image (C, H, W); below 1 where it does not fit."""
    found = []
    height, width = shape[1:]
    for _, kernel, stride in layers:
        height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        found.append((height, width))
    return found


class Encoder(nn.Sequential):
    """Convolutions with rectifiers between and after them, flattened: (N, C, H, W) floats -> (N, size).

    Orthogonal weights with gain sqrt(2) and zero biases from `generator`, as in OpenAI's baselines (a2c/utils.py).
    """

    def __init__(self, shape: tuple[int, ...], generator: torch.Generator) -> None:
        layers = layers_for(shape)
        modules: list[nn.Module] = []
        channels = shape[0]
        for filters, kernel, stride in layers:
            layer = nn.Conv2d(channels, filters, kernel, stride)
            nn.init.orthogonal_(layer.weight, 2**0.5, generator=generator)
            nn.init.zeros_(layer.bias)  # pyright: ignore[reportArgumentType]
            modules += [layer, nn.ReLU()]
            channels = filters
        super().__init__(*modules, nn.Flatten())
        height, width = sides(shape, layers)[-1]
        self.size = channels * height * width


def encoder_sizes(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(weights, numbers put out by all layers together, numbers put out by the last) of the encoder for (C, H, W)."""
    weights = activations = last = 0
    channels = shape[0]
    layers = layers_for(shape)
    for (filters, kernel, _), (height, width) in zip(layers, sides(shape, layers), strict=True):
        weights += filters * (channels * kernel * kernel + 1)
        last = filters * height * width
        activations += last
        channels = filters
    return weights, activations, last


def in_chunks(function: Callable[[Tensor], Tensor], rows: Tensor, size: int) -> Tensor:
    """`function(rows)`, a (N, ...) tensor, computed from `size` rows at a time."""
    return torch.cat([function(part) for part in rows.split(size)])


def repeatable_convolutions() -> None:
    """cuDNN's convolutions in full float32, and the same bits in every run: by default it may take neither."""
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
