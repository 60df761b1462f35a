"""A small MLP policy on traced values: the arithmetic of `gpuenvs.runtime.cuda_policy`, for programs of traced environments.

Weights lie in a block's shared memory in the order of `cuda_policy.Staging`; `weight(index)` reads one of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from gpuenvs import trace as T
from gpuenvs.runtime import cuda_policy
from gpuenvs.runtime.cuda_policy import Mlp, Staging
from gpuenvs.trace.graph import Value, as_value, convert
from gpuenvs.trace.random import philox4x32

Weight = Callable[[Any], Value]

_TANH_P = tuple(float(getattr(cuda_policy, f"_P{k}")) for k in range(7))
_TANH_Q = tuple(float(getattr(cuda_policy, f"_Q{k}")) for k in range(4))


def _polynomial(x: Any, coefficients: tuple[float, ...]) -> Any:
    value: Any = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        value = coefficient + x * value
    return value


def _tanh(x: Any) -> Any:
    bound = float(cuda_policy._BOUND)
    x = T.clip(x, -bound, bound)
    square = x * x
    return x * _polynomial(square, _TANH_P) / _polynomial(square, _TANH_Q)


def _relu(x: Any) -> Any:
    return T.where(x > 0.0, x, 0.0)


def forward(mlp: Mlp, weight: Weight, obs: list[Any], clip: Any) -> list[Any]:
    """The outputs of the network for a raw observation."""
    s, layers = Staging(mlp), list(itertools.pairwise(mlp.sizes))
    activation = _tanh if mlp.activation == "tanh" else _relu
    features = [T.clip((x - weight(s.shift + k)) * weight(s.scale + k), -clip, clip) for k, x in enumerate(obs)]
    values = [weight(s.bias[0] + j) for j in range(layers[0][1])]
    if len(obs) > cuda_policy.UNROLLED_INPUTS:
        memory = T.Array(len(obs))
        for k, x in enumerate(features):
            memory.store(k, x)

        def add(k: Any, *sums: Any) -> list[Any]:
            x = memory.load(k)
            return [total + weight(k * s.stride[0] + (s.weight[0] + j)) * x for j, total in enumerate(sums)]

        values = T.loop(len(obs), add, values)
    else:
        for k, x in enumerate(features):
            values = [v + weight(s.weight[0] + k * s.stride[0] + j) * x for j, v in enumerate(values)]
    values = [activation(v) for v in values]
    layer = 1
    while layer < len(layers):
        if layer == len(layers) - 1:
            return _direct(s, layer, layers[layer], weight, values)
        values = _streamed(s, layer, layers[layer], layers[layer + 1][1], weight, values, activation)
        if layer + 1 < len(layers) - 1:
            values = [activation(v) for v in values]
        layer += 2
    return values


def _direct(s: Staging, layer: int, sizes: tuple[int, int], weight: Weight, values: list[Any]) -> list[Any]:
    outputs = []
    for k in range(sizes[1]):
        total: Any = weight(s.bias[layer] + k)
        for j, v in enumerate(values):
            total = total + weight(s.weight[layer] + k * s.stride[layer] + j) * v
        outputs.append(total)
    return outputs


def _streamed(
    s: Staging, layer: int, sizes: tuple[int, int], spread_over: int, weight: Weight, values: list[Any], activation: Any
) -> list[Any]:
    def neuron(j: Any, *sums: Any) -> list[Any]:
        row = j * s.stride[layer]
        even: Any = weight(j + s.bias[layer])
        odd: Any = 0.0
        for k, v in enumerate(values):
            product = weight(row + (s.weight[layer] + k)) * v
            even, odd = (even, odd + product) if k % 2 else (even + product, odd)
        y = activation(even + odd)
        row = j * s.stride[layer + 1]
        return [total + weight(row + (s.weight[layer + 1] + k)) * y for k, total in enumerate(sums)]

    return T.loop(sizes[1], neuron, [weight(s.bias[layer + 1] + k) for k in range(spread_over)])


# --- noise -----------------------------------------------------------------------------------------------------------


def step_words(low: Any, high: Any, t: Any) -> tuple[Any, Any]:
    """See `gpuenvs.rng.step_words`."""
    now = low + convert(t, "u32")
    return now, T.where(now < low, high + 1, high)


def noise(mlp: Mlp, env: Any, key: tuple[Any, Any], now: tuple[Any, Any], plane: Any) -> list[Any]:
    """One number for each output: `gpuenvs.rng.fill_normal` or `fill_gumbel`."""
    numbers: list[Any] = []
    for block in range(-(-mlp.outputs // 4)):
        counter = (env, now[0], (now[1] << 16) | block if block else now[1] << 16)
        if mlp.continuous:
            u = philox4x32(*counter, plane + 2, *key)
            v = philox4x32(*counter, plane + 3, *key)
            numbers += [_box_muller(a, b) for a, b in zip(u, v, strict=True)]
        else:
            numbers += [_gumbel(word) for word in philox4x32(*counter, plane + 6, *key)]
    return numbers[: mlp.outputs]


def _box_muller(first: Any, second: Any) -> Any:
    u = convert(first, "real") * 2.0**-32 + 2.0**-33
    v = convert(second >> 8, "real") * 2.0**-24
    return T.sqrt(T.log(u) * -2.0) * T.cos(v * 6.283185307179586)


def _gumbel(word: Any) -> Any:
    return -T.log(-T.log((convert(word >> 9, "real") + 0.5) * 2.0**-23))


def sample(mlp: Mlp, weight: Weight, outputs: list[Any], numbers: list[Any]) -> tuple[list[Any], Any]:
    """(actions, log-prob): one i32 action of discrete ones."""
    if mlp.continuous:
        s, actions, log_prob = Staging(mlp), [], as_value(0.0, "real")
        for k, (mean, number) in enumerate(zip(outputs, numbers, strict=True)):
            log_std = weight(s.log_std + k)
            action = mean + T.exp(log_std) * number
            u = (action - mean) * T.exp(-log_std)
            log_prob = log_prob + (u * u * -0.5 - log_std - 0.5 * math.log(2 * math.pi))
            actions.append(action)
        return actions, log_prob
    chosen: Any = as_value(0, "i32")
    best, top, mine = outputs[0] + numbers[0], outputs[0], outputs[0]
    for k in range(1, mlp.outputs):
        score = outputs[k] + numbers[k]
        better = score > best
        chosen = T.where(better, as_value(k, "i32"), chosen)
        mine, best = T.where(better, outputs[k], mine), T.where(better, score, best)
        top = T.maximum(outputs[k], top)
    total: Any = 0.0
    for z in outputs:
        total = total + T.exp(z - top)
    return [chosen], mine - (top + T.log(total))
