"""Adam's step on packed vectors, the same for all native engines."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from gpuenvs.scalar import f32
from learners.native.heads import INNER

# What a step takes for zero; it does not notice, since its size is m / (sqrt(v) + eps). The moments of units that no row
# activates any more shrink for ever, and numbers below float32's smallest normal one cost a hundred times as much as others:
# left alone, such units came to take a quarter of an update.
SMALLEST_GRADIENT, SMALLEST_M, SMALLEST_V = f32(1e-16), f32(1e-30), f32(1e-34)


def make_adam(beta1: float, beta2: float, clear: bool = False) -> Any:
    """`adam(weights, grad, m, v, clip, step_size, correction, eps)`: `learners.optim.FlatAdam.step` on packed vectors.

    The gradient counts times `clip`. With `clear` it is zero afterwards.
    """
    m_rate, v_rate = f32(1 - beta1), f32(1 - beta2)

    @numba.njit(**INNER)
    def adam(weights, grad, m, v, clip, step_size, correction, eps):
        for k in range(weights.size):
            g = grad[k] * clip
            g = g if abs(g) >= SMALLEST_GRADIENT else f32(0.0)
            m_k = m[k] + m_rate * (g - m[k])
            v_k = v[k] + v_rate * (g * g - v[k])
            m_k = m_k if abs(m_k) >= SMALLEST_M else f32(0.0)
            v_k = v_k if v_k >= SMALLEST_V else f32(0.0)
            m[k] = m_k
            v[k] = v_k
            weights[k] -= step_size * m_k / (np.sqrt(v_k * correction) + eps)
            if clear:
                grad[k] = f32(0.0)

    return adam
